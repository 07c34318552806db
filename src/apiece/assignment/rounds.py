"""Rounds and AdaPDP: a threshold and a coin a round; paid for by everyone, or as published."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece._types import Floats, Mask
from apiece.accounting import privacy_curve
from apiece.assignment.jorgensen import best_threshold, check_loss, inner_rate, participation
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import crossing, noise, require_few
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import InfeasibleError, UnsupportedError, unknown
from apiece.mechanisms import Composed
from apiece.plan import BoundPlan, Plan, Stage
from apiece.plan.parts import COMBINE

PACES = ("even", "greedy")
CHARGING = ("everyone", "joined")
LEVELS = 12  # distinct chances of joining a round
UNSPENT = "this strategy spends in full only the budget that binds first; of what each group allows"
OBJECTION = (
    "as published, a record is charged only for rounds that it joined, so its coins are revealed "
    "and it may try again: the guarantee is that of its worst path, and thresholds and batch "
    "normalisers depend on realised coins"
)


@dataclass(frozen=True, slots=True)
class Rounds(Strategy):
    """PDP-SGD: one model, several rounds, each with its threshold τ_R and its coins.

    In each round a record joins with π = (e^r − 1)/(e^τ − 1), r its offer, by a coin that stays
    secret. Its budget is charged the amplified cost min(r, τ) whether it joined or not, so the
    whole schedule is known before training.

    The noise of all rounds is lowered by one factor until the first group's budget is used up; the
    other groups do not spend all they allow, and `plan.notes` says how much. Sample, Scale and
    Hybrid spend it. More than 12 distinct ε are rounded down to 12 levels. Where budgets are used
    up there are fewer rounds, of more steps. By PLD only: no Rényi bound is known for a coin before
    a run.

    Attributes:
        rounds: How many; the steps are split among them.
        loss: How thresholds are chosen: the weight, in [0, 1], of budgets that stay out, or
            "adaptive".
        pace: "even" offers each round an equal part of what a record has left, "greedy" all of it,
            as in Heo et al. 2023 and always with charging="joined".
        combine: "continue" trains one model through all rounds, "average" one a round, from
            scratch, and averages their outputs, weighted by τ_R times the number of records
            expected to join.
        charging: "everyone", or "joined" as Heo et al. 2023 states it: for comparison only, never
            for release. Coins are then tossed when the plan is made, and its groups are the budget
            groups split by which rounds their records joined.
        seed: Of those coins, a whole number from 0 on.

    Raises:
        InputError: For options out of bounds.

    Guarantee:
        Each group's ε of the composition over all rounds, with their coins, is at most what it
        asked. With charging="joined" it is that of the worst path, with the coins revealed: more
        than was asked, as `plan.objections` says.

    References:
        Heo et al. 2023, Algorithm 1; B.2 and Algorithm 2, after Niu et al. 2021, for "average".

    Example:
        >>> from apiece import Budgets, Rounds, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> settings = {"steps": 10, "expected_batch_size": 10, "clip_norm": 1.0}
        >>> plan = assign(asked, Rounds(2), **settings)
        >>> len(plan.stages), plan.verify().ok
        (2, True)
        >>> assign(asked, Rounds(2, charging="joined"), **settings).releasable
        False
    """

    name: ClassVar[str] = "rounds"
    rounds: int = 4
    loss: float | str = 0.7
    pace: str = "even"
    combine: str = "continue"
    charging: str = "everyone"
    seed: int = 0

    def __post_init__(self) -> None:
        whole = partial(_check.count, least=0)
        _check.put(self, rounds=_check.count, loss=check_loss, seed=whole)
        for option, known in (("pace", PACES), ("combine", COMBINE), ("charging", CHARGING)):
            if getattr(self, option) not in known:
                raise unknown(option, getattr(self, option), known)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a stage a round."""
        name = self.name.removeprefix("published_")  # of a plan: who pays decides, not the class
        if self.charging == "joined":
            return _published(self, request, f"published_{name}")
        plan = request.plan(name, _schedule(self, request), combine=self.combine)
        plan = _with_least_noise(plan, request.target)
        spent = zip(request.groups.name, plan.epsilon_spent / request.groups.epsilon, strict=True)
        note = ", ".join(f"{name} {100 * share:.1f} %" for name, share in spent)
        return replace(plan, notes=(f"{UNSPENT}: {note}",))


@dataclass(frozen=True, slots=True)
class AdaPDP(Rounds):
    """AdaPDP on DP-SGD: `Rounds` with a model a round and other defaults.

    Guarantee:
        As for `Rounds`.

    References:
        Heo et al. 2023, B.2 and Algorithm 2, after Niu et al. 2021.

    Example:
        >>> from apiece import AdaPDP, Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, AdaPDP(2), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.combine, plan.verify().ok
        ('average', True)
    """

    name: ClassVar[str] = "adapdp"
    rounds: int = 3
    loss: float | str = 0.2
    combine: str = "average"


@dataclass(frozen=True, slots=True)
class PublishedRounds(Rounds):
    """`Rounds` by the name under which the command line has its published form."""

    name: ClassVar[str] = "published_rounds"
    charging: str = "joined"


@dataclass(frozen=True, slots=True)
class PublishedAdaPDP(AdaPDP):
    """`AdaPDP` by the name under which the command line has its published form."""

    name: ClassVar[str] = "published_adapdp"
    charging: str = "joined"


def _schedule(strategy: Rounds, request: Request) -> tuple[Stage, ...]:
    """Return the rounds, fewer of more steps where budgets are used up or those left no batch."""
    groups, batch = request.groups, request.expected_batch_size
    remaining, stages = at_levels(groups.epsilon), list[Stage]()
    parts = split_steps(request.steps, strategy.rounds)
    for turn, steps in enumerate(parts):
        left = remaining > 1e-9 * groups.epsilon
        if turn and groups.records[left].sum() < batch:
            return _schedule(replace(strategy, rounds=strategy.rounds - 1), request)
        offer = remaining / (len(parts) - turn) if strategy.pace == "even" else remaining
        offer = np.where(left, offer, 0.0)
        tau = best_threshold(offer, groups.records, strategy.loss, least=batch)
        joins = participation(offer, tau)
        size, q = float(joins @ groups.records), inner_rate(request, joins)
        stages.append(_round(request, tau, steps, q, joins, size, batch))
        # Everyone is charged min(r, τ), joined or not: coins stay secret.
        remaining = np.maximum(remaining - np.minimum(offer, tau), 0.0)
    return tuple(stages)


def at_levels(epsilon: Floats) -> Floats:
    """Return budgets rounded down to some of them, so that few mechanisms differ.

    >>> at_levels(np.linspace(1, 2, 1001))[[0, 50, 100, 1000]].round(2).tolist()
    [1.0, 1.0, 1.08, 1.92]
    """
    distinct = np.unique(epsilon)
    if distinct.size <= LEVELS:
        return epsilon.copy()
    levels = distinct[np.arange(LEVELS) * distinct.size // LEVELS]
    return np.asarray(levels[np.searchsorted(levels, epsilon, side="right") - 1])


def _round(
    request: Request, tau: float, steps: int, q: float, joins: Floats, size: float, batch: float
) -> Stage:
    """Return one round at τ for `size` records, with noise for (τ, the smallest δ)."""
    delta, ones = request.groups.delta.min(keepdims=True), np.ones(joins.size)
    z = float(noise(request, np.array([tau]), delta, q, steps=[steps])[0])
    stddev, clips = z * request.clip_norm, request.clip_norm * ones
    return Stage(steps, batch, stddev, q * ones, clips, joins, weight=tau * size)


def split_steps(steps: int, rounds: int) -> list[int]:
    """Return `steps` in `rounds` nearly equal parts."""
    if steps < rounds:
        raise InfeasibleError(
            f"steps = {steps}: fewer than the {rounds} rounds; give at least {rounds}"
        )
    return [steps // rounds + (turn < steps % rounds) for turn in range(rounds)]


def _with_least_noise(plan: Plan, target: Floats) -> Plan:
    """Return `plan` with the noise of all stages times the least factor that keeps each promise."""

    def scaled(factor: float) -> Plan:
        stages = (replace(s, noise_stddev=s.noise_stddev * factor) for s in plan.stages)
        return replace(plan, stages=tuple(stages))

    # The group that binds is solved for alone. If another one binds at what was found, it is that
    # one's turn: each group can be the next only once.
    factor = 1.0
    for _ in range(len(plan.budget_groups) + 1):
        lowered = scaled(factor)
        ratio = lowered.epsilon_spent / target
        binding = int(np.argmax(ratio))
        if 1 - 2e-3 <= ratio[binding] <= 1:
            return lowered
        asked, delta = float(target[binding]), float(plan.budget_groups.delta[binding])

        def room(x: float, group: int = binding, asked: float = asked, at: float = delta) -> float:
            curve = privacy_curve(scaled(x).mechanism_for(group), method=plan.method)
            return float(np.log(asked * (1 - 5e-4) / max(float(curve.epsilon(at).upper), 1e-300)))

        # With noise far below 1, as here at times, ε falls with its square.
        guess = factor * math.sqrt(ratio[binding])
        factor = crossing(room, guess, 0.05, 16.0, tolerance=1e-3)
    return scaled(factor * (1 + 1e-3))


def _published(strategy: Rounds, request: Request, name: str) -> BoundPlan:
    """Return the plan of the rounds that these coins give, with what its worst paths spend."""
    # The coins are tossed here, because thresholds, noise and normalisers of later rounds depend on
    # them.
    groups = request.groups
    require_few(f"strategy {name}", len(groups))
    if not isinstance(request.budgets, Budgets):
        raise UnsupportedError(
            f"strategy {name}: tosses each record's coins, so it needs Budgets, not levels"
        )
    generator = np.random.default_rng(strategy.seed)
    remaining = request.budgets.epsilon.copy()
    rounds: list[tuple[float, int, Mask]] = []  # τ, steps, who joined
    for steps in split_steps(request.steps, strategy.rounds):
        if not remaining.max() > 1e-9:
            break
        values, counts = np.unique(remaining, return_counts=True)
        tau = best_threshold(values, counts, strategy.loss)
        chance = np.where(remaining > 0, participation(remaining, tau), 0.0)
        joined = generator.random(request.records) < chance
        if not joined.any():
            break
        rounds.append((tau, steps, joined))
        remaining = np.where(joined, np.maximum(remaining - tau, 0.0), remaining)
    # A group of the plan is a budget group and the rounds that its records joined.
    # Whoever has other coins has another mechanism, however equal the budgets.
    key = np.stack([request.budgets.group_index, *(joined for *_, joined in rounds)], axis=1)
    patterns, place, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    stages = []
    for (tau, steps, joined), joins in zip(rounds, patterns[:, 1:].astype(float).T, strict=True):
        size = int(joined.sum())
        q = min(1.0, request.expected_batch_size / size)
        stages.append(_round(request, tau, steps, q, joins, size, q * size))
    origin, taus = patterns[:, 0].astype(np.int64), [tau for tau, *_ in rounds]
    worst = {g: _worst_path(request, stages, taus, g) for g in np.unique(origin).tolist()}
    turns = [",".join(str(k + 1) for k in np.flatnonzero(p[1:])) or "none" for p in patterns]
    names = [f"{groups.name[g]} joined {turn}" for g, turn in zip(origin, turns, strict=True)]
    excess = None if groups.excess is None else groups.excess[origin]
    return BoundPlan(
        strategy=name,
        clip_norm=request.clip_norm,
        budget_groups=BudgetGroups(
            np.array(names), groups.epsilon[origin], groups.delta[origin], excess, counts
        ),
        stages=tuple(stages),
        group_index=place.reshape(-1),
        consents=request.budgets.consents,
        method=request.method,
        combine=strategy.combine,
        objections=(OBJECTION,),
        reference=request.reference,
        worst_paths=np.array([worst[g] for g in origin.tolist()]),
    )


def paths(epsilon: float, taus: list[float]) -> Iterator[tuple[bool, ...]]:
    """Return every way in which a record's coins can fall: which rounds it joins.

    >>> list(paths(0.5, [2.0, 2.0]))
    [(True, False), (False, True), (False, False)]
    """
    # Who has at least τ left joins for certain; who has nothing left never joins.
    if not taus:
        yield ()
        return
    if epsilon > 0:
        yield from ((True, *rest) for rest in paths(max(epsilon - taus[0], 0.0), taus[1:]))
    if epsilon < taus[0]:
        yield from ((False, *rest) for rest in paths(epsilon, taus[1:]))


def _worst_path(request: Request, stages: list[Stage], taus: list[float], group: int) -> list[bool]:
    """Return the path that costs most, by branch and bound: RDP bounds what PLD will find."""
    epsilon, delta = float(request.groups.epsilon[group]), float(request.groups.delta[group])
    every = np.array(sorted(set(paths(epsilon, taus))))
    # A path that joins a subset of another's rounds costs no more.
    inside = (every[:, None] <= every).all(axis=2)
    maximal: list[list[bool]] = every[inside.sum(axis=1) == 1].tolist()

    def cost(path: list[bool], method: str) -> float:
        taken = (stage for stage, on in zip(stages, path, strict=True) if on)
        parts = [replace(stage, participation=None).mechanism(0) for stage in taken]
        mechanism = Composed(*(part for part in parts if part is not None))
        return float(privacy_curve(mechanism, method=method).epsilon(delta).upper)

    # Rényi divergence is quick and never below: a path whose bound is below the best is not tried.
    bounds = sorted(((cost(path, "rdp"), path) for path in maximal), reverse=True)
    if request.method == "rdp":
        return bounds[0][1]
    best, worst = -1.0, bounds[0][1]
    for bound, path in bounds:
        if bound <= best:
            break
        if (exact := cost(path, request.method)) > best:
            best, worst = exact, path
    return worst
