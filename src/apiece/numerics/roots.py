"""One solver for monotone functions, which returns the safe end: a point seen to be within bounds.

Whatever is sought, be it a noise multiplier, a rate or a factor on the noise, the question is how
far a parameter may go from its safe end towards the unsafe one while there is still room: limit
less what is spent, or the logarithm of their quotient. The answer is a point at which the room was
evaluated and is not negative, so no error of the search can break a promise; it can only leave
some of a budget unspent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Mask

Places: TypeAlias = npt.NDArray[np.intp]
# Share of the tolerance at which steps along the line aim.
_AIM: Final = 0.55
# Steps along the line, before false position and bisection take turns.
_LINES: Final = 5
# Steps along the line while each at least halves the room.
_HALVING_LINES: Final = 10
# Looks of a search, at most.
_ROUNDS: Final = 100
# Room lost between two neighbours that makes a jump, which no line finds.
_TALL: Final = 0.1
# How close the end of a jump is sought, in units of `narrow`.
_JUMP: Final = 20.0
# A slope this many times another one is taken for noise.
_TURN: Final = 3.0
# Room between two looks that is more than noise.
_PLAIN: Final = 0.01
# Factor by which a stride grows.
_WIDER: Final = 8.0


def log_room(limit: npt.ArrayLike, spent: npt.ArrayLike) -> Floats:
    """Return log(limit / spent), whose sign is exact: at least 0 just where spent ≤ limit."""
    # −∞ where `spent` is infinite or not a number.
    limit = np.asarray(limit, np.float64)
    spent = np.asarray(spent, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.log(limit) - np.log(spent)
    # The sign by the numbers themselves: logarithms of neighbours may be equal.
    within = np.maximum(room, 0.0)
    beyond = np.minimum(room, -(2.0**-52))
    signed = np.where(spent <= limit, within, beyond)
    return np.asarray(np.where(np.isnan(spent), -np.inf, signed))


def safe_ends(
    room: Callable[[Floats, Places], Floats],
    guess: Floats,
    safe: Floats,
    unsafe: Floats,
    *,
    slope: npt.ArrayLike,
    tolerance: npt.ArrayLike,
    narrow: npt.ArrayLike = 1e-6,
    stride: npt.ArrayLike = np.inf,
) -> Floats:
    """Return, for many searches in step, the x nearest to `unsafe` that was seen to have room.

    A search ends where room is at most `tolerance`, or where the bracket around the crossing is
    narrow enough; at `unsafe` itself where there is room even there. NaN is returned where `safe`
    has no room. All arrays have one shape, (K,).
    """
    best = np.full(guess.shape, np.nan)
    # Without a guess a search begins in the middle, and its steps are of any length.
    start = np.where(np.isnan(guess), (safe + unsafe) / 2, guess)
    none = np.full(guess.shape, np.nan)
    number = np.arange(guess.size)
    tolerances = np.broadcast_to(tolerance, guess.shape)
    widths = np.broadcast_to(narrow, guess.shape)
    searches = _Searches(
        number=number,
        x=start,
        safe=safe,
        unsafe=unsafe,
        safe_room=none,
        unsafe_room=none,
        last=none,
        last_room=none,
        slope=np.copysign(np.abs(slope), safe - unsafe),
        stride=np.where(np.isnan(guess), np.inf, stride),
        quick=number < 0,
    )
    for turn in range(_ROUNDS):
        if not searches.number.size:
            break
        number = searches.number
        x = searches.x
        # What is not a number is no room.
        found_room = np.asarray(room(x, number))
        found_room = np.where(np.isnan(found_room), -np.inf, found_room)
        good = found_room >= 0
        best[number[good]] = x[good]
        # Done where hardly any room is left, and where even the safe end has none.
        used_up = (found_room <= tolerances[number]) | (x == searches.unsafe)
        done = np.where(good, used_up, x == searches.safe)
        searches.learn(found_room, good)
        unseen = np.isnan(best[number])
        goes_on = searches.advance(turn, _AIM * tolerances[number], widths[number], unseen)
        searches = searches.select(goes_on & ~done)
    return best


def safe_end(
    room: Callable[[float], float],
    guess: float,
    safe: float,
    unsafe: float,
    *,
    slope: float,
    tolerance: float,
    narrow: float = 1e-6,
    stride: float = np.inf,
) -> float:
    """Return `safe_ends` of one search."""
    ends = safe_ends(
        lambda x, _: np.array([room(float(x[0]))]),
        *(np.array([float(value)]) for value in (guess, safe, unsafe)),
        slope=slope,
        tolerance=tolerance,
        narrow=narrow,
        stride=stride,
    )
    return float(ends[0])


@dataclass
class _Searches:
    """The searches that are still open, an entry each: where to look next, and what is known."""

    number: Places
    # Where to look next.
    x: Floats
    # The ends of the bracket, and the room there, NaN where not looked at.
    safe: Floats
    unsafe: Floats
    safe_room: Floats
    unsafe_room: Floats
    # Where room was finite last, and how much there was.
    last: Floats
    last_room: Floats
    # Of the line along which room is likely to fall.
    slope: Floats
    # How far a step along the line may go.
    stride: Floats
    # Whether the last step at least halved the room.
    quick: Mask

    def select(self, where: Mask) -> _Searches:
        """Return some of the searches."""
        return _Searches(*(getattr(self, field.name)[where] for field in fields(self)))

    def learn(self, room: Floats, good: Mask) -> None:
        """Move the ends to x, and take the slope from the last two looks where it is plausible."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = (room - self.last_room) / (self.x - self.last)
            change = rise / self.slope
            self.quick = np.abs(room) < np.abs(self.last_room) / 2
            plain = np.abs(room - self.last_room) > _PLAIN
        # A new slope is taken where room changed by more than noise, or much as the line said; of
        # two looks that nearly coincide it would be rounding alone.
        plain &= np.isfinite(change) & (change > 0)
        similar = (change > 1 / _TURN) & (change < _TURN)
        usable = plain | similar
        usable &= np.abs(self.x - self.last) > 1e-6
        self.slope = np.where(usable, rise, self.slope)
        finite = np.isfinite(room)
        self.last = np.where(finite, self.x, self.last)
        self.last_room = np.where(finite, room, self.last_room)
        self.safe = np.where(good, self.x, self.safe)
        self.safe_room = np.where(good, room, self.safe_room)
        self.unsafe = np.where(good, self.unsafe, self.x)
        self.unsafe_room = np.where(good, self.unsafe_room, room)

    def advance(self, turn: int, aim: Floats, narrow: Floats, unseen: Mask) -> Mask:
        """Choose where to look next; return which searches have somewhere left to look.

        `unseen` are those that have not seen any room yet.
        """
        # Before a search ends at a narrow bracket, it looks at an end of which it knows nothing.
        middle = (self.safe + self.unsafe) / 2
        line = (turn < _LINES) | (self.quick & (turn < _HALVING_LINES))
        along = self._follow_line(aim, middle)
        # Past the unsafe end: there may be room even there.
        untried = line & np.isnan(self.unsafe_room)
        untried &= (along - self.unsafe) * (self.unsafe - self.safe) >= 0
        # False position in every other turn, bisection in the others.
        with np.errstate(invalid="ignore"):
            share = (self.safe_room - aim) / (self.safe_room - self.unsafe_room)
        share = np.where(np.isfinite(share) & (turn % 2 == 1), np.clip(share, 0.01, 0.99), 0.5)
        x = np.where(line, along, self.safe + share * (self.unsafe - self.safe))
        low = np.minimum(self.safe, self.unsafe)
        high = np.maximum(self.safe, self.unsafe)
        inside = (low < x) & (x < high)
        x = np.where(inside, x, np.where(untried, self.unsafe, middle))
        # Negated, so that where an end was not looked at it counts as a jump.
        jump = ~(self.safe_room - self.unsafe_room < _TALL)
        width = np.where(jump, _JUMP * narrow, narrow) * np.maximum(1.0, np.abs(low))
        close = (high - low < width) & ~untried
        self.x = np.where(close, np.where(unseen, self.safe, self.unsafe), x)
        return ~close | unseen | np.isnan(self.unsafe_room)

    def _follow_line(self, aim: Floats, middle: Floats) -> Floats:
        """Return where the line leads to, from the last look; no farther than a stride."""
        with np.errstate(invalid="ignore"):
            step = (aim - self.last_room) / self.slope
        step = np.clip(step, -self.stride, self.stride)
        # Where the room is infinite no line leads anywhere: a stride towards the other end.
        other_end = np.where(self.x == self.safe, self.unsafe, self.safe)
        strided = self.x + np.copysign(self.stride, other_end - self.x)
        blind = np.where(np.isfinite(self.stride), strided, middle)
        self.stride = self.stride * _WIDER
        return np.where(self.x == self.last, self.x + step, blind)


def halfway(a: Floats, b: Floats) -> Floats:
    """Return the arithmetic mean."""
    return np.asarray((a + b) / 2)


def geometric(a: Floats, b: Floats) -> Floats:
    """Return the geometric mean of positive numbers."""
    with np.errstate(over="ignore"):
        product = a * b
    return np.asarray(np.where(product < np.inf, np.sqrt(product), np.sqrt(a) * np.sqrt(b)))


def bisect(
    holds: Callable[[Floats], Mask],
    inside: npt.ArrayLike,
    outside: npt.ArrayLike,
    *,
    rounds: int,
    middle: Callable[[Floats, Floats], Floats] = halfway,
) -> tuple[Floats, Floats]:
    """Return the ends (inside, outside) of many brackets, bisected at once, of one shape."""
    # Stops early where no bracket has a float left between its ends.
    first, last = np.broadcast_arrays(
        np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    )
    for _ in range(rounds):
        between = middle(first, last)
        if np.all((between == first) | (between == last)):
            break
        good = holds(between)
        first = np.where(good, between, first)
        last = np.where(good, last, between)
    return first, last


def last_true(holds: Callable[[float], bool], *, most: float, rounds: int) -> float:
    """Return the largest number seen to hold: 0, 1, 2, 4, … up to `most`, then by bisection."""
    # Returns 0 also where nothing holds.
    if not holds(0.0):
        return 0.0
    low = 0.0
    high = 1.0
    while high < most and holds(high):
        low = high
        high = 2 * high
    last, _ = bisect(lambda x: np.asarray(holds(float(x))), low, high, rounds=rounds)
    return float(last)
