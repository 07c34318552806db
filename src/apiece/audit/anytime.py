"""Audits that may stop at any time: bets against a claim, whose wealth a true claim keeps small."""

# A claim says that each test of "was this record in?" has (FPR, TPR) = (q, p) under a concave
# curve, that is, under lines p ≤ s·q + d. For a line, a point (q*, p*) on it and a stake ν ≥ 0,
#
#     E = (1 + ν·(a − p*)) · (1 − ν·s·(b − q*))
#
# of a = 1{score with > t} and b = 1{score without > t}, both factors never below 0, has mean
# (1 + u)(1 − v) with u = ν(p − p*) ≤ v = νs(q − q*), hence at most 1 − v² ≤ 1: an e-value. The same
# holds of a sum of stakes over several thresholds and lines. With (q*, p*) the point of the curve
# nearest, in Kullback–Leibler divergence, to what was seen, it is Turner, Ly and Grünwald's (2024),
# which grows fastest. Thresholds and stakes come from earlier pairs only, so that the product of
# the e-values is a supermartingale, and by Ville's inequality it ever reaches 1/α with chance ≤ α.

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from apiece import _check
from apiece._types import Floats, Json
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.audit.bounds import LowerBound, count_above, doubling_ranks, flat_scores
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.plan import Plan
from apiece.plan.parts import GroupStage, Stage, sampled_steps

# Lines of a claim.
LINES = 65
# A factor above all that a product and a sum lose in rounding.
_UP = 1 + 2.0**-50
# Nats that are added to the wealth needed: more than its roundings over a million pairs.
_SLACK = 1e-9
# Imaginary scores above a threshold, and as many below it, with which an estimate of a rate begins.
_PRIOR = 0.25
# Stakes are set anew when one pair in so many is new.
_BLOCK = 8
# Halvings of the interval of q in `project_rates`.
_HALVINGS = 30
# Steps of the engine in one round.
_STEPS = 64
# Distance in ε between the claims that a lower bound tries.
_GRID = 0.05
# Scores with and without the record, by group.
Pairs = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A promise about every test: its power is at most slope·FPR + offset, for each line.

    Attributes:
        name: What is claimed, in words.
        slope: (lines,), positive.
        offset: (lines,), in [0, 1).

    Example:
        >>> from apiece.audit import Claim
        >>> Claim.budget(1.0, 1e-5).name
        '(1, 1e-05)-DP'
    """

    name: str
    slope: Floats
    offset: Floats

    @classmethod
    def budget(cls, epsilon: float, delta: float) -> Claim:
        """Return the claim of one (ε, δ): TPR ≤ e^ε·FPR + δ, and the same of 1 − FPR and 1 − TPR.

        Args:
            epsilon: At least 0.
            delta: In [0, 1).

        Raises:
            InputError: For other numbers.
        """
        epsilon = _check.finite("epsilon", epsilon)
        if epsilon < 0:
            raise InputError(f"epsilon = {epsilon!r}: must be at least 0")
        delta = _check.probability("delta", delta, high_open=True)
        slope = np.exp(np.linspace(-epsilon, epsilon, LINES))
        # The curve's two lines meet where FPR = 1 − TPR = corner; all others go through that point.
        corner = (1 - delta) / (1 + math.exp(epsilon))
        # Rounded up, so that no true claim is refused.
        offset = (1 - corner) * _UP - slope * corner / _UP
        return cls(f"({epsilon:.6g}, {delta:g})-DP", slope, np.clip(offset, 0.0, 1.0))

    @classmethod
    def curve(cls, curve: PrivacyCurve, name: str = "its trade-off curve") -> Claim:
        """Return the claim of an entire trade-off curve, rounded so that no true curve is refused.

        Args:
            curve: Of a group, as `plan.curve(group)`, or of one step.
            name: In words.
        """
        largest = max(float(curve.epsilon(1e-6).upper), 1e-3)
        epsilon = np.linspace(-largest, largest, LINES)
        # The line of slope e^ε below which the curve lies has the offset δ(ε).
        # Rounded up, as the slopes below are: lines may lie above the curve, never under it.
        offset = np.asarray(curve.delta(epsilon).upper) * _UP
        # An offset of 1 forbids nothing.
        informative = offset < 1
        return cls(name, np.exp(epsilon[informative]) * _UP, offset[informative])


class EProcess:
    """The wealth of a bet against one claim, over pairs of scores; higher ones say "in".

    Args:
        claim: What is bet against.

    Attributes:
        claim: What is bet against.
        log_wealth: The logarithm of the wealth now; 0 at first.
        log_most: The largest logarithm so far: the evidence against the claim.

    Guarantee:
        If each pair holds two independent scores, one of a run with a record and one without it,
        from runs that keep the claim given all earlier pairs, then the wealth ever reaches 1/α with
        probability at most α, however often one looks.

    References:
        Ville 1939; Turner, Ly, Grünwald 2024; González et al. 2025 (audits of (ε, δ) by betting);
        Kutta et al. 2026 (sequential audits of trade-off curves).

    Example:
        >>> import numpy as np
        >>> from apiece.audit import Claim
        >>> from apiece.audit.anytime import EProcess
        >>> bet = EProcess(Claim.budget(1.0, 1e-5))
        >>> wealth = bet.update(np.arange(50) % 5 + 10, np.arange(50) % 5)
        >>> bool(bet.log_most > np.log(20))
        True
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.log_wealth = 0.0
        self.log_most = 0.0
        # All pairs so far, in order, and what the next ones are bet with; None for no bet.
        self._in = np.zeros(0)
        self._out = np.zeros(0)
        self._stakes: _Stakes | None = None
        # The number of pairs from which on the stakes are set anew.
        self._due = 1

    def __len__(self) -> int:
        return int(self._in.size)

    @property
    def scores(self) -> tuple[Floats, Floats]:
        """All scores so far, with and without; data about people."""
        return self._in, self._out

    def update(self, scores_in: npt.ArrayLike, scores_out: npt.ArrayLike) -> Floats:
        """Bet on further pairs; return the logarithm of the wealth after each.

        Args:
            scores_in: Of runs with the record.
            scores_out: As many of runs without it.

        Returns:
            (pairs,) logarithms.

        Raises:
            DataError: For NaN, none, or another number of one than of the other.
        """
        ins, outs = _check_pairs(scores_in, scores_out)
        wealth_parts = []
        start = 0
        while start < ins.size:
            # Stakes come from earlier pairs only: that makes the wealth a supermartingale.
            # Rarely as pairs become many: setting stakes sorts all of them.
            if len(self) >= self._due:
                self._stakes = _set_stakes(self.claim, np.sort(self._in), np.sort(self._out))
                self._due = len(self) + max(1, len(self) // _BLOCK)
            # Up to where the stakes are set anew.
            part = slice(start, start + self._due - len(self))
            log_gains = _log_gains(self._stakes, ins[part], outs[part])
            wealth = self.log_wealth + np.cumsum(log_gains)
            wealth_parts.append(wealth)
            self.log_wealth = float(wealth[-1])
            self._in = np.append(self._in, ins[part])
            self._out = np.append(self._out, outs[part])
            start = part.stop
        log_wealth = np.concatenate(wealth_parts)
        # Ville's inequality is about the largest wealth, so that a later loss takes nothing back.
        self.log_most = max(self.log_most, float(log_wealth.max()))
        return log_wealth


def _check_pairs(scores_in: npt.ArrayLike, scores_out: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return scores of as many runs with a record as without it."""
    ins = flat_scores("scores_in", scores_in)
    outs = flat_scores("scores_out", scores_out)
    if ins.size != outs.size:
        raise DataError(
            f"scores: {ins.size} with the record and {outs.size} without it; give pairs"
        )
    return ins, outs


class _Stakes(NamedTuple):
    """What is bet at each threshold, (thresholds,) each; in the words of the file's head."""

    threshold: Floats
    # p* and ν: the point and stake of runs with the record.
    true_positive_rate: Floats
    stake_in: Floats
    # q* and ν·s: those of runs without it.
    false_positive_rate: Floats
    stake_out: Floats


def _set_stakes(claim: Claim, ins: Floats, outs: Floats) -> _Stakes | None:
    """Return the stakes that would have grown fastest on sorted scores; None where none grows."""
    pairs = ins.size
    # Ranks double, so that thresholds are few and reach into the tails.
    rank = doubling_ranks(pairs)
    # A threshold just below a score of a run with the record counts that score as above.
    just_below = np.nextafter(ins[rank - 1], -np.inf)
    threshold = np.unique(np.append(outs[pairs - rank], just_below))
    # (thresholds,), never 0 or 1, at which a bet would stake all.
    seen_p = np.asarray((count_above(ins, threshold) + _PRIOR) / (pairs + 2 * _PRIOR))
    seen_q = np.asarray((count_above(outs, threshold) + _PRIOR) / (pairs + 2 * _PRIOR))
    # (thresholds, lines) each.
    p, q, stake, growth = project_rates(seen_p[:, None], seen_q[:, None], claim.slope, claim.offset)
    # At each threshold the line whose bet grows fastest.
    row = np.arange(threshold.size)
    line = growth.argmax(axis=1)
    growth = growth[row, line]
    if not growth.max() > 0:
        return None
    # Shares of the wealth by what each threshold would have earned.
    # What a stake alone would have grown to over all pairs, e^{pairs·growth}, but for the largest.
    share = np.where(growth > 0, np.exp(pairs * (growth - growth.max())), 0.0)
    stake = stake[row, line] * share / share.sum()
    return _Stakes(threshold, p[row, line], stake, q[row, line], stake * claim.slope[line])


def _log_gains(stakes: _Stakes | None, ins: Floats, outs: Floats) -> Floats:
    """Return the logarithms of the e-values of some pairs, (pairs,)."""
    if stakes is None:
        return np.zeros(ins.size)
    # (pairs, thresholds).
    is_above_in = ins[:, None] > stakes.threshold
    is_above_out = outs[:, None] > stakes.threshold
    # Each threshold's own bet, (1{above} − p*)·ν, added up over all of them.
    gain = (is_above_in - stakes.true_positive_rate) @ stakes.stake_in
    loss = (is_above_out - stakes.false_positive_rate) @ stakes.stake_out
    return np.asarray(np.log1p(gain) + np.log1p(-loss))


def project_rates(
    seen_p: Floats, seen_q: Floats, slope: Floats, offset: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (p*, q*) on each line nearest to the rates seen, the stake, the growth to expect."""
    # kl(seen_p, s·q + d) + kl(seen_q, q) is convex in q; its derivative is bisected. Any q in
    # (0, 1) gives an e-value; the nearest gives the one that grows fastest.
    low = np.zeros(np.broadcast(seen_p, slope).shape)
    # Above this q the line has p > 1.
    high = np.broadcast_to(np.minimum(1.0, (1 - offset) / slope), low.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_HALVINGS):
            q = (low + high) / 2
            p = slope * q + offset
            # The negative derivative, times p(1 − p)·q(1 − q).
            descent_p = slope * (seen_p - p) * q * (1 - q)
            descent_q = (seen_q - q) * p * (1 - p)
            falls = descent_p + descent_q > 0
            low = np.where(falls, q, low)
            high = np.where(falls, high, q)
        q = low
        p = (slope * q + offset) * _UP
        # The largest stake at which no factor falls below 0.
        cap = np.minimum(1 / p, 1 / (slope * (1 - q))) * (1 - 1e-9)
        stake = np.clip((seen_p - p) / (p * (1 - p)), 0.0, cap)
        # The expected logarithm of the e-value at the rates seen: hits and misses of either arm.
        hit_in = special.xlog1py(seen_p, stake * (1 - p))
        miss_in = special.xlog1py(1 - seen_p, -stake * p)
        growth = hit_in + miss_in
        growth += special.xlog1py(seen_q, -stake * slope * (1 - q))
        growth += special.xlog1py(1 - seen_q, stake * slope * q)
    # Where the bet cannot grow or is no number, nothing is staked: an e-value of 1.
    sound = (stake > 0) & (p < 1) & (q > 0) & np.isfinite(growth)
    return p, q, np.where(sound, stake, 0.0), np.where(sound, growth, 0.0)


def anytime_bound(
    scores_in: npt.ArrayLike, scores_out: npt.ArrayLike, *, delta: float, confidence: float = 0.95
) -> LowerBound:
    """Return a lower bound on ε that holds at every number of pairs at once.

    More pairs, the earlier ones the same, never lower it.

    Args:
        scores_in: Of runs with the record, in the order in which they were made.
        scores_out: As many of runs without it, paired with those in order.
        delta: In [0, 1).
        confidence: In (0, 1).

    Raises:
        DataError: For NaN, none, or another number of one than of the other.
        InputError: For numbers outside their bounds.

    Guarantee:
        If the mechanism is (ε, δ)-DP, the bound ever exceeds ε with probability at most 1 −
        confidence, whenever one stops.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import anytime_bound
        >>> anytime_bound(np.arange(200) + 150, np.arange(200), delta=1e-5).epsilon > 0
        True
    """
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    # Wealth 1/(1 − confidence), in logarithms.
    needed = -math.log1p(-confidence) + _SLACK
    ins, outs = _check_pairs(scores_in, scores_out)
    # The first ε of the grid that is true is rejected with chance 1 − confidence, and those below
    # it must all be rejected first: one error serves for all of them.
    epsilon = 0.0
    rejected = 0
    # Claims grow weaker with ε: the first that stands ends the walk.
    while _rejects(Claim.budget(rejected * _GRID, delta), ins, outs, needed):
        epsilon = rejected * _GRID
        rejected += 1
    return LowerBound(epsilon, delta, confidence, "anytime", 1, None, None, ins.size, outs.size)


def _rejects(claim: Claim, ins: Floats, outs: Floats, needed: float) -> bool:
    """Return whether the log-wealth of a bet against a claim ever reaches `needed`."""
    bet = EProcess(claim)
    while bet.log_most < needed and len(bet) < ins.size:
        # Parts that double, so that a bet that wins early ends early.
        part = slice(len(bet), 2 * len(bet) + 16)
        bet.update(ins[part], outs[part])
    return bet.log_most >= needed


@dataclass(frozen=True, slots=True)
class Watched:
    """What an audit that may stop saw of one claim.

    Attributes:
        group: Whose claim.
        claim: In words.
        samples: Pairs of scores that it looked at.
        most: Pairs that it would have looked at.
        evidence: The largest wealth of the bet against it; 20 is as rare as 1 in 20 if it holds.
        rejected: Whether that is too much for this group's claim, all groups together.
        confidence: Of all rejections together.

    Example:
        >>> from apiece.audit.anytime import Watched
        >>> Watched("all", "(1, 0)-DP", 40, 100, 25.0, True, 0.95).to_dict()["samples"]
        40
    """

    group: str
    claim: str
    samples: int
    most: int
    evidence: float
    rejected: bool
    confidence: float

    def to_dict(self) -> Json:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Stopped:
    """What an audit that may stop saw of all claims, and whether they can all be true.

    Attributes:
        rejected: Whether they cannot.
        watched: What was seen of each claim.
        bounds: Lower bounds on each group's ε, which hold together; only where δ was given.

    Example:
        >>> from apiece.audit import Claim, sequential
        >>> sequential([{"all": ([1.0], [0.0])}], {"all": Claim.budget(1.0, 0.0)}).rejected
        False
    """

    rejected: bool
    watched: tuple[Watched, ...]
    bounds: Mapping[str, LowerBound]


def sequential(
    rounds: Iterable[Pairs],
    claims: Mapping[str, Claim],
    *,
    confidence: float = 0.95,
    max_samples: int = 10_000,
    delta: float | None = None,
) -> Stopped:
    """Bet on pairs of scores as they come; stop as soon as the claims cannot all be true.

    Args:
        rounds: Each maps groups to (scores with the record, scores without it); made when asked
            for, so that no model is trained after the stop.
        claims: What is claimed of each group.
        confidence: In (0, 1).
        max_samples: Pairs a group after which it stops anyway.
        delta: At which a lower bound on ε is to be told.

    Returns:
        Whether the claims were rejected, the evidence of each group, and the lower bounds on ε.

    Raises:
        DataError: For scores that are none, or a group without a claim.
        InputError: For numbers outside their bounds, or no claims.

    Guarantee:
        If all claims are true, it says that they are not with probability at most 1 − confidence.
        The same holds of the groups that it names. What it rests on is `EProcess`'s: the groups'
        scores may depend on each other.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import Claim, sequential
        >>> draw = np.random.default_rng(0).normal
        >>> pairs = ({"all": (draw(3, 1, 8), draw(0, 1, 8))} for _ in range(99))
        >>> seen = sequential(pairs, {"all": Claim.budget(1.0, 1e-5)})
        >>> seen.rejected, seen.watched[0].samples < 200
        (True, True)
    """
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    limit = _check.count("max_samples", max_samples)
    if not claims:
        raise InputError("claims: none; say what is claimed of each group")
    needed = -math.log1p(-confidence) + _SLACK
    bets = {name: EProcess(claim) for name, claim in claims.items()}
    rejected = _bet_until_rejected(bets, rounds, needed, limit)
    # A group is named by Bonferroni: its own bet has 1/groups of the error.
    group_needed = needed + math.log(len(bets))
    watched = []
    for name, bet in bets.items():
        # e^700 is still a finite float.
        evidence = math.exp(min(bet.log_most, 700.0))
        group_rejected = bet.log_most >= group_needed
        seen = len(bet)
        watched.append(
            Watched(name, bet.claim.name, seen, limit, evidence, group_rejected, confidence)
        )
    # Bounds on all groups hold together: each has 1/groups of the error.
    bounds = {}
    if delta is not None:
        group_confidence = 1 - (1 - confidence) / len(bets)
        for name, bet in bets.items():
            if len(bet):
                bounds[name] = anytime_bound(*bet.scores, delta=delta, confidence=group_confidence)
    return Stopped(rejected, tuple(watched), bounds)


def _bet_until_rejected(
    bets: Mapping[str, EProcess], rounds: Iterable[Pairs], needed: float, limit: int
) -> bool:
    """Bet until the mean wealth reaches `needed`, a logarithm, or each bet has `limit` pairs.

    Returns whether it reached it.
    """
    for pairs in rounds:
        # How many more pairs each group's bet takes.
        room = {name: limit - len(bets[name]) for name in pairs if name in bets}
        if len(room) < len(pairs):
            raise DataError(f"groups: no claim for {sorted(set(pairs) - set(bets))[0]!r}")
        for single in _split_round(pairs, room):
            for name, (ins, outs) in single.items():
                bets[name].update(ins, outs)
            # The mean of e-values is an e-value, whatever their dependence (Vovk and Wang 2021).
            log_wealth = [bet.log_wealth for bet in bets.values()]
            if float(special.logsumexp(log_wealth)) - math.log(len(bets)) >= needed:
                return True
        if all(len(bet) >= limit for bet in bets.values()):
            return False
    return False


def _split_round(
    pairs: Pairs, room: Mapping[str, int]
) -> Iterable[dict[str, tuple[Floats, Floats]]]:
    """Yield a round pair by pair, of each group as many as it has room for."""
    arms = {name: _check_pairs(*pair) for name, pair in pairs.items()}
    longest = max((ins.size for ins, _ in arms.values()), default=0)
    for position in range(longest):
        single = slice(position, position + 1)
        part = {
            name: (ins[single], outs[single])
            for name, (ins, outs) in arms.items()
            if position < min(ins.size, room[name])
        }
        if not part:
            return
        yield part


def step_claims(plan: Plan) -> dict[str, Claim]:
    """Return the claim of a plan about one of its steps, by group and, where it has several, stage.

    Args:
        plan: Whose steps are to be watched.

    Example:
        >>> from apiece.assignment import assign
        >>> from apiece.audit.anytime import step_claims
        >>> from apiece.budgets import Budgets
        >>> budgets = Budgets([1.0] * 50, 1e-5)
        >>> plan = assign(budgets, "scale", steps=5, expected_batch_size=5, clip_norm=1.0)
        >>> [claim.name for claim in step_claims(plan).values()]
        ['the trade-off curve of one step']
    """
    claims = {}
    for stage in plan.stages:
        for name, part in _list_drawn_groups(plan, stage):
            step = sampled_steps(part.noise_multiplier, part.sampling_probability, 1)
            claims[name] = Claim.curve(privacy_curve(step), "the trade-off curve of one step")
    return claims


def _list_drawn_groups(plan: Plan, stage: Stage) -> list[tuple[str, GroupStage]]:
    """Return the groups that a stage may draw, by name, and each group's part of the stage."""
    if stage.correlated is not None:
        raise UnsupportedError(
            "plan: the noise of its steps is correlated, so no step has a claim of its own; watch "
            "a plan of Poisson batches with the same budgets"
        )
    suffix = "" if len(plan.stages) == 1 else f", stage {plan.stages.index(stage) + 1}"
    parts = [(f"{name}{suffix}", stage.of(k)) for k, name in enumerate(plan.budget_groups.name)]
    # Who is never drawn meets no mechanism that could be watched.
    return [(name, part) for name, part in parts if part.sampling_probability > 0]


def engine_rounds(plan: Plan, *, seed: int) -> Iterator[Pairs]:
    """Yield without end the engine's releases of a canary in each group, with and without it.

    The canary's gradient is far beyond its clip norm, everybody else's is 0, and no parameter
    moves, so that each step of a stage is one release of the group's one-step mechanism.

    Args:
        plan: Whose noise, rates and clip norms are used.
        seed: Of the batches and the noise.

    Example:
        >>> from apiece.assignment import assign
        >>> from apiece.audit import sequential
        >>> from apiece.audit.anytime import engine_rounds, step_claims
        >>> from apiece.budgets import Budgets
        >>> budgets = Budgets([1.0] * 50, 1e-5)
        >>> plan = assign(budgets, "scale", steps=5, expected_batch_size=5, clip_norm=1.0)
        >>> seen = sequential(engine_rounds(plan, seed=0), step_claims(plan), max_samples=64)
        >>> seen.watched[0].samples
        64
    """
    groups_by_stage = [_list_drawn_groups(plan, stage) for stage in plan.stages]
    # Of each stage a run a group, and one without a canary.
    runs = sum(len(groups) + 1 for groups in groups_by_stage)
    for round_number in count(0):
        # A seed of its own for each run, so that no two worlds share their noise.
        # Signed seeds are wanted later: of 64 bits the highest is shifted out.
        state = np.random.SeedSequence((seed, round_number)).generate_state(runs, np.uint64)
        seeds = iter((state >> np.uint64(1)).tolist())
        pairs: dict[str, tuple[npt.ArrayLike, npt.ArrayLike]] = {}
        for stage, groups in zip(plan.stages, groups_by_stage, strict=True):
            pairs.update(_release_stage(groups, stage.noise_stddev, seeds))
        yield pairs


def _release_stage(
    groups: list[tuple[str, GroupStage]], noise_stddev: float, seeds: Iterator[int]
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yield the releases of some steps with each group's canary, by name, and those without any."""
    # One record a group, in their order.
    # Budgets that all differ give each record a group of its own.
    budgets = Budgets(np.arange(1.0, len(groups) + 1), 1e-5)
    rates = np.array([part.sampling_probability for _, part in groups])
    clip_norms = np.array([part.clip_norm for _, part in groups])
    stage = Stage(_STEPS, float(rates.sum()), noise_stddev, rates, clip_norms)
    plan = Plan("audit", 1.0, budgets.groups, (stage,)).bind(budgets)
    # One world without any canary serves all groups: their bets may depend on one another.
    without = _release_steps(plan, None, next(seeds))
    for group, (name, _) in enumerate(groups):
        yield name, (_release_steps(plan, group, next(seeds)), without)


def _release_steps(plan: Plan, canary: int | None, seed: int) -> Floats:
    """Return the noisy gradient of each step, (steps,), where one record or none is a canary."""
    import torch

    from apiece.training import Trainer

    # Everybody else's gradient is 0: the sum is the canary's, clipped, and the noise.
    inputs = torch.zeros(plan.records, 1)
    if canary is not None:
        # The gradient of the one weight is the input, here far beyond every clip norm.
        inputs[canary] = 1e6 * float(plan.stages[0].clip_norm.max())
    model = torch.nn.Linear(1, 1, bias=False)
    releases = []

    # Before the optimizer's step the gradient is the release itself.
    def record_gradient(optimizer: torch.optim.Optimizer, *_: object) -> None:
        weight = optimizer.param_groups[0]["params"][0]
        releases.append(float(weight.grad.item()))

    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    frozen.register_step_pre_hook(record_gradient)
    dataset = inputs, torch.zeros(plan.records)
    with warnings.catch_warnings():
        # Without a canary no gradient reaches the model, of which the trainer warns.
        warnings.filterwarnings("ignore", "model. until step")
        Trainer(model, frozen, lambda outputs, _: outputs[:, 0], plan, dataset, seed=seed).fit()
    return np.array(releases)
