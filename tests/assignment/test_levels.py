"""Many distinct budgets: every record's ε recomputed, none above, all close below."""

import dataclasses

import numpy as np
import pytest

from apiece.assignment import Sample, Scale, Strategy, assign
from apiece.assignment.levels import MIN_LOG_RATE, Ladder, Population, find_ladder_end
from apiece.budgets import Budgets

RNG = np.random.default_rng(5)
BUDGETS = Budgets(RNG.uniform(1.0, 1.25, 800), np.exp(RNG.uniform(-13, -12, 800)))


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize(
    "strategy", [Scale(), pytest.param(Sample(), marks=pytest.mark.slow)], ids=repr
)
def test_within_half_a_percent_below(strategy: Strategy, method: str) -> None:
    settings = {"steps": 100, "expected_batch_size": 60, "clip_norm": 1.0}
    plan = assign(BUDGETS, strategy, method=method, **settings)  # type: ignore[arg-type]
    verification = plan.verify(BUDGETS)
    ratio = verification.epsilon_spent / verification.epsilon
    assert len(plan.budget_groups) == 800
    assert ratio.max() <= 1
    assert ratio.min() >= 0.995
    assert plan.expected_batch_size == pytest.approx(60, rel=5e-3)


def test_one_delta_for_all() -> None:
    budgets = Budgets(np.linspace(1.0, 1.2, 100), 1e-5)
    plan = assign(budgets, Sample(), steps=100, expected_batch_size=10, clip_norm=1.0)
    ratio = plan.verify(budgets).epsilon_spent / plan.budget_groups.epsilon
    assert 0.995 <= ratio.min() <= ratio.max() <= 1


@pytest.mark.parametrize(("jump", "height"), [(-3.0, 50.0), (-9.3, 1e6), (-0.5, np.inf)])
def test_the_end_of_a_ladder_is_found_where_epsilon_jumps_past_it(
    jump: float, height: float
) -> None:
    """Steps in log ε alone go to and fro there without end."""
    looks = []

    def spent(log_q: float) -> float:
        looks.append(log_q)
        return float(np.exp(0.3 * (log_q - jump)) * (height if log_q > jump else 0.5))

    bottom = find_ladder_end(lambda x: -np.log(spent(x)), safe=MIN_LOG_RATE, unsafe=0.0)
    assert jump - 0.02 * max(1, abs(jump)) < bottom <= jump
    top = find_ladder_end(lambda x: np.log(spent(x)), safe=0.0, unsafe=bottom)
    assert jump < top < jump + 0.02 * max(1, abs(jump))
    assert len(looks) < 60


def test_the_end_of_a_ladder_is_near_where_epsilon_is_smooth_and_stops_at_a_rate_of_one() -> None:
    bottom = find_ladder_end(lambda x: -4.0 - x, safe=MIN_LOG_RATE, unsafe=0.0)
    assert -4.1 <= bottom <= -4.0
    assert 0 <= 4.0 + find_ladder_end(lambda x: 4.0 + x, safe=0.0, unsafe=bottom) <= 0.1
    assert np.isnan(find_ladder_end(lambda x: x - 1.0, safe=0.0, unsafe=bottom))


@pytest.mark.parametrize("height", [1.0, 27.0])
@pytest.mark.parametrize("shift", [0.0, 0.7, 1.2])  # the last: at every x it is at some δ
def test_who_would_stand_within_a_jump_of_epsilon_stands_before_it(
    height: float, shift: float
) -> None:
    """Nobody is above what they asked, though at a smaller δ the jump comes earlier."""
    nodes, deltas = np.linspace(-5.0, 0.0, 28), np.exp(-(np.linspace(2.0, 6.0, 13) ** 2) / 2)

    def log_epsilon(x: np.ndarray, delta: np.ndarray) -> np.ndarray:
        reach = np.sqrt(-2 * np.log(delta))
        return 0.5 * x + 0.2 * reach + height * (x > -2 - shift * (reach - 4))

    ladder = Ladder(nodes, deltas, log_epsilon(nodes[:, None], deltas))
    targets = np.linspace(-1.0, 0.5 + height, 60)
    delta = np.repeat(np.exp(-(np.array([2.7, 4.1, 5.4]) ** 2) / 2), 60)
    people = Population(np.exp(np.tile(targets, 3)), delta, np.full(180, 1 / 180))
    found = ladder.place(people)
    spent = log_epsilon(found, delta)
    asked = np.maximum(np.log(people.epsilon), log_epsilon(np.array(-5.0), delta))
    # close to the top of a jump, within a row of the table: a plan made again makes up for it
    assert (spent - asked).max() <= 0.05 * height + 0.01
    assert (spent > asked + 0.01).sum() <= 7


def test_a_plan_with_one_record_moved_up_is_found_out() -> None:
    """The control: verification sees a single record above its budget among hundreds."""
    plan = assign(BUDGETS, Sample(), steps=100, expected_batch_size=60, clip_norm=1.0)
    rate = plan.stages[0].sampling_probability.copy()
    rate[400] *= 1.02
    stage = dataclasses.replace(
        plan.stages[0],
        sampling_probability=rate,
        expected_batch_size=float(rate @ plan.budget_groups.records),
    )
    kept = dataclasses.replace(plan, stages=(stage,)).verify(BUDGETS).kept
    assert np.flatnonzero(~kept).tolist() == [400]
