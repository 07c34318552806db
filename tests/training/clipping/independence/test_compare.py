"""How far two computations of the same may be apart, and where they are not the same."""

import math

import pytest
import torch

from apiece.training.clipping.independence.compare import Finding, Seen, apart, of_losses, same_sum
from apiece.training.clipping.independence.widening import Tolerance

TOLERANCE = Tolerance(1e-3, 0.03, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("change", "found"),
    [(0.0, None), (5e-4, None), (2e-3, Finding.NEAR), (0.1, Finding.MIXED),
     (math.inf, None), (math.nan, Finding.MIXED)],
)  # fmt: skip
def test_losses(change, found):
    one = torch.ones(4)
    other = one.clone()
    other[2] += change
    said, where = of_losses(one, other, TOLERANCE)
    assert said == found
    assert where == (2 if found else 0)


def test_a_small_loss_has_the_room_of_a_typical_one():
    one, other = torch.tensor([1.0, 1.0, 1e-9]), torch.tensor([1.0, 1.0, 2e-9])
    assert of_losses(one, other, TOLERANCE)[0] is None


def test_room_may_be_on_one_side_alone():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0])
    assert apart(one, other, math.inf, 1e-3, 0.0) is None
    assert apart(other, one, math.inf, 1e-3, 0.0) == 1


def test_sums_are_held_to_what_records_add():
    weights, floor = torch.ones(2), torch.zeros(2)
    norms = torch.tensor([1.0, 1.0])
    one = Seen(torch.ones(2), norms, {"w": torch.tensor([1.0, 1.0])})
    near = Seen(torch.ones(2), norms, {"w": torch.tensor([1.0005, 1.0])})
    other = Seen(torch.ones(2), norms, {"w": torch.tensor([1.01, 1.0])})
    assert same_sum(one, near, weights, TOLERANCE, floor)
    assert not same_sum(one, other, weights, TOLERANCE, floor)
