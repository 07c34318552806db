"""Random requests at every edge, and a judge that knows by itself what is feasible."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from apiece.assignment import (
    AdaPDP,
    Hybrid,
    JorgensenSampling,
    Rounds,
    Sample,
    Scale,
    Sequential,
    Strategy,
    Threshold,
    Uniform,
    assign,
)
from apiece.budgets import Budgets
from apiece.errors import ApieceError, InfeasibleError, UnsupportedError
from apiece.plan import Plan

Draw = np.random.Generator
LEAST_CHECKED, INTERVALS, SLACK = 0.25, (5e-4, 1e-4, 2e-5), 1.01  # of the accountant of others

VARIANTS: dict[str, list[Callable[[Draw, Budgets], Strategy]]] = {
    "uniform": [lambda r, b: Uniform()],
    "sample": [
        lambda r, b: Sample(),
        lambda r, b: Sample(noise="strictest"),
        lambda r, b: Sample(noise="loosest"),
        lambda r, b: Sample(noise="mean"),
    ],
    "scale": [lambda r, b: Scale()],
    "hybrid": [lambda r, b: Hybrid(1.0), lambda r, b: Hybrid(0.0), lambda r, b: Hybrid(0.02)],
    "threshold": [
        lambda r, b: Threshold(),
        lambda r, b: Threshold(float(np.median(b.epsilon))),
    ],
    "sequential": [lambda r, b: Sequential(), lambda r, b: Sequential("loosest")],
    "jorgensen": [
        lambda r, b: JorgensenSampling(),
        lambda r, b: JorgensenSampling(float(np.median(b.epsilon))),
        lambda r, b: JorgensenSampling(loss="adaptive"),
    ],
    "rounds": [lambda r, b: Rounds(), lambda r, b: Rounds(2, "adaptive", "greedy")],
    "adapdp": [lambda r, b: AdaPDP(), lambda r, b: AdaPDP(2, 0.5, "greedy")],
}


@dataclass(frozen=True)
class Case:
    """One request: who asks what, how it is trained, by which strategy and accounting."""

    seed: int
    kind: str
    budgets: Budgets
    strategy: Strategy
    steps: int
    batch: float
    method: str

    def plan(self) -> Plan:
        return assign(
            self.budgets,
            self.strategy,
            steps=self.steps,
            expected_batch_size=self.batch,
            clip_norm=1.0,
            method=self.method,
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a case. fault: None for a good plan or a rightful refusal."""

    case: Case
    verdict: str
    fault: str | None
    seconds: float


def few(r: Draw) -> Budgets:
    count = int(r.integers(1, 6))
    sizes = r.integers(1, 400, count)
    return Budgets(np.repeat(np.exp(r.uniform(-1.5, 2.3, count)), sizes), _delta(r))


def tiny(r: Draw) -> Budgets:
    size = int(r.integers(1, 7))
    return Budgets(np.exp(r.uniform(-3, 3, size)), 10 ** r.uniform(-8, -0.3, size))


def wide(r: Draw) -> Budgets:
    count = int(r.integers(2, 6))
    epsilon = np.concatenate(([0.01, 100.0], np.exp(r.uniform(-4.6, 4.6, count))))
    return Budgets(np.repeat(epsilon, r.integers(5, 200, epsilon.size)), _delta(r))


def mixed(r: Draw) -> Budgets:
    count = int(r.integers(2, 9))
    sizes = r.integers(1, 100, count)
    epsilon = np.repeat(np.exp(r.uniform(-2, 2, count)), sizes)
    return Budgets(epsilon, np.repeat(10 ** r.uniform(-9, -0.5, count), sizes))


def many(r: Draw) -> Budgets:
    """More than forty distinct ε, one δ; at times rounded, so that they repeat."""
    size = int(r.integers(60, 400))
    low, span = np.exp(r.uniform(-1.5, 0.5)), np.exp(r.uniform(-1, 2))
    epsilon = r.uniform(low, low * (1 + span), size)
    return Budgets(np.round(epsilon, 2) if r.random() < 0.4 else epsilon, _delta(r))


def many_mixed(r: Draw) -> Budgets:
    size = int(r.integers(60, 300))
    lowest = r.uniform(-8, -3)
    delta = 10 ** r.uniform(lowest, r.uniform(lowest, -1), size)
    return Budgets(np.exp(r.uniform(-1, 1.5, size)), delta)


KINDS: dict[str, Callable[[Draw], Budgets]] = {
    kind.__name__: kind for kind in (few, tiny, wide, mixed, many, many_mixed)
}


def _delta(r: Draw) -> float:
    return float(10 ** r.uniform(-9, -2))


def case(name: str, seed: int) -> Case:
    """Return the case of one strategy and seed; kinds, variants and methods in turn."""
    r = np.random.default_rng([seed, *name.encode()])
    kind = list(KINDS)[seed % len(KINDS)]
    budgets = KINDS[kind](r)
    size = len(budgets)
    # one record in expectation or less, all of them, and what lies between
    batch = float([size, min(size, r.uniform(0.3, 3)), size ** r.uniform(0, 1)][r.integers(3)])
    steps = int(np.exp(r.uniform(0, math.log(2000))))
    variants = VARIANTS[name]
    strategy = variants[int(r.integers(len(variants)))](r, budgets)
    return Case(seed, kind, budgets, strategy, steps, batch, ("pld", "rdp")[seed // 6 % 2])


def judge(some: Case) -> Outcome:
    """Plan a case, and judge the plan or the refusal by the case alone."""
    start = time.process_time()
    verdict, fault = "plan", None
    try:
        plan = some.plan()
    except (InfeasibleError, UnsupportedError) as error:
        verdict, fault = "refused", wrong_refusal(some, error)
    except ApieceError as error:
        verdict, fault = "error", f"{type(error).__name__}: {error}"
    except Exception as error:
        verdict, fault = "crash", f"{type(error).__name__}: {error}"
    else:
        fault = broken(some, plan)
    seconds = time.process_time() - start
    return Outcome(some, verdict, fault, seconds)


def broken(some: Case, plan: Plan) -> str | None:
    """Return what is wrong with a plan, from its own numbers."""
    budgets = some.budgets
    if not plan.releasable or not plan.verify(budgets).ok:
        return "a promise is broken, or the plan objects to itself"
    if len(plan.budget_groups) != len(budgets.groups) or plan.records != len(budgets):
        return "records were lost"
    if not np.isfinite(plan.epsilon_spent).all():
        return "an epsilon that is not finite"
    return overspent(plan)


def overspent(plan: Plan) -> str | None:
    """Return a group that spends more than it asked by dp-accounting, an accountant of others.

    Of plans of one stage of Gaussians without coins: the groups with the least noise, with the most
    and with the smallest ε. Its ε is an upper bound, close where noise is not far below 1 and the
    losses of a step are not far below its grid; so what is above by more than `SLACK` on finer
    grids too is spent.
    """
    stage = plan.stages[0]
    if len(plan.stages) > 1 or stage.participation is not None:
        return None
    noise, epsilon = stage.noise_stddev / stage.clip_norm, plan.budget_groups.epsilon
    for g in {int(noise.argmin()), int(noise.argmax()), int(epsilon.argmin())}:
        q, asked = float(stage.sampling_probability[g]), float(epsilon[g])
        if q == 0 or noise[g] < LEAST_CHECKED or not 0.1 <= asked <= 20:
            continue
        given = float(noise[g]), q, stage.steps, float(plan.budget_groups.delta[g])
        for interval in INTERVALS:
            spent = _by_others(*given, interval)
            if spent <= asked * SLACK:
                break
        else:
            return f"group {g}: spends {spent:g} by dp-accounting, more than {asked:g}"
    return None


def _by_others(noise: float, q: float, steps: int, delta: float, interval: float) -> float:
    """Return ε by dp-accounting's privacy loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=interval
    )
    return float((one.self_compose(steps) if steps > 1 else one).get_epsilon_for_delta(delta))


def wrong_refusal(some: Case, error: Exception) -> str | None:
    """Return why a refusal is wrong, or None where the request cannot be met."""
    text = str(error)
    if "\n" in text or not any(word in text for word in ("ask for", "give", "use", "lower")):
        return f"a refusal without a remedy: {text}"
    return None if infeasible(some) else f"refused, though feasible: {text}"


def infeasible(some: Case) -> bool:
    """Whether the request cannot be met, by counting alone."""
    epsilon, groups = some.budgets.epsilon, some.budgets.groups
    match some.strategy:
        case Sequential():
            return some.steps < len(groups)
        case Sample(noise="strictest" | "loosest" | "mean"):
            # at noise fixed far below 1 Rényi accounting may know no rate for the strictest
            return some.method == "rdp" and np.unique(epsilon).size > 1
        case Threshold(epsilon=float(tau)):
            return bool((epsilon >= tau).sum() < some.batch)
        case JorgensenSampling(threshold=float(tau)):
            joins = np.minimum(np.expm1(epsilon) / math.expm1(tau), 1.0)
            return bool(joins.sum() < some.batch)
        case Rounds():
            # no Rényi bound is known for a coin before a run; one group has no coin
            coins = some.method == "rdp" and np.unique(epsilon).size > 1
            return coins or some.steps < some.strategy.rounds
    return False


def describe(outcome: Outcome) -> str:
    some = outcome.case
    groups: Any = some.budgets.groups
    return (
        f"{some.strategy!r} seed {some.seed} ({some.kind}, {some.method}): {len(some.budgets)} "
        f"records in {len(groups)} groups, {some.steps} steps, batch {some.batch:.4g}, "
        f"{outcome.seconds:.1f} s: {outcome.verdict}: {outcome.fault}"
    )
