"""Splits are half full in every group and every column, and random otherwise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.audit.splits import biregular, check_half_full
from apiece.errors import DataError, InputError
from refusals import refused


@settings(max_examples=50, deadline=None, derandomize=True)
@given(models=st.integers(2, 17), groups=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_rows_and_columns(models: int, groups: list[int]) -> None:
    index = np.array(groups)
    split = biregular(models, index, generator=np.random.default_rng(0))
    assert split.shape == (models, index.size)
    for group in np.unique(index):
        size = int((index == group).sum())
        counts = split[:, index == group].sum(axis=1)
        assert set(counts) <= {size // 2, (size + 1) // 2}
    assert set(split.sum(axis=0)) <= {models // 2, (models + 1) // 2}
    check_half_full(split, index)


def test_rows_are_mixed() -> None:
    """Without trades rows come in complementary pairs; with them, pairs agree in about half."""
    groups = np.zeros(400, dtype=int)
    split = biregular(32, groups, generator=np.random.default_rng(0))
    agreement = (split[0::2] == split[1::2]).mean(axis=1)
    assert np.abs(agreement - 0.5).max() < 0.15
    plain = biregular(32, groups, generator=np.random.default_rng(0), trades=0)
    assert (plain[0::2] != plain[1::2]).all()


def test_every_pair_of_records_meets_about_as_often() -> None:
    found = np.zeros((6, 6))
    generator = np.random.default_rng(1)
    for _ in range(800):
        split = biregular(4, [0] * 6, generator=generator).astype(float)
        found += split.T @ split / 4
    apart = found[~np.eye(6, dtype=bool)] / 800
    assert np.abs(apart - 0.2).max() < 0.03  # ½ · 2/5


def test_bad_input() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(InputError, match="at least 2"):
        biregular(1, [0, 0], generator=generator)
    with refused(DataError, "groups"):
        biregular(2, [], generator=generator)
    split = biregular(4, [0] * 8, generator=generator)
    split[0] = True
    with pytest.raises(DataError, match="half full"):
        check_half_full(split, np.zeros(8, dtype=int))
