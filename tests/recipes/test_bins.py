"""Soft bins: shares of one number that sum to one, and give it back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from apiece.errors import InputError
from apiece.recipes import soft_bins
from refusals import refused


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=5), st.integers(2, 9))
def test_shares_sum_to_one_and_give_the_number_back(numbers: list[float], count: int) -> None:
    values = torch.tensor(numbers)[:, None]
    shares = soft_bins(values, count)
    assert shares.shape == (len(numbers), count)
    assert (shares >= 0).all()
    assert ((shares > 0).sum(dim=1) <= 2).all()
    assert torch.allclose(shares.sum(dim=1), torch.ones(len(numbers)), atol=1e-5)
    back = shares @ torch.linspace(-1, 1, count)
    assert torch.allclose(back, values[:, 0], atol=1e-5)


def test_columns_stay_apart_and_the_outside_is_the_end() -> None:
    shares = soft_bins(torch.tensor([[5.0, -5.0]]), 3)
    assert shares.tolist() == [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]]
    with refused(InputError, "count"):
        soft_bins(torch.zeros(1, 1), 1)
