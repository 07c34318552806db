"""A personal running loss without a budget."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.errors import InputError
from apiece.filters.convert import ULP
from apiece.filters.meter import Floats, checked_norms, checked_orders


class Odometer:
    """A running, personal bound on the Rényi loss, with no budget set in advance.

    Source: Feldman and Zrnic 2021, Alg. 2.

    size: persons. step: Δ, the discretisation; also the largest loss allowed of one analysis.
    order: the Rényi order, fixed in advance.

    Guarantee: at any time, chosen adaptively too, `loss[i]` bounds person i's Rényi divergence
    of `order` over all analyses so far, in both directions (Feldman and Zrnic 2021, Cor. 2.3). It
    rises in steps: a loss that would cross the current multiple of Δ opens the next interval, so
    two floats a person are kept.

    >>> meter = Odometer(2, 0.1, order=8)
    >>> meter.add([1.0, 0.1], noise_stddev=10.0); meter.add([1.0, 0.1], noise_stddev=10.0)
    >>> meter.add([1.0, 0.1], noise_stddev=10.0); meter.loss.tolist()
    [0.2, 0.1]
    """

    __slots__ = ("_intervals", "_within", "order", "step")

    def __init__(self, size: int, step: float, *, order: float) -> None:
        self.step = _check.positive("step", step)
        self.order = float(checked_orders(order, ()))
        self._within = np.zeros(_check.count("size", size))
        self._intervals = np.ones(self._within.shape, dtype=np.int64)

    def add(self, norms: npt.ArrayLike, noise_stddev: float) -> None:
        """Account for one analysis. Raises `InputError` where a loss exceeds the step Δ."""
        stddev = _check.positive("noise_stddev", noise_stddev)
        ratios = checked_norms(norms, self._within.shape) / stddev
        losses = np.broadcast_to(
            ratios * ratios * (self.order / 2) * (1 + 8 * ULP), self._within.shape
        )
        if not (losses <= self.step).all():
            raise InputError(
                f"step = {self.step:g}: one analysis costs a person {losses.max():g} at order "
                f"{self.order:g}; take a step at least that large, or more noise"
            )
        total = (self._within + losses) * (1 + 4 * ULP)
        crossed = total > self.step
        self._within = np.where(crossed, losses, total)
        self._intervals = self._intervals + crossed

    @property
    def loss(self) -> Floats:
        """The bound on each person's Rényi loss at `order`: a multiple of the step."""
        return np.asarray(self._intervals * self.step)

    def epsilon(self, delta: float) -> Floats:
        """Return each person's ε at `delta`, rounded up."""
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        cost = math.log1p(-1 / self.order) - math.log(delta * self.order) / (self.order - 1)
        return np.asarray(np.maximum(self.loss + cost, 0.0) * (1 + 8 * ULP))
