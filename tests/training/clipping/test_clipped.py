"""Sums of clipped gradients add up, and factors never lift a record over its bound."""

import pytest
import torch

from apiece.errors import InputError
from apiece.training.clipping import ClippedSum, clip_factors, slack
from apiece.training.clipping.clipped import add_up


def of(*values):
    bounds = torch.tensor([1.0] * len(values)).double()
    norms = torch.tensor(values)
    return ClippedSum({"w": norms.nansum(0, keepdim=True)}, norms, norms, bounds)


def test_sums_add_up_by_record():
    total = of(1.0, 2.0) + of(4.0)
    assert total.gradients["w"].item() == 7
    assert len(total) == 3
    assert total.clip_norms.shape == (3,)
    again = add_up([of(1.0, 2.0), of(4.0)])
    assert again.gradients["w"].item() == 7
    assert again.norms.tolist() == [1.0, 2.0, 4.0]
    one = of(1.0)
    assert add_up([one]) is one


def test_rejected_are_those_that_are_not_finite():
    assert of(1.0, float("nan"), float("inf")).rejected == 2


def test_sums_of_other_models_do_not_add():
    other = ClippedSum({"v": torch.ones(1)}, *[torch.ones(1)] * 3)
    with pytest.raises(InputError, match="different parameters"):
        of(1.0) + other
    with pytest.raises(TypeError):
        of(1.0) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_leave_the_slack(dtype):
    torch.manual_seed(0)
    norms = (10 ** torch.empty(20_000, dtype=torch.float64).uniform_(-15, 15)).to(dtype)
    bounds = 10 ** torch.empty(20_000, dtype=torch.float64).uniform_(-12, 3)
    factors = clip_factors(norms, bounds)
    assert factors.dtype == dtype
    assert bool((factors.double() * norms.double() <= bounds * (1 - slack(dtype) / 2)).all())
    assert bool((factors <= 1).all())
    few = factors < 1
    exact = bounds / norms.double()
    assert bool((factors.double() >= exact * (1 - 1.1 * slack(dtype)))[few].all())
    assert bool((bounds * (1 - slack(dtype)) <= norms.double() * (1 + 1e-6))[few].all())


def test_factors_of_what_has_no_norm_or_no_bound():
    norms = torch.tensor([[torch.nan, torch.inf, 0.0], [0.0, 3.0, 3.0]])
    bounds = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 6.0]])
    assert clip_factors(norms, bounds).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert bounds[0, 0] == 1  # what was given is left as it is
