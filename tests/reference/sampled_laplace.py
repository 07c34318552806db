"""Exact δ(ε) of one to three sampled Laplace steps: closed form and quadrature in 80-bit numbers.

Nothing here is shared with the accountant: no lattice, no transform. One step is the closed form of
its atoms and its density. Another one in front is a sum over its atoms and an integral between
them, taken in pieces between the kinks, by tanh-sinh quadrature.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Long = np.longdouble
Longs = npt.NDArray[np.longdouble]
_S = np.linspace(-3.2, 3.2, 97).astype(Long)
_BEND = np.tanh(Long(np.pi) / 2 * np.sinh(_S))
_WEIGHT = (_S[1] - _S[0]) * Long(np.pi) / 2 * np.cosh(_S)
_WEIGHT = _WEIGHT / np.cosh(Long(np.pi) / 2 * np.sinh(_S)) ** 2


@dataclass(frozen=True)
class SampledLaplace:
    """(1 − q)·Laplace(0, b) + q·Laplace(1, b) against Laplace(0, b); ρ in [−1/b, 1/b]."""

    scale: float
    probability: float

    @property
    def end(self) -> Longs:
        return 1 / Long(self.scale)

    def ratio(self, rho: Longs) -> Longs:
        return 1 + Long(self.probability) * np.expm1(rho)

    def loss(self, rho: Longs) -> Longs:
        return np.log1p(Long(self.probability) * np.expm1(rho))

    def place(self, loss: Longs) -> Longs:
        """The ρ of a loss, within [−1/b, 1/b]; nothing cancels near the end that is nearer."""
        q, end = Long(self.probability), self.end
        with np.errstate(all="ignore"):
            high = self.ratio(end) * np.expm1(loss - self.loss(end)) / (q * np.exp(end))
            low = self.ratio(-end) * np.expm1(loss - self.loss(-end)) * np.exp(end) / q
            rho = np.where(loss > 0, end + np.log1p(high), np.log1p(low) - end)
        rho = np.where(loss >= self.loss(end), end, np.where(loss <= self.loss(-end), -end, rho))
        return np.clip(rho, -end, end)

    def one(self, epsilon: Longs, *, add: bool) -> Longs:
        q, end = Long(self.probability), self.end
        at = -epsilon if add else epsilon
        rho = self.place(at)
        least, most = self.loss(-end), self.loss(end)
        sure = -np.expm1(np.minimum(epsilon, 0))
        if add:
            y = (rho + end) / 2
            inside = np.exp(epsilon + y - end) * q * np.expm1(y)
            return np.where(at <= least, Long(0), np.where(at >= most, sure, inside))
        inside = -q * np.expm1((rho - end) / 2)
        return np.where(at >= most, Long(0), np.where(at <= least, sure, inside))

    def delta(self, epsilon: Longs, steps: int, *, add: bool) -> Longs:
        """δ(ε) in one direction: what the other steps leave, in expectation over one of them."""
        if steps == 1:
            return self.one(epsilon, add=add)
        end, sign = self.end, 1 if add else -1
        total = np.zeros(epsilon.shape, Long)
        for rho, mass in ((-end, Long(0.5)), (end, np.exp(-end) / 2)):
            weight = mass * (1 if add else self.ratio(rho))
            rest = epsilon + sign * self.loss(rho)
            total = total + weight * self.delta(rest, steps - 1, add=add)
        kinks = [np.full(epsilon.shape, -end), np.full(epsilon.shape, end)]
        for high in range(steps):
            edge = high * self.loss(end) + (steps - 1 - high) * self.loss(-end)
            kinks.append(self.place(-edge - epsilon if add else epsilon - edge))
        places = np.sort(np.stack(kinks), axis=0)
        parts = int(np.ceil(end / 6))
        for left, right in pairwise(places):
            width = (right - left) / parts
            for part in range(parts if (width > 0).any() else 0):
                rho = (left + part * width)[..., None] + width[..., None] * (_BEND + 1) / 2
                density = np.exp(-(rho + end) / 2) / 4 * (1 if add else self.ratio(rho))
                rest = epsilon[..., None] + sign * self.loss(rho)
                values = density * self.delta(rest, steps - 1, add=add)
                total = total + (values * _WEIGHT).sum(axis=-1) * width / 2
        return total

    def larger(self, epsilon: npt.ArrayLike, steps: int) -> npt.NDArray[np.float64]:
        """δ(ε) of the larger direction."""
        at = np.asarray(epsilon, Long)
        both = [self.delta(at, steps, add=add) for add in (False, True)]
        return np.maximum(*both).astype(np.float64)
