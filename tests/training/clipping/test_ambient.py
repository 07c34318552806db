"""Torch's generators are put back after a trial, and seeded for a step."""

import contextlib
import math

import pytest
import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping.ambient import model_randomness, read_states, restore_states, trial
from apiece.training.clipping.cache import proof_of

CPU = [torch.device("cpu")]


def test_a_trial_draws_nothing_of_the_run_s():
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    with trial(CPU):
        torch.rand(9)
    with pytest.raises(ZeroDivisionError), trial(CPU):
        _ = torch.rand(9) / (1 // 0)
    assert torch.equal(torch.rand(4), wanted)


def test_states_are_put_back():
    before = read_states(CPU)
    first = torch.rand(4)
    restore_states(before)
    assert torch.equal(torch.rand(4), first)


def test_a_step_draws_by_its_seed_alone():
    def drawn(seed):
        torch.rand(3)
        with model_randomness(seed, CPU):
            return torch.rand(4)

    before = torch.get_rng_state()
    with model_randomness(1, CPU):
        torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn(7), drawn(7))
    assert not torch.equal(drawn(7), drawn(8))


RECORDS = 2048
KINDS = {
    "bfloat16 weights": (torch.bfloat16, contextlib.nullcontext),
    "float16 weights": (torch.float16, contextlib.nullcontext),
    "bfloat16 autocast": (torch.float32, lambda: torch.autocast("cpu", torch.bfloat16)),
}


def loss(outputs, targets):
    return (outputs.float()[:, 0] - targets.float()).square()


def moved(kind, method, bounds):
    """How far the sum moves when record 0, of bound `bounds[0]`, is removed."""
    dtype, context = KINDS[kind]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Identity(), nn.Linear(6, 1)).to(dtype)
    x, y = torch.randn(len(bounds), 8).to(dtype), torch.full((len(bounds),), 9.0).to(dtype)
    with context():
        sums = [
            clip_and_sum(model, loss, x[some], y[some], bounds[some], method=method).gradients
            for some in (slice(0, None), slice(1, None))
        ]
    assert all(g.dtype == torch.float32 for g in sums[0].values())
    return math.sqrt(sum(float((sums[0][n].double() - sums[1][n]).square().sum()) for n in sums[0]))


@pytest.mark.parametrize("method", ["auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_removing_one_of_many_records_moves_the_sum_by_its_bound(kind, method):
    equal = torch.ones(RECORDS, dtype=torch.float64)
    assert moved(kind, method, equal) < 1.002
    beside = equal.clone()
    beside[0] = 0.01  # among larger ones
    assert moved(kind, method, beside) < 0.012


@pytest.mark.parametrize("kind", ["bfloat16 autocast", "bfloat16 weights"])
def test_half_precision_is_proved(kind):
    dtype, context = KINDS[kind]
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(56, 1)).to(dtype)
    x, y = torch.randn(16, 3, 9).to(dtype), torch.ones(16).to(dtype)
    with context():
        clip_and_sum(model, loss, x, y, 1.0)
    assert proof_of(model).proved
