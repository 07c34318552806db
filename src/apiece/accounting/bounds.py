"""Bounds on a privacy profile, from below and from above: what every evaluator delivers."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from apiece import _check
from apiece._types import Bounds, Floats, Mask
from apiece.errors import ApieceError, InputError, RangeError
from apiece.numerics.roots import Places

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-15, 1e6
"""Where ε is sought: a smaller one is reported as the smallest, or 0; a larger one as ∞."""

_FIRST, _GROWTH = 4000, 2.5
"""The share of the range that is looked at first, and by how much ε grows between two looks at
whether a profile has been followed far enough."""


class Profile(Protocol):
    """The privacy profile of one mechanism under add/remove adjacency, bounded from both sides."""

    # With H(t) = sup over events A of P(A) − t·Q(A), the exact profile is the larger of the two
    # directions at t = e^ε.

    def delta(self, epsilon: Floats) -> Bounds:
        """Return lower ≤ δ(ε) ≤ upper for a flat array of ε ≥ 0; never NaN, within [0, 1]."""

    def epsilon(self, delta: Floats) -> Bounds:
        """Return 0 ≤ lower ≤ ε(δ) ≤ upper, maybe ∞, for a flat array of δ in (0, 1)."""


class Inverted(Profile, Protocol):
    """A profile whose ε(δ) is found by inverting its δ(ε)."""

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return invert(self.delta, delta)


class Evaluated(NamedTuple):
    """One evaluator's profile of a mechanism, its name, and why it was asked."""

    evaluator: str
    why: str
    profile: Profile


Question: TypeAlias = Literal["epsilon", "delta"]
Errors: TypeAlias = list[tuple[RangeError, float]]
"""What could not be answered: why, and the value asked about."""
_TRIVIAL: dict[Question, float] = {"epsilon": math.inf, "delta": 1.0}
"""The upper bound that says nothing; the lower one is 0."""


def nowhere(bounds: Bounds) -> Mask:
    """Return that bounds are close enough nowhere, so that everybody is asked."""
    return np.zeros(bounds.upper.shape, dtype=bool)


@dataclass(frozen=True)
class Evaluations:
    """A profile by several evaluators: the next is asked only where bounds are not close."""

    # What several say together is the least upper and the greatest lower bound. Whatever an
    # evaluator says goes through one gate, `asked`: what are no bounds is not used and the next
    # evaluator is asked; where nobody else knows an upper bound, that is an error. enough,
    # resolved: where bounds on ε, and on δ, are close; everybody is asked about δ unless it is
    # said. spare: who is asked in the end, one after the other, where nobody has an upper bound.

    answers: tuple[Evaluated, ...]
    enough: Callable[[Bounds], Mask] = nowhere
    spare: Callable[[], Sequence[Evaluated]] = tuple
    resolved: Callable[[Bounds], Mask] = nowhere

    def delta(self, epsilon: Floats, first: Bounds | None = None) -> Bounds:
        """Bound δ(ε); first: what the first answer said already, None where it was not asked."""
        known, answers = nothing_known(epsilon, "delta"), self.answers
        if first is not None:
            known, _ = gated(answers[0].evaluator, "delta", epsilon, first)
            answers = answers[1:]
        return self._together("delta", answers, epsilon, known, self.resolved)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self.closer(self.answers, delta, nothing_known(delta))

    def closer(self, answers: Sequence[Evaluated], delta: Floats, known: Bounds) -> Bounds:
        """Return bounds on ε(δ) from what is `known` already and from some of the answers."""
        return self._together("epsilon", answers, delta, known, self.enough)

    def _together(
        self,
        question: Question,
        answers: Sequence[Evaluated],
        values: Floats,
        known: Bounds,
        enough: Callable[[Bounds], Mask],
        told: list[tuple[Evaluated, Bounds, Errors]] | None = None,
    ) -> Bounds:
        """Ask one after the other where it is not enough yet; `told` hears what each said."""
        lower, upper = (np.array(end) for end in known)
        errors: Errors = []

        def ask(answer: Evaluated, where: Mask) -> None:
            bounds, wrong = asked(answer, question, values[where])
            lower[where], upper[where] = tightest([Bounds(lower[where], upper[where]), bounds])
            errors.extend(wrong)
            if told is not None:
                told.append((answer, bounds, wrong))

        for answer in answers:
            open_ = ~enough(Bounds(lower, upper))
            if not open_.any():
                break
            ask(answer, open_)
        unknown = upper >= _TRIVIAL[question]
        for last in self.spare() if unknown.any() else ():
            ask(last, unknown)
            unknown = upper >= _TRIVIAL[question]
            if not unknown.any():
                break
        for error, value in errors:
            if value in values[unknown] and told is None:
                raise error
        return Bounds(lower, upper)

    def explain(self, delta: float) -> str:
        """Return, in a line or two, which evaluator gave each end of ε(δ), and why."""
        # Values are rounded outward to six digits. What could not be used has a line of its own.
        at, told = np.array([delta]), list[tuple[Evaluated, Bounds, Errors]]()
        self._together("epsilon", self.answers, at, nothing_known(at), self.enough, told)
        high, above, _ = min(told, key=lambda row: row[1].upper[0])
        low, below, _ = max(told, key=lambda row: (row[1].lower[0], row[0] is high))
        lower, upper = _shown(below.lower[0], math.floor), _shown(above.upper[0], math.ceil)
        if low is high:
            text = f"{lower} ≤ ε ≤ {upper} at δ = {delta:g}, by {high.evaluator}: {high.why}"
        else:
            text = (
                f"ε ≤ {upper} at δ = {delta:g}, by {high.evaluator}: {high.why}\n"
                f"ε ≥ {lower}, by {low.evaluator}: {low.why}"
            )
        return text + "".join(f"\nnot used: {error}" for *_, wrong in told for error, _ in wrong)


def asked(answer: Evaluated, question: Question, values: Floats) -> tuple[Bounds, Errors]:
    """Return what an evaluator says, as bounds everywhere, and where it said none."""
    # There they are bounds that say nothing. A value past the range spoils no other value's answer.
    try:
        with within_range(lambda: answer.evaluator):
            bounds = getattr(answer.profile, question)(values)
    except RangeError as error:
        if values.size == 1:
            return nothing_known(values, question), [(error, float(values[0]))]
        halves = [asked(answer, question, half) for half in np.array_split(values, 2)]
        lower, upper = (np.concatenate(ends) for ends in zip(*(h[0] for h in halves), strict=True))
        return Bounds(lower, upper), halves[0][1] + halves[1][1]
    return gated(answer.evaluator, question, values, bounds)


def gated(who: str, question: Question, values: Floats, bounds: Bounds) -> tuple[Bounds, Errors]:
    """Return `bounds`, made to say nothing where they are none, and the errors there."""
    # No bounds are: NaN on either side, a lower one that is below 0 or above the upper one, and a δ
    # above 1.
    lower, upper = (np.array(end, dtype=np.float64) for end in bounds)
    good = (lower >= 0) & (upper <= _TRIVIAL[question]) & _ordered(bounds)
    errors: Errors = []
    for low, high, value in zip(lower[~good], upper[~good], values[~good], strict=True):
        text = f"{who}: [{low:g}, {high:g}] at {value:g} are no bounds on {question}"
        errors.append((RangeError(f"{text}: past the numerical range; please report it"), value))
    none = nothing_known(values, question)
    return Bounds(np.where(good, lower, none.lower), np.where(good, upper, none.upper)), errors


def _shown(value: float, rounded: Callable[[float], int]) -> str:
    """Return six digits of a value, rounded up or down."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return f"{rounded(value / unit) * unit:.6g}"


def nothing_known(values: Floats, question: Question = "epsilon") -> Bounds:
    """Return bounds that always hold."""
    return Bounds(np.zeros(values.shape), np.full(values.shape, _TRIVIAL[question]))


def _ordered(bounds: Bounds) -> Mask:
    """Return where the lower bound is not above the upper one, but for rounding."""
    return np.asarray(bounds.lower <= bounds.upper * (1 + 1e-9) + 1e-12)


def tightest(bounds: list[Bounds]) -> Bounds:
    """Return the intersection of bounds; raise `RangeError` where it is empty."""
    lower = np.max([b.lower for b in bounds], axis=0)
    upper = np.min([b.upper for b in bounds], axis=0)
    if not _ordered(Bounds(lower, upper)).all():
        raise RangeError(
            "bounds contradict one another: past the numerical range; please report it"
        )
    return Bounds(np.minimum(lower, upper), upper)


@contextmanager
def within_range(what: Callable[[], str]) -> Iterator[None]:
    """Raise `RangeError` for arithmetic that fails inside; keep numpy's warnings quiet."""
    # what: names what failed, when it did.
    try:
        with np.errstate(all="ignore"):
            yield
    except ApieceError:
        raise
    except (OverflowError, ZeroDivisionError, FloatingPointError, ValueError) as error:
        raise RangeError(
            f"{what()}: past the numerical range ({error}); use noise, probabilities and counts of "
            "usual sizes"
        ) from None


def ascending(
    delta_at: Callable[[Floats], Bounds], nodes: Floats, enough: Callable[[Floats, Bounds], bool]
) -> tuple[Floats, Bounds]:
    """Evaluate a profile at ascending nodes, a few at a time, until `enough` of the last ones."""
    # Deep tails cost an evaluator most and most answers do not need them. Returns the nodes that
    # were evaluated and the bounds there.
    parts: list[Bounds] = []
    for some in pieces(nodes):
        parts.append(delta_at(nodes[some]))
        if enough(nodes[some], parts[-1]):
            break
    lower, upper = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    return nodes[: lower.size], Bounds(lower, upper)


def pieces(nodes: Floats) -> Iterator[slice]:
    """Cut ascending nodes into pieces, at each of which a few are evaluated."""
    start = 0
    while start < nodes.size:
        reach = _GROWTH * max(nodes[start], nodes[-1] / _FIRST)
        end = max(int(np.searchsorted(nodes, reach)), start + 1)
        yield slice(start, end)
        start = end


def find_runs(columns: Floats) -> tuple[Places, Places]:
    """Return where each run of equal columns begins, and how many columns it has."""
    new = np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0))[: columns.shape[1]]
    starts = np.flatnonzero(new)
    return starts, np.diff(np.append(starts, columns.shape[1]))


_PARTS, _ROUNDS = 5, 22
"""Of an inversion: parts that a bracket is cut into, and how often; as close as 51 bisections."""


def invert(delta_at: Callable[[Floats], Bounds], delta: Floats) -> Bounds:
    """Return bounds on ε(δ) = inf{ε ≥ 0: δ(ε) ≤ δ}, given bounds on the decreasing δ(ε)."""
    # The upper end is an ε whose upper bound was evaluated and is at most δ, ∞ where none up to
    # `LARGEST_EPSILON` is; the lower end is one whose lower bound exceeds δ, or 0. Both lie within
    # a factor 1 + 1e-13 of where the bounds cross δ. NaN where a bound on the way is.
    broken = np.zeros(delta.shape, dtype=bool)

    def holds(epsilon: Floats) -> Mask:
        """Return whether δ(ε) ≤ δ by the lower and by the upper bound; (N, 1 or 2, K) ε."""
        ends = tuple(end.reshape(epsilon.shape) for end in delta_at(epsilon.ravel()))
        for end in ends:
            broken[np.isnan(end).any(axis=(0, 1))] = True
        lower, upper = (end <= delta for end in ends)
        return np.stack([lower[:, 0], upper[:, -1]], axis=1)

    ends = np.array([0.0, SMALLEST_EPSILON, LARGEST_EPSILON])
    at_zero, at_least, at_most = holds(np.broadcast_to(ends[:, None, None], (3, 1, delta.size)))
    low, high = (np.full((2, delta.size), end) for end in ends[1:])
    shares = np.arange(1, _PARTS)[:, None, None] / _PARTS
    for _ in range(_ROUNDS):
        one = bool((low[0] == low[1]).all() and (high[0] == high[1]).all())  # both brackets are
        start, end = (low[:1], high[:1]) if one else (low, high)
        inner = np.clip(start * (end / start) ** shares, start, end)
        beyond = holds(inner)
        nodes = np.concatenate([start[None], inner, end[None]])
        nodes = np.broadcast_to(nodes, (_PARTS + 1, *low.shape))
        first = np.where(beyond.any(axis=0), beyond.argmax(axis=0), _PARTS - 1)[None]
        low, high = (np.take_along_axis(nodes, first + k, axis=0)[0] for k in (0, 1))
    low = np.where(at_zero | at_least, 0.0, low)
    high = np.where(at_zero, 0.0, np.where(at_least, SMALLEST_EPSILON, high))
    upper = np.where(broken, np.nan, np.where(at_zero | at_most, high, np.inf)[1])
    return Bounds(np.minimum(low[0], upper), upper)


_LEAST_DELTA = 1e-45  # no smaller one is resolved


@dataclass(frozen=True, slots=True)
class Precision:
    """Settings of the numerical evaluators; none of them affects whether a bound holds."""

    # gap: the relative gap (upper − lower)/upper aimed at in ε and in δ. floor: below this ε the
    # gap aimed at is gap·floor, absolute, and below a quarter of it floor/50. truncation: the share
    # of δ that may be lost to each tail. wrap: the share of the tilted mass that may fall outside a
    # transform on either side. points: the longest transform, or half of it at hard settings; where
    # it would have to be longer, the bounds stay valid but lie further apart than `gap`.

    gap: float = 9e-4
    floor: float = 0.01
    truncation: float = 1e-5
    wrap: float = 1e-10
    points: int = 2**20

    def __post_init__(self) -> None:
        for name in ("gap", "floor", "truncation", "wrap"):
            value = _check.positive(name, getattr(self, name))
            if not value < 1:
                raise InputError(f"{name} = {value!r}: must be in (0, 1); give a small number")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "points", _check.count("points", self.points, least=1024))

    def wanted(self, upper: Floats) -> Floats:
        """Return how far below each upper bound on ε the lower one may lie."""
        wanted = self.gap * np.maximum(upper, self.floor)
        return np.where(upper < self.floor / 4, self.floor / 50, wanted)

    def reached(self, bounds: Bounds) -> Mask:
        """Return where bounds on ε are as close as is wanted; nowhere that the upper one is ∞."""
        lower, upper = bounds
        return np.asarray(upper - lower <= np.minimum(self.wanted(upper), 1e300))

    def resolved(self, bounds: Bounds) -> Mask:
        """Return where bounds on δ are as close as is wanted, or nothing is left to resolve."""
        # About as close as ε is, which log δ follows: to `gap` of log(1/δ), relative.
        lower, upper = bounds
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = self.gap * upper * np.maximum(1.0, -np.log(upper))
        return np.asarray((upper - lower <= wanted) | (upper <= _LEAST_DELTA))


DEFAULT = Precision()
