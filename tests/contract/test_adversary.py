"""A coalition that searches for the choices that make its victim most vulnerable.

It chooses the budgets (ε and δ) and the sizes of several groups, by random starts and a pattern
search in all coordinates. Against Sample it finds a violation; against Hybrid and `enforce` none.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from apiece import contract
from apiece.accounting import privacy_curve
from apiece.assignment import Hybrid, Sample, assign
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.plan.verification import compute_excess

VICTIM, DELTA, BOUND, SIZE = 4.0, 1e-6, 0.004, 500
HONEST = 25  # records that ask what the victim does
SETTINGS: dict[str, Any] = {"expected_batch_size": 25, "clip_norm": 1.0, "steps": 100}
LOW = np.array([np.log(0.5)] * 3 + [np.log(1e-7)] * 3 + [0.0] * 3)
HIGH = np.array([np.log(16.0)] * 3 + [np.log(1e-5)] * 3 + [1.0] * 3)


def population(attack: np.ndarray) -> Budgets:
    """Three groups of colluders with these log ε, log δ and relative sizes, and the honest."""
    weights = attack[6:] + 1e-3
    sizes = np.maximum((weights / weights.sum() * (SIZE - HONEST)).astype(int), 1)
    epsilon = np.concatenate(([VICTIM] * HONEST, np.exp(attack[:3]).repeat(sizes)))
    delta = np.concatenate(([DELTA] * HONEST, np.exp(attack[3:6]).repeat(sizes)))
    labels = np.where(np.arange(epsilon.size) < HONEST, "victim", "others")
    return Budgets(epsilon, delta, excess=BOUND, labels=labels)


def harm(plan: Plan) -> float:
    """How much more vulnerable the victim is than promised."""
    names = [str(name).split(" ")[0] for name in plan.budget_groups.name]
    g = names.index("victim")
    curve = privacy_curve(plan.mechanism_for(g), method="pld")
    return float(compute_excess(plan, g, curve).forward.upper)


def search(
    objective: Callable[[np.ndarray], float], starts: int, sweeps: int, seed: int
) -> list[tuple[float, np.ndarray]]:
    """Return all attacks that were tried with what they do, the worst first."""
    generator = np.random.default_rng(seed)
    tried = []
    for _ in range(starts):
        x = generator.uniform(LOW, HIGH)
        tried.append((objective(x), x))
    best, x = max(tried, key=lambda t: t[0])
    for sweep in range(sweeps):
        for k in generator.permutation(LOW.size)[:5]:
            for way in (-1, 1):
                y = x.copy()
                y[k] = np.clip(y[k] + way * (HIGH[k] - LOW[k]) / 2 ** (sweep + 1), LOW[k], HIGH[k])
                tried.append((objective(y), y))
                if tried[-1][0] > best:
                    best, x = tried[-1]
                    break
    return sorted(tried, key=lambda t: -t[0])


@pytest.mark.slow
def test_what_breaks_sample_does_not_break_hybrid() -> None:
    def against_sample(attack: np.ndarray) -> float:
        return harm(assign(population(attack), Sample(), **SETTINGS))

    worst = search(against_sample, starts=4, sweeps=0, seed=0)
    assert worst[0][0] > 2 * BOUND  # the control: it knows how to attack
    plan = assign(population(worst[0][1]), Hybrid(), **SETTINGS)
    assert harm(plan) <= BOUND


@pytest.mark.slow
def test_a_mixture_does_no_more_than_one_shared_budget() -> None:
    """What a search over one shared budget rests on: others act through one number only."""
    ends = [population(np.r_[np.full(3, e), np.full(3, -14.0), np.ones(3)]) for e in (-0.5, 2.5)]
    low, high = (assign(budgets, Sample(), **SETTINGS).noise_stddev for budgets in ends)
    generator = np.random.default_rng(1)
    for _ in range(2):
        mixed = np.r_[generator.uniform(-0.5, 2.5, 3), np.full(3, -14.0), generator.random(3)]
        stddev = assign(population(mixed), Sample(), **SETTINGS).noise_stddev
        assert high * (1 - 1e-3) <= stddev <= low * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["hybrid", "enforce"])
def test_a_search_against_the_contract_finds_nothing(target: str) -> None:
    def objective(attack: np.ndarray) -> float:
        budgets = population(attack)
        if target == "hybrid":
            return harm(assign(budgets, Hybrid(), **SETTINGS))
        return harm(contract.enforce(budgets, **SETTINGS))

    assert search(objective, starts=6, sweeps=1, seed=2)[0][0] <= BOUND
