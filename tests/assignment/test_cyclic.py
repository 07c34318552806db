"""Parts that take turns with coins in each: never worse than Poisson sampling, and as claimed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, Hybrid, Plan, Sample, Scale, Sequential, assign
from apiece.accounting import privacy_curve
from apiece.assignment import (
    Correlated,
    Epochs,
    Strategy,
    Threshold,
    Uniform,
    compare,
)
from apiece.assignment.correlated import _disturbance
from apiece.contract.explain import count_participation
from apiece.correlation.strategies import Banded, Buffered
from apiece.errors import InfeasibleError, InputError, UnsupportedError
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.plan.correlated import CorrelatedNoise
from apiece.plan.parts import Stage
from apiece.reporting import report

SETTINGS = {"steps": 60, "expected_batch_size": 4, "clip_norm": 1.0}
STRATEGIES = [Uniform(), Scale(), Sample(), Threshold()]


def three_groups(records: int = 100) -> Budgets:
    shares = [("a", 1.0, 0.34), ("b", 2.0, 0.43), ("c", 3.0, 0.23)]
    return Budgets.from_groups(shares, records, 1e-5)


SUMS = Correlated(sampled=True)
MOMENTUM = Correlated(sampled=True, momentum=0.9)
SCHEDULE = Correlated(sampled=True, learning_rates=np.linspace(1, 0.02, 60))
KINDS = {"sums": SUMS, "momentum": MOMENTUM, "schedule": SCHEDULE}
BATCHES: list[tuple[Strategy, int]] = [
    (Sample(), 1),
    (Scale(), 1),
    (Scale(), 10),
    (Uniform(), 10),
    (Threshold(), 30),
    (Sample(), 30),
]
# Each kind of noise and each strategy run with every test, not each with each.
QUICK = {("momentum", "sample", 30), ("schedule", "scale", 10)}


def _comparisons() -> Iterator[Any]:
    for kind, noise in KINDS.items():
        for strategy, batch in BATCHES:
            quick = kind == "sums" or (kind, strategy.name, batch) in QUICK
            marks = [] if quick else [pytest.mark.slow]
            name = f"{kind}-{strategy.name}-{batch}"
            yield pytest.param(strategy, noise, batch, id=name, marks=marks)


@pytest.mark.parametrize(("strategy", "noise", "batch"), list(_comparisons()))
def test_no_plan_is_worse_than_poisson(strategy: Strategy, noise: Correlated, batch: int) -> None:
    shape = {"steps": 60, "expected_batch_size": batch, "clip_norm": 1.0}
    workload = noise.workload(60)
    poisson = assign(three_groups(), strategy, **shape)
    cyclic = assign(three_groups(), strategy, noise=noise, **shape)
    assert cyclic.verify().ok
    assert _disturbance(cyclic, workload) <= _disturbance(poisson, workload) * (1 + 1e-9)
    if batch == 1 and noise.momentum == 0 and noise.learning_rates is None:
        assert _disturbance(cyclic, workload) < 0.9 * _disturbance(poisson, workload)


def test_one_part_is_poisson_sampling() -> None:
    poisson = assign(three_groups(), Sample(), **SETTINGS)
    one = assign(three_groups(), Sample(), noise=Correlated(sampled=True, separation=1), **SETTINGS)
    assert one.stages[0].correlated is None
    assert one.stages[0].noise_stddev == poisson.stages[0].noise_stddev
    np.testing.assert_array_equal(
        one.stages[0].sampling_probability, poisson.stages[0].sampling_probability
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_everybody_meets_a_sampled_gaussian_a_turn(strategy: Strategy) -> None:
    noise = Correlated(sampled=True, separation=7)
    plan = assign(three_groups(), strategy, noise=noise, **SETTINGS)
    stage = plan.stages[0]
    assert stage.correlated is not None
    assert stage.correlated.sampled
    assert isinstance(stage.correlated.strategy, Banded)
    norm = np.linalg.norm(stage.correlated.strategy.coefficients)
    assert (plan.epsilon_spent <= plan.budget_groups.epsilon).all()
    if strategy.name in ("sample", "scale"):
        np.testing.assert_allclose(plan.epsilon_spent, plan.budget_groups.epsilon, rtol=1e-2)
    assert stage.expected_batch_size == pytest.approx(4)
    for group in range(3):
        mechanism = plan.mechanism_for(group)
        rate = 7 * stage.sampling_probability[group]
        if rate == 0:
            continue
        assert isinstance(mechanism, Repeated)
        # ⌈60/7⌉ turns.
        assert mechanism.times == 9
        assert isinstance(mechanism.mechanism, Sampled)
        assert mechanism.mechanism.probability >= rate
        assert mechanism.mechanism.probability == pytest.approx(rate)
        step = mechanism.mechanism.mechanism
        assert isinstance(step, Gaussian)
        claimed = stage.noise_stddev / stage.clip_norm[group] / norm
        assert claimed * (1 - 1e-12) <= step.noise_multiplier <= claimed


def test_the_pair_is_that_of_all_coins_together() -> None:
    """δ of the very mixture over all coins of one person, by drawing from it, is the claimed δ."""
    steps, parts, rate, stddev = 6, 2, 0.4, 1.2
    matrix = Banded([1.0, 0.6])
    stage = Stage(
        steps, 1.0, stddev, [rate / parts], [1.0], correlated=CorrelatedNoise(matrix, parts, True)
    )
    mechanism = stage.mechanism(0)
    assert mechanism is not None
    claimed = privacy_curve(mechanism)
    assert estimate_delta(
        matrix.first_column(steps), range(0, steps, parts), rate, stddev, 0.5
    ) == (pytest.approx(claimed.delta(0.5).upper, abs=0.003))
    # The planted break: three bands for two parts, whose columns meet.
    wide = Banded([1.0, 0.6, 0.5])
    broken = estimate_delta(wide.first_column(steps), range(0, steps, parts), rate, stddev, 0.5)
    norm = float(np.linalg.norm(wide.coefficients))
    as_claimed = privacy_curve(Repeated(Sampled(Gaussian(stddev / norm), rate), 3))
    assert broken > as_claimed.delta(0.5).upper + 0.005
    with pytest.raises(InputError, match="parts"):
        CorrelatedNoise(wide, parts, True)


def estimate_delta(
    column: np.ndarray, joined: range, rate: float, stddev: float, epsilon: float
) -> float:
    """δ(ε) of Σ over coins of N(C u, σ²) against N(0, σ²), from 400,000 draws of the first."""
    steps = column.size
    matrix = np.array([np.pad(column[: steps - start], (start, 0)) for start in joined])
    coins = np.array(list(np.ndindex(*[2] * len(joined))))
    weights = np.prod(np.where(coins, rate, 1 - rate), axis=1)
    means = coins @ matrix / stddev
    generator = np.random.default_rng(0)
    drawn = generator.choice(len(coins), 400_000, p=weights)
    outcomes = means[drawn] + generator.normal(size=(drawn.size, steps))
    ratio = np.exp(outcomes @ means.T - (means**2).sum(axis=1) / 2) @ weights
    return float(np.maximum(1 - np.exp(epsilon) / ratio, 0).mean())


@settings(max_examples=8, deadline=None)
@given(
    epsilons=st.lists(st.floats(0.3, 8), min_size=1, max_size=4, unique=True),
    steps=st.integers(2, 40),
    share=st.floats(0.02, 0.5),
    parts=st.integers(1, 6),
)
def test_nobody_spends_more_than_they_asked(
    epsilons: list[float], steps: int, share: float, parts: int
) -> None:
    budgets = Budgets(np.repeat(epsilons, 20), 1e-5)
    for strategy in (Sample(), Scale()):
        try:
            plan = assign(
                budgets,
                strategy,
                steps=steps,
                expected_batch_size=share * len(budgets),
                clip_norm=1.0,
                noise=Correlated(sampled=True, separation=parts),
            )
        except InfeasibleError:
            assert share * parts > 1
            continue
        assert plan.verify(budgets).ok


def test_a_plan_comes_back_from_json() -> None:
    noise = Correlated(sampled=True, separation=5)
    plan = assign(three_groups(), Sample(), noise=noise, **SETTINGS)
    again = Plan.from_json(plan.to_json())
    assert again.hash() == plan.hash()
    assert again.stages[0].correlated == plan.stages[0].correlated
    assert again.has_turns
    assert not again.has_fixed_steps


def test_many_groups_are_bounded_as_few_are() -> None:
    budgets = Budgets(np.geomspace(0.5, 8, 90), 1e-5)
    noise = Correlated(sampled=True, separation=4)
    plan = assign(budgets, Sample(), noise=noise, **SETTINGS)
    for group in (0, 40, 89):
        exact = privacy_curve(plan.mechanism_at(group)).epsilon(1e-5)
        assert plan.epsilon_spent[group] == pytest.approx(exact.upper, rel=1e-3)
        assert plan.epsilon_spent[group] <= plan.budget_groups.epsilon[group]


def test_the_first_steps_alone_cost_less() -> None:
    noise = Correlated(sampled=True, separation=4)
    plan = assign(three_groups(), Sample(), noise=noise, **SETTINGS)
    costs = [
        privacy_curve(plan.mechanism_at(2, steps)).epsilon(1e-5).upper for steps in (4, 30, 60)
    ]
    assert costs == sorted(costs)


@pytest.mark.parametrize("strategy", [Hybrid(), Epochs(), Sequential()], ids=lambda s: s.name)
def test_who_has_no_parts_is_refused(strategy: Strategy) -> None:
    with pytest.raises(UnsupportedError, match="parts"):
        assign(three_groups(), strategy, noise=Correlated(sampled=True), **SETTINGS)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="buffers"):
        Correlated(sampled=True, buffers=2)
    with pytest.raises(InputError, match="strategy"):
        Correlated(sampled=True, strategy=Banded([1.0]))
    with pytest.raises(InfeasibleError, match="fewer parts"):
        assign(three_groups(), Scale(), noise=Correlated(sampled=True, separation=30), **SETTINGS)
    with pytest.raises(InputError, match="bands"):
        CorrelatedNoise(Buffered([0.5], [0.5]), 9, sampled=True)
    noise = CorrelatedNoise(Banded.square_root(2), 4, sampled=True)
    with pytest.raises(InputError, match="one in 4 parts"):
        Stage(12, 1.0, 1.0, [0.3], [1.0], correlated=noise)
    with pytest.raises(InputError, match="times"):
        Stage(12, 1.0, 1.0, [0.25], [1.0], times=np.array([3]), correlated=noise)


def test_hybrid_with_fixed_steps_moves_with_nobody() -> None:
    """Its bound is kept with room: each meets the Gaussian of their own budget, so Δ = 0."""
    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5, excess=0.01)
    hybrid = assign(budgets, Hybrid(), noise=Correlated(), **SETTINGS)
    assert hybrid.verify(budgets).ok
    assert hybrid.measures.forward is not None
    assert hybrid.measures.forward.max() < 1e-6
    scale = assign(Budgets([1.0] * 50 + [3.0] * 50, 1e-5), Scale(), noise=Correlated(), **SETTINGS)
    np.testing.assert_allclose(hybrid.stages[0].clip_norm, scale.stages[0].clip_norm)


def test_it_is_compared_beside_what_samples() -> None:
    rows = compare(three_groups(), ["scale", "sample"], noise=Correlated(sampled=True), steps=60,
                   expected_batch_size=4)  # fmt: skip
    noise = {row.strategy: row.noise_over_signal for row in rows}
    assert noise["sample, cyclic"] <= noise["sample"]
    assert noise["scale, cyclic"] <= noise["scale"]


def test_what_is_said_of_it() -> None:
    noise = Correlated(sampled=True, separation=5)
    plan = assign(three_groups(), Sample(), noise=noise, **SETTINGS)
    assert count_participation(plan, 0) is None
    page = report(plan, edition="public").html
    assert "parts of the people take turns" in page
    assert "Poisson samples" not in page
