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

import numpy as np
import numpy.typing as npt
from scipy import special

from apiece import _check
from apiece._types import Floats, Json
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.audit.bounds import LowerBound, above, doubling_ranks, flat_scores
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.plan import Plan
from apiece.plan.parts import GroupStage, Stage, sampled_steps

LINES = 65
_UP = 1 + 2.0**-50  # more than what a product and a sum lose
_SLACK = 1e-9  # of the logarithm of the wealth: more than its roundings over a million pairs
_PRIOR = 0.25  # pairs that a guess of a rate begins with, half of them on each side
_BLOCK = 8  # stakes are set anew when an eighth more pairs were seen
_HALVINGS = 30
_STEPS = 64  # of the engine at a time
_GRID = 0.05  # distance of the ε that a lower bound tries, one after the other


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
        corner = (1 - delta) / (1 + math.exp(epsilon))  # all lines between the two go through it
        above = (1 - corner) * _UP - slope * corner / _UP
        return cls(f"({epsilon:.6g}, {delta:g})-DP", slope, np.clip(above, 0.0, 1.0))

    @classmethod
    def curve(cls, curve: PrivacyCurve, name: str = "its trade-off curve") -> Claim:
        """Return the claim of a whole trade-off curve, rounded so that no true curve is refused.

        Args:
            curve: Of a group, as `plan.curve(group)`, or of one step.
            name: In words.
        """
        most = max(float(curve.epsilon(1e-6).upper), 1e-3)
        epsilon = np.linspace(-most, most, LINES)
        offset = np.asarray(curve.delta(epsilon).upper) * _UP
        useful = offset < 1
        return cls(name, np.exp(epsilon[useful]) * _UP, offset[useful])


class EProcess:
    """The wealth of a bet against one claim, over pairs of scores; higher ones say "in".

    Args:
        claim: What is bet against.

    Attributes:
        claim: The same.
        log_wealth: Its logarithm now; 0 at first.
        log_most: The largest so far: the evidence against the claim.

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
        self.log_wealth = self.log_most = 0.0
        self._in, self._out = np.zeros(0), np.zeros(0)
        self._stakes: tuple[Floats, ...] | None = None
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
        (ins, outs), wealth, at = _paired(scores_in, scores_out), [], 0
        while at < ins.size:
            if len(self) >= self._due:
                self._stakes = _stakes(self.claim, np.sort(self._in), np.sort(self._out))
                self._due = len(self) + max(1, len(self) // _BLOCK)
            part = slice(at, at + self._due - len(self))
            gained = _gains(self._stakes, ins[part], outs[part])
            wealth.append(self.log_wealth + np.cumsum(gained))
            self.log_wealth = float(wealth[-1][-1])
            self._in, self._out = np.append(self._in, ins[part]), np.append(self._out, outs[part])
            at = part.stop
        every = np.concatenate(wealth)
        self.log_most = max(self.log_most, float(every.max()))
        return every


def _paired(scores_in: npt.ArrayLike, scores_out: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return scores of as many runs with a record as without it."""
    ins, outs = flat_scores("scores_in", scores_in), flat_scores("scores_out", scores_out)
    if ins.size != outs.size:
        raise DataError(
            f"scores: {ins.size} with the record and {outs.size} without it; give pairs"
        )
    return ins, outs


def _stakes(claim: Claim, ins: Floats, outs: Floats) -> tuple[Floats, ...] | None:
    """Return thresholds, and both arms' points and stakes at each, from sorted scores."""
    n = ins.size
    rank = doubling_ranks(n)
    trial = np.unique(np.append(outs[n - rank], np.nextafter(ins[rank - 1], -np.inf)))
    seen_p, seen_q = (
        np.asarray((above(arm, trial) + _PRIOR) / (n + 2 * _PRIOR)) for arm in (ins, outs)
    )
    p, q, stake, growth = projected(seen_p[:, None], seen_q[:, None], claim.slope, claim.offset)
    line, row = growth.argmax(axis=1), np.arange(trial.size)
    growth, stake = growth[row, line], stake[row, line]
    if not growth.max() > 0:
        return None
    share = np.where(growth > 0, np.exp(n * (growth - growth.max())), 0.0)
    stake = stake * share / share.sum()
    return trial, p[row, line], stake, q[row, line], stake * claim.slope[line]


def _gains(stakes: tuple[Floats, ...] | None, ins: Floats, outs: Floats) -> Floats:
    """Return the logarithms of the e-values of some pairs."""
    if stakes is None:
        return np.zeros(ins.size)
    trial, p, stake_in, q, stake_out = stakes
    gain = ((ins[:, None] > trial) - p) @ stake_in
    loss = ((outs[:, None] > trial) - q) @ stake_out
    return np.asarray(np.log1p(gain) + np.log1p(-loss))


def projected(
    seen_p: Floats, seen_q: Floats, slope: Floats, offset: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (p*, q*) on each line nearest to the rates seen, the stake, the growth to expect."""
    # kl(seen_p, s·q + d) + kl(seen_q, q) is convex in q; its derivative is bisected. Any q in
    # (0, 1) gives an e-value; the nearest gives the one that grows fastest.
    low, high = np.zeros(np.broadcast(seen_p, slope).shape), np.minimum(1.0, (1 - offset) / slope)
    high = np.broadcast_to(high, low.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_HALVINGS):
            q = (low + high) / 2
            p = slope * q + offset
            falls = slope * (seen_p - p) * q * (1 - q) + (seen_q - q) * p * (1 - p) > 0
            low, high = np.where(falls, q, low), np.where(falls, high, q)
        q = low
        p = (slope * q + offset) * _UP
        most = np.minimum(1 / p, 1 / (slope * (1 - q))) * (1 - 1e-9)
        stake = np.clip((seen_p - p) / (p * (1 - p)), 0.0, most)
        growth = special.xlog1py(seen_p, stake * (1 - p)) + special.xlog1py(1 - seen_p, -stake * p)
        growth += special.xlog1py(seen_q, -stake * slope * (1 - q))
        growth += special.xlog1py(1 - seen_q, stake * slope * q)
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
    needed, epsilon, tried = -math.log1p(-confidence) + _SLACK, 0.0, 0
    # The first ε of the grid that is true is rejected with chance 1 − confidence, and those below
    # it must all be rejected first.
    ins, outs = _paired(scores_in, scores_out)
    while _rejects(Claim.budget(tried * _GRID, delta), ins, outs, needed):
        epsilon, tried = tried * _GRID, tried + 1
    counts = ins.size, outs.size
    return LowerBound(epsilon, delta, confidence, "anytime", 1, None, None, *counts)


def _rejects(claim: Claim, ins: Floats, outs: Floats, needed: float) -> bool:
    """Return whether a bet against a claim ever gets so far on these pairs."""
    bet, size = EProcess(claim), ins.size
    while bet.log_most < needed and len(bet) < size:
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


Pairs = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]


def sequential(
    rounds: Iterable[Pairs],
    claims: Mapping[str, Claim],
    *,
    confidence: float = 0.95,
    max_samples: int = 10_000,
    delta: float | None = None,
) -> Stopped:
    """Return what is seen of pairs of scores as they come; stop where not all claims can be true.

    Args:
        rounds: Each maps groups to (scores with the record, scores without it); made when asked
            for, so that no model is trained after the stop.
        claims: What is claimed of each group.
        confidence: In (0, 1).
        max_samples: Pairs a group after which it stops anyway.
        delta: At which a lower bound on ε is to be told.

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
    most = _check.count("max_samples", max_samples)
    if not claims:
        raise InputError("claims: none; say what is claimed of each group")
    # The mean of e-values is one, whatever their dependence (Vovk and Wang 2021).
    needed = -math.log1p(-confidence) + _SLACK
    bets, together = {name: EProcess(claim) for name, claim in claims.items()}, False
    for given in rounds:
        room = {name: most - len(bets[name]) for name in given if name in bets}
        if len(room) < len(given):
            raise DataError(f"groups: no claim for {sorted(set(given) - set(bets))[0]!r}")
        for part in _singly(given, room):
            for name, pair in part.items():
                bets[name].update(*pair)
            wealth = [bet.log_wealth for bet in bets.values()]
            together = float(special.logsumexp(wealth)) - math.log(len(bets)) >= needed
            if together:
                break
        if together or all(len(bet) >= most for bet in bets.values()):
            break
    own = needed + math.log(len(bets))
    watched = tuple(
        Watched(
            name, bet.claim.name, len(bet), most, math.exp(min(bet.log_most, 700.0)),
            bet.log_most >= own, confidence,
        )
        for name, bet in bets.items()
    )  # fmt: skip
    each = 1 - (1 - confidence) / len(bets)
    bounds = {} if delta is None else {
        name: anytime_bound(*bet.scores, delta=delta, confidence=each)
        for name, bet in bets.items() if len(bet)
    }  # fmt: skip
    return Stopped(together, watched, bounds)


def _singly(given: Pairs, room: Mapping[str, int]) -> Iterable[dict[str, tuple[Floats, Floats]]]:
    """Yield a round pair by pair, for each group as far as it has room."""
    arms = {name: _paired(*pair) for name, pair in given.items()}
    for at in range(max((ins.size for ins, _ in arms.values()), default=0)):
        part = {
            name: (ins[at : at + 1], outs[at : at + 1])
            for name, (ins, outs) in arms.items()
            if at < min(ins.size, room[name])
        }
        if not part:
            return
        yield part


def step_claims(plan: Plan) -> dict[str, Claim]:
    """Return what a plan claims of one of its steps, by group and, where it has several, stage.

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
    return {
        name: Claim.curve(
            privacy_curve(sampled_steps(own.noise_multiplier, own.sampling_probability, 1)),
            "the trade-off curve of one step",
        )
        for stage in plan.stages
        for name, own in _taking_part(plan, stage)
    }


def _taking_part(plan: Plan, stage: Stage) -> list[tuple[str, GroupStage]]:
    """Return the groups that a stage may draw, by name, and what it does to them."""
    every = [(str(name), stage.of(group)) for group, name in enumerate(plan.budget_groups.name)]
    suffix = "" if len(plan.stages) == 1 else f", stage {plan.stages.index(stage) + 1}"
    return [(name + suffix, own) for name, own in every if own.sampling_probability > 0]


def engine_rounds(plan: Plan, *, seed: int) -> Iterator[Pairs]:
    """Yield without end what the engine releases of a canary in each group, with and without it.

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
    for start in count(0):
        # streams of one seed apart, so that no two worlds share their noise
        streams = np.random.SeedSequence((seed, start)).generate_state(2**10, np.uint64)
        at = iter((streams >> np.uint64(1)).tolist())
        yield {
            name: pair
            for stage in plan.stages
            for name, pair in _stage_round(_taking_part(plan, stage), stage.noise_stddev, at)
        }


def _stage_round(
    groups: list[tuple[str, GroupStage]], noise: float, streams: Iterator[int]
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yield what each group's canary leaves in the releases of some steps, and what is without."""
    size = len(groups)
    budgets = Budgets(np.arange(1.0, size + 1), 1e-5)  # one record a group, in their order
    rates = np.array([own.sampling_probability for _, own in groups])
    clips = np.array([own.clip_norm for _, own in groups])
    stage = Stage(_STEPS, float(rates.sum()), noise, rates, clips)
    plan = Plan("audit", 1.0, budgets.groups, (stage,)).bind(budgets)
    without = _released(plan, None, next(streams))
    for group, (name, _) in enumerate(groups):
        yield name, (_released(plan, group, next(streams)), without)


def _released(plan: Plan, present: int | None, seed: int) -> Floats:
    """Return what the trainer gives to its optimizer at each step of a plan of single canaries."""
    import torch

    from apiece.training import Trainer

    inputs = torch.zeros(plan.records, 1)
    if present is not None:
        inputs[present] = 1e6 * float(plan.stages[0].clip_norm.max())
    model = torch.nn.Linear(1, 1, bias=False)
    seen = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        seen.append(float(optimizer.param_groups[0]["params"][0].grad.item()))

    still = torch.optim.SGD(model.parameters(), lr=0.0)
    still.register_step_pre_hook(keep)
    data = inputs, torch.zeros(plan.records)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "model. until step")  # where no canary is
        Trainer(model, still, lambda outputs, _: outputs[:, 0], plan, data, seed=seed).fit()
    return np.array(seen)
