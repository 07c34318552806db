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

SMALLEST_EPSILON = 1e-15
"""The least ε that is sought: a smaller one is reported as this, or 0."""
LARGEST_EPSILON = 1e6
"""The largest ε that is sought: a larger one is reported as ∞."""

# The first look at a profile reaches over one part in so many of the range of ε.
_FIRST = 4000
# Factor by which ε grows between two looks at whether a profile has been followed far enough.
_GROWTH = 2.5


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


def mark_none(bounds: Bounds) -> Mask:
    """Return a mask that marks no bounds as close, so that every evaluator is asked."""
    return np.zeros(bounds.upper.shape, dtype=bool)


@dataclass(frozen=True)
class Evaluations:
    """A profile by several evaluators: the next is asked only where bounds are not close."""

    # What several say together is the least upper and the greatest lower bound. Whatever an
    # evaluator says goes through one gate, `ask_evaluator`: what are no bounds is not used and the
    # next evaluator is asked; where no other knows an upper bound, that is an error.

    answers: tuple[Evaluated, ...]
    # Where bounds on ε are close.
    enough: Callable[[Bounds], Mask] = mark_none
    # Who is asked in the end, one after the other, where no evaluator has an upper bound.
    spare: Callable[[], Sequence[Evaluated]] = tuple
    # Where bounds on δ are close; by default every evaluator is asked about δ.
    resolved: Callable[[Bounds], Mask] = mark_none

    def delta(self, epsilon: Floats, first: Bounds | None = None) -> Bounds:
        """Bound δ(ε).

        `first` holds the first evaluator's bounds, None where it was not asked yet.
        """
        if first is None:
            known = nothing_known(epsilon, "delta")
            return self._combine("delta", self.answers, epsilon, known, self.resolved)
        known, _ = check_bounds(self.answers[0].evaluator, "delta", epsilon, first)
        return self._combine("delta", self.answers[1:], epsilon, known, self.resolved)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self.tighten_epsilon(self.answers, delta, nothing_known(delta))

    def tighten_epsilon(self, answers: Sequence[Evaluated], delta: Floats, known: Bounds) -> Bounds:
        """Return bounds on ε(δ) from what is `known` already and from some of the answers."""
        return self._combine("epsilon", answers, delta, known, self.enough)

    def _combine(
        self,
        question: Question,
        answers: Sequence[Evaluated],
        values: Floats,
        known: Bounds,
        enough: Callable[[Bounds], Mask],
        record: list[tuple[Evaluated, Bounds, Errors]] | None = None,
    ) -> Bounds:
        """Ask one evaluator after the other where bounds are not close yet.

        With `record`, each evaluator's bounds and errors are added to it, and none is raised.
        """
        # The intersection of all that was said so far, entry by entry.
        lower = np.array(known.lower)
        upper = np.array(known.upper)
        errors: Errors = []

        def ask(answer: Evaluated, where: Mask) -> None:
            bounds, new_errors = ask_evaluator(answer, question, values[where])
            so_far = Bounds(lower[where], upper[where])
            lower[where], upper[where] = tightest([so_far, bounds])
            errors.extend(new_errors)
            if record is not None:
                record.append((answer, bounds, new_errors))

        for answer in answers:
            unresolved = ~enough(Bounds(lower, upper))
            if not unresolved.any():
                break
            ask(answer, unresolved)
        # Spare evaluators are asked only for the entries of which nothing is known from above.
        unknown = upper >= _TRIVIAL[question]
        for answer in self.spare() if unknown.any() else ():
            ask(answer, unknown)
            unknown = upper >= _TRIVIAL[question]
            if not unknown.any():
                break
        # An error counts only where nobody else knew an upper bound either.
        if record is None:
            for error, value in errors:
                if value in values[unknown]:
                    raise error
        return Bounds(lower, upper)

    def explain(self, delta: float) -> str:
        """Return, in a line or two, which evaluator gave each end of ε(δ), and why."""
        # Values are rounded outward to six digits. What could not be used has a line of its own.
        deltas = np.array([delta])
        record: list[tuple[Evaluated, Bounds, Errors]] = []
        known = nothing_known(deltas)
        self._combine("epsilon", self.answers, deltas, known, self.enough, record)
        high, high_bounds, _ = min(record, key=lambda row: row[1].upper[0])
        # Of equal lower bounds, the one of the evaluator that gave the upper bound.
        low, low_bounds, _ = max(record, key=lambda row: (row[1].lower[0], row[0] is high))
        lower = _format_rounded(low_bounds.lower[0], math.floor)
        upper = _format_rounded(high_bounds.upper[0], math.ceil)
        if low is high:
            text = f"{lower} ≤ ε ≤ {upper} at δ = {delta:g}, by {high.evaluator}: {high.why}"
        else:
            text = (
                f"ε ≤ {upper} at δ = {delta:g}, by {high.evaluator}: {high.why}\n"
                f"ε ≥ {lower}, by {low.evaluator}: {low.why}"
            )
        for *_, errors in record:
            for error, _ in errors:
                text += f"\nnot used: {error}"
        return text


def ask_evaluator(answer: Evaluated, question: Question, values: Floats) -> tuple[Bounds, Errors]:
    """Return an evaluator's bounds, which say nothing where it has none, and the errors there."""
    # A value past the range spoils no other value's answer: the values are halved until it is
    # alone.
    try:
        with within_range(lambda: answer.evaluator):
            bounds = getattr(answer.profile, question)(values)
    except RangeError as error:
        if values.size == 1:
            return nothing_known(values, question), [(error, float(values[0]))]
        first_half, second_half = np.array_split(values, 2)
        first_bounds, first_errors = ask_evaluator(answer, question, first_half)
        second_bounds, second_errors = ask_evaluator(answer, question, second_half)
        lower = np.concatenate([first_bounds.lower, second_bounds.lower])
        upper = np.concatenate([first_bounds.upper, second_bounds.upper])
        return Bounds(lower, upper), first_errors + second_errors
    return check_bounds(answer.evaluator, question, values, bounds)


def check_bounds(
    evaluator: str, question: Question, values: Floats, bounds: Bounds
) -> tuple[Bounds, Errors]:
    """Return `bounds`, made to say nothing where they are none, and the errors there."""
    # No bounds are: NaN on either side, a lower one that is below 0 or above the upper one, and a δ
    # above 1.
    lower = np.array(bounds.lower, dtype=np.float64)
    upper = np.array(bounds.upper, dtype=np.float64)
    good = (lower >= 0) & (upper <= _TRIVIAL[question]) & _are_ordered(bounds)
    errors: Errors = []
    bad = ~good
    for low, high, value in zip(lower[bad], upper[bad], values[bad], strict=True):
        text = f"{evaluator}: [{low:g}, {high:g}] at {value:g} are no bounds on {question}"
        errors.append((RangeError(f"{text}: past the numerical range; please report it"), value))
    none = nothing_known(values, question)
    lower = np.where(good, lower, none.lower)
    upper = np.where(good, upper, none.upper)
    return Bounds(lower, upper), errors


def _format_rounded(value: float, rounded: Callable[[float], int]) -> str:
    """Return six digits of a value, rounded up or down."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return f"{rounded(value / unit) * unit:.6g}"


def nothing_known(values: Floats, question: Question = "epsilon") -> Bounds:
    """Return bounds that always hold."""
    return Bounds(np.zeros(values.shape), np.full(values.shape, _TRIVIAL[question]))


def _are_ordered(bounds: Bounds) -> Mask:
    """Return where the lower bound is not above the upper one, but for rounding."""
    largest_lower = bounds.upper * (1 + 1e-9) + 1e-12
    return np.asarray(bounds.lower <= largest_lower)


def tightest(bounds: list[Bounds]) -> Bounds:
    """Return the intersection of bounds; raise `RangeError` where it is empty."""
    lower = np.max([pair.lower for pair in bounds], axis=0)
    upper = np.min([pair.upper for pair in bounds], axis=0)
    if not _are_ordered(Bounds(lower, upper)).all():
        raise RangeError(
            "bounds contradict one another: past the numerical range; please report it"
        )
    return Bounds(np.minimum(lower, upper), upper)


@contextmanager
def within_range(name: Callable[[], str]) -> Iterator[None]:
    """Raise `RangeError` for arithmetic that fails inside; keep numpy's warnings quiet.

    `name` gives the name of what failed, and is called only then.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    # Some of these are ValueErrors too; they say better what is wrong.
    except ApieceError:
        raise
    except (OverflowError, ZeroDivisionError, FloatingPointError, ValueError) as error:
        raise RangeError(
            f"{name()}: past the numerical range ({error}); use noise, probabilities and counts of "
            "usual sizes"
        ) from None


def evaluate_ascending(
    delta_at: Callable[[Floats], Bounds], nodes: Floats, enough: Callable[[Floats, Bounds], bool]
) -> tuple[Floats, Bounds]:
    """Evaluate a profile at ascending nodes, a few at a time, until `enough` of the last ones.

    Returns the nodes that were evaluated and the bounds there.
    """
    # Deep tails cost an evaluator most and most answers do not need them.
    parts: list[Bounds] = []
    for piece in cut_pieces(nodes):
        bounds = delta_at(nodes[piece])
        parts.append(bounds)
        if enough(nodes[piece], bounds):
            break
    lower = np.concatenate([part.lower for part in parts])
    upper = np.concatenate([part.upper for part in parts])
    return nodes[: lower.size], Bounds(lower, upper)


def cut_pieces(nodes: Floats) -> Iterator[slice]:
    """Cut ascending nodes into pieces, at each of which a few are evaluated."""
    start = 0
    while start < nodes.size:
        # By a factor each time, but no less than one part of the whole range at first.
        reach = _GROWTH * max(nodes[start], nodes[-1] / _FIRST)
        end = max(int(np.searchsorted(nodes, reach)), start + 1)
        yield slice(start, end)
        start = end


def find_runs(columns: Floats) -> tuple[Places, Places]:
    """Return where each run of equal columns begins, and how many columns it has."""
    differs = (np.diff(columns, axis=1) != 0).any(axis=0)
    # Of no columns, none begins a run.
    is_start = np.append(True, differs)[: columns.shape[1]]
    starts = np.flatnonzero(is_start)
    return starts, np.diff(np.append(starts, columns.shape[1]))


# Parts that a bracket is cut into in an inversion, and how often: as close as 51 bisections.
_PARTS = 5
_ROUNDS = 22


def invert(delta_at: Callable[[Floats], Bounds], delta: Floats) -> Bounds:
    """Return bounds on ε(δ) = inf{ε ≥ 0: δ(ε) ≤ δ}, given bounds on the decreasing δ(ε)."""
    # The upper end is an ε whose upper bound was evaluated and is at most δ, ∞ where none up to
    # `LARGEST_EPSILON` is; the lower end is one whose lower bound exceeds δ, or 0. Both lie within
    # a factor 1 + 1e-13 of where the bounds cross δ. NaN where a bound on the way is.
    broken = np.zeros(delta.shape, dtype=bool)

    def holds(epsilon: Floats) -> Mask:
        """Return whether δ(ε) ≤ δ by the lower and by the upper bound; (N, 1 or 2, K) ε."""
        lower, upper = delta_at(epsilon.ravel())
        lower = lower.reshape(epsilon.shape)
        upper = upper.reshape(epsilon.shape)
        broken[np.isnan(lower).any(axis=(0, 1))] = True
        broken[np.isnan(upper).any(axis=(0, 1))] = True
        lower_holds = lower[:, 0] <= delta
        upper_holds = upper[:, -1] <= delta
        return np.stack([lower_holds, upper_holds], axis=1)

    # δ at 0 and at both ends of the range, by the lower and by the upper bound: (2, K) each.
    ends = np.array([0.0, SMALLEST_EPSILON, LARGEST_EPSILON])
    at_zero, at_smallest, at_largest = holds(
        np.broadcast_to(ends[:, None, None], (3, 1, delta.size))
    )
    # Brackets of the crossing of the lower bound, row 0, and of the upper bound, row 1.
    low = np.full((2, delta.size), SMALLEST_EPSILON)
    high = np.full((2, delta.size), LARGEST_EPSILON)
    shares = np.arange(1, _PARTS)[:, None, None] / _PARTS
    for _ in range(_ROUNDS):
        # As long as both brackets are one, they are cut once.
        equal = np.array_equal(low[0], low[1]) and np.array_equal(high[0], high[1])
        start = low[:1] if equal else low
        end = high[:1] if equal else high
        # Cuts are even in log ε; rounding may put one a little outside its bracket.
        inner = np.clip(start * (end / start) ** shares, start, end)
        beyond = holds(inner)
        nodes = np.concatenate([start[None], inner, end[None]])
        nodes = np.broadcast_to(nodes, (_PARTS + 1, *low.shape))
        # The part before the first cut that holds, or the last part.
        first_cut = beyond.argmax(axis=0)
        part = np.where(beyond.any(axis=0), first_cut, _PARTS - 1)[None]
        low = np.take_along_axis(nodes, part, axis=0)[0]
        high = np.take_along_axis(nodes, part + 1, axis=0)[0]
    # Where a bound holds at the least ε sought, its crossing lies below, and is not resolved.
    low = np.where(at_zero | at_smallest, 0.0, low)
    high = np.where(at_smallest, SMALLEST_EPSILON, high)
    high = np.where(at_zero, 0.0, high)
    upper = np.where(at_zero | at_largest, high, np.inf)[1]
    upper = np.where(broken, np.nan, upper)
    return Bounds(np.minimum(low[0], upper), upper)


# No smaller δ is resolved.
_LEAST_DELTA = 1e-45


@dataclass(frozen=True, slots=True)
class Precision:
    """Settings of the numerical evaluators; none of them affects whether a bound holds."""

    # The relative gap (upper − lower)/upper aimed at in ε and in δ.
    gap: float = 9e-4
    # Below this ε the gap aimed at is gap·floor, absolute, and below a quarter of it floor/50.
    floor: float = 0.01
    # The share of δ that may be lost to each tail.
    truncation: float = 1e-5
    # The share of the tilted mass that may fall outside a transform on either side.
    wrap: float = 1e-10
    # The longest transform, or half of it at hard settings; where it would have to be longer, the
    # bounds stay valid but lie further apart than `gap`.
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
