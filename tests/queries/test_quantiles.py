"""Quantiles: drawn by an exact exponential mechanism whose range is what is charged."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiece.queries import quantiles
from apiece.queries.quantiles import Grid, Runs

LEVELS = [0.05, 0.25, 0.5, 0.9]
SMALL = Grid(-3, 16, 0, 3)  # from −3 to 12


def runs_of(grid: Grid, values: list[int], level: float) -> Runs:
    points, counts = np.unique(np.array(values, np.int64) - grid.first, return_counts=True)
    return Runs.of(grid, points, counts, level)


def log_chances(grid: Grid, values: list[int], level: float, eta: float, rows: int) -> np.ndarray:
    """Return the logarithm of each grid point's chance."""
    runs = runs_of(grid, values, level)
    weighted = quantiles.weights(grid, runs, level, eta, rows)
    logs = np.full(grid.size, -np.inf)
    for first, last, weight in zip(runs.first, runs.last, weighted, strict=True):
        for point in range(first, last + 1):
            share = grid.prior(point, point) * weight // grid.prior(int(first), int(last))
            logs[point] = math.log(share) - math.log(sum(weighted))
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-12)
    return logs


def ranges(values: list[int], added: list[int], level: float, eta: float, rows: int) -> float:
    """Return the range of the loss between a table and the same with more rows."""
    before, after = (
        log_chances(SMALL, table, level, eta, rows) for table in (values, values + added)
    )
    return float(np.ptp(before - after))


def widest(level: float, eta: float) -> float:
    """Return the largest range over all tables of at most four rows on four points."""
    return max(
        ranges(list(values), [row], level, eta, 1)
        for size in range(5)
        for values in itertools.combinations_with_replacement([-3, 0, 1, 10], size)
        for row in (-3, 0, 1, 5, 12)
    )


@pytest.mark.parametrize("level", LEVELS)
def test_range_of_every_small_table_is_at_most_the_charge(level: float) -> None:
    assert 0.5 * 1.3 < widest(level, 1.3) <= 1.3 + 1e-12


@given(
    st.lists(st.integers(-3, 12), max_size=60),
    st.lists(st.integers(-3, 12), max_size=4),
    st.integers(0, 3),
    st.floats(0.01, 0.99),
    st.floats(1e-3, 20),
)
def test_a_person_with_fewer_rows_is_charged_less(values, own, spare, level, eta) -> None:
    rows = max(len(own) + spare, 1)
    assert ranges(values, own, level, eta, rows) <= eta * len(own) / rows + 1e-9


def test_a_sensitivity_of_the_wrong_side_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = quantiles._falls

    def broken(missed: np.ndarray, level: float, eta: float, rows: int) -> list[int]:
        return real(missed, level, eta * max(level, 1 - level) / min(level, 1 - level), rows)

    monkeypatch.setattr(quantiles, "_falls", broken)
    assert widest(0.25, 1.3) > 1.3 + 0.1


def test_a_score_that_counts_the_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the level's share of a count that is private, a row moves every score by more."""
    real = Runs.of

    def broken(grid: Grid, points: np.ndarray, counts: np.ndarray, level: float) -> Runs:
        runs = real(grid, points, counts, level)
        return Runs(runs.first, runs.last, runs.missed * (1 + counts.sum() % 2))

    monkeypatch.setattr(Runs, "of", broken)
    assert widest(0.5, 1.3) > 1.3 + 0.1


def test_the_point_that_holds_the_quantile_misses_nothing() -> None:
    runs = runs_of(SMALL, [0, 0, 4, 4, 4, 4, 4, 9, 9, 9], 0.5)
    missed = {
        (int(a) - 3, int(b) - 3): m * 2.0**-quantiles.LEVEL_BITS
        for a, b, m in zip(runs.first, runs.last, runs.missed, strict=True)
    }
    assert missed == {
        (-3, -1): 5, (0, 0): 3, (1, 3): 3, (4, 4): 0, (5, 8): 2, (9, 9): 2, (10, 12): 5,
    }  # fmt: skip
    assert runs_of(SMALL, [], 0.5).missed.tolist() == [0]


def test_every_grid_has_an_even_share_of_the_prior() -> None:
    grid = Grid.between(0, 120)
    whole = grid.prior(0, grid.size - 1)
    step = 10**-grid.exponent  # points a unit
    on_tens = sum(grid.prior(t, t) for t in range(0, 120 * step + 1, 10 * step))
    assert 1 / 5 < on_tens / whole < 1.2 / 5
    one_year = grid.prior(39 * step + 1, 40 * step - 1)
    assert 0.1 < grid.prior(40 * step, 40 * step) / one_year < 10
    assert grid.value(0) == 0
    assert grid.value(grid.size - 1) == 120


def test_draws_follow_the_chances() -> None:
    values = [0, 1, 1, 5, 10, 10, 12]
    runs = runs_of(SMALL, values, 0.4)
    weighted = quantiles.weights(SMALL, runs, 0.4, 1.0, 1)
    bits = random.Random(5).getrandbits
    drawn = [quantiles.draw(SMALL, runs, weighted, bits) for _ in range(6000)]
    found = np.bincount(drawn, minlength=16)
    expected = 6000 * np.exp(log_chances(SMALL, values, 0.4, 1.0, 1))
    assert (np.abs(found - expected) <= 4.5 * np.sqrt(expected) + 1).all()


def test_whole_weights_are_the_exponentials_to_the_last_digit() -> None:
    made = quantiles._falls(np.array([0, 4, 9]) << quantiles.LEVEL_BITS, 0.5, 0.7, 1)
    for weight, missed in zip(made, [0, 4, 9], strict=True):
        exact = math.exp(-0.7 * missed)
        assert weight / 2**quantiles.WEIGHT_BITS == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize("level", LEVELS)
def test_rank_margin_holds(level: float) -> None:
    grid = Grid(0, 1001, 0, 4)
    values = np.random.default_rng(0).integers(0, 1000, 3000).tolist()
    runs = runs_of(grid, values, level)
    weighted = np.array(quantiles.weights(grid, runs, level, 0.05, 1), dtype=object)
    margin = quantiles.rank_margin(grid, level, 0.05, 1, 0.95)
    far = runs.missed * 2.0**-quantiles.LEVEL_BITS > margin
    assert far.any()
    assert weighted[far].sum() / weighted.sum() <= 0.05


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e7), st.integers(1, 4000))
def test_a_grid_is_within_the_bounds_and_is_no_larger_than_memory(low, width, groups) -> None:
    grid = Grid.between(low, low + width, groups)
    assert low <= grid.value(0) <= grid.value(grid.size - 1) <= low + width
    assert grid.size >= 9
    assert groups * grid.size <= quantiles.POINTS
