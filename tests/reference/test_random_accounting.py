"""Random mechanisms of every kind against oracles of other kinds: no bound may be violated.

A fast part of it here; the whole are 5,000 cases. Planted faults show that the search sees.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from apiece.accounting import Bounds, epsilons, exact, privacy_curve
from apiece.accounting.batch import upper_epsilons
from apiece.accounting.exact import DiscreteProfile, Outcomes
from apiece.accounting.lattice import profile
from apiece.accounting.lattice.convolution import Attempt
from apiece.errors import RangeError, UnsupportedError
from apiece.numerics import rounding as numerics
from tests.planted import plant
from tests.reference.random_accounting import KINDS, Case, Entry, Random, array


def wrong_epsilon(case: Case, delta: float, bounds: Bounds) -> Iterator[str]:
    """What an exact δ(ε) has against bounds on ε(δ)."""
    lower, upper = float(bounds.lower), float(bounds.upper)
    if not 0 <= lower <= upper:
        yield f"no bounds: {bounds}"
    slack = 1 + mp.mpf(case.slack)
    if math.isfinite(upper) and case.exact(upper)[0] > delta * slack + mp.mpf(1e-300):
        yield f"ε({delta!r}) is above {upper!r}"
    if 0 < lower < math.inf and case.exact(lower)[1] * slack < delta:
        yield f"ε({delta!r}) is below {lower!r}"


def wrong_delta(case: Case, epsilon: float, bounds: Bounds) -> Iterator[str]:
    """What an exact δ(ε) has against bounds on it."""
    lower, upper = (mp.mpf(float(end)) for end in bounds)
    low, high = case.exact(epsilon)
    slack = 1 + mp.mpf(case.slack)
    if not lower <= high * slack:
        yield f"δ({epsilon!r}) = {mp.nstr(high, 17)} is below {float(lower)!r}"
    if not low <= upper * slack + mp.mpf(1e-300):
        yield f"δ({epsilon!r}) = {mp.nstr(low, 17)} is above {float(upper)!r}"
    if case.close and upper - lower > case.close[0] * high + case.close[1]:
        yield f"δ({epsilon!r}): {bounds} are far apart"


def examined(kind: str, random: Random) -> tuple[Case, list[str], int]:
    """A case of a kind, what is wrong with its bounds, and how many questions had no answer."""
    case = KINDS[kind][1](random)
    method = str(random.choice(["pld", "pld", "pld", "best", "rdp"]))
    found: list[str] = []
    unanswered = 0
    delta = float(10 ** -random.uniform(0.05, 15 if case.kind != "many gaussians" else 6))
    delta *= case.coin if random.random() < 0.5 else 1.0
    at = [0.0, float(10 ** random.uniform(-15, 1.5))]
    if case.coin < 1:  # a loss that is of some size without the coin
        at[1] = math.log1p(case.coin * math.expm1(random.uniform(0, 60)))
    try:
        curve = privacy_curve(case.mechanism, method=method)
        bounds = curve.epsilon(delta)
        found += wrong_epsilon(case, delta, bounds)
        at.append(float(bounds.upper) * random.uniform(0.2, 1.1))
    except UnsupportedError:
        return case, found, 1
    except RangeError as error:
        unanswered += 1
        if "no bounds" in str(error) or "contradict" in str(error):
            found.append(str(error))
    sure = case._replace(close=None) if method == "rdp" else case
    try:
        for epsilon in at[: 1 if case.kind == "few laplace" else 3]:
            found += wrong_delta(sure, epsilon, curve.delta(epsilon))
    except RangeError as error:
        unanswered += 1
        found += [str(error)] if "no bounds" in str(error) else []
    return case, [f"{method}: {each}" for each in found], unanswered


def wrong_in_array(entries: list[Entry]) -> Iterator[str]:
    """What is wrong with what an array is told, of ε from both sides and from above alone."""
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    given = {name: [getattr(entry, name) for entry in entries] for name in names}
    both, above = epsilons(**given), upper_epsilons(**given)
    for k, entry in enumerate(entries):
        yield from wrong_epsilon(entry.case, entry.delta, Bounds(both.lower[k], both.upper[k]))
        yield from wrong_epsilon(entry.case, entry.delta, Bounds(0.0, above[k]))
        if not above[k] <= both.upper[k] * 1.01 + 1e-3:
            yield f"upper bounds {above[k]!r} and {both.upper[k]!r} are far apart"


def search(
    count: int, seed: int, kinds: dict[str, float] | None = None
) -> tuple[list[str], Counter]:
    """Examine so many cases, a fiftieth of them arrays; return what is wrong, and what was seen."""
    random = np.random.default_rng(seed)
    shares = kinds or {name: share for name, (share, _) in KINDS.items()}
    names, weights = list(shares), np.array(list(shares.values()))
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    for number in range(count):
        one = np.random.default_rng([seed, number])  # a case that is wrong can be made again
        if kinds is None and number % 50 == 0:
            entries = array(one)
            wrong += [f"({seed}, {number}) array: {each}" for each in wrong_in_array(entries)]
            seen["array"] += 1
            continue
        kind = str(random.choice(names, p=weights / weights.sum()))
        case, found, unanswered = examined(kind, one)
        wrong += [f"({seed}, {number}) {case.kind}: {case.mechanism!r}: {each}" for each in found]
        seen[kind] += 1
        seen["unanswered"] += unanswered
    return wrong, seen


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 1), pytest.param(5000, 29, marks=pytest.mark.slow)]
)
def test_no_bound_is_violated(count: int, seed: int) -> None:
    wrong, seen = search(count, seed)
    assert wrong == []
    assert sum(seen[kind] for kind in (*KINDS, "array")) == count
    assert seen["unanswered"] <= 0.2 * count


PLANTS: dict[str, tuple[Any, str, str, str, int]] = {
    "what 1e15 dropped": (
        exact._before_coin,
        "np.where(far, far_value, near_value)",
        "np.where(excess > 1e15, epsilon + minus_log_q, near_value)",
        "one laplace",
        20,
    ),
    "the loss that a coin leaves": (
        numerics.after_coin,
        "np.where(excess < -0.5, small_ratio, np.log1p(excess))",
        "np.log1p(excess)",
        "discrete",
        100,
    ),
    "a mass of P past the range": (
        DiscreteProfile.delta,
        "remove = _bound_excess(loss, p,",
        "remove = _bound_excess(loss, q * np.exp(loss),",
        "binomial",
        20,
    ),
    "what P alone shows": (
        DiscreteProfile.delta,
        "_bound_excess(loss, p, only_p,",
        "_bound_excess(loss, p, 0.0,",
        "discrete",
        40,
    ),
    "a coin's (1 − q)Q": (
        Outcomes.behind,
        "p = (1 - coin) * q + coin *",
        "p = coin *",
        "discrete",
        40,
    ),
    "what P alone shows, beside a Gaussian": (
        profile.build_run_pair,
        "certain = (certain_p, NO_CERTAINTY[1])",
        "certain = NO_CERTAINTY",
        "beside a gaussian",
        16,
    ),
    "either of two steps": (
        exact._multiply,
        "(1 - one.only_p) * other.only_p",
        "0.0",
        "discrete",
        60,
    ),
    "the add direction": (
        Attempt.epsilon,
        "for line in self.above",
        "for line in self.above[:1]",
        "beside a gaussian",
        16,
    ),
    "pure ε of one step for two": (
        exact._bound_log_ratios,
        "times * step_",
        "step_",
        "few laplace",
        6,
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, old, new, kind, count = PLANTS[name]
    plant(monkeypatch, target, old, new)
    wrong, _ = search(count, 2, {kind: 1.0})
    assert wrong
