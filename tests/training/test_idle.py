"""Parameters that nothing but noise moves are named; others are not, at the rates that are said."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Scale, assign
from apiece.errors import IdleParameterWarning
from apiece.training import Trainer, loop
from apiece.training.batches import Draw

DRAW = Draw(np.arange(0), np.ones(0), noise_stddev=4.0, expected_batch_size=64.0)


def named(size, signal, *, seed, beside=2, steps=310):
    """Return which of `beside` silent parameters and one with a signal are named, and when.

    signal: the norm of its part of each step's sum.
    """
    watch, torch_seed = loop.NoiseAlone([1.0]), torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(size, generator=torch_seed), dim=0)
    found = {}
    for step in range(1, steps + 1):
        sums = {f"silent{k}": torch.zeros(size) for k in range(beside)}
        sums["learns"] = signal * direction
        update = {
            name: (total + 4.0 * torch.randn(size, generator=torch_seed)) / 64.0
            for name, total in sums.items()
        }
        watch.take(step, update, DRAW)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.look(step)
        for one in caught:
            for name in sums:
                if name in str(one.message):
                    found[name] = step
    return found


EVEN = 0.1 * 64 / 3**0.5  # the part that must show: a tenth of an even share among three


@pytest.mark.parametrize("size", [1, 20, 70])
def test_who_has_no_gradient_is_named_and_who_has_one_is_not(size):
    runs = [named(size, EVEN, seed=s) for s in range(25)]
    assert sum("learns" in run for run in runs) <= 2  # chance .01 at most: P(3 or more) < .003
    silent = [k for run in runs for k in run if k != "learns"]
    assert len(silent) >= 50 - 2  # chance .001 in each of five windows: P(3 cleared) < .003


def test_a_signal_below_what_is_said_is_missed():
    """The negative control: the test above would see a threshold that names nobody."""
    runs = [named(70, EVEN / 8, seed=s) for s in range(10)]
    assert sum("learns" in run for run in runs) >= 5  # with the silent ones


def test_a_few_that_lie_still_are_where_they_ought_to_be():
    """A bias at its optimum has no gradient on the whole: who else is trained moves."""
    assert named(20, 8 * EVEN, seed=0, beside=1) == {}


def test_nothing_is_said_where_nothing_would_show():
    assert named(200_000, 0.0, seed=0, beside=1, steps=30) == {}


class Adapted(nn.Module):
    """A frozen layer with an adapter of two factors, a trained bias, and a frozen head."""

    def __init__(self, head):
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(6, 6, bias=False).requires_grad_(False)
        self.head.weight.mul_(head)
        self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return self.head(self.base(x) + self.up(self.down(x))) + self.bias


def fitted(head):
    torch.manual_seed(1)
    x = torch.randn(400, 6)
    y = x.roll(1, 1) * 3 + 1
    plan = assign(
        Budgets(np.full(400, 8.0), 1e-5), Scale(), steps=80, expected_batch_size=200, clip_norm=1.0
    )
    model = Adapted(head)
    trained = [p for p in model.parameters() if p.requires_grad]
    loss = lambda out, t: (out - t).square().sum(1)  # noqa: E731
    Trainer(model, torch.optim.SGD(trained, lr=0.05), loss, plan, (x, y), seed=3).fit()


def test_adapters_below_a_frozen_head_of_zeros_are_named():
    """The graph has a gradient for them, which is zero."""
    with pytest.warns(
        IdleParameterWarning, match=r"moved down.weight, up.weight .* \(2 of 3 trained"
    ):
        fitted(head=0)


def test_adapters_as_they_should_be_are_not():
    fitted(head=3)  # warnings are errors here
