"""The step loop: draw, charge, clip and sum, noise, update, tell."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.special import chdtri, chndtr

from apiece._types import Floats, Integers
from apiece.errors import IdleParameterWarning
from apiece.training.batches import Draw, Sampler
from apiece.training.callbacks import Callback, Progress
from apiece.training.clipping import ClippedSum, Proof, guards
from apiece.training.processes import Processes
from apiece.training.randomness import Streams, Uncopied, noisy_mean
from apiece.training.sums import Sums
from apiece.training.updates import Restarts, Unfreezing, Updates

SumOver = Callable[[Integers, Floats], ClippedSum]  # records, their bounds; a pass of its own


class Charger(Protocol):
    """What the step loop asks for the sum, so that nothing is summed that nobody paid for."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Charge whom the step concerns; return the sum over those drawn who have paid."""
        ...


class Prepaid:
    """The plan is what was charged: everyone who is drawn has paid."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Return the sum over all who were drawn."""
        return sum_over(draw.records, draw.clip_norms)


@dataclass(kw_only=True, eq=False, repr=False)
class Loop(Uncopied):
    """Private gradient descent, step by step; who takes part and who pays is plugged in.

    A step: `sampler` draws; `charger` charges, and has the records of those who paid clipped and
    summed by `sums`; noise is added once, over all `processes`; the noisy sum is divided by the
    expected batch size; `journal` notes it; `updates` applies it; the callbacks are told.

    Parameters change by noisy sums only, each made from records whose share is bounded by what the
    charger was told, with the noise and the divisor of the draw. `rejected` counts how many times a
    record was not finite and left out: a private number.
    """

    sums: Sums
    sampler: Sampler
    charger: Charger
    updates: Updates
    streams: Streams
    processes: Processes
    callbacks: tuple[Callback, ...] = ()
    restarts: Restarts | None = None
    unfreezing: Unfreezing | None = None
    journal: Callable[[int, Iterable[torch.Tensor]], None] | None = None  # step, update
    watch: NoiseAlone | None = None
    step_number: int = 0
    passes: int = 0  # of the present step
    rejected: int = 0

    def step(self, steps: int) -> Progress:
        """Take one step, of `steps` in all, and return what the callbacks were told of it.

        Raises `StateError` where the last update was interrupted half-way, or other parameters are
        trainable than at first.
        """
        self.updates.check_whole(self.step_number)
        self.processes.settle()
        if self.unfreezing is not None:
            self.unfreezing.enter(self.step_number, self.sums)
        self.sums.check_same()
        begun, self.passes = time.perf_counter(), 0
        draw = self.sampler.draw(self.step_number, self.streams)
        if self.restarts is not None:
            self.restarts.enter(draw.stage)
        with self.processes.whole():
            clipped = self.charger.charge(draw, self._sum_over)
        self.rejected += clipped.rejected
        update = self._released(clipped, draw)
        if self.watch is not None:
            self.watch.take(self.step_number + 1, update, draw)
        count = self.step_number if self.restarts is None else draw.within
        rate = self.updates.apply(count, self.sums.parameters, update)
        self.step_number += 1
        if self.watch is not None:
            self.watch.look(self.step_number)
        seconds = time.perf_counter() - begun
        done = Progress(self.step_number, steps, draw.stage, seconds, rate)
        for callback in self.callbacks:
            callback(done)
        return done

    def _sum_over(self, records: Integers, clip_norms: Floats) -> ClippedSum:
        """Return the sum over `records`, clipped at `clip_norms`, from a pass of its own.

        Every pass draws the model's randomness anew: what one record's pass does must not depend
        on who else is in it.
        """
        shard = self.processes.rank + self.passes * self.processes.world
        self.passes += 1
        return self.sums.over(records, clip_norms, self.streams.model(self.step_number, shard))

    def _released(self, clipped: ClippedSum, draw: Draw) -> dict[str, torch.Tensor]:
        """Return the noisy sum over all processes, divided by the expected batch size."""
        total = self.processes.gather(clipped)
        noisy = total.gradients
        if self.processes.adds_noise:
            generator = self.streams.noise(self.step_number)
            mean = draw.expected_batch_size
            noisy = noisy_mean(total, draw.noise_stddev, mean, generator=generator)
        update = self.processes.share(noisy)
        if self.journal is not None:
            noted = self.processes.noted(update)
            if self.processes.rank == 0:
                self.journal(self.step_number, noted)
        return update


class Descent(Uncopied):
    """A run of the step loop: how far it is, and what was proved of its model."""

    _loop: Loop

    @property
    def step_number(self) -> int:
        """How many steps are taken."""
        return self._loop.step_number

    @property
    def proof(self) -> Proof | None:
        """What was proved of model and loss, or why it was not; None before the first batch."""
        return self._loop.sums.proof

    @property
    def rejected(self) -> int:
        """How many times a sampled record was not finite and left out; a private count."""
        return self._loop.rejected


_ENDS = (10, 30, 70, 150, 310)  # of the windows: the first one may clear, and names nobody
_CHANCE = 1e-3  # of noise alone to pass for more, in one window
_SHARE = 0.1  # of an even share of what clipping lets through: what is to be seen
_SEEN = 0.99  # the chance to see it
_MOST = 2 / 3  # of the trained entries, which must lie still: a bias may be where it ought to be


@dataclass(slots=True)
class _Window:
    """A parameter's noisy sums over a window, with the noise in them and what could have been.

    variance: of each entry's noise; reach: the largest norm of the sum without noise, about.
    """

    total: torch.Tensor
    variance: float = 0.0
    reach: float = 0.0

    def moves(self) -> bool:
        """Return whether noise alone is unlikely to have given this: a test by χ²."""
        square = float(self.total.double().square().sum()) / self.variance
        return not square <= self._bound  # what is not finite is not noise

    def would_show(self, share: float) -> bool:
        """Return whether a part of `share` in the sum would have been seen."""
        size, excess = self.total.numel(), (share * self.reach) ** 2 / self.variance
        if size > 10_000:
            mean, variance = size + excess, 2 * (size + 2 * excess)
            return self._bound <= mean - 2.33 * math.sqrt(variance)
        return bool(1 - chndtr(self._bound, size, excess) >= _SEEN)

    @property
    def _bound(self) -> float:
        return float(chdtri(self.total.numel(), _CHANCE))


class NoiseAlone:
    """Warns where the noisy sums of most that is trained cannot be told from noise.

    The noisy sums of steps 1 to 10, 11 to 30, 31 to 70, 71 to 150 and 151 to 310 are added up, for
    each parameter. Noise alone gives a squared norm by χ² with as many degrees of freedom as the
    parameter has entries. What exceeds its quantile is cleared for good. From the second window on
    one that does not lies still, if more would have shown: a part of the clipped sum of a tenth of
    an even share among the parameters, at the smallest of the clip norms (one a stage). Where those
    that lie still hold two thirds of all trained entries, they are named, once.

    It reads released sums and the plan, so that it costs no privacy. A parameter without a gradient
    is cleared with chance .001 in a window; one whose part is at least that tenth is named with
    chance .01 at most.
    """

    def __init__(self, clip_norms: Sequence[float]) -> None:
        self._clip_norms = clip_norms
        self._windows: dict[str, _Window] = {}
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
            if name not in self._windows:
                self._windows[name] = _Window(torch.zeros_like(value))
            one, rows = self._windows[name], draw.expected_batch_size
            one.total.add_(value, alpha=rows)
            one.variance += draw.noise_stddev**2
            one.reach += rows * self._clip_norms[draw.stage]

    def look(self, step: int) -> None:
        """Warn where a window ends."""
        if step not in _ENDS or not self._windows:
            return
        share = _SHARE / math.sqrt(len(self._entries))
        self._cleared |= {name for name, one in self._windows.items() if one.moves()}
        still = [
            name
            for name, one in self._windows.items()
            if name not in self._cleared and step > _ENDS[0] and one.would_show(share)
        ]
        self._windows.clear()
        entries = sum(self._entries.get(name, 0) for name in still)
        if entries >= _MOST * sum(self._entries.values()):
            self._told = True
            named = ", ".join(still[:3]) + (", …" if len(still) > 3 else "")
            warnings.warn(
                f"model: until step {step} what moved {named} cannot be told from noise "
                f"({len(still)} of {len(self._entries)} trained): budgets too small for so few "
                "records, or no gradient reaches them (a frozen head or a scale of zero, something "
                "detached, a learning rate far too large)",
                IdleParameterWarning,
                stacklevel=5,
            )
