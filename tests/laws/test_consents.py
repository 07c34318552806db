"""Whatever path leads from budgets to a plan: nobody's own (ε, δ, Δ̄) is exceeded without an error.

The judge asks the plan for nothing but each record's mechanism, and compares it with what that
record itself allowed: with its own ε at its own δ, and with the baseline of its own (ε, δ).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece import contract
from apiece.accounting import excess, noise_multipliers, privacy_curve
from apiece.assignment import (
    Hybrid,
    Rounds,
    Sample,
    Scale,
    Threshold,
    Uniform,
    assign,
    assign_levels,
)
from apiece.budgets import BudgetGroups, BudgetLevels, Budgets, release, release_histogram
from apiece.budgets.records import Consents
from apiece.budgets.release import BudgetHistogram
from apiece.errors import ApieceError, InputError
from apiece.pate import plan_votes
from apiece.plan import BoundPlan, Plan, model, verification

ONE_LESS = {"epsilon": 3.9, "delta": 5e-7, "excess": 0.01}
SETTINGS = {"steps": 1, "expected_batch_size": 8.0, "clip_norm": 1.0}
Path = Callable[[Budgets], BoundPlan]


def by(strategy: object) -> Path:
    return lambda budgets: assign(budgets, strategy, **SETTINGS)  # type: ignore[arg-type]


def read_back(budgets: Budgets) -> BoundPlan:
    text = assign(budgets, Sample(), **SETTINGS).to_json()  # type: ignore[arg-type]
    return Plan.from_json(text).bind(budgets)


def from_levels(budgets: Budgets) -> BoundPlan:
    return assign_levels(BudgetLevels(budgets.groups), Sample(), **SETTINGS).bind(budgets)  # type: ignore[arg-type]


def from_a_histogram(
    budgets: Budgets, strategy: object = None, *, bounds: bool = True
) -> BoundPlan:
    """From levels that are not those of the records, where the bounds may be forgotten."""
    counted = budgets if bounds else Budgets(budgets.epsilon, budgets.delta, ids=budgets.ids)
    level_excess = None if counted.excess is None else [0.0, 0.3, 1.0]
    histogram = release_histogram(
        counted, [0.5, 1.0, 4.0], level_delta=[1e-6, 1e-5, 1e-6], level_excess=level_excess,
        epsilon=50.0, noise="laplace", seed=0,
    )  # fmt: skip
    plan = assign(
        histogram.budgets(), strategy or Sample(), **(SETTINGS | {"expected_batch_size": 2.0})
    )  # type: ignore[arg-type]
    return plan.bind_released(histogram, budgets)


def of_narrowed(budgets: Budgets) -> BoundPlan:
    narrowed = budgets.at_most(2.0).rounded_down(epsilon=1.3, delta=1.5).bounded(0.5)
    return assign(narrowed, Hybrid(0.9), **SETTINGS)  # type: ignore[arg-type]


LONG = {  # a curve at every step of a search, or much like another path
    "hybrid", "hybrid with a bound for all", "hybrid without a bound", "enforced", "narrowed",
    "enforced with a bound for all", "changed", "from a histogram, scale", "votes of the strictest",
}  # fmt: skip
PATHS: dict[str, Path] = {
    "uniform": by(Uniform()),
    "the loosest for all": by(Uniform("loosest")),
    "scale": by(Scale()),
    "sample": by(Sample()),
    "threshold": by(Threshold()),
    "hybrid": by(Hybrid()),
    "hybrid with a bound for all": by(Hybrid(0.1)),
    "hybrid without a bound": by(Hybrid(1.0)),
    "with revealed coins": by(Rounds(1, charging="joined")),
    "enforced": lambda budgets: contract.enforce(budgets, **SETTINGS),  # type: ignore[arg-type]
    "enforced with a bound for all": lambda budgets: contract.enforce(
        budgets, excess=0.2, **SETTINGS  # type: ignore[arg-type]
    ),
    "read back": read_back,
    "from levels": from_levels,
    "from a histogram": from_a_histogram,
    "from a histogram without bounds": lambda b: from_a_histogram(b, bounds=False),
    "from a histogram, scale": lambda b: from_a_histogram(b, Scale()),
    "narrowed": of_narrowed,
    "changed": lambda b: replace(by(Sample())(b), notes=("a note",), unit="person"),
    "votes": lambda b: plan_votes(b, "weight", teachers=8, questions=4).plan,
    "votes of the strictest": lambda b: plan_votes(b, "uniform", teachers=8, questions=4).plan,
}  # fmt: skip


def exceeded(plan: BoundPlan, budgets: Budgets) -> bool:
    """Whether somebody's own ε, δ or Δ̄ is exceeded by what the plan does to that record."""
    bounds = np.ones(len(budgets)) if budgets.excess is None else budgets.excess
    own = dict(
        zip(
            budgets.ids.tolist(),
            zip(budgets.epsilon, budgets.delta, bounds, strict=True),
            strict=True,
        )
    )
    asked = {
        (group, *own[name])
        for name, group in zip(plan.ids.tolist(), plan.group_index.tolist(), strict=True)
        if name in own
    }
    for group, epsilon, delta, bound in asked:
        mechanism = plan.mechanism_for(group)
        curve = privacy_curve(mechanism)
        if not curve.epsilon(delta).upper <= epsilon:
            return True
        if bound < 1:
            reference = plan.reference
            assert reference is not None
            z = noise_multipliers(
                epsilon=epsilon, delta=delta, steps=reference.steps,
                sampling_probability=reference.sampling_probability,
            )  # fmt: skip
            baseline = privacy_curve(reference.mechanism(float(z)))
            if not excess(baseline, curve).forward.lower <= bound + 1e-6:
                return True
    return False


def lawful(path: Path, budgets: Budgets) -> bool:
    """Whether the path ends in an error, or in a plan that exceeds nothing."""
    try:
        plan = path(budgets)
        plan.require()
    except ApieceError:
        return True
    return not exceeded(plan, budgets)


# A few who ask for a lot and allow little Δ among many: rates that suit the others break it.
SKEWED = Budgets(
    np.repeat([1.0, 4.0, 1.7], [40, 10, 20]),
    np.repeat([1e-5, 1e-6, 1e-5], [40, 10, 20]),
    excess=np.repeat([0.3, 0.002, 1.0], [40, 10, 20]),
    ids=np.random.default_rng(0).permutation(70),
)


@pytest.mark.parametrize("path", sorted(set(PATHS) - LONG))
def test_nobodys_own_bound_is_exceeded(path: str) -> None:
    assert lawful(PATHS[path], SKEWED)


def test_the_judge_sees_what_a_plan_without_bounds_does() -> None:
    """The control: Sample exceeds a bound, and the loosest noise for all an ε and a δ."""
    plan = assign(SKEWED, Sample(), **SETTINGS)  # type: ignore[arg-type]
    free = Budgets(SKEWED.epsilon, SKEWED.delta, ids=SKEWED.ids)
    assert exceeded(plan, SKEWED)
    assert not exceeded(plan, free)
    assert exceeded(assign(free, Uniform("loosest"), **SETTINGS), free)  # type: ignore[arg-type]
    assert exceeded(plan, Budgets(SKEWED.epsilon, SKEWED.delta / 10, ids=SKEWED.ids))


def kinds(draw: st.DrawFn, count: int) -> list[list[float]]:
    """ε, δ and Δ̄ of some kinds of people."""
    return [
        draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        for values in ([0.5, 1.0, 1.7, 4.0], [1e-6, 1e-5, 1e-4], [0.0, 0.002, 0.02, 0.3, 1.0])
    ]


@st.composite
def populations(draw: st.DrawFn) -> Budgets:
    """Some kinds of people, of whom each has ids and bounds of their own, in any order."""
    count = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(8, 30), min_size=count, max_size=count))
    epsilon, delta, bound = (np.repeat(column, sizes) for column in kinds(draw, count))
    order = np.array(draw(st.permutations(range(epsilon.size))))
    bounds = bound[order] if draw(st.sampled_from([True, True, True, False])) else None
    ids = [f"p{i}" for i in order] if draw(st.booleans()) else None
    return Budgets(epsilon[order], delta[order], excess=bounds, ids=ids)


NARROWINGS: dict[str, Callable[[Budgets, float], Budgets]] = {
    "at_most": lambda b, x: b.at_most(0.3 + 3 * x),
    "lowered_to": lambda b, x: b.lowered_to(b.epsilon * (1 - x / 2)),
    "rounded_down": lambda b, x: b.rounded_down(epsilon=1.1 + x, delta=1.2 + x),
    "bounded": Budgets.bounded,
    "taken": lambda b, x: b.taken(np.random.default_rng(int(99 * x)).permutation(len(b))[:5]),
}


def narrower(narrow: Callable[[Budgets, float], Budgets], budgets: Budgets, by: float) -> bool:
    """Whether nobody allows more than before: of each record by its id, bounds and all."""
    found, before = narrow(budgets, by).consents, budgets.consents
    place = {name: at for at, name in enumerate(before.ids.tolist())}
    old = before.select(np.array([place[name] for name in found.ids.tolist()]))
    return all((getattr(found, c) <= getattr(old, c)).all() for c in ONE_LESS)


@pytest.mark.parametrize("name", NARROWINGS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(budgets=populations(), by=st.floats(0, 1))
def test_what_narrows_loosens_nothing(name: str, budgets: Budgets, by: float) -> None:
    assert narrower(NARROWINGS[name], budgets, by)


def test_planted_narrowings_that_loosen() -> None:
    free: list[Callable[[Budgets, float], Budgets]] = [
        lambda b, x: Budgets(b.epsilon, b.delta, excess=x, ids=b.ids),
        lambda b, x: Budgets(b.epsilon * (1 - x), b.delta, ids=b.ids),
        lambda b, x: Budgets(np.minimum(b.epsilon, x), b.delta.max(), excess=b.excess, ids=b.ids),
        lambda b, x: Budgets(b.epsilon, b.delta, excess=b.excess, ids=b.ids[::-1]),
    ]
    assert not any(narrower(broken, SKEWED, 0.2) for broken in free)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(budgets=populations())
def test_whoever_asks(path: str, budgets: Budgets) -> None:
    assert lawful(PATHS[path], budgets)


@st.composite
def stricter(draw: st.DrawFn) -> Budgets:
    """Some of `SKEWED`, in another order, allow less of something; others perhaps more."""
    epsilon, delta, bound = SKEWED.epsilon.copy(), SKEWED.delta.copy(), np.ones(70)
    for at in draw(st.lists(st.integers(0, 69), max_size=3)):
        epsilon[at] *= draw(st.sampled_from([0.999, 1.0, 1.0, 2.0]))
        delta[at] *= draw(st.sampled_from([0.5, 1.0, 1.0, 2.0]))
        bound[at] = draw(st.sampled_from([0.0, 0.01, 1.0, 1.0]))
    order = np.array(draw(st.permutations(range(70))))
    bounds = bound[order] if draw(st.booleans()) else None
    return Budgets(epsilon[order], delta[order], excess=bounds, ids=SKEWED.ids[order])


PLANS = {
    strategy.name: assign(
        Budgets(SKEWED.epsilon, SKEWED.delta, ids=SKEWED.ids), strategy, **SETTINGS
    )  # type: ignore[arg-type]
    for strategy in (Uniform(), Scale(), Sample())
}


def told(plan: BoundPlan, budgets: Budgets) -> bool:
    """Whether `verify` says so where the plan exceeds what somebody of `budgets` allows."""
    return not (plan.verify(budgets).ok and exceeded(plan, budgets))


@pytest.mark.parametrize("strategy", PLANS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(budgets=stricter())
def test_what_is_verified_is_kept_by_everyone(strategy: str, budgets: Budgets) -> None:
    assert told(PLANS[strategy], budgets)


def one_less(name: str, value: float) -> Budgets:
    """The last record allows less; the others stand in another order."""
    columns = {"epsilon": SKEWED.epsilon, "delta": SKEWED.delta, "excess": np.ones(70)}
    columns = {key: column.copy() for key, column in columns.items()}
    columns[name][np.argmax(SKEWED.epsilon)] = value
    order = np.random.default_rng(1).permutation(70)
    return Budgets(**{key: c[order] for key, c in columns.items()}, ids=SKEWED.ids[order])


def forgetting(name: str) -> Callable[..., verification.Limits]:
    def find_limits(own: BudgetGroups, *records: Any) -> verification.Limits:
        limits = verification.find_limits(own, *records)
        loose = np.ones(len(own)) if name == "excess" else getattr(limits, name) * 1e9
        return replace(limits, **{name: loose})

    return find_limits


@pytest.mark.parametrize("name", ONE_LESS)
def test_planted_a_verification_that_forgets_one_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = one_less(name, ONE_LESS[name])
    assert told(PLANS["sample"], budgets)
    monkeypatch.setattr(model, "find_limits", forgetting(name))
    assert not told(PLANS["sample"], budgets)


@pytest.mark.parametrize("name", ONE_LESS)
def test_planted_consents_that_are_not_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consents, "lowered_to", lambda own, other, **_: own)
    assert not told(PLANS["sample"], one_less(name, ONE_LESS[name]))


def test_planted_a_door_that_loosens(monkeypatch: pytest.MonkeyPatch) -> None:
    """`enforce` once put its own bound in the place of stricter ones."""
    strict = SKEWED.bounded(0.0)
    monkeypatch.setattr(
        Budgets, "bounded", lambda b, x: Budgets(b.epsilon, b.delta, excess=x, ids=b.ids)
    )
    assert not lawful(PATHS["enforced with a bound for all"], strict)


def test_planted_records_that_are_placed_without_their_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a histogram without Δ̄ took records with one. Two guards stand before it now."""
    path = PATHS["from a histogram without bounds"]

    def place(histogram: BudgetHistogram, budgets: Budgets) -> np.ndarray:
        groups = histogram.budgets().groups
        free = Budgets(budgets.epsilon, budgets.delta)
        return release._find_levels(free, groups.epsilon, groups.delta, groups.excess)

    def free(budgets: Budgets) -> Consents:
        return Consents(budgets.ids, budgets.epsilon, budgets.delta, np.ones(len(budgets)))

    monkeypatch.setattr(BudgetHistogram, "place", place)
    with pytest.raises(InputError, match="a group whose excess is above"):
        path(SKEWED)
    monkeypatch.setattr(Budgets, "consents", property(free))
    assert not lawful(path, SKEWED)
