"""An interval for a group that nobody has seen holds its level, over groups that are planted.

The negative control is what a reader of pooled errors would take: it takes values of the same group
for independent ones, and misses the level by far.
"""

import math

import numpy as np
import pytest

from research.conformal import (
    Fit,
    Group,
    Interval,
    Rule,
    bound_scores,
    make_interval,
    try_held_back,
)

LEVEL = 0.8
# Planted: as many groups as data sets were measured, and one to come.
GROUPS = 7
WORLDS = 400


def plant(draws: np.random.Generator, count: int = GROUPS + 1) -> list[Group]:
    """Groups with a slope and a level of their own, of unequal sizes, and little noise within."""
    groups = []
    for _ in range(count):
        size = int(draws.integers(3, 30))
        known = draws.normal(size=(1, size))
        own = draws.standard_t(3)
        values = (1 + 0.5 * draws.normal()) * known[0] + own + 0.1 * draws.normal(size=size)
        groups.append(Group(known, values))
    return groups


def fit_line(groups: list[Group]) -> Fit:
    """A line through all values of all groups but some."""

    def fit(without: frozenset[int]) -> Rule:
        used = [group for place, group in enumerate(groups) if place not in without]
        x = np.concatenate([group.known[0] for group in used])
        y = np.concatenate([group.values for group in used])
        slope, level = np.polyfit(x, y, 1)
        return lambda known: np.asarray(slope * known[0] + level)

    return fit


def pooled(groups: list[Group]) -> Interval:
    """The quantile of all errors of one line, as if values of a group were independent."""
    rule = fit_line(groups)(frozenset())
    errors = np.concatenate([np.abs(group.values - rule(group.known)) for group in groups])
    rank = math.ceil(LEVEL * (len(errors) + 1))
    return Interval((rule,), float(np.sort(errors)[rank - 1]))


@pytest.fixture(scope="module")
def shares() -> tuple[np.ndarray, np.ndarray]:
    """The share of a further group inside each interval, in many worlds."""
    draws = np.random.default_rng(0)
    conformal = []
    naive = []
    for _ in range(WORLDS):
        *seen, further = plant(draws)
        conformal.append(make_interval(seen, fit_line(seen), LEVEL).share_inside(further))
        naive.append(pooled(seen).share_inside(further))
    return np.array(conformal), np.array(naive)


def error(shares: np.ndarray) -> float:
    return float(shares.std() / len(shares) ** 0.5)


def test_holds_its_level_over_planted_groups(shares: tuple[np.ndarray, np.ndarray]) -> None:
    conformal, _ = shares
    assert conformal.mean() > LEVEL - 3 * error(conformal)
    assert conformal.mean() < 0.97  # not by holding everything


def test_the_pooled_interval_misses_its_level(shares: tuple[np.ndarray, np.ndarray]) -> None:
    _, naive = shares
    assert naive.mean() < LEVEL - 3 * error(naive)


def test_groups_held_back_tell_the_level(shares: tuple[np.ndarray, np.ndarray]) -> None:
    """What the page prints of the groups measured is what a further group meets."""
    draws = np.random.default_rng(1)
    held = []
    for _ in range(100):
        groups = plant(draws, GROUPS)
        held.append(np.mean(try_held_back(groups, fit_line(groups), LEVEL)))
    found = np.array(held)
    assert found.mean() > LEVEL - 3 * error(found)


def test_too_few_groups_have_no_finite_interval() -> None:
    groups = plant(np.random.default_rng(2), 3)
    assert make_interval(groups, fit_line(groups), LEVEL).reach == math.inf


def test_each_group_weighs_the_same_however_many_values_it_has() -> None:
    many = np.full(100, 9.0)
    few = [np.array([value]) for value in (1.0, 2.0, 3.0)]
    assert bound_scores([many, *few], 0.6) == 3.0
    assert bound_scores([many, *few], 0.61) == 9.0
    assert bound_scores([many, *few], 0.81) == math.inf


def test_a_group_that_is_not_used_changes_nothing() -> None:
    groups = plant(np.random.default_rng(3))
    others = groups[1:]
    without = make_interval(groups, fit_line(groups), LEVEL, without=frozenset({0}))
    alone = make_interval(others, fit_line(others), LEVEL)
    assert without.reach == alone.reach
    assert np.array_equal(without.ends(groups[0].known), alone.ends(groups[0].known))
