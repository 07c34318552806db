"""Random programs of operators that move entries, mix axes and take sums back: proved, then run.

Where the table proves one, each of its tensors on a batch is compared with that of each record
alone. Axes are as long as the batch, so that one taken for another has the right shape.
"""

import logging
import random

import pytest
import torch

from apiece.training.clipping import proof, table
from apiece.training.clipping.table import Unproved

from .test_table import B, aten, check

PROGRAMS = 240
CHUNK = 60


def waves(x, _w, chance, first, second):
    if chance.random() < 0.3:
        return torch.fft.irfft(torch.fft.rfft(x, dim=first), n=B, dim=first)
    dims = {first % 3, second % 3}
    return torch.fft.fftn(x + 0j, dim=sorted(dims)).imag


def turned(x, _w, _chance, _first, _second):
    pairs = torch.view_as_complex(x.unsqueeze(3).expand(*x.shape, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(x.abs(), x)).sum(3)


def diagonal(x, _w, _chance, first, second):
    if first % 3 == second % 3:
        return x
    return aten.diagonal_scatter(x, x.diagonal(0, first, second).cos(), 0, first, second)


def copied(x, w, _chance, _first, _second):
    return torch.ones_like(x).copy_(w) * x


def summed_back(x, w, chance, first, _second):
    total = x.sum(first)
    output = w.tanh() if chance.random() < 0.6 else total
    return aten.tanh_backward(total, output).expand(B, B, B) * w


def beside_zeros(x, _w, chance, first, _second):
    total = x.sum(first, keepdim=True)
    if chance.random() < 0.5:
        return torch.cat([total, torch.zeros_like(total), total, total], first)
    half = x.narrow(first, 0, B // 2)
    return torch.cat([half, torch.zeros_like(half)], first)


def pooled_back(x, _w, chance, _first, _second):
    gradient = x.mean((1, 2), keepdim=True)
    if chance.random() < 0.5:
        gradient = x.sum(0, keepdim=True).mean((1, 2), keepdim=True)
    return aten._adaptive_avg_pool2d_backward(gradient, x)


def numbered(x, _w, chance, _first, _second):
    numbers = torch.arange(x.shape[0]) * chance.choice([1, 2])
    return x * numbers.view([-1, 1, 1])


def moved(x, w, _chance, first, second):
    return x.movedim(first, second) + w


STEPS = (waves, turned, diagonal, copied, summed_back, beside_zeros, pooled_back, numbered,
         moved, moved)  # fmt: skip


def program_of(seed):
    def run(x, w):
        chance = random.Random(seed)
        for _ in range(chance.randrange(1, 5)):
            first, second = chance.randrange(-3, 3), chance.randrange(-3, 3)
            x = chance.choice(STEPS)(x, w, chance, first, second)
        return x

    return run


def proved_and_compared(seeds):
    """Return how many programs are proved; each of these is compared, record by record."""
    count = 0
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    for seed in seeds:
        torch.manual_seed(seed)
        try:
            check(program_of(seed), [torch.randn(B, B, B)], [torch.randn(B, B)])
            count += 1
        except (Unproved, RuntimeError, IndexError):  # or of shapes that do not fit
            continue
    return count


@pytest.mark.parametrize("start", range(0, PROGRAMS, CHUNK))
def test_what_is_proved_holds_of_each_record(start):
    assert proved_and_compared(range(start, start + CHUNK)) > CHUNK // 6


def test_a_rule_that_mixes_frequencies_is_found(monkeypatch):
    monkeypatch.setitem(table.RULES, "_fft_c2c", lambda call: call.of(call.argument("self")))
    with pytest.raises(AssertionError):
        proved_and_compared(range(PROGRAMS))


def test_a_backward_through_a_sum_is_found(monkeypatch):
    monkeypatch.setattr(proof, "_is_linear_backward", lambda call: "tanh_back" in call.name)
    with pytest.raises(AssertionError):
        proved_and_compared(range(PROGRAMS))
