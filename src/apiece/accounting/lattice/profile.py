"""The profile of any composition, on a lattice of log-ratios.

Each step becomes a dominating pair (`pairs`); pairs are put on a lattice from above and from below
(`dominating`, `dominated`) and composed by FFT (`convolution`) around the δ that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from apiece._types import Floats
from apiece.accounting.accuracy import DEFAULT, Accuracy
from apiece.accounting.bounds import Bounds, nothing_known, tightest
from apiece.accounting.lattice.coins import run_pair
from apiece.accounting.lattice.estimates import Leaves
from apiece.accounting.lattice.interpolants import Attempts
from apiece.accounting.lattice.mixtures import mixture_pair
from apiece.accounting.lattice.pairs import GaussianPair, LaplacePair, Pair, discrete_pair
from apiece.accounting.lattice.refinement import refined
from apiece.accounting.lattice.settings import log_delta
from apiece.errors import RangeError, UnsupportedError
from apiece.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    MixtureOfGaussians,
    NormalForm,
    Sampled,
    atoms_of,
    flatten,
)

_LEAST_PROBABILITY = 1e-250


def composition(steps: NormalForm, accuracy: Accuracy = DEFAULT) -> Composition:
    """Return bounds on the profile of any steps, chosen in advance or adaptively.

    Guarantee:
        lower ≤ exact ≤ upper at every ε ≥ 0 and δ in (0, 1), under add/remove adjacency, with
        discretisation, truncation and round-off included.

    How close the bounds are is checked, not proved: for sampled Gaussian steps of one kind the gap
    in ε was at most 0.1 % wherever it was looked at with ε ≥ 0.01, sampling probabilities from 1e-6
    on, noise multipliers from 0.3 to 100, up to 1e6 steps and δ from 1e-12 on. Steps of different
    kinds, a coin before a composition, two or three Laplace steps of rare large losses, and δ at
    given ε (the advantage too) can be wider, by far in a few cases, as the bounds themselves show.

    Raises:
        RangeError: Where the losses of a step are past the numerical range.
    """
    return Composition(tuple((_pair(step, accuracy), times) for step, times in steps), accuracy)


@lru_cache(maxsize=64)
def _pair(step: Mechanism, accuracy: Accuracy) -> Pair:
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
        case MixtureOfGaussians():
            return mixture_pair(step)
        case Sampled(MixtureOfGaussians() as inside, q):
            return mixture_pair(inside, q)
        case _ if (atoms := atoms_of(step)) is not None:
            return discrete_pair(atoms)
        case Sampled(inner, q):
            leaves = tuple((_pair(part, accuracy), times) for part, times in flatten(inner))
            return run_pair(leaves, q, accuracy)
        case _:
            raise UnsupportedError(f"method 'pld': {step!r} is no step")


_FIRST, _SPACING, _LAST = 1.0, 1.2, 16.6
_FINER = 4  # parts of a region that is too wide for one tilt


def _mark(log_delta: Floats, spacing: float) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    reach = np.clip(np.sqrt(-2 * np.minimum(log_delta, 0.0)), _FIRST, _LAST)
    return np.asarray(np.round((reach - _FIRST) / spacing), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps.

    δ is divided into regions, each computed when first asked for and then kept; where one is too
    wide for close bounds, finer ones are added. An answer never depends on what was asked before.
    """

    leaves: Leaves
    accuracy: Accuracy = DEFAULT
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
        found = np.minimum(estimate, np.log(np.maximum(first.upper, 1e-300)))
        if (_mark(found, _SPACING) == _mark(estimate, _SPACING)).all():
            return first
        return tightest([first, self._answer(found, epsilon, Attempts.delta)])

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
                open_[here] = wide | (not attempts.close)
        return Bounds(lower, upper)

    def _region(self, mark: int, spacing: float) -> Attempts:
        if (spacing, mark) not in self._attempts:
            reach = _FIRST + spacing * (mark + np.linspace(-0.5, 0.5, 9))
            finer = spacing < _SPACING
            accuracy = (
                replace(self.accuracy, points=2 * self.accuracy.points) if finer else self.accuracy
            )
            try:
                found: Attempts | RangeError = refined(
                    self.leaves, np.exp(-(reach**2) / 2), accuracy
                )
            except RangeError as error:
                found = error
            self._attempts[spacing, mark] = found
        kept = self._attempts[spacing, mark]
        if isinstance(kept, RangeError):
            raise kept.with_traceback(None)
        return kept
