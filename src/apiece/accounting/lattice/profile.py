"""The profile of any composition, on a lattice of log-ratios.

Each step becomes a dominating pair (`pairs`); pairs are put on a lattice from above and from below
(`dominating`, `dominated`) and composed by FFT (`convolution`) around the δ that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter

import numpy as np

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import DEFAULT, Precision, nothing_known, tightest
from apiece.accounting.exact import log_ratio
from apiece.accounting.lattice.allocation import allocated_pair
from apiece.accounting.lattice.convolution import (
    NEGLIGIBLE,
    Attempt,
    Attempts,
    Direction,
    Line,
    TooLongError,
    above_line,
    below_line,
    convolve,
    moment,
    quick_length,
    rare_losses,
    reach,
    side,
    tail,
    tilt_part,
)
from apiece.accounting.lattice.discretise import aligned, discretise
from apiece.accounting.lattice.pairs import (
    NEITHER,
    AtomsPair,
    GaussianPair,
    LaplacePair,
    Pair,
    Window,
    discrete_pair,
    mixture_pair,
    several,
    told_apart,
)
from apiece.accounting.lattice.settings import (
    Leaves,
    Settings,
    gaps,
    log_delta,
    renyi_tilt,
    settings_for,
    view,
)
from apiece.errors import RangeError, UnsupportedError
from apiece.mechanisms import (
    Allocated,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureOfGaussians,
    Sampled,
    flatten,
)
from apiece.mechanisms.algebra import NormalForm, atoms_of
from apiece.numerics.rounding import UNIT

_LEAST_DELTA = 1e-17  # δ down to which masses are to be told
_USUAL = 1e-6  # δ by which the lattice step is chosen
_INNER_SHARE = 0.2  # of the gap wanted that the inner lattice may take
_TILTS = 11
COIN_POINTS = 2**18
WIDEST_STEP = 10.0  # lattice steps beyond it tell nothing
_WRAP = 1e-20  # tilted mass outside the transform
_LARGEST_EXPONENT = 2000.0
_NO_RATIO = 40.0  # nats below 1 − π, at which π·e^ρ is nothing beside it


# A coin before a whole composition. The lattice pairs are composed as ever, but here every mass is
# wanted, not δ at one ε. One tilt tells the masses near its mean; so several are taken, and each
# mass is read off where its error, |error of w|·E[r^λ]·e^{−λℓ}, is least. Masses less their errors
# are a part of a dominated pair, masses plus their errors contain a dominating one. With a coin in
# front both are pairs like any other: a loss ℓ becomes log(1 − π + π·e^ℓ) under the same Q
# (Theorem 2 of Balle, Barthe, Gaboardi 2018).
def run_pair(leaves: Leaves, probability: float, accuracy: Precision = DEFAULT) -> AtomsPair:
    """Return the pair of a composition behind one coin."""
    # What only P can show tells the worlds apart behind the coin too, π times as often. What only Q
    # can show does not: there the ratio is 1 − π, an atom like any other. Raises `RangeError` where
    # its losses are past the numerical range.
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(accuracy.truncation * _LEAST_DELTA / times) for pair, _ in leaves)
    tilts, step = _settings(leaves, windows, accuracy)
    while True:
        lattices = [
            (discretise(pair, window, step), count)
            for (pair, count), window in zip(leaves, windows, strict=True)
        ]
        low, high = _window([side(pair[1], n, reverse=False) for pair, n in lattices], step, tilts)
        if high - low < COIN_POINTS:
            break
        step *= 1.05 * (high - low) / COIN_POINTS
        if step > WIDEST_STEP:
            raise RangeError(
                f"a coin before a composition of {times} steps: past the numerical range; use "
                "fewer steps or more noise"
            )
    only_p, only_q = (told_apart(leaves, reverse=reverse) for reverse in (False, True))
    certain = Bounds(*(probability * end for end in only_p)), NEITHER[1]
    lowest = math.log1p(-probability) - _NO_RATIO
    ends = []
    for end in (0, 1):
        parts = [side(pair[end], count, reverse=False) for pair, count in lattices]
        loss, mass, relative, lost = _masses(parts, step, tilts, upper=end == 1)
        if only_q.upper > 0:
            loss = np.append(min(lowest, loss.min(initial=0.0) - 1), loss)
            mass = np.append(only_q[end], mass)
        out_p, out_q = (
            end * (lost + sum(count * outside(pair[1]) for pair, count in lattices))
            for outside in (attrgetter("outside_p"), attrgetter("outside_q"))
        )
        outside = (1 - probability) * out_q + probability * out_p, out_q
        points = several(loss, mass)
        ends.append(AtomsPair(*points, outside, relative + 16 * UNIT, probability, certain))
    return replace(ends[1], below=ends[0])


def _settings(
    leaves: Leaves, windows: tuple[Window, ...], accuracy: Precision
) -> tuple[Floats, float]:
    """Return the tilts by which all masses are told, and a lattice step."""
    coarse = view(leaves, windows)
    widest = 1 + _LARGEST_EXPONENT / max(part.largest for part in coarse)
    add, remove = (
        min(renyi_tilt(coarse, math.log(_LEAST_DELTA), reverse=reverse)[0], widest)
        for reverse in (True, False)
    )
    usual, epsilon = renyi_tilt(coarse, math.log(_USUAL), reverse=False)
    steps = np.geomspace(1e-9, 0.25, 60).astype(np.float64)
    wanted = _INNER_SHARE * accuracy.gap * max(epsilon, accuracy.floor)
    fine = max(int(np.searchsorted(gaps(coarse, usual, steps), wanted)) - 1, 0)
    return np.union1d(np.linspace(1 - add, remove, _TILTS), [0.0, 1.0]), float(steps[fine])


def _masses(
    parts: Sequence[Direction], step: float, tilts: Floats, *, upper: bool
) -> tuple[Floats, Floats, float, float]:
    """Return losses, their Q-masses, and bounds on the relative error and on the mass beyond."""
    # Absolute errors are taken off the masses, or (upper) added. The mass beyond is of P and Q.
    low, high = _window(parts, step, tilts)
    size = quick_length(high - low + 1)
    start = sum(p.times * p.offset for p in parts)
    loss = np.asarray(start + step * np.arange(low, high + 1), dtype=np.float64)
    mass, error = np.zeros(loss.size), np.full(loss.size, np.inf)
    faint = 2 * _WRAP + sum(p.times * p.log_mass.size for p in parts) * NEGLIGIBLE
    relative = lost = 0.0
    for tilt in map(float, tilts):
        tilted = [tilt_part(part, step, tilt) for part in parts]
        weight, noise = convolve(tilted, parts, size)
        weight = np.roll(weight, -(low % size))[: loss.size]
        log_moment, rounding = moment(parts, tilted, tilt)
        with np.errstate(over="ignore"):
            scale = np.exp(log_moment - tilt * loss)
        better = (noise + faint) * scale < error
        mass[better] = weight[better] * scale[better]
        error[better] = (noise + faint) * scale[better]
        most = abs(log_moment) + float(np.abs(tilt * loss).max())
        relative = max(relative, rounding + 8 * UNIT * most)
        if tilt in (tilts[0], tilts[-1]):
            # the most P- or Q-mass that a unit of tilted mass beyond the losses stands for: above
            # them for a tilt over 1, below them for one under 0, where that falls with the distance
            end = float(loss[-1] if tilt > 1 else loss[0])
            stands = log_moment + max((1 - tilt) * end, -tilt * end)
            lost += min(_WRAP * math.exp(min(stands, 700.0)), 1.0)
    mass = np.maximum(mass + error if upper else mass - error, 0.0)
    return loss[mass > 0], mass[mass > 0], relative, lost


def _window(parts: Sequence[Direction], step: float, tilts: Floats) -> tuple[int, int]:
    """Return lattice indices outside which no tilt leaves more than `_WRAP` on either side."""
    ends = [
        reach([tilt_part(part, step, float(tilt)) for part in parts], parts, -math.log(_WRAP))
        for tilt in tilts
    ]
    return min(low for low, _ in ends), max(high for _, high in ends)


_SECOND_CHANCE = 3.0  # times the gap wanted, up to which refining is given a second chance
_MOVES = 5  # times that the neighbourhood is moved to the ε found


def refined(leaves: Leaves, deltas: Floats, accuracy: Precision) -> Attempts:
    """Return bounds for the range of decreasing `deltas`, an odd number of them."""
    # The step is refined until the gap is what is wanted, the points run out, or refining does not
    # help: near the gap wanted twice, as where few steps make δ it depends on how they happen to
    # lie on the lattice.
    settings = settings_for(leaves, deltas, accuracy, None)
    best: tuple[Attempt, ...] = ()
    moves, before, refine = 0, (math.inf, math.inf), True
    while True:
        try:
            attempt = _compose(leaves, deltas, settings, accuracy)
        except TooLongError as error:
            if settings.step > WIDEST_STEP:
                raise RangeError(f"losses of {leaves!r} are past the numerical range") from None
            settings = settings._replace(step=1.05 * error.args[0] * settings.step)
            refine = False
            continue
        kept = Attempts((*best, attempt), close=False)
        lower, upper = kept.epsilon(deltas)
        if moves < _MOVES and _moved(settings, upper):
            known = np.where(np.isfinite(upper), upper, 2 * settings.reach)
            settings = settings_for(leaves, deltas, accuracy, known)
            best, moves, before, refine = (attempt,), moves + 1, (math.inf, math.inf), True
            continue
        gaps = np.minimum(upper, 1e300) - lower
        worst = float(np.max(gaps / np.minimum(accuracy.wanted(upper), 1e297)))
        stuck = worst > 0.8 * before[0 if worst < _SECOND_CHANCE else 1]
        if worst <= 1 or not refine or stuck:
            return Attempts(kept.attempts, close=worst <= 1)
        best = (attempt,) if worst < before[1] else best
        before, finer = (before[1], worst), min(0.7, max(0.1, math.sqrt(0.85 / worst)))
        settings = settings._replace(step=settings.step * finer)


def _moved(settings: Settings, upper: Floats) -> bool:
    """Whether the ε found are so far from those of the settings that another would be better."""
    middle, last = float(upper[upper.size // 2]), float(upper[-1])
    if not math.isfinite(middle):
        return False
    far = abs(middle - settings.epsilon) > min(0.2 * settings.epsilon, 2 * settings.spread)
    return far or last > settings.reach or 2 * last < settings.reach < math.inf


def _compose(leaves: Leaves, deltas: Floats, settings: Settings, accuracy: Precision) -> Attempt:
    """Compose both lattice pairs in both directions."""
    # In the add direction from below only where that can matter: where its upper bound is somewhere
    # above the lower bound of the remove direction.
    every = list(zip(leaves, settings.windows, strict=True))
    cells = max(
        (log_ratio(w.high, p.probability) - log_ratio(w.low, p.probability)) / settings.step
        for (p, _), w in every
    )
    if cells > 2 * accuracy.points:
        raise TooLongError(cells / accuracy.points)
    if len(leaves) == 1:
        settings = settings._replace(step=aligned(leaves[0][0], settings.windows[0], settings.step))
    pairs = [(discretise(pair, w, settings.step), times) for (pair, times), w in every]
    lows, highs = ([(both[end], times) for both, times in pairs] for end in (0, 1))
    rare = rare_losses(highs, settings.rate, lows)
    above: list[Line] = []
    below: list[Line] = []
    for reverse, options in settings.directions(accuracy, jumps=rare is not None):
        upper = [side(high, times, reverse=reverse) for high, times in highs]
        outside = sum(n * (high.outside_q if reverse else high.outside_p) for high, n in highs)
        certain = told_apart(leaves, reverse=reverse)
        outside += certain.upper
        above.append(above_line(tail(upper, *options), outside, rare, reverse=reverse))
        if reverse and (above[1].epsilon(deltas, -1.0) <= below[0].epsilon(deltas, 0.0)).all():
            break
        lower = [side(low, times, reverse=reverse) for low, times in lows]
        rarely = None if reverse else rare
        below.append(below_line(tail(lower, *options), certain.lower, rarely))
    return Attempt(tuple(above), tuple(below))


_LEAST_PROBABILITY = 1e-250


def composition(steps: NormalForm) -> Composition:
    """Return bounds on the profile of any steps, chosen in advance or adaptively."""
    # How close the bounds are is checked, not proved: for sampled Gaussian steps of one kind the
    # gap in ε was at most 0.1 % wherever it was looked at with ε ≥ 0.01, sampling probabilities
    # from 1e-6 on, noise multipliers from 0.3 to 100, up to 1e6 steps and δ from 1e-12 on. Steps of
    # different kinds, a coin before a composition, two or three Laplace steps of rare large losses,
    # and δ at given ε (the advantage too) can be wider, by far in a few cases, as the bounds
    # themselves show. Laws of allocated steps, known from two sides, take most of the gap.
    lent = _LENT if any(isinstance(step, Allocated) for step, _ in steps) else 1.0
    return Composition(tuple((_pair(step), times) for step, times in steps), lent=lent)


@lru_cache(maxsize=64)
def _pair(step: Mechanism) -> Pair:
    match step:
        case Sampled(_, q) if q < _LEAST_PROBABILITY:
            raise RangeError(
                f"sampling_probability = {q!r}: past the numerical range; give 0, or at least "
                f"{_LEAST_PROBABILITY:g}"
            )
        case Gaussian(z):
            return GaussianPair(z)
        case Laplace(scale):
            return LaplacePair(scale)
        case Sampled(Gaussian(z), q):
            return GaussianPair(z, q)
        case Sampled(Laplace(scale), q):
            return LaplacePair(scale, q)
        case Allocated():
            return allocated_pair(step)
        case Sampled(Allocated() as inside, q):
            return allocated_pair(inside, q)
        case MixtureOfGaussians():
            return mixture_pair(step)
        case Sampled(MixtureOfGaussians() as inside, q):
            return mixture_pair(inside, q)
        case _ if (atoms := atoms_of(step)) is not None:
            return discrete_pair(atoms)
        case Sampled(inner, q):
            return run_pair(tuple((_pair(part), times) for part, times in flatten(inner)), q)
        case _:
            raise UnsupportedError(f"method 'pld': {step!r} is no step")


_LENT = 1 / 9
_FIRST, _SPACING, _LAST = 1.0, 1.2, 16.6
# Steps beyond which, for δ above some value, all points would take many seconds: rounding then
# keeps bounds apart however many there are.
_LONG = 10**6
_LIKELY = 0.25
_FEWER_POINTS = 2**17
_FINER = 4  # parts of a region that is too wide for one tilt


def _mark(log_delta: Floats, spacing: float) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    reach = np.clip(np.sqrt(-2 * np.minimum(log_delta, 0.0)), _FIRST, _LAST)
    return np.asarray(np.round((reach - _FIRST) / spacing), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps."""

    # δ is divided into regions, each computed when first asked for and then kept; where one is too
    # wide for close bounds, finer ones are added. An answer never depends on what was asked before.

    leaves: Leaves
    accuracy: Precision = DEFAULT
    lent: float = 1.0  # the share of the gap that composing may take
    _attempts: dict[tuple[float, int], Attempts | RangeError] = field(
        default_factory=dict, repr=False
    )

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self._answer(np.log(delta), delta, Attempts.epsilon)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) for ε ≥ 0."""
        estimate = log_delta(self.leaves, epsilon, self.accuracy.truncation)
        first = self._answer(estimate, epsilon, Attempts.delta)
        # Where losses have heavy tails the estimate is far too high: look again where δ was found.
        log_found = np.minimum(estimate, np.log(np.maximum(first.upper, 1e-300)))
        if (_mark(log_found, _SPACING) == _mark(estimate, _SPACING)).all():
            return first
        return tightest([first, self._answer(log_found, epsilon, Attempts.delta)])

    def _answer(
        self, log_delta: Floats, values: Floats, ask: Callable[[Attempts, Floats], Bounds]
    ) -> Bounds:
        lower, upper = nothing_known(values)
        open_ = np.ones(values.shape, dtype=bool)
        for spacing in (_SPACING, _SPACING / _FINER):
            marks = _mark(log_delta, spacing)
            for mark in np.unique(marks[open_]):
                here = open_ & (marks == mark)
                attempts = self._region(int(mark), spacing)
                bounds = ask(attempts, values[here])
                both = tightest([bounds, Bounds(lower[here], upper[here])])
                lower[here], upper[here] = both
                # a region is looked at in a few places; between them its bounds may be wider
                gap = np.minimum(upper[here], 1e300) - lower[here]
                wide = gap > 1.05 * self.accuracy.gap * upper[here]
                wide &= (ask is Attempts.epsilon) & (upper[here] >= self.accuracy.floor)
                open_[here] = wide | (not attempts.close and self.lent == 1)
        return Bounds(lower, upper)

    def _region(self, mark: int, spacing: float) -> Attempts:
        if (spacing, mark) not in self._attempts:
            deltas = np.exp(-((_FIRST + spacing * (mark + np.linspace(-0.5, 0.5, 9))) ** 2) / 2)
            accuracy = replace(self.accuracy, gap=self.lent * self.accuracy.gap)
            steps = sum(times for _, times in self.leaves)
            if steps > _LONG and deltas[-1] > _LIKELY:
                accuracy = replace(accuracy, points=min(accuracy.points, _FEWER_POINTS))
            if spacing < _SPACING:
                accuracy = replace(accuracy, points=2 * accuracy.points)
            try:
                self._attempts[spacing, mark] = refined(self.leaves, deltas, accuracy)
            except RangeError as error:
                self._attempts[spacing, mark] = error
        kept = self._attempts[spacing, mark]
        if isinstance(kept, RangeError):
            raise kept.with_traceback(None)
        return kept
