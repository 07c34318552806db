"""Quantiles: drawn by an exact exponential mechanism whose range is what is charged."""

import dataclasses
import decimal
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiece.accounting.slack import gaussian_of_bounded_range
from apiece.queries import quantiles
from apiece.queries.grammar import parse
from apiece.queries.quantiles import Grid, Law, Segment

LEVELS = [0.05, 0.25, 0.5, 0.9]
SMALL = Grid.from_points(-3, 16, 0)  # from −3 to 12
TINY = Grid.from_points(0, 5, 0)
ETA = 1.3
Chances = dict[tuple[tuple[int, int], ...], float]
Ask = Callable[[Segment], object]


def part_of(grid: Grid, values: list[int]) -> Segment:
    points, counts = np.unique(np.array(values, np.int64) - grid.origin, return_counts=True)
    return Segment(points, counts, 0, grid.size - 1)


def law_of(grid: Grid, values: list[int], level: float, eta: float, rows: int) -> Law:
    part = part_of(grid, values)
    rate = quantiles.compute_rate(level, eta, rows)
    return Law.from_segment(grid, part, quantiles.quantize_level(level) * part.rows, rate)


def log_chances(grid: Grid, values: list[int], level: float, eta: float, rows: int) -> np.ndarray:
    """Return the logarithm of each grid point's chance."""
    logs = np.full(grid.size, -np.inf)
    for place, log in places_of(law_of(grid, values, level, eta, rows)):
        logs[place[0]] = log
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-12)
    return logs


def places_of(law: Law) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield each point and slice with the logarithm of its chance."""
    whole = math.log(sum(law.weights))
    for place, fall in zip(law.stretches, law.decays, strict=True):
        for point in range(place.low, place.high + 1):
            for part in range(place.slice_start, place.slice_start + place.slice_count):
                yield (point, part), math.log(law.grid.prior(point, point) * fall) - whole


def joint(ask: Ask, part: Segment) -> Chances:
    """Return the logarithm of the chance of all that is drawn in an answer, by trying it all."""
    found: Chances = {}

    def tried(made: tuple[tuple[int, int], ...], log: float) -> None:
        left = list(made)

        def draw(law: Law, _bits: object) -> tuple[int, int]:
            if left:
                return left.pop(0)
            raise Unmade(law)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Law, "draw", draw)
            try:
                ask(part)
                found[made] = log
                return
            except Unmade as stopped:
                law = stopped.law
        for place, more in places_of(law):
            tried((*made, place), log + more)

    tried((), 0.0)
    assert sum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-9)
    return found


class Unmade(BaseException):
    def __init__(self, law: Law) -> None:
        self.law = law


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


def pairs(
    ask: Ask, most: int = 4, added: int = 1, points: tuple[int, ...] = (1, 3)
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the chances of all that is drawn, over all tables of few rows and their neighbours."""

    @functools.cache
    def chances(*values: int) -> Chances:
        return joint(ask, part_of(TINY, list(values)))

    for size in range(most + 1):
        for values in itertools.combinations_with_replacement(points, size):
            for more in itertools.combinations_with_replacement(points, added):
                before, after = chances(*values), chances(*sorted(values + more))
                yield (
                    np.array([before[made] for made in before]),
                    np.array([after[made] for made in before]),
                )


def largest_loss(*args: Any, **more: Any) -> float:
    return max(float(np.abs(before - after).max()) for before, after in pairs(*args, **more))


def excess(mu: float, *args: Any, **more: Any) -> float:
    """Return by how much a δ(ε) is beyond that of a Gaussian, at most."""
    epsilons = np.linspace(-2 * ETA, 2 * ETA, 25)
    normal = NormalDist()
    return max(
        float(np.maximum(np.exp(one) - np.exp(e + other), 0).sum())
        - normal.cdf(mu / 2 - e / mu)
        + math.exp(e) * normal.cdf(-mu / 2 - e / mu)
        for before, after in pairs(*args, **more)
        for one, other in ((before, after), (after, before))
        for e in epsilons.tolist()
    )


def tree(levels: tuple[float, ...], eta: float = ETA, rows: int = 1) -> Ask:
    return lambda part: quantiles.draw_quantiles(TINY, part, levels, eta, rows, lambda _: 0)


@pytest.mark.parametrize("level", LEVELS)
def test_range_of_every_small_table_is_at_most_the_charge(level: float) -> None:
    assert 0.5 * ETA < widest(level, ETA) <= ETA + 1e-12


@pytest.mark.parametrize(("levels", "slices"), [((0.25, 0.5, 0.75), 2), ((0.1, 0.8), 3)])
def test_a_tree_of_levels_is_as_private_as_it_is_charged(
    levels: tuple[float, ...], slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points and slices together, for each table of at most four rows on two points.

    The interval of the losses of a later draw depends on an earlier one, so that all of them
    together have a wider range than that sum: what adds up is ε, and the squares of μ.
    """
    monkeypatch.setattr(quantiles, "SLICES", slices)
    assert 0.3 * ETA < largest_loss(tree(levels)) <= ETA + 1e-9
    mu = float(gaussian_of_bounded_range(ETA / 2)) * math.sqrt(2)
    assert excess(mu, tree(levels)) <= 1e-9
    assert excess(mu / 3, tree(levels)) > 1e-3


def test_rows_of_a_person_on_both_sides_of_a_tree_are_charged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantiles, "SLICES", 2)
    asked = tree((0.3, 0.5, 0.7), rows=2)
    assert 0.4 * ETA < largest_loss(asked, most=3, added=2) <= ETA + 1e-9
    assert largest_loss(asked, most=2) <= ETA / 2 + 1e-9


def test_an_interval_has_the_range_that_is_charged() -> None:
    def asked(part: Segment) -> object:
        return quantiles.draw_interval(TINY, part, 0.4, ETA, 1, lambda _: 0)

    found = max(float(np.ptp(a - b)) for a, b in pairs(asked, most=2))
    assert 0.5 * ETA < found <= ETA + 1e-9
    mu = float(gaussian_of_bounded_range(ETA / 3)) * math.sqrt(3)
    assert excess(mu, asked, most=2) <= 1e-9


@pytest.mark.parametrize("fault", ["both sides", "uncharged depth", "wrong part"])
def test_faults_of_a_tree_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "SLICES", 2)
    real, asked = Segment.divide, tree((0.25, 0.5, 0.75), eta=4.0)
    if fault == "uncharged depth":
        asked = tree((0.25, 0.5, 0.75), eta=8.0)
    elif fault == "both sides":  # each side depends on how many rows the other has

        def broken(part: Segment, point: int, at: int) -> tuple[Segment, Segment]:
            left, right = real(part, point, at)
            return left.with_rows(point, 3 * right.rows), right.with_rows(point, 3 * left.rows)

        monkeypatch.setattr(Segment, "divide", broken)
    else:  # where a row falls depends on how many there are
        monkeypatch.setattr(
            Segment, "divide", lambda part, point, at: real(part, point, (at + part.rows) % 2)
        )
    assert largest_loss(asked) > 4.1


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
    real = quantiles.compute_rate
    monkeypatch.setattr(
        quantiles,
        "compute_rate",
        lambda level, eta, rows: real(
            level, eta * max(level, 1 - level) / min(level, 1 - level), rows
        ),
    )
    assert widest(0.25, ETA) > ETA + 0.1


def test_a_score_that_counts_the_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the level's share of a count that is private, a row moves every score by more."""
    real = quantiles.yield_stretches

    def broken(part: Segment, target: int, most: int, slices: int) -> Iterator[quantiles.Stretch]:
        for each in real(part, target, most, slices):
            yield dataclasses.replace(each, missed=each.missed * (1 + part.rows % 2))

    monkeypatch.setattr(quantiles, "yield_stretches", broken)
    assert widest(0.5, ETA) > ETA + 0.1


def test_the_point_that_holds_the_quantile_misses_nothing() -> None:
    def missed(values: list[int]) -> dict[tuple[int, int], float]:
        return {
            (each.low - 3, each.high - 3): each.missed * 2.0**-quantiles.LEVEL_BITS
            for each in law_of(SMALL, values, 0.5, 1.0, 1).stretches
        }

    assert missed([0, 0, 4, 4, 4, 4, 4, 9, 9, 9]) == {
        (-3, -1): 5, (0, 0): 3, (1, 3): 3, (4, 4): 0, (5, 8): 2, (9, 9): 2, (10, 12): 5,
    }  # fmt: skip
    assert missed([]) == {(-3, 12): 0}


def test_what_is_far_is_one_stretch_on_each_side_and_weighs_the_least() -> None:
    values = [*range(-3, 13)] * 1000
    law = law_of(SMALL, values, 0.5, 2.0, 1)
    assert [(place.low, place.high) for place in law.stretches[:2]] == [(0, 6), (7, 7)]
    assert law.decays[0] == law.decays[-1] == min(law.decays) > 0


@pytest.mark.parametrize("slices", [3, 64, 2**40])
def test_slices_cover_the_ranks_of_a_point_and_divide_its_rows(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantiles, "SLICES", slices)
    part = part_of(SMALL, [0] * 5 + [4] * 20 + [9] * 5)
    rate = quantiles.compute_rate(0.5, 1e3, 1)
    law = Law.from_segment(SMALL, part, 15 << quantiles.LEVEL_BITS, rate, slices)
    assert (
        sum(place.slice_count for place in law.stretches if place.low == place.high == 7) == slices
    )
    point, at = law.draw(random.Random(1).getrandbits)
    left, right = part.divide(point, at)
    assert point == 7
    assert left.rows + right.rows == part.rows
    assert abs(left.rows - 15) <= 1 + 20 / min(slices, 20)


def test_a_quarter_of_the_prior_is_on_coarse_grids_and_whole_numbers_are_on_one() -> None:
    grid = Grid.from_bounds(0, 120)
    whole = grid.prior(0, grid.size - 1)
    step = 10**-grid.exponent  # points a unit
    on_ones = sum(grid.prior(t, t) for t in range(0, 120 * step + 1, step))
    assert 1 / 16 < on_ones / whole < 1.2 / 16
    one_year = grid.prior(39 * step + 1, 40 * step - 1)
    assert 0.05 < grid.prior(40 * step, 40 * step) / one_year < 10
    assert grid.value(0) == 0
    assert grid.value(grid.size - 1) == 120
    log = Grid.from_bounds(0, 120, log=True)
    assert log.prior(0, step) / log.prior(0, log.size - 1) > 10 * grid.prior(0, step) / whole


def test_draws_follow_the_chances() -> None:
    values = [0, 1, 1, 5, 10, 10, 12]
    law = law_of(SMALL, values, 0.4, 1.0, 1)
    bits = random.Random(5).getrandbits
    found = np.bincount([law.draw(bits)[0] for _ in range(6000)], minlength=16)
    expected = 6000 * np.exp(log_chances(SMALL, values, 0.4, 1.0, 1))
    assert (np.abs(found - expected) <= 4.5 * np.sqrt(expected) + 1).all()


def test_whole_weights_are_the_exponentials_to_the_last_digit() -> None:
    rate = quantiles.compute_rate(0.5, 0.7, 1)
    missed = [0, 1, 1 << 30, 4 << 30, 9 << 30, (9 << 30) + 12345]
    for miss, weight in zip(missed, quantiles.compute_decays(missed, rate), strict=True):
        with decimal.localcontext(decimal.Context(prec=120)):
            exact = (-rate * miss).exp()
            assert abs(weight / decimal.Decimal(2**quantiles.WEIGHT_BITS) / exact - 1) < 2**-240
        assert float(exact) == pytest.approx(math.exp(-0.7 * miss * 2.0**-30), rel=1e-15)


@pytest.mark.parametrize("level", LEVELS)
def test_rank_margin_holds(level: float) -> None:
    grid = Grid.from_points(0, 1001, 0)
    values = np.random.default_rng(0).integers(0, 1000, 3000).tolist()
    law = law_of(grid, values, level, 0.05, 1)
    margin = quantiles.rank_margin(grid, level, 0.05, 1, 0.95)
    missed = np.array([place.missed for place in law.stretches])
    far = missed * 2.0**-quantiles.LEVEL_BITS > margin
    assert far.any()
    weighted = np.array(law.weights, dtype=object)
    assert weighted[far].sum() / weighted.sum() <= 0.05


def ranks_missed(values: np.ndarray, points: list[int], levels: list[float]) -> np.ndarray:
    """How many rows lie between each point and the quantile of its level."""
    below = np.searchsorted(values, points, side="left")
    upto = np.searchsorted(values, points, side="right")
    targets = np.array(levels) * len(values)
    return np.maximum(np.maximum(below - targets, targets - upto), 0)


@pytest.mark.parametrize("spread", [1, 1000])
@pytest.mark.parametrize("levels", [[0.5], [0.25, 0.5, 0.75], [0.1, 0.2, 0.5, 0.6, 0.9]])
def test_margins_of_several_levels_hold_together(levels: list[float], spread: int) -> None:
    """On a table of many equal rows, and on an even one; the first with slices of one point."""
    grid = Grid.from_points(0, 1001, 0)
    values = np.sort(np.random.default_rng(1).integers(0, spread, 4000))
    part, bits, eta = part_of(grid, values.tolist()), random.Random(4).getrandbits, 0.4
    margins = np.array(quantiles.level_margins(grid, levels, eta, 1, 0.95))
    missed = []
    for _ in range(60):
        points = quantiles.draw_quantiles(grid, part, levels, eta, 1, bits)
        missed.append(ranks_missed(values, points, levels))
    assert np.mean((np.array(missed) <= margins).all(axis=1)) >= 0.95
    assert (margins < len(values)).all()  # they say something


def test_margins_add_up_along_the_tree() -> None:
    """A level alone has the margin of one draw; one below two others has those of all three."""
    grid = Grid.from_points(0, 1001, 0)
    (alone,) = quantiles.level_margins(grid, [0.5], 0.4, 1, 0.95)
    assert alone == pytest.approx(quantiles.rank_margin(grid, 0.5, 0.4, 1, 0.95))
    low, middle, high = quantiles.level_margins(grid, [0.25, 0.5, 0.75], 0.4, 1, 0.95)
    own = quantiles.rank_margin(grid, 0.5, 0.2, 1, 1 - 0.05 / 3)
    assert low == high == pytest.approx(middle + 1 + own)
    assert middle > own > alone


def test_a_margin_of_one_draw_is_missed_by_the_levels_below_it() -> None:
    """Negative control: without the errors of earlier draws the margins would not hold."""
    grid, levels, eta = Grid.from_points(0, 1001, 0), [k / 16 for k in range(1, 16)], 0.02
    values = np.sort(np.random.default_rng(1).integers(0, 1000, 4000))
    part, bits = part_of(grid, values.tolist()), random.Random(4).getrandbits
    spread = [
        ranks_missed(values, quantiles.draw_quantiles(grid, part, levels, eta, 1, bits), levels)
        for _ in range(20)
    ]
    typical = np.median(spread, axis=0)
    leaves, root = typical[0::2], typical[7]
    assert leaves.mean() > root  # a leaf's error has its ancestors' in it


@pytest.mark.parametrize("level", [0.1, 0.5])
@pytest.mark.parametrize("size", [0, 20, 900])
def test_an_interval_covers_the_quantile(level: float, size: int) -> None:
    """With chance .95 at least: each end is beyond it with .975; a table may be far too small."""
    grid, bits = Grid.from_points(0, 1000, 0), random.Random(3).getrandbits
    values = np.sort(np.random.default_rng(size).integers(0, 30, size)) * 20
    part, runs, wide = part_of(grid, values.tolist()), 60, []
    truth = values[math.ceil(level * size) - 1] if size else None
    covered = 0
    for _ in range(runs):
        low, point, high = quantiles.draw_interval(grid, part, level, 2.0, 1, bits)
        assert low <= point <= high
        covered += truth is None or low <= truth <= high
        wide.append(high - low)
    assert covered >= 52  # of 60 at .95, 51 or fewer come once in a thousand
    assert size < 900 or np.mean(wide) < 250


@pytest.mark.parametrize(
    "levels", [(0.1234567, 0.1234568), (0.9999999, 0.99999999), (0.5, 0.50000001), (0.1, 0.7)]
)
def test_every_level_that_is_asked_is_answered_under_its_own_name(levels: Any) -> None:
    """Also where two of them agree in the six digits that are printed."""
    query = parse(f"quantile(x, {levels[0]}, {levels[1]})")
    part = part_of(SMALL, [0, 1, 2])
    found = quantiles.describe_group(SMALL, part, query, ETA, 1, random.Random(0).getrandbits)
    assert [*map(float, found["quantiles"])] == sorted(levels)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.3, 1.3), (1e15, 1e15 + 1), (-1e9, -1e9 + 1e-3), (0, 1e60)]
)
def test_the_resolution_is_the_step_of_the_grid(low: float, high: float) -> None:
    """A power of ten; the difference of two points as floats may be 0, or off in its digits."""
    grid = Grid.from_bounds(low, high)
    query = parse("median(x)")
    empty = Segment(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, grid.size - 1)
    found = quantiles.describe_group(grid, empty, query, ETA, 1, random.Random(0).getrandbits)
    assert found["resolution"] == float(f"1e{grid.exponent}")
    assert found["resolution"] * grid.size == pytest.approx(high - low, rel=0.1)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_levels_of_a_tree_are_in_order_and_near_their_quantiles(count: int) -> None:
    """Also where most rows lie on one point."""
    grid, rng = Grid.from_bounds(0, 100), np.random.default_rng(0)
    values = np.where(rng.random(40_000) < 0.5, 40, np.rint(rng.uniform(0, 100, 40_000)))
    part = part_of(Grid.from_points(0, 1, 0), (values * 10**-grid.exponent).astype(int).tolist())
    part = Segment(part.points, part.counts, 0, grid.size - 1)
    levels = [(k + 1) / (count + 1) for k in range(count)]
    drawn = quantiles.draw_quantiles(grid, part, levels, 1.0, 1, random.Random(2).getrandbits)
    assert drawn == sorted(drawn)
    truth = np.quantile(values, levels, method="inverted_cdf")
    assert [grid.value(point) for point in drawn] == pytest.approx(truth, abs=1)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e7), st.integers(1, 4000), st.booleans())
def test_a_grid_is_within_the_bounds_and_is_no_larger_than_memory(low, width, groups, log) -> None:
    grid = Grid.from_bounds(low, low + width, groups, log=log)
    assert low <= grid.value(0) <= grid.value(grid.size - 1) <= low + width
    assert grid.size >= 9
    assert groups * grid.size <= quantiles.POINTS
    assert 0 < grid.lowest_share <= 1 / grid.size
    whole = grid.prior(0, grid.size - 1)
    assert 0 <= grid.pick(0, grid.size - 1, whole - 1) < grid.size
