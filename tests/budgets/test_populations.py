"""The populations of the papers."""

import numpy as np
import pytest

from apiece.errors import BudgetError
from refusals import refused
from research.experiments import populations


def test_three_groups_of_the_papers() -> None:
    assert populations.three_groups(1000, 1e-5).groups.records.tolist() == [340, 430, 230]
    assert populations.three_groups(1000, 1e-5).groups.epsilon.tolist() == [1, 2, 3]


@pytest.mark.parametrize("skew", [-0.2, 0.2])
def test_exponential_skew_leans(skew: float) -> None:
    groups = populations.exponential_skew(50000, 1e-5, skew=skew).groups
    assert groups.records.sum() == 50000
    assert (np.sign(np.diff(groups.records)) == np.sign(skew)).all()
    assert (groups.epsilon[0], groups.epsilon[-1]) == (0.5, 1.0)
    with refused(BudgetError, "skew"):
        populations.exponential_skew(100, 1e-5, skew=0.5)


def test_per_class() -> None:
    with pytest.raises(BudgetError, match="no budget for class 2"):
        populations.per_class([1, 2], {1: 1.0}, 1e-5)
