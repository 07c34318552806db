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
_AIM: Final = 0.55  # of the tolerance: where steps along the line aim
_LINES: Final = 5  # steps along the line, before false position and bisection take turns
_MORE: Final = 10  # steps along the line while each at least halves the room
_ROUNDS: Final = 100
_TALL: Final = 0.1  # of room lost between two neighbours: a jump, which no line finds
_JUMP: Final = 20.0  # times `narrow`: how close the end of a jump is sought
_TURN: Final = 3.0  # a slope this many times another one is taken for noise
_PLAIN: Final = 0.01  # of room between two looks: more than noise
_WIDER: Final = 8.0  # times that a stride grows


def log_room(limit: npt.ArrayLike, spent: npt.ArrayLike) -> Floats:
    """Return log(limit / spent), whose sign is exact: at least 0 just where spent ≤ limit."""
    # −∞ where `spent` is infinite or not a number.
    limit, spent = np.asarray(limit, np.float64), np.asarray(spent, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.log(limit) - np.log(spent)
    signed = np.where(spent <= limit, np.maximum(room, 0.0), np.minimum(room, -(2.0**-52)))
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
    """Return, for many searches in step, the x nearest to `unsafe` that was seen to have room."""
    # A search ends where room is at most `tolerance`, or where the bracket around the crossing is
    # narrow enough; at `unsafe` itself where there is room even there. NaN is returned where `safe`
    # has no room. All arrays have one shape, (K,).
    best = np.full(guess.shape, np.nan)
    start = np.where(np.isnan(guess), (safe + unsafe) / 2, guess)
    none = np.full(guess.shape, np.nan)
    steep = np.copysign(np.abs(slope), safe - unsafe)
    strides = np.where(np.isnan(guess), np.inf, stride)
    entry = np.arange(guess.size)
    left, close = (np.broadcast_to(value, guess.shape) for value in (tolerance, narrow))
    some = _Open(entry, start, safe, unsafe, none, none, none, none, steep, strides, entry < 0)
    for turn in range(_ROUNDS):
        if not some.entry.size:
            break
        left_over = np.asarray(room(some.x, some.entry))
        left_over = np.where(np.isnan(left_over), -np.inf, left_over)
        good, at = left_over >= 0, some.entry
        best[at[good]] = some.x[good]
        done = np.where(
            good, (left_over <= left[at]) | (some.x == some.unsafe), some.x == some.safe
        )
        some.learn(left_over, good)
        more = some.move(turn, _AIM * left[at], close[at], np.isnan(best[at]))
        some = some.only(more & ~done)
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
class _Open:
    """The searches that are still open, an entry each: where to look next, and what is known."""

    entry: Places
    x: Floats
    safe: Floats
    unsafe: Floats
    at_safe: Floats  # room, NaN where not looked at
    at_unsafe: Floats
    last: Floats  # where room was finite, last
    at_last: Floats
    slope: Floats
    stride: Floats  # that a step along the line may go
    quick: Mask  # whether the last step at least halved the room

    def only(self, some: Mask) -> _Open:
        """Return some of the searches."""
        return _Open(*(getattr(self, field.name)[some] for field in fields(self)))

    def learn(self, room: Floats, good: Mask) -> None:
        """Move the ends to x, and take the slope from the last two looks where it is plausible."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = (room - self.at_last) / (self.x - self.last)
            change = rise / self.slope
            self.quick = np.abs(room) < np.abs(self.at_last) / 2
            plain = np.abs(room - self.at_last) > _PLAIN
        plain &= np.isfinite(change) & (change > 0)
        usable = plain | ((change > 1 / _TURN) & (change < _TURN))
        usable &= np.abs(self.x - self.last) > 1e-6
        self.slope = np.where(usable, rise, self.slope)
        near = np.isfinite(room)
        self.last = np.where(near, self.x, self.last)
        self.at_last = np.where(near, room, self.at_last)
        self.safe, self.at_safe = (
            np.where(good, new, old) for new, old in ((self.x, self.safe), (room, self.at_safe))
        )
        self.unsafe, self.at_unsafe = (
            np.where(good, old, new) for new, old in ((self.x, self.unsafe), (room, self.at_unsafe))
        )

    def move(self, turn: int, aim: Floats, narrow: Floats, unseen: Mask) -> Mask:
        """Choose where to look next; return which searches have somewhere left to look."""
        # unseen: those that have not seen any room yet. Before a search ends at a narrow bracket,
        # it looks at an end of which it knows nothing.
        middle = (self.safe + self.unsafe) / 2
        line = (turn < _LINES) | (self.quick & (turn < _MORE))
        along = self._along(aim, middle)
        # past the unsafe end: there may be room even there
        untried = line & np.isnan(self.at_unsafe)
        untried &= (along - self.unsafe) * (self.unsafe - self.safe) >= 0
        with np.errstate(invalid="ignore"):
            share = (self.at_safe - aim) / (self.at_safe - self.at_unsafe)
        share = np.where(np.isfinite(share) & (turn % 2 == 1), np.clip(share, 0.01, 0.99), 0.5)
        x = np.where(line, along, self.safe + share * (self.unsafe - self.safe))
        low, high = np.minimum(self.safe, self.unsafe), np.maximum(self.safe, self.unsafe)
        x = np.where((low < x) & (x < high), x, np.where(untried, self.unsafe, middle))
        jump = ~(self.at_safe - self.at_unsafe < _TALL)
        width = np.where(jump, _JUMP * narrow, narrow) * np.maximum(1.0, np.abs(low))
        close = (high - low < width) & ~untried
        self.x = np.where(close, np.where(unseen, self.safe, self.unsafe), x)
        return ~close | unseen | np.isnan(self.at_unsafe)

    def _along(self, aim: Floats, middle: Floats) -> Floats:
        """Return where the line leads to, from the last look; no farther than a stride."""
        here = self.x
        with np.errstate(invalid="ignore"):
            step = (aim - self.at_last) / self.slope
        step = np.clip(step, -self.stride, self.stride)
        # where the room is infinite no line leads anywhere
        other = np.where(here == self.safe, self.unsafe, self.safe)
        lost = np.where(
            np.isfinite(self.stride), here + np.copysign(self.stride, other - here), middle
        )
        self.stride = self.stride * _WIDER
        return np.where(here == self.last, here + step, lost)


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
        first, last = np.where(good, between, first), np.where(good, last, between)
    return first, last


def last_true(holds: Callable[[float], bool], *, most: float, rounds: int) -> float:
    """Return the largest number seen to hold: 0, 1, 2, 4, … up to `most`, then by bisection."""
    # Returns 0 also where nothing holds.
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < most and holds(high):
        low, high = high, 2 * high
    last, _ = bisect(lambda x: np.asarray(holds(float(x))), low, high, rounds=rounds)
    return float(last)
