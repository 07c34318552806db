"""Plans with correlated noise: what each person faces, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, Gaussian, Plan, Sample, Scale, Sequential, assign, report
from apiece.accounting import privacy_curve
from apiece.assignment import (
    Correlated,
    Epochs,
    Strategy,
    Threshold,
    Uniform,
    compare,
    schedule_noise,
)
from apiece.assignment.front import noise_over_signal
from apiece.audit.anytime import step_claims
from apiece.contract import explain
from apiece.contract.explain import count_participation
from apiece.correlation.sensitivity import sensitivity_bound
from apiece.correlation.strategies import Banded, Buffered
from apiece.errors import InfeasibleError, InputError, RangeError, UnsupportedError
from apiece.ledger import plan_costs
from apiece.plan import Schedule
from apiece.plan.parts import Stage

SETTINGS = {"steps": 60, "expected_batch_size": 10, "clip_norm": 1.0}
STRATEGIES = [Uniform(), Scale(), Threshold(), Epochs()]


def three_groups() -> Budgets:
    return Budgets.from_groups([("a", 1.0, 0.34), ("b", 2.0, 0.43), ("c", 3.0, 0.23)], 100, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_everybody_faces_one_gaussian_within_their_budget(strategy: Strategy) -> None:
    plan = assign(three_groups(), strategy, noise=Correlated(), **SETTINGS)
    stage = plan.stages[0]
    assert stage.correlated is not None
    assert stage.times is not None
    assert (plan.epsilon_spent <= plan.budget_groups.epsilon).all()
    assert plan.verify().ok
    for group in range(3):
        times = int(stage.times[group])
        mechanism = plan.mechanism_for(group)
        if times == 0:
            continue
        moved = stage.clip_norm[group] * sensitivity_bound(
            stage.correlated.strategy,
            steps=60,
            participations=times,
            separation=stage.correlated.separation,
        )
        assert isinstance(mechanism, Gaussian)
        assert mechanism.noise_multiplier == pytest.approx(stage.noise_stddev / moved)
        assert mechanism.noise_multiplier <= stage.noise_stddev / moved


@pytest.mark.parametrize("strategy", [Scale(), Epochs()], ids=lambda s: s.name)
def test_the_whole_budget_is_spent_and_nobody_moves_another(strategy: Strategy) -> None:
    plan = assign(three_groups(), strategy, noise=Correlated(), **SETTINGS)
    np.testing.assert_allclose(plan.epsilon_spent, plan.budget_groups.epsilon, rtol=1e-3)
    assert plan.measures.forward is not None
    assert plan.measures.forward.max() < 1e-6
    other = assign(
        Budgets.from_groups([("a", 1.0, 0.34), ("b", 9.0, 0.66)], 100, 1e-5),
        strategy,
        noise=Correlated(),
        **SETTINGS,
    )
    first = plan.mechanism_for("a")
    assert isinstance(first, Gaussian)
    second = other.mechanism_for("a")
    assert isinstance(second, Gaussian)
    assert first.noise_multiplier == pytest.approx(second.noise_multiplier, rel=1e-6)


@pytest.mark.parametrize(
    "noise",
    [
        Correlated(),
        Correlated(bands=3),
        Correlated(buffers=2),
        Correlated(strategy=Buffered([0.9], [0.5])),
    ],
)
def test_a_plan_comes_back_from_json(noise: Correlated) -> None:
    plan = assign(three_groups(), Scale(), noise=noise, **SETTINGS)
    again = Plan.from_json(plan.to_json())
    assert again.hash() == plan.hash()
    assert again.stages[0].correlated == plan.stages[0].correlated


def test_many_groups_are_bounded_as_few_are() -> None:
    epsilon = np.geomspace(0.5, 8, 90)
    plan = assign(Budgets(epsilon, 1e-5), Scale(), noise=Correlated(), **SETTINGS)
    for group in (0, 40, 89):
        exact = privacy_curve(plan.mechanism_at(group)).epsilon(1e-5)
        assert plan.epsilon_spent[group] == pytest.approx(exact.upper, rel=1e-5)


def test_the_first_steps_alone_cost_less() -> None:
    plan = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    costs = [
        privacy_curve(plan.mechanism_at(2, steps)).epsilon(1e-5).upper for steps in (6, 30, 60)
    ]
    assert costs == sorted(costs)
    assert costs[0] < 0.9 * costs[-1]


def test_bands_are_searched_for_the_workload() -> None:
    plain = assign(three_groups(), Scale(), noise=Correlated(bands=1), **SETTINGS)
    searched = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    assert noise_over_signal(searched) < noise_over_signal(plain)


@settings(max_examples=25, deadline=None)
@given(
    epsilons=st.lists(st.floats(0.2, 8), min_size=1, max_size=5, unique=True),
    steps=st.integers(10, 50),
    share=st.floats(0.11, 0.9),
    bands=st.integers(1, 6),
)
def test_nobody_spends_more_than_they_asked(
    epsilons: list[float], steps: int, share: float, bands: int
) -> None:
    budgets = Budgets(np.repeat(epsilons, 10), 1e-5)
    for strategy in STRATEGIES:
        plan = assign(
            budgets,
            strategy,
            steps=steps,
            expected_batch_size=share * len(budgets),
            clip_norm=1.0,
            noise=Correlated(bands=bands),
        )
        assert plan.verify(budgets).ok


@pytest.mark.parametrize("strategy", [Sample(), Sequential()], ids=lambda s: s.name)
def test_what_rests_on_sampling_is_refused(strategy: Strategy) -> None:
    with pytest.raises(UnsupportedError, match="scale"):
        assign(three_groups(), strategy, noise=Correlated(), **SETTINGS)


def test_epochs_need_correlated_noise() -> None:
    with pytest.raises(UnsupportedError, match="Correlated"):
        assign(three_groups(), Epochs(), **SETTINGS)
    independent, correlated = compare(three_groups(), [Epochs()], noise=Correlated(), **SETTINGS)
    assert independent.objection is not None
    assert correlated.noise_over_signal is not None


def test_less_than_a_pass_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="pass"):
        assign(
            three_groups(),
            Scale(),
            steps=5,
            expected_batch_size=10,
            clip_norm=1.0,
            noise=Correlated(),
        )


def test_who_needs_independent_noise_refuses() -> None:
    plan = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    with pytest.raises(UnsupportedError, match="correlated"):
        schedule_noise(plan, Schedule(((0, 1.0), (30, 2.0)), between="hold"))
    with pytest.raises(UnsupportedError, match="correlated"):
        step_claims(plan)


def test_more_steps_than_fit_are_refused() -> None:
    plan = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    noise = plan.stages[0].correlated
    with pytest.raises(InputError, match="apart"):
        Stage(12, 1.0, 1.0, [9 / 12], [1.0], times=np.array([9]), correlated=noise)
    with pytest.raises(InputError, match="times"):
        Stage(12, 1.0, 1.0, [0.5], [1.0], correlated=noise)
    assert Correlated(strategy=Banded([1.0])).strategy == Banded([1.0])


def test_a_threshold_is_never_noisier_than_one_budget_for_all() -> None:
    for budgets in (three_groups(), Budgets([0.1] * 5 + [3.0] * 95, 1e-5)):
        rows = compare(budgets, ["uniform", "threshold"], noise=Correlated(), **SETTINGS)
        noise = {row.strategy: row.noise_over_signal for row in rows}
        assert set(noise) == {
            "uniform", "threshold", "uniform, correlated", "threshold, correlated"
        }  # fmt: skip
        assert noise["threshold, correlated"] <= noise["uniform, correlated"] * (1 + 1e-9)


def test_contributors_are_told_that_their_steps_are_fixed() -> None:
    plan = assign(three_groups(), Epochs(), noise=Correlated(), **SETTINGS)
    told = count_participation(plan, 0)
    assert told == (1, 60, False, 6)
    sentences = explain(1.0, 1e-5, curve=plan.curve(0), taking_part=told).sentences
    assert "You take part in at most 1 of 6 passes" in sentences[-1]
    assert "at most 1 of 60 steps, fixed beforehand" in sentences[-1]
    assert "drawn" not in sentences[-1]
    left_out = assign(three_groups(), Threshold(3.0), noise=Correlated(), **SETTINGS)
    assert count_participation(left_out, 0) is None


def test_a_report_says_that_batches_are_fixed() -> None:
    plan = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    page = report(plan, edition="public").html
    assert "fixed beforehand" in page
    assert "Poisson samples" not in page


def test_the_noise_is_fixed_in_one_way() -> None:
    with pytest.raises(InputError, match="bands, buffers"):
        Correlated(bands=3, buffers=2)


def test_an_account_pays_the_gaussian_and_no_slack() -> None:
    plan = assign(three_groups(), Scale(), noise=Correlated(), **SETTINGS)
    costs = plan_costs(plan)
    for group in range(3):
        mechanism = plan.mechanism_for(group)
        assert isinstance(mechanism, Gaussian)
        squared = mechanism.noise_multiplier**-2
        # The pair without slack, by which twelve trainings add up to one Gaussian.
        (without,) = costs.loss[group][costs.slack[group] == 0]
        assert squared <= without <= squared * (1 + 1e-6)


def test_a_file_with_too_many_steps_is_refused_at_once() -> None:
    with pytest.raises(RangeError, match="steps"):
        sensitivity_bound(Banded([1.0]), steps=10**9, participations=1, separation=1)
