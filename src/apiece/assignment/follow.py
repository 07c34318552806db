"""Rates at one noise multiplier after another: each is sought from where the last ones were."""

from __future__ import annotations

import numpy as np

from apiece._types import Floats
from apiece.assignment.request import Request
from apiece.assignment.solve import rates

MISSING = 3e-5  # of the mean, by what a rate may be too low
FINE, COARSE = 5e-4, 0.05  # of a rate, that may be missing of it
SURE = 0.98  # a guess above this is of no use: the largest rate is tried anyway


class Follow:
    """The largest safe rates of some budgets as a function of the common noise multiplier.

    Remembers what it found: between neighbouring multipliers log q is nearly linear in log z. What
    is returned is as safe as `rates`; only the time depends on what was asked before.
    """

    def __init__(self, request: Request, epsilon: Floats, delta: Floats, share: Floats) -> None:
        self._request, self._epsilon, self._delta = request, epsilon, delta
        self._share = share
        self._seen: dict[float, Floats] = {}

    def at(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as matters to their mean."""
        if z not in self._seen:
            some, guess = (self._request, self._epsilon, self._delta), self._guess(z)
            part = self._share * guess
            with np.errstate(invalid="ignore", divide="ignore"):
                precision = np.clip(MISSING * np.nansum(part) / part, FINE, COARSE)
            self._seen[z] = rates(*some, z, guess, np.where(np.isnan(part), FINE, precision))
        return self._seen[z]

    def closely(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as can be."""
        return rates(self._request, self._epsilon, self._delta, z, self.at(z))

    def _guess(self, z: float) -> Floats:
        """Return about what the rates are, NaN where nothing is known."""
        near = sorted(self._seen, key=lambda other: abs(np.log(other / z)))[:2]
        if not near:
            return np.full(self._epsilon.shape, np.nan)
        first = self._seen[near[0]]
        # the slope of 1/sqrt(exp(1/z²) − 1), which rates follow where they are small
        square = 1 / max(near[0], 0.15) ** 2
        slope = np.full(first.shape, square / -np.expm1(-square))
        if len(near) > 1:
            other = self._seen[near[1]]
            usable = (first > 0) & (other > 0) & (first < SURE) & (other < SURE)
            ratio = np.where(usable, first, 1.0) / np.where(usable, other, 1.0)
            found = np.log(ratio) / np.log(near[0] / near[1])
            slope = np.where(usable & (found > 0), found, slope)
        guess = first * np.exp(np.clip(slope * np.log(z / near[0]), -50, 50))
        return np.where((first > 0) & (guess < SURE), guess, np.nan)
