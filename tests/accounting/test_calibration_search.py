"""A search for calibrations and excesses that are unsound, that leave much unspent in silence, or
that take long.

`make test` looks at a few; the slow tests at many, and print those that took longest (run with -s).
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from apiece.accounting import (
    AdvantageBudget,
    Calibration,
    EpsilonBudget,
    ExcessBudget,
    MuBudget,
    PowerBudget,
    PrivacyCurve,
    calibrate,
    excess,
    privacy_curve,
)
from apiece.accounting.calibration import Budget
from apiece.errors import InfeasibleError, RangeError
from apiece.mechanisms import Gaussian, Laplace, Mechanism, Repeated, Sampled

Draw = np.random.Generator
ENDS = {"noise_multiplier": (1e7, 1e-2), "sampling_probability": (1e-12, 1.0), "steps": (1, 1e8)}
LEFT = 0.01  # of a budget, that may be left without a word


def log_uniform(r: Draw, low: float, high: float) -> float:
    return float(np.exp(r.uniform(math.log(low), math.log(high))))


def _excess_budget(r: Draw) -> Budget:
    baseline = _sampled(r)
    return ExcessBudget(log_uniform(r, 1e-3, 0.5), privacy_curve(baseline))


def _power_budget(r: Draw) -> Budget:
    rate = log_uniform(r, 1e-6, 0.5)
    return PowerBudget(rate + (1 - rate) * log_uniform(r, 1e-4, 0.95), rate)


BUDGETS: list[Callable[[Draw], Budget]] = [
    lambda r: EpsilonBudget(log_uniform(r, 1e-3, 100), log_uniform(r, 1e-12, 0.3)),
    lambda r: EpsilonBudget(log_uniform(r, 0.05, 20), log_uniform(r, 1e-9, 1e-3)),
    lambda r: AdvantageBudget(log_uniform(r, 1e-5, 0.98)),
    _power_budget,
    _excess_budget,
    lambda r: MuBudget(log_uniform(r, 1e-3, 20)),
]


def _sampled(r: Draw) -> Mechanism:
    z, q = log_uniform(r, 0.3, 100), log_uniform(r, 1e-4, 1)
    return Repeated(Sampled(Gaussian(z), q), int(log_uniform(r, 1, 3000)))


def problem(seed: int) -> tuple[Budget, dict[str, Any]]:
    """Return a budget and two of the three parameters, from usual to extreme."""
    r = np.random.default_rng(seed)
    budget = BUDGETS[seed % len(BUDGETS)](r)
    plain = isinstance(budget, MuBudget) or r.random() < 0.15
    given: dict[str, Any] = {
        "noise_multiplier": log_uniform(r, 0.05, 3000),
        "sampling_probability": 1.0 if plain else log_uniform(r, 1e-6, 1),
        "steps": int(log_uniform(r, 1, 1e5)),
    }
    names = ["noise_multiplier", "steps"] if plain else list(given)
    del given[names[int(r.integers(len(names)))]]
    given["method"] = "gdp" if plain else ("pld" if r.random() < 0.8 else "rdp")
    if isinstance(budget, ExcessBudget) and given["method"] == "rdp":
        given["method"] = "pld"  # Rényi bounds have no lower end, which the excess asks for
    return budget, given


def spent(budget: Budget, mechanism: Mechanism, method: str) -> float:
    return budget.spent(privacy_curve(mechanism, method=method))


def bolder(found: Calibration, by: float) -> Mechanism:
    """Return the mechanism with the parameter moved on by a share, or by one step."""
    assert isinstance(found.mechanism, Repeated)
    assert isinstance(found.mechanism.mechanism, Sampled)
    step, times = found.mechanism.mechanism, found.mechanism.times
    match step, found.parameter:
        case _, "steps":
            return Repeated(step, times + 1)
        case Sampled(Gaussian(z), q), "noise_multiplier":
            return Repeated(Sampled(Gaussian(z * (1 - by)), q), times)
        case Sampled(inner, q), _:
            return Repeated(Sampled(inner, min(q * (1 + by), 1.0)), times)


def fault(budget: Budget, given: dict[str, Any], found: Calibration) -> str | None:
    """Return what is wrong with a calibration, from its own mechanism."""
    achieved = spent(budget, found.mechanism, given["method"])
    if not achieved == found.achieved <= found.limit == budget.limit:
        return f"spends {achieved}, says {found.achieved} of {budget.limit}"
    low, high = sorted(ENDS[found.parameter])
    if not low * (1 - 1e-9) <= found.value <= high * (1 + 1e-9):
        return f"{found.parameter} = {found.value} is out of its range"
    at_end = found.value == pytest.approx(ENDS[found.parameter][1], rel=1e-9)
    if at_end:
        return None if found.saturated else "at the end of its range, without a word"
    if found.parameter != "steps" and achieved < budget.limit * (1 - LEFT) and not found.saturated:
        return f"leaves {1 - achieved / budget.limit:.0%} unspent, without a word"
    if found.parameter == "steps" or found.saturated:
        # it must be the last: what lies beyond spends more than there is, or cannot be told
        beyond = spent_or_more(budget, bolder(found, 1e-3), given["method"])
        if beyond <= budget.limit:
            return f"stops early: beyond it {beyond} is spent of {budget.limit}"
    return None


def spent_or_more(budget: Budget, mechanism: Mechanism, method: str) -> float:
    try:
        return spent(budget, mechanism, method)
    except RangeError:
        return math.inf


def judge(seed: int) -> tuple[float, str, str | None]:
    """Return the seconds that a problem took, what came of it, and what is wrong with that."""
    budget, given = problem(seed)
    start = time.process_time()
    try:
        found = calibrate(budget, **given)
    except InfeasibleError as error:
        return time.process_time() - start, f"{seed} {type(budget).__name__} {error}", None
    seconds = time.process_time() - start
    said = f"{seed} {budget!r:.60} {given} → {found.value:.6g}, saturated {found.saturated}"
    return seconds, said, fault(budget, given, found)


def report(found: list[tuple[float, str, str | None]]) -> None:
    seconds = np.array([each[0] for each in found])
    print(f"\n{len(found)} cases, {seconds.sum():.0f} s of CPU, median {np.median(seconds):.3f} s")
    for took, said, _ in sorted(found, key=lambda each: -each[0])[:10]:
        print(f"{took:7.2f} s  {said}")


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_a_few_calibrations(seed: int) -> None:
    assert judge(seed)[2] is None


@pytest.mark.slow
def test_many_calibrations() -> None:
    found = [judge(seed) for seed in range(300)]
    report(found)
    assert not [said for said in found if said[2]]


def pair(seed: int) -> tuple[Mechanism, Mechanism]:
    """Return two mechanisms, of one kind or of two."""
    r = np.random.default_rng([seed, 1])
    one = _sampled(r)
    match seed % 4:
        case 0:
            return one, _sampled(r)
        case 1:  # a little apart, as plans are
            assert isinstance(one, Repeated)
            assert isinstance(one.mechanism, Sampled)
            step = one.mechanism
            near = Gaussian(step.mechanism.noise_multiplier * log_uniform(r, 0.8, 1.25))  # type: ignore[union-attr]
            return one, Repeated(Sampled(near, step.probability), one.times)
        case 2:
            return one, Repeated(
                Sampled(Laplace(log_uniform(r, 0.5, 50)), r.uniform(0.01, 1)), int(r.integers(1, 9))
            )
    return one, Sampled(Repeated(Sampled(Gaussian(log_uniform(r, 0.5, 20)), 0.1), 20), 0.5)


def excess_fault(mechanisms: tuple[Mechanism, Mechanism]) -> str | None:
    """Return where an excess contradicts the two profiles that it is of, on a grid of its own."""
    baseline, curve = (privacy_curve(mechanism) for mechanism in mechanisms)
    found = excess(baseline, curve)
    epsilon = np.concatenate(([0.0], np.geomspace(1e-3, 30, 40)))
    for bounds, top, bottom in (
        (found.forward, curve, baseline),
        (found.backward, baseline, curve),
    ):
        least = gap(top, bottom, epsilon)
        if not 0 <= bounds.lower <= bounds.upper <= 1 or least > bounds.upper:
            return f"{bounds} though {least} was seen"
    return None


def gap(top: PrivacyCurve, bottom: PrivacyCurve, epsilon: np.ndarray) -> float:
    """Return how much at least the one reveals more, at some ε."""
    apart = np.asarray(top.delta(epsilon).lower) - np.asarray(bottom.delta(epsilon).upper)
    return float((apart / (1 + np.exp(epsilon))).max()) - 1e-12


@pytest.mark.parametrize("seed", [0, 1])
def test_a_few_excesses(seed: int) -> None:
    assert excess_fault(pair(seed)) is None


@pytest.mark.slow
def test_many_excesses() -> None:
    found = []
    for seed in range(100):
        mechanisms, start = pair(seed), time.process_time()
        wrong = excess_fault(mechanisms)
        found.append((time.process_time() - start, f"{seed} {mechanisms}", wrong))
    report(found)
    assert not [said for said in found if said[2]]


def test_the_judges_see_what_is_wrong() -> None:
    budget, half = EpsilonBudget(1.0, 1e-5), EpsilonBudget(0.5, 1e-5)
    given: dict[str, Any] = {"sampling_probability": 1.0, "steps": 100, "method": "gdp"}
    found = calibrate(budget, **given)
    assert fault(budget, given, found) is None
    assert "spends" in str(fault(half, given, found))
    timid = calibrate(half, **given)
    unspent = dataclasses.replace(timid, limit=budget.limit, saturated=False)
    assert "unspent" in str(fault(budget, given, unspent))
    early = dataclasses.replace(unspent, saturated=True)
    assert "stops early" in str(fault(budget, given, early))
