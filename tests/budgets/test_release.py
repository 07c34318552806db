"""Populations of the papers, and the private histogram from which a plan is made."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from apiece.assignment import Scale, assign
from apiece.budgets import Budgets, release, release_histogram
from apiece.budgets.release import BudgetHistogram, gaussian_variance
from apiece.errors import BudgetError, InfeasibleError, InputError
from refusals import refused


def test_gaussian_variance_keeps_epsilon_and_delta() -> None:
    for epsilon, delta in ((0.5, 1e-6), (2.0, 1e-8)):
        variance = gaussian_variance(epsilon, delta)
        assert release.discrete_gaussian_delta(variance, epsilon) <= delta
        assert release.discrete_gaussian_delta(variance * Fraction(9, 10), epsilon) > delta
    # a wide discrete Gaussian is the continuous one: Kaiser et al. 2026 Def. 2
    z = 4.0
    phi = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))  # noqa: E731
    exact = phi(0.5 / z - 0.5 * z) - math.exp(0.5) * phi(-0.5 / z - 0.5 * z)
    assert release.discrete_gaussian_delta(Fraction(16), 0.5) == pytest.approx(exact, rel=0.05)


def test_no_record_gets_more_than_it_asked() -> None:
    random = np.random.default_rng(1)
    budgets = Budgets(np.exp(random.uniform(np.log(0.3), np.log(10), 3000)), 1e-5)
    for noise, delta in (("gaussian", 1e-6), ("laplace", None)):
        histogram = release_histogram(
            budgets, [0.5, 1, 2, 4, 8, 50], level_delta=1e-5, epsilon=1.0, delta=delta, noise=noise
        )
        assert histogram.delta == (delta or 0.0)
        plan = assign(histogram.budgets(), Scale(), steps=50, expected_batch_size=50, clip_norm=1.0)
        bound = plan.bind_released(histogram, budgets)
        assert bound.verify(budgets).ok
        own = budgets.epsilon[bound.ids]
        assert (plan.budget_groups.epsilon[bound.group_index] <= own).all()
        assert (budgets.epsilon[np.setdiff1d(budgets.ids, bound.ids)] < 0.5).all()
        # rates and the normaliser are those released, whoever is there
        assert bound.stages[0] is plan.stages[0]
        assert bound.counts == "released"


def histogram(level_delta: Any, level_excess: Any = None) -> BudgetHistogram:
    """As it is after a release: levels that are public, and counts that are noisy."""
    delta = np.broadcast_to(np.array(level_delta, dtype=float), 3)
    bounds = None if level_excess is None else np.array(level_excess, dtype=float)
    levels = np.array([0.5, 1.0, 4.0])
    return BudgetHistogram(levels, delta, bounds, np.full(3, 9), 1.0, 0.0, "laplace")


@pytest.mark.parametrize(
    ("level_delta", "own", "placed"),
    [
        (1e-5, 1e-5, 2),
        (1e-5, 9.99e-6, -1),
        ([1e-6, 1e-5, 1e-5], 2e-6, 0),
        ([1e-5, 1e-6, 1e-5], 2e-6, 1),
        ([1e-6, 1e-6, 1e-5], 9e-6, 1),
        ([1e-5, 1e-5, 1e-7], 2e-7, 2),
    ],
)
def test_nobody_is_placed_at_a_larger_delta(level_delta: Any, own: float, placed: int) -> None:
    """The highest level is then not theirs, however large their ε: it would break the promise."""
    released = histogram(level_delta)
    budgets = Budgets([9.0, 9.0], [own, 0.5], ids=["own", "any"])
    assert released.place(budgets).tolist() == [placed, 2]
    counted = release_histogram(
        budgets, [0.5, 1, 4], level_delta=level_delta, epsilon=500.0, noise="laplace"
    )
    assert (
        counted.counts.tolist()
        == np.bincount([3 if placed < 0 else placed, 2], minlength=4)[:3].tolist()
    )


@pytest.mark.parametrize(
    ("level_excess", "own", "placed"),
    [([0.1, 0.1, 0.1], 0.1, 2), ([0.0, 0.1, 0.2], 0.15, 1), ([0.3, 0.2, 0.1], 0.05, -1)],
)
def test_nobody_is_placed_at_a_larger_bound(level_excess: Any, own: float, placed: int) -> None:
    released = histogram(1e-5, level_excess)
    assert released.place(Budgets([9.0, 9.0], 1e-5, excess=[own, 1.0])).tolist() == [placed, 2]
    assert released.place(Budgets([9.0], 1e-5)).tolist() == [2]  # asks for no bound


@pytest.mark.parametrize("own", [0.0, 0.3, 1.0])
def test_bounds_are_not_dropped_where_the_levels_have_none(own: float) -> None:
    """Refused for the column, whatever stands in it, so that the refusal tells nothing."""
    released, budgets = histogram(1e-5), Budgets([9.0, 9.0], 1e-5, excess=own)
    with pytest.raises(BudgetError, match="the histogram's levels have none; release one with"):
        released.place(budgets)
    plan = assign(released.budgets(), Scale(), steps=2, expected_batch_size=3, clip_norm=1.0)
    with pytest.raises(BudgetError, match="the histogram's levels have none"):
        plan.bind_released(released, budgets)


def test_a_bound_plan_takes_nobody_who_was_placed_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second guard: whatever places records, a plan is held against what each allows."""
    released = histogram([1e-5, 1e-6, 1e-5])
    plan = assign(released.budgets(), Scale(), steps=2, expected_batch_size=3, clip_norm=1.0)
    budgets = Budgets([9.0, 2.0], [1e-5, 1e-6])
    bound = plan.bind_released(released, budgets)
    assert bound.group_index.tolist() == [2, 1]
    assert bound.consents.delta.tolist() == [1e-5, 1e-6]
    wrong: dict[str, Callable[[Budgets], list[int]]] = {
        "delta": lambda b: [2, 0], "epsilon": lambda b: [2, 2],
    }  # fmt: skip
    for name, places in wrong.items():
        monkeypatch.setattr(BudgetHistogram, "place", lambda _, b, p=places: np.array(p(b)))
        with pytest.raises(InputError, match=f"in a group whose {name} is above") as error:
            plan.bind_released(released, budgets)
        assert "\n" not in str(error.value)


def test_a_plan_of_released_counts_may_have_nobody() -> None:
    released = histogram(1e-5)
    plan = assign(released.budgets(), Scale(), steps=2, expected_batch_size=3, clip_norm=1.0)
    bound = plan.bind_released(released, Budgets([0.1, 0.2], 1e-5))
    assert bound.ids.size == 0
    bound.require()


def test_levels_that_vanish_send_records_down() -> None:
    """A level whose released count is not positive has no group: its records go lower."""
    budgets = Budgets([1.0] * 400 + [5.0], 1e-5)
    for seed in range(20):
        histogram = release_histogram(
            budgets, [1.0, 5.0], level_delta=1e-5, epsilon=1.0, noise="laplace", seed=seed
        )
        place = histogram.place(budgets)
        asked = histogram.budgets().groups.epsilon
        assert (asked[place[place >= 0]] <= budgets.epsilon[place >= 0]).all()


def test_a_release_refuses() -> None:
    budgets = Budgets([1.0, 2.0], [1e-5, 1e-6])
    with refused(TypeError, "level_delta"):
        release_histogram(budgets, [1.0], epsilon=1.0, delta=1e-6)  # type: ignore[call-arg]
    with pytest.raises(BudgetError, match="delta: missing"):
        release_histogram(budgets, [1.0], epsilon=1.0, level_delta=1e-6)
    with pytest.raises(BudgetError, match="two are the same"):
        release_histogram(budgets, [1.0, 1.0], epsilon=1.0, delta=1e-6, level_delta=1e-6)
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        release_histogram(
            budgets, [1.0], level_delta=1e-5, epsilon=1.0, delta=1e-6, noise="gausian"
        )
    nothing = release_histogram(
        Budgets([0.1], 1e-5), [50.0], level_delta=1e-5, epsilon=50.0, delta=1e-6
    )
    with pytest.raises(InfeasibleError, match="every released count is 0"):
        nothing.budgets()


def test_the_plan_must_come_from_the_histogram() -> None:
    budgets = Budgets([1.0] * 50 + [2.0] * 50, 1e-5)
    histogram = release_histogram(budgets, [1.0, 2.0], level_delta=1e-5, epsilon=1.0, delta=1e-6)
    plan = assign(Budgets([1.0] * 9, 1e-5), Scale(), steps=5, expected_batch_size=2, clip_norm=1)
    with pytest.raises(InputError, match="not made from it"):
        plan.bind_released(histogram, budgets)
    other = release_histogram(budgets, [1.0, 2.0], level_delta=1e-9, epsilon=1.0, delta=1e-6)
    plan = assign(histogram.budgets(), Scale(), steps=5, expected_batch_size=2, clip_norm=1)
    same = BudgetHistogram(
        other.level_epsilon, other.level_delta, None, histogram.counts, 1.0, 1e-6, "gaussian"
    )
    with pytest.raises(InputError, match="not made from it"):  # whose δ the plan would break
        plan.bind_released(same, budgets)


def people(generator: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    return {
        "epsilon": 10 ** generator.uniform(-1, 1, size),
        "delta": 10 ** generator.uniform(-8, -4, size),
        "excess": generator.uniform(0, 1, size),
    }


def released(columns: dict[str, Any], seed: int, **options: Any) -> Any:
    """What an analyst sees: the histogram, or the error's type and text."""
    try:
        return release_histogram(Budgets(**columns), seed=seed, **options)
    except Exception as error:
        return type(error), str(error)


def asked(generator: np.random.Generator) -> Iterator[dict[str, Any]]:
    """What is asked for: in order, and not."""
    levels = np.sort(10 ** generator.uniform(-1, 1, 3))
    good = {
        "levels": levels,
        "level_delta": 1e-5,
        "level_excess": 0.5,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    yield good
    yield good | {"noise": "laplace"}
    yield good | {"level_delta": 10 ** generator.uniform(-7, -5, 3)}
    yield good | {"levels": levels[[0, 0, 1]]}
    yield good | {"delta": None}
    yield good | {"level_delta": 2.0}
    yield good | {"epsilon": 1e-12, "noise": "laplace"}
    yield good | {"level_excess": [0.1, 0.2]}
    yield {name: value for name, value in good.items() if name != "level_delta"}
    yield {name: value for name, value in good.items() if name != "level_excess"}


@pytest.mark.parametrize("seed", range(12))
def test_nothing_but_a_count_depends_on_a_record(seed: int) -> None:
    """One record more, or one with other wishes: same levels, same errors, counts 1 apart.

    With the same noise on both sides, so that counts can be compared at all.
    """
    generator = np.random.default_rng(seed)
    here = people(generator, 40)
    for column in ("delta", "excess"):
        if seed % 2:  # alike but for one person: what copying from the first or the least reveals
            here[column][:] = here[column][0]
    there = [{name: column[:-1] for name, column in here.items()}]
    for name, low, high in (("epsilon", 1e-3, 100.0), ("delta", 1e-12, 0.5), ("excess", 0.0, 1.0)):
        for place in (0, -1):
            for value in (low, high):
                there.append(here | {name: here[name].copy()})
                there[-1][name][place] = value
    for options in asked(generator):
        one = released(here, seed, **options)
        for columns in there:
            other = released(columns, seed, **options)
            if isinstance(one, tuple):
                assert other == one
                continue
            for name in ("level_epsilon", "level_delta", "level_excess", "epsilon", "delta"):
                assert np.array_equal(getattr(one, name), getattr(other, name))
            moves = np.abs(one.counts - other.counts)
            assert moves.max() <= 1
            assert moves.sum() <= 2 - (len(columns["epsilon"]) < 40)


def test_noise_past_any_use_is_refused_before_any_record_is_seen() -> None:
    budgets = Budgets([1.0, 2.0], 1e-5)
    for epsilon, delta, noise in ((1e-9, 1e-14, "gaussian"), (1e-300, None, "laplace")):
        with pytest.raises(BudgetError, match="too small"):
            release_histogram(
                budgets, [1.0], level_delta=1e-5, epsilon=epsilon, delta=delta, noise=noise
            )
    huge = release_histogram(budgets, [1.0], level_delta=1e-5, epsilon=1e6, delta=1e-5)
    assert huge.counts.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("levels", [[0.0, 1.0], [1.0, -2.0], [1.0, math.inf], [math.nan], ["low"]]),
        ("level_delta", [0.0, 1.0, 1.5, -1e-6, math.nan, [1e-6, 1.0], [1e-6] * 3]),
        ("level_excess", [-0.1, 1.1, math.nan, [0.0, 2.0], [0.0] * 3]),
        ("epsilon", [0.0, -1.0, math.inf, math.nan, "1"]),
        ("delta", [0.0, 1.0, 1.5, -1e-6, math.nan]),
    ],
)
def test_what_is_no_budget_is_refused_as_one(name: str, wrong: list[Any]) -> None:
    """Whoever catches `BudgetError` catches each of them, and the message names what is wrong."""
    asked = Budgets([1.0] * 60 + [4.0] * 40, 1e-5, excess=0.5)
    right = {
        "levels": [1.0, 4.0], "level_delta": 1e-5, "level_excess": 0.5, "epsilon": 1.0,
        "delta": 1e-6,
    }  # fmt: skip
    for value in wrong:
        changed = {**right, name: value}
        with pytest.raises(BudgetError, match=f"^{name}"):
            release_histogram(asked, changed.pop("levels"), **changed)
