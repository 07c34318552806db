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
from apiece.assignment.jorgensen import (
    check_loss,
    compute_participation,
    find_inner_rate,
    find_threshold,
)
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import find_crossing, require_few, solve_noise
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import InfeasibleError, UnsupportedError, unknown
from apiece.mechanisms import Composed
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import COMBINE, Stage

# What part of a budget a round is offered, and who is charged for it.
PACES = ("even", "greedy")
CHARGING = ("everyone", "joined")
# The largest number of distinct budgets, and so of chances of joining a round.
LEVELS = 12
# A remainder below this share of ε, and below this ε, is none: rounding left it.
NEGLIGIBLE = 1e-9
# How much of a promise the group that binds may leave unspent.
TOLERANCE = 2e-3
# The margin of ε below a promise at which the noise is sought.
AIM_MARGIN = 5e-4
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
        _check.put(self, rounds=_check.count, loss=check_loss, seed=partial(_check.count, least=0))
        vocabularies = {"pace": PACES, "combine": COMBINE, "charging": CHARGING}
        for option, words in vocabularies.items():
            if getattr(self, option) not in words:
                raise unknown(option, getattr(self, option), words)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a stage a round."""
        # The name of a plan says who pays in it, whatever the class.
        name = self.name.removeprefix("published_")
        if self.charging == "joined":
            return _plan_published(self, request, f"published_{name}")
        plan = request.plan(name, _schedule_rounds(self, request), combine=self.combine)
        # Rounds are charged by a formula for pure ε; by the accountant they mostly cost less.
        plan = _lower_noise(plan, request.target)
        shares = plan.epsilon_spent / request.groups.epsilon
        spending = [
            f"{group} {100 * share:.1f} %"
            for group, share in zip(request.groups.name, shares, strict=True)
        ]
        return replace(plan, notes=(f"{UNSPENT}: {', '.join(spending)}",))


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


def _schedule_rounds(strategy: Rounds, request: Request) -> tuple[Stage, ...]:
    """Return a stage for each round.

    There are fewer rounds, of more steps, where the records with budget left are less than a batch.
    """
    groups = request.groups
    batch = request.expected_batch_size
    remaining = round_to_levels(groups.epsilon)
    stages = []
    lengths = split_steps(request.steps, strategy.rounds)
    for turn, steps in enumerate(lengths):
        active = remaining > NEGLIGIBLE * groups.epsilon
        # Rounds are made fewer until each has a batch of records; with one round there is no other.
        if turn and groups.records[active].sum() < batch:
            return _schedule_rounds(replace(strategy, rounds=strategy.rounds - 1), request)
        # What a record may spend in this round: an even share of what is left, or all of it.
        offer = remaining / (len(lengths) - turn) if strategy.pace == "even" else remaining
        offer = np.where(active, offer, 0.0)
        tau = find_threshold(offer, groups.records, strategy.loss, joining=batch)
        chances = compute_participation(offer, tau)
        stages.append(
            _make_round(
                request,
                tau,
                steps,
                q=find_inner_rate(request, chances),
                participation=chances,
                joining=float(chances @ groups.records),
                batch=batch,
            )
        )
        # Everyone is charged min(r, τ), joined or not: coins stay secret.
        remaining = np.maximum(remaining - np.minimum(offer, tau), 0.0)
    return tuple(stages)


def round_to_levels(epsilon: Floats) -> Floats:
    """Return budgets rounded down to some of them, so that few mechanisms differ.

    >>> round_to_levels(np.linspace(1, 2, 1001))[[0, 50, 100, 1000]].round(2).tolist()
    [1.0, 1.0, 1.08, 1.92]
    """
    distinct = np.unique(epsilon)
    if distinct.size <= LEVELS:
        return epsilon.copy()
    # Evenly spread by rank, from the least on: nobody is rounded up.
    levels = distinct[np.arange(LEVELS) * distinct.size // LEVELS]
    return np.asarray(levels[np.searchsorted(levels, epsilon, side="right") - 1])


def _make_round(
    request: Request,
    tau: float,
    steps: int,
    *,
    q: float,
    participation: Floats,
    joining: float,
    batch: float,
) -> Stage:
    """Return the stage of a round with noise for (τ, the smallest δ).

    Args:
        request: The budgets and the settings of the training.
        tau: The threshold.
        steps: How many.
        q: The sampling probability of the records that joined.
        participation: Each group's chance of joining.
        joining: How many records join, or are expected to.
        batch: The expected batch size.
    """
    size = participation.size
    delta = request.groups.delta.min(keepdims=True)
    # The run within a round is one of standard DP-SGD at τ, with the strictest δ.
    (z,) = solve_noise(request, np.array([tau]), delta, q, steps=[steps])
    return Stage(
        steps=steps,
        expected_batch_size=batch,
        noise_stddev=float(z) * request.clip_norm,
        sampling_probability=np.full(size, q),
        clip_norm=np.full(size, request.clip_norm),
        participation=participation,
        weight=tau * joining,
    )


def split_steps(steps: int, rounds: int) -> list[int]:
    """Return the steps of each round, nearly equal; the first rounds have the ones left over."""
    if steps < rounds:
        raise InfeasibleError(
            f"steps = {steps}: fewer than the {rounds} rounds; give at least {rounds}"
        )
    return [steps // rounds + (turn < steps % rounds) for turn in range(rounds)]


def _lower_noise(plan: Plan, target: Floats) -> Plan:
    """Return `plan` with the noise of all stages times the least factor that keeps each promise."""

    def scale_noise(factor: float) -> Plan:
        stages = [replace(stage, noise_stddev=stage.noise_stddev * factor) for stage in plan.stages]
        return replace(plan, stages=tuple(stages))

    # The group that binds is solved for alone. If another one binds at the factor found, it is that
    # one's turn: each group can be the next only once.
    factor = 1.0
    for _ in range(len(plan.budget_groups) + 1):
        scaled = scale_noise(factor)
        ratio = scaled.epsilon_spent / target
        binding = int(np.argmax(ratio))
        if 1 - TOLERANCE <= ratio[binding] <= 1:
            return scaled
        # A little below the promise: the search may end above what it aims at.
        epsilon = float(target[binding]) * (1 - AIM_MARGIN)
        delta = float(plan.budget_groups.delta[binding])

        def measure_room(
            factor: float, group: int = binding, epsilon: float = epsilon, delta: float = delta
        ) -> float:
            mechanism = scale_noise(factor).mechanism_for(group)
            curve = privacy_curve(mechanism, method=plan.method)
            return float(np.log(epsilon / max(float(curve.epsilon(delta).upper), 1e-300)))

        # With noise far below 1, as here at times, ε falls with its square.
        guess = factor * math.sqrt(ratio[binding])
        factor = find_crossing(measure_room, guess, 0.05, 16.0, tolerance=1e-3)
    # No turn ended within the tolerance: the last factor, with a little more noise.
    return scale_noise(factor * (1 + 1e-3))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _TossedRound:
    """A round whose coins have been tossed."""

    tau: float
    steps: int
    # Which records joined.
    joined: Mask


def _plan_published(strategy: Rounds, request: Request, name: str) -> BoundPlan:
    """Return the plan of the rounds that the seed's coins give, with the cost of worst paths."""
    groups = request.groups
    require_few(f"strategy {name}", len(groups))
    if not isinstance(request.budgets, Budgets):
        raise UnsupportedError(
            f"strategy {name}: tosses each record's coins, so it needs Budgets, not levels"
        )
    rounds = _toss_rounds(strategy, request, request.budgets.epsilon)
    # A group of the plan is a budget group and the rounds that its records joined.
    # Whoever has other coins has another mechanism, however equal the budgets.
    # (records, 1 + rounds).
    keys = np.stack([request.budgets.group_index, *(turn.joined for turn in rounds)], axis=1)
    patterns, index, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    origin = patterns[:, 0].astype(np.int64)
    paths = patterns[:, 1:]
    # A stage a round, at the rate at which those who joined make a batch.
    stages = []
    for turn, joins in zip(rounds, paths.astype(float).T, strict=True):
        joining = int(turn.joined.sum())
        q = min(1.0, request.expected_batch_size / joining)
        stages.append(
            _make_round(
                request,
                turn.tau,
                turn.steps,
                q=q,
                participation=joins,
                joining=joining,
                batch=q * joining,
            )
        )
    # Coins are revealed here: all records of one budget have the same worst path.
    taus = [turn.tau for turn in rounds]
    worst_paths = {
        g: _find_worst_path(request, stages, taus, g) for g in np.unique(origin).tolist()
    }
    # A group is called by its budget and the rounds that its records joined, counted from 1.
    names = []
    for g, path in zip(origin, paths, strict=True):
        numbers = [str(number + 1) for number in np.flatnonzero(path)]
        names.append(f"{groups.name[g]} joined {','.join(numbers) or 'none'}")
    excess = None if groups.excess is None else groups.excess[origin]
    return BoundPlan(
        strategy=name,
        clip_norm=request.clip_norm,
        budget_groups=BudgetGroups(
            np.array(names), groups.epsilon[origin], groups.delta[origin], excess, counts
        ),
        stages=tuple(stages),
        group_index=index.reshape(-1),
        consents=request.budgets.consents,
        method=request.method,
        combine=strategy.combine,
        objections=(OBJECTION,),
        reference=request.reference,
        worst_paths=np.array([worst_paths[g] for g in origin.tolist()]),
    )


def _toss_rounds(strategy: Rounds, request: Request, epsilon: Floats) -> list[_TossedRound]:
    """Return the rounds with their coins, one a record; `epsilon` is each record's budget."""
    # The coins are tossed when the plan is made, because thresholds, noise and normalisers of later
    # rounds depend on them.
    generator = np.random.default_rng(strategy.seed)
    remaining = epsilon.copy()
    rounds = []
    for steps in split_steps(request.steps, strategy.rounds):
        if not remaining.max() > NEGLIGIBLE:
            break
        values, counts = np.unique(remaining, return_counts=True)
        tau = find_threshold(values, counts, strategy.loss)
        chances = np.where(remaining > 0, compute_participation(remaining, tau), 0.0)
        joined = generator.random(request.records) < chances
        if not joined.any():
            break
        rounds.append(_TossedRound(tau, steps, joined))
        # These coins are revealed: who joined pays τ or all that is left, who did not pays nothing.
        remaining = np.where(joined, np.maximum(remaining - tau, 0.0), remaining)
    return rounds


def list_paths(epsilon: float, taus: list[float]) -> Iterator[tuple[bool, ...]]:
    """Return every way in which a record's coins can fall: which rounds it joins.

    >>> list(list_paths(0.5, [2.0, 2.0]))
    [(True, False), (False, True), (False, False)]
    """
    # Who has at least τ left joins for certain; who has nothing left never joins.
    if not taus:
        yield ()
        return
    tau, *later = taus
    if epsilon > 0:
        for path in list_paths(max(epsilon - tau, 0.0), later):
            yield (True, *path)
    if epsilon < tau:
        for path in list_paths(epsilon, later):
            yield (False, *path)


def _find_worst_path(
    request: Request, stages: list[Stage], taus: list[float], group: int
) -> list[bool]:
    """Return the path that costs most, by branch and bound: RDP bounds what PLD will find."""
    delta = float(request.groups.delta[group])
    paths = np.array(sorted(set(list_paths(float(request.groups.epsilon[group]), taus))))
    # A path that joins a subset of another's rounds costs no more: those stay that are within no
    # path but themselves.
    # (paths, paths): whether the first joins no round that the second does not.
    subsets = (paths[:, None] <= paths).all(axis=2)
    maximal: list[list[bool]] = paths[subsets.sum(axis=1) == 1].tolist()

    def compute_cost(path: list[bool], method: str) -> float:
        mechanisms = []
        for stage, joined in zip(stages, path, strict=True):
            if joined:
                # Who joined has no coin before the stage any more.
                mechanism = replace(stage, participation=None).mechanism(0)
                if mechanism is not None:
                    mechanisms.append(mechanism)
        curve = privacy_curve(Composed(*mechanisms), method=method)
        return float(curve.epsilon(delta).upper)

    # Rényi divergence is quick and never below: a path whose bound is below the best is not tried.
    bounds = sorted(((compute_cost(path, "rdp"), path) for path in maximal), reverse=True)
    worst = bounds[0][1]
    if request.method == "rdp":
        return worst
    worst_cost = -1.0
    for bound, path in bounds:
        if bound <= worst_cost:
            break
        cost = compute_cost(path, request.method)
        if cost > worst_cost:
            worst = path
            worst_cost = cost
    return worst
