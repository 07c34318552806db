"""The profile of any composition, on a lattice of log-ratios.

Each step becomes a dominating pair (`pairs`); pairs are put on a lattice from above and from below
(`discretise`) and composed by FFT (`convolution`) around the δ that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

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
    bound_rare_losses,
    convolve,
    find_reach,
    moment,
    quick_length,
    tail,
    take_direction,
    tilt_part,
)
from apiece.accounting.lattice.discretise import Lattice, align_step, discretise
from apiece.accounting.lattice.pairs import (
    NO_CERTAINTY,
    AtomsPair,
    GaussianPair,
    LaplacePair,
    Pair,
    Window,
    bound_certainty,
    discrete_pair,
    mixture_pair,
    pad_atoms,
)
from apiece.accounting.lattice.settings import (
    Leaves,
    Settings,
    choose_settings,
    coarsen,
    estimate_gaps,
    estimate_log_delta,
    renyi_tilt,
)
from apiece.errors import RangeError, UnsupportedError
from apiece.mechanisms import Allocated, Gaussian, Laplace, Mechanism, Sampled
from apiece.mechanisms.algebra import NormalForm, atoms_of, flatten
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.rounding import UNIT

# δ down to which all masses of a run are to be resolved.
_LEAST_DELTA = 1e-17
# δ by which its lattice step is chosen.
_USUAL_DELTA = 1e-6
# Share of the gap wanted that the inner lattice may take.
_INNER_SHARE = 0.2
# How many tilts resolve the masses of a run, besides 0 and 1.
_TILTS = 11
COIN_POINTS = 2**18
"""Lattice points of a run behind a coin, at most."""
WIDEST_STEP = 10.0
"""Lattice steps beyond it tell nothing."""
# Tilted mass outside the transform, on either side.
_WRAP = 1e-20
# Largest |λ − 1| times the largest loss, in nats: more costs digits of every exponent.
_LARGEST_EXPONENT = 2000.0
# Nats below 1 − π, at which π·e^ρ is nothing beside it.
_NO_RATIO = 40.0


# A coin before a whole composition. The lattice pairs are composed as ever, but here every mass is
# wanted, not δ at one ε. One tilt tells the masses near its mean; so several are taken, and each
# mass is read off where its error, |error of w|·E[r^λ]·e^{−λℓ}, is least. Masses less their errors
# are a part of a dominated pair, masses plus their errors contain a dominating one. With a coin in
# front both are pairs like any other: a loss ℓ becomes log(1 − π + π·e^ℓ) under the same Q
# (Theorem 2 of Balle, Barthe, Gaboardi 2018).
def build_run_pair(leaves: Leaves, probability: float, accuracy: Precision = DEFAULT) -> AtomsPair:
    """Return the pair of a composition behind one coin.

    Raises `RangeError` where its losses are past the numerical range.
    """
    lattices, step, tilts = _discretise_run(leaves, accuracy)
    # What only P can show tells the worlds apart behind the coin too, π times as often. What only Q
    # can show does not: there the ratio is 1 − π, an atom like any other.
    only_p = bound_certainty(leaves, reverse=False)
    only_q = bound_certainty(leaves, reverse=True)
    certain_p = Bounds(probability * only_p.lower, probability * only_p.upper)
    certain = (certain_p, NO_CERTAINTY[1])
    lowest = math.log1p(-probability) - _NO_RATIO
    ends = []
    for end in (0, 1):
        parts = [take_direction(pair[end], count, reverse=False) for pair, count in lattices]
        loss, mass, relative, lost = _compute_masses(parts, step, tilts, upper=end == 1)
        if only_q.upper > 0:
            loss = np.append(min(lowest, loss.min(initial=0.0) - 1), loss)
            mass = np.append(only_q[end], mass)
        # From below nothing is added for what is left out; from above all of it is.
        above = [(pair[1], count) for pair, count in lattices]
        p1_out = end * (lost + sum(count * lattice.outside_p for lattice, count in above))
        q_out = end * (lost + sum(count * lattice.outside_q for lattice, count in above))
        outside_p = (1 - probability) * q_out + probability * p1_out
        points = pad_atoms(loss, mass)
        error = relative + 16 * UNIT
        ends.append(AtomsPair(*points, (outside_p, q_out), error, probability, certain))
    return replace(ends[1], below=ends[0])


def _discretise_run(
    leaves: Leaves, accuracy: Precision
) -> tuple[list[tuple[tuple[Lattice, Lattice], int]], float, Floats]:
    """Return the lattice pairs of a run so coarse that its losses fit, their step, and tilts."""
    times = sum(count for _, count in leaves)
    # All steps together lose a share of the least δ.
    mass_outside = accuracy.truncation * _LEAST_DELTA / times
    windows = tuple(pair.window(mass_outside) for pair, _ in leaves)
    tilts, step = _choose_tilts(leaves, windows, accuracy)
    while True:
        lattices = [
            (discretise(pair, window, step), count)
            for (pair, count), window in zip(leaves, windows, strict=True)
        ]
        above = [take_direction(pair[1], count, reverse=False) for pair, count in lattices]
        low, high = _find_window(above, step, tilts)
        if high - low < COIN_POINTS:
            return lattices, step, tilts
        step *= 1.05 * (high - low) / COIN_POINTS
        if step > WIDEST_STEP:
            raise RangeError(
                f"a coin before a composition of {times} steps: past the numerical range; use "
                "fewer steps or more noise"
            )


def _choose_tilts(
    leaves: Leaves, windows: tuple[Window, ...], accuracy: Precision
) -> tuple[Floats, float]:
    """Return the tilts by which all masses of a run are resolved, and a lattice step."""
    coarse = coarsen(leaves, windows)
    largest = 1 + _LARGEST_EXPONENT / max(part.largest for part in coarse)
    add_tilt, _ = renyi_tilt(coarse, math.log(_LEAST_DELTA), reverse=True)
    remove_tilt, _ = renyi_tilt(coarse, math.log(_LEAST_DELTA), reverse=False)
    lowest = 1 - min(add_tilt, largest)
    highest = min(remove_tilt, largest)
    usual_tilt, epsilon = renyi_tilt(coarse, math.log(_USUAL_DELTA), reverse=False)
    steps = np.geomspace(1e-9, 0.25, 60).astype(np.float64)
    gap = _INNER_SHARE * accuracy.gap * max(epsilon, accuracy.floor)
    # The coarsest step whose gap is small enough.
    finer = int(np.searchsorted(estimate_gaps(coarse, usual_tilt, steps), gap)) - 1
    step = float(steps[max(finer, 0)])
    # Tilts 0 and 1 resolve the bulk of Q and of P.
    return np.union1d(np.linspace(lowest, highest, _TILTS), [0.0, 1.0]), step


def _compute_masses(
    parts: Sequence[Direction], step: float, tilts: Floats, *, upper: bool
) -> tuple[Floats, Floats, float, float]:
    """Return losses, their Q-masses, and bounds on the relative error and on the mass beyond.

    Absolute errors are taken off the masses, or (`upper`) added. The mass beyond is of P and Q.
    """
    low, high = _find_window(parts, step, tilts)
    size = quick_length(high - low + 1)
    start = sum(part.times * part.offset for part in parts)
    index = np.arange(low, high + 1)
    loss = np.asarray(start + step * index, dtype=np.float64)
    mass = np.zeros(loss.size)
    error = np.full(loss.size, np.inf)
    # Of each tilted law: what wraps round from both sides, and points too faint for a bound.
    points = sum(part.times * part.log_mass.size for part in parts)
    faint = 2 * _WRAP + points * NEGLIGIBLE
    relative = 0.0
    lost = 0.0
    for tilt in map(float, tilts):
        tilted = [tilt_part(part, step, tilt) for part in parts]
        weight, noise = convolve(tilted, parts, size)
        # Index i of the composition is entry i mod N of a cyclic one: the window's first to 0.
        weight = np.roll(weight, -(low % size))[: loss.size]
        # The tilt is undone: mass and error are those of w times E[r^λ]·e^{−λℓ}.
        log_moment, rounding = moment(parts, tilted, tilt)
        with np.errstate(over="ignore"):
            scale = np.exp(log_moment - tilt * loss)
        # Each mass is taken from the tilt at which its error is least.
        better = (noise + faint) * scale < error
        mass[better] = weight[better] * scale[better]
        error[better] = (noise + faint) * scale[better]
        # Exponents are rounded relative to the largest of them.
        largest_shift = float(np.abs(tilt * loss).max())
        largest_exponent = abs(log_moment) + largest_shift
        relative = max(relative, rounding + 8 * UNIT * largest_exponent)
        if tilt in (tilts[0], tilts[-1]):
            # The largest P- or Q-mass that a unit of tilted mass beyond the losses stands for:
            # above them for a tilt over 1, below them for one under 0, where that falls with the
            # distance.
            end = float(loss[-1] if tilt > 1 else loss[0])
            log_unit = log_moment + max((1 - tilt) * end, -tilt * end)
            lost += min(_WRAP * math.exp(min(log_unit, 700.0)), 1.0)
    mass = np.maximum(mass + error if upper else mass - error, 0.0)
    return loss[mass > 0], mass[mass > 0], relative, lost


def _find_window(parts: Sequence[Direction], step: float, tilts: Floats) -> tuple[int, int]:
    """Return lattice indices outside which no tilt leaves more than `_WRAP` on either side."""
    lows = []
    highs = []
    for tilt in tilts:
        tilted = [tilt_part(part, step, float(tilt)) for part in parts]
        low, high = find_reach(tilted, parts, -math.log(_WRAP))
        lows.append(low)
        highs.append(high)
    return min(lows), max(highs)


# Times the gap wanted, up to which refining is given a second chance.
_SECOND_CHANCE = 3.0
# Times that the neighbourhood is moved to the ε found.
_MOVES = 5


def refine(leaves: Leaves, deltas: Floats, accuracy: Precision) -> Attempts:
    """Return bounds for the range of decreasing `deltas`, an odd number of them."""
    # The step is refined until the gap is what is wanted, the points run out, or refining does not
    # help: near the gap wanted twice, as where few steps make δ it depends on how they happen to
    # lie on the lattice.
    settings = choose_settings(leaves, deltas, accuracy, None)
    best: tuple[Attempt, ...] = ()
    moves = 0
    # The largest gaps of the last two attempts, over the gap wanted; and whether points are left.
    previous = (math.inf, math.inf)
    may_refine = True
    while True:
        try:
            attempt = _compose(leaves, deltas, settings, accuracy)
        except TooLongError as error:
            if settings.step > WIDEST_STEP:
                raise RangeError(f"losses of {leaves!r} are past the numerical range") from None
            # As much coarser as the transform was too long, and a little more.
            settings = settings._replace(step=1.05 * error.args[0] * settings.step)
            may_refine = False
            continue
        attempts = Attempts((*best, attempt), close=False)
        lower, upper = attempts.epsilon(deltas)
        # Chosen for another ε than was found, the settings are chosen anew. Where none was found,
        # it is looked for twice as far.
        if moves < _MOVES and _has_moved(settings, upper):
            known = np.where(np.isfinite(upper), upper, 2 * settings.reach)
            settings = choose_settings(leaves, deltas, accuracy, known)
            best = (attempt,)
            moves += 1
            previous = (math.inf, math.inf)
            may_refine = True
            continue
        gap = np.minimum(upper, 1e300) - lower
        wanted = np.minimum(accuracy.wanted(upper), 1e297)
        worst = float(np.max(gap / wanted))
        # The gap has to fall by a fifth: in one attempt, and near the gap wanted in two.
        stuck = worst > 0.8 * previous[0 if worst < _SECOND_CHANCE else 1]
        if worst <= 1 or not may_refine or stuck:
            return Attempts(attempts.attempts, close=worst <= 1)
        # Bounds of the better attempt hold beside those of the next one.
        if worst < previous[1]:
            best = (attempt,)
        previous = (previous[1], worst)
        # The gap falls with the square of the step.
        finer = min(0.7, max(0.1, math.sqrt(0.85 / worst)))
        settings = settings._replace(step=settings.step * finer)


def _has_moved(settings: Settings, upper: Floats) -> bool:
    """Return whether the ε found are so far from the settings' that others would be better."""
    middle = float(upper[upper.size // 2])
    # That of the smallest δ.
    largest = float(upper[-1])
    if not math.isfinite(middle):
        return False
    tolerance = min(0.2 * settings.epsilon, 2 * settings.deviation)
    far = abs(middle - settings.epsilon) > tolerance
    return far or largest > settings.reach or 2 * largest < settings.reach < math.inf


def _compose(leaves: Leaves, deltas: Floats, settings: Settings, accuracy: Precision) -> Attempt:
    """Compose both lattice pairs in both directions."""
    cells = max(
        _log_width(pair, window) / settings.step
        for (pair, _), window in zip(leaves, settings.windows, strict=True)
    )
    # Before anything is discretised: a window of so many cells fits no transform.
    if cells > 2 * accuracy.points:
        raise TooLongError(cells / accuracy.points)
    step = settings.step
    # Of one kind of step, atoms can be lattice points in both bounds, where they move nothing.
    if len(leaves) == 1:
        step = align_step(leaves[0][0], settings.windows[0], step)
        settings = settings._replace(step=step)
    # A dominated and a dominating lattice pair of each step, and the part of δ that jumps beyond
    # the lattices make.
    lows: list[tuple[Lattice, int]] = []
    highs: list[tuple[Lattice, int]] = []
    for (pair, times), window in zip(leaves, settings.windows, strict=True):
        low, high = discretise(pair, window, step)
        lows.append((low, times))
        highs.append((high, times))
    rare = bound_rare_losses(highs, settings.rate, lows)
    above: list[Line] = []
    below: list[Line] = []
    for reverse, options in settings.directions(accuracy, jumps=rare is not None):
        # From above all that windows leave out counts as told, and all that may be certain.
        upper = [take_direction(high, times, reverse=reverse) for high, times in highs]
        truncated = sum(
            times * (high.outside_q if reverse else high.outside_p) for high, times in highs
        )
        certain = bound_certainty(leaves, reverse=reverse)
        outside = truncated + certain.upper
        above.append(above_line(tail(upper, **options._asdict()), outside, rare, reverse=reverse))
        # In the add direction from below only where that can matter: where its upper bound is
        # somewhere above the lower bound of the remove direction.
        if reverse:
            add_upper = above[1].epsilon(deltas, -1.0)
            remove_lower = below[0].epsilon(deltas, 0.0)
            if (add_upper <= remove_lower).all():
                break
        lower = [take_direction(low, times, reverse=reverse) for low, times in lows]
        rare_below = None if reverse else rare
        below.append(below_line(tail(lower, **options._asdict()), certain.lower, rare_below))
    return Attempt(tuple(above), tuple(below))


def _log_width(pair: Pair, window: Window) -> float:
    """Return the width of a window in log-ratios of the pair."""
    return log_ratio(window.high, pair.probability) - log_ratio(window.low, pair.probability)


# The least coin that a pair takes: nearer to 0, products of masses leave the range.
_LEAST_PROBABILITY = 1e-250


def composition(steps: NormalForm) -> Composition:
    """Return bounds on the profile of any steps, chosen in advance or adaptively."""
    # How close the bounds are is checked, not proved: for sampled Gaussian steps of one kind the
    # gap in ε was at most 0.1 % wherever it was looked at with ε ≥ 0.01, sampling probabilities
    # from 1e-6 on, noise multipliers from 0.3 to 100, up to 1e6 steps and δ from 1e-12 on. Steps of
    # different kinds, a coin before a composition, two or three Laplace steps of rare large losses,
    # and δ at given ε (the advantage too) can be wider, by far in a few cases, as the bounds
    # themselves show. Laws of allocated steps, known from two sides, take most of the gap.
    allocated = any(isinstance(step, Allocated) for step, _ in steps)
    gap_share = _ALLOCATED_GAP_SHARE if allocated else 1.0
    leaves = tuple((build_pair(step), times) for step, times in steps)
    return Composition(leaves, gap_share=gap_share)


@lru_cache(maxsize=64)
def build_pair(step: Mechanism) -> Pair:
    """Return the dominating pair of one step, with a coin or without."""
    match step:
        case Sampled(_, q) if q < _LEAST_PROBABILITY:
            raise RangeError(
                f"sampling_probability = {q!r}: past the numerical range; give 0, or at least "
                f"{_LEAST_PROBABILITY:g}"
            )
        # Kinds with a density of their own first, alone and behind a coin; then all that is
        # discrete; then whatever else is behind a coin, as a run.
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
            leaves = tuple((build_pair(part), times) for part, times in flatten(inner))
            return build_run_pair(leaves, q)
        case _:
            raise UnsupportedError(f"method 'pld': {step!r} is no step")


# Share of the gap wanted that composing may take where laws of allocated steps take the most of it.
_ALLOCATED_GAP_SHARE = 1 / 9
# √(−2·log δ) in the middle of the first region and at most, and the width of a region.
_FIRST = 1.0
_LAST = 16.6
_SPACING = 1.2
# Steps beyond which, for δ above some value, all points would take many seconds: rounding then
# keeps bounds apart however many there are.
_LONG = 10**6
_LIKELY = 0.25
_FEWER_POINTS = 2**17
# Parts of a region that is too wide for one tilt.
_FINER = 4


def _number_regions(log_delta: Floats, spacing: float) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    quantile = np.sqrt(-2 * np.minimum(log_delta, 0.0))
    reach = np.clip(quantile, _FIRST, _LAST)
    return np.asarray(np.round((reach - _FIRST) / spacing), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps."""

    # δ is divided into regions, each computed when first asked for and kept in `_regions`; where
    # one is too wide for close bounds, finer ones are added. An answer never depends on what was
    # asked before.

    leaves: Leaves
    accuracy: Precision = DEFAULT
    # The share of the gap that composing may take.
    gap_share: float = 1.0
    # By spacing and number of the region.
    _regions: dict[tuple[float, int], Attempts | RangeError] = field(
        default_factory=dict, repr=False
    )

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self._answer(np.log(delta), delta, Attempts.epsilon)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) for ε ≥ 0."""
        estimate = estimate_log_delta(self.leaves, epsilon, self.accuracy.truncation)
        bounds = self._answer(estimate, epsilon, Attempts.delta)
        # Where losses have heavy tails the estimate is far too high: look again where δ was found.
        log_upper = np.log(np.maximum(bounds.upper, 1e-300))
        log_found = np.minimum(estimate, log_upper)
        found_regions = _number_regions(log_found, _SPACING)
        # Where both name one region, that one has answered already.
        if (found_regions == _number_regions(estimate, _SPACING)).all():
            return bounds
        closer = self._answer(log_found, epsilon, Attempts.delta)
        return tightest([bounds, closer])

    def _answer(
        self, log_delta: Floats, values: Floats, ask: Callable[[Attempts, Floats], Bounds]
    ) -> Bounds:
        """Bound what `ask` asks at each value, by the region of the δ that belongs to it."""
        lower, upper = nothing_known(values)
        unresolved = np.ones(values.shape, dtype=bool)
        for spacing in (_SPACING, _SPACING / _FINER):
            numbers = _number_regions(log_delta, spacing)
            for number in np.unique(numbers[unresolved]):
                entries = unresolved & (numbers == number)
                attempts = self._compute_region(int(number), spacing)
                bounds = ask(attempts, values[entries])
                combined = tightest([bounds, Bounds(lower[entries], upper[entries])])
                lower[entries], upper[entries] = combined
                # A region is looked at in a few places; between them its bounds may be wider.
                gap = np.minimum(upper[entries], 1e300) - lower[entries]
                wide = gap > 1.05 * self.accuracy.gap * upper[entries]
                wide &= (ask is Attempts.epsilon) & (upper[entries] >= self.accuracy.floor)
                not_close = not attempts.close and self.gap_share == 1
                unresolved[entries] = wide | not_close
        return Bounds(lower, upper)

    def _compute_region(self, number: int, spacing: float) -> Attempts:
        """Return the bounds of a region; raise `RangeError` again where it has none."""
        if (spacing, number) not in self._regions:
            # Nine δ over the region, from the largest to the least.
            points = _FIRST + spacing * (number + np.linspace(-0.5, 0.5, 9))
            deltas = np.exp(-(points**2) / 2)
            accuracy = replace(self.accuracy, gap=self.gap_share * self.accuracy.gap)
            steps = sum(times for _, times in self.leaves)
            if steps > _LONG and deltas[-1] > _LIKELY:
                accuracy = replace(accuracy, points=min(accuracy.points, _FEWER_POINTS))
            # A part of a region whose bounds were too wide: it gets more points.
            if spacing < _SPACING:
                accuracy = replace(accuracy, points=2 * accuracy.points)
            try:
                self._regions[spacing, number] = refine(self.leaves, deltas, accuracy)
            # A failure is kept too, so that it is not computed again.
            except RangeError as error:
                self._regions[spacing, number] = error
        region = self._regions[spacing, number]
        if isinstance(region, RangeError):
            raise region.with_traceback(None)
        return region
