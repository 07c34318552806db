"""Parameters that nothing but noise moves: found in the first steps, from what was released."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chi2, ncx2

from apiece.errors import IdleParameterWarning
from apiece.training.clipping import guards
from apiece.training.samplers import Draw

_ENDS = (10, 30, 70, 150, 310)  # of the windows: the first one may clear, and names nobody
_CHANCE = 1e-3  # of noise alone to pass for more, in one window
_SHARE = 0.1  # of an even share of what clipping lets through: what is to be seen
_SEEN = 0.99  # the chance to see it
_MOST = 2 / 3  # of the trained entries, which must lie still: a bias may be where it ought to be


@dataclass(slots=True)
class _Sum:
    """A parameter's noisy sums over a window, with the noise in them and what could have been.

    Args:
        total: The noisy sums, added up.
        variance: Of each entry's noise.
        reach: The largest norm of the sum without noise, about.
    """

    total: torch.Tensor
    variance: float = 0.0
    reach: float = 0.0

    def moves(self) -> bool:
        """Whether noise alone is unlikely to have given this: a test by χ²."""
        size = self.total.numel()
        found = float(self.total.double().square().sum()) / self.variance
        return not found <= float(chi2.isf(_CHANCE, size))  # what is not finite is not noise

    def would_show(self, share: float) -> bool:
        """Whether a part of `share` in the sum would have been seen."""
        size, excess = self.total.numel(), (share * self.reach) ** 2 / self.variance
        bound = float(chi2.isf(_CHANCE, size))
        if size > 10_000:
            mean, variance = size + excess, 2 * (size + 2 * excess)
            return bound <= mean - 2.33 * math.sqrt(variance)
        return bool(ncx2.sf(bound, size, excess) >= _SEEN)


class NoiseAlone:
    """Warns where the noisy sums of most that is trained cannot be told from noise.

    The noisy sums of steps 1 to 10, 11 to 30, 31 to 70, 71 to 150 and 151 to 310 are added up, for
    each parameter. Noise alone gives a squared norm by χ² with as many degrees of freedom as the
    parameter has entries. What exceeds its quantile is cleared for good. From the second window on
    one that does not lies still, if more would have shown: a part of the clipped sum of a tenth of
    an even share among the parameters, at the smallest of the clip norms. Where those that lie
    still hold two thirds of all trained entries, they are named, once.

    Args:
        clip_norms: The smallest of each stage.

    Guarantee:
        It reads released sums and the plan, so that it costs no privacy. A parameter without a
        gradient is cleared with chance .001 in a window; one whose part is at least that tenth is
        named with chance .01 at most.
    """

    def __init__(self, clip_norms: Sequence[float]) -> None:
        self._clip_norms = clip_norms
        self._sums: dict[str, _Sum] = {}
        self._cleared: set[str] = set()
        self._entries: dict[str, int] = {}
        self._told = False

    def take(self, step: int, update: Mapping[str, torch.Tensor], draw: Draw) -> None:
        """Add up one step's update; steps count from 1."""
        if step > _ENDS[-1] or self._told or not draw.noise_stddev > 0:
            return
        self._entries = {name: value.numel() for name, value in update.items()}
        for name, value in update.items():
            if name in self._cleared or guards.is_sharded(value):
                continue
            if name not in self._sums:
                self._sums[name] = _Sum(torch.zeros_like(value))
            one, rows = self._sums[name], draw.expected_batch_size
            one.total.add_(value, alpha=rows)
            one.variance += draw.noise_stddev**2
            one.reach += rows * self._clip_norms[draw.stage]

    def look(self, step: int) -> None:
        """Warn where a window ends."""
        if step not in _ENDS or not self._sums:
            return
        share = _SHARE / math.sqrt(len(self._entries))
        self._cleared |= {name for name, one in self._sums.items() if one.moves()}
        still = [
            name
            for name, one in self._sums.items()
            if name not in self._cleared and step > _ENDS[0] and one.would_show(share)
        ]
        self._sums.clear()
        entries, trained = (
            sum(self._entries.get(n, 0) for n in part) for part in (still, self._entries)
        )
        if entries >= _MOST * trained:
            self._told = True
            named = ", ".join(still[:3]) + (", …" if len(still) > 3 else "")
            warnings.warn(
                f"model: until step {step} nothing but noise has moved {named} ({len(still)} of "
                f"{len(self._entries)} trained); look whether a gradient reaches them (a frozen "
                "head or a scale of zero, something detached, a learning rate far too large)",
                IdleParameterWarning,
                stacklevel=5,
            )
