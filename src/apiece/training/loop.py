"""The step loop: draw, charge, clip and sum, add noise, update, call the callbacks."""

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
from apiece.training.correlated import CorrelatedNoise
from apiece.training.processes import Processes
from apiece.training.randomness import Generator, Streams, Uncopied, noisy_mean
from apiece.training.sums import Sums
from apiece.training.updates import Restarts, Unfreezing, Updates

# Sums over records, clipped at their bounds, in a pass through the model of its own.
SumOver = Callable[[Integers, Floats], ClippedSum]


class Charger(Protocol):
    """Charges for a step and gives its sum, so that nothing is summed that nobody paid for."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Charge whom the step concerns; return the sum over those drawn who have paid."""
        ...


class Prepaid:
    """A charger for a plan that is paid beforehand: everyone who is drawn has paid."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Return the sum over all who were drawn."""
        return sum_over(draw.records, draw.clip_norms)


@dataclass(kw_only=True, eq=False, repr=False)
class Loop(Uncopied):
    """Private gradient descent, step by step; who takes part and who pays is plugged in.

    A step: `sampler` draws; `charger` charges, and has the records of those who paid clipped and
    summed by `sums`; noise is added once, over all `processes`; the noisy sum is divided by the
    expected batch size; `journal` records it; `updates` applies it; the callbacks are called.

    Parameters change by noisy sums only, each made from records whose share is bounded by what they
    were charged for, with the noise and the divisor of the draw. `rejected` counts how many times a
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
    correlated: CorrelatedNoise | None = None
    step_number: int = 0
    passes: int = 0  # of the present step
    rejected: int = 0

    def step(self, steps: int) -> Progress:
        """Take one step, of `steps` in all, and return the progress that the callbacks got.

        Raises `StateError` where the last update was interrupted half-way, or other parameters are
        trainable than at first.
        """
        # An update half-made would be made twice under one noise.
        self.updates.check_complete(self.step_number)
        self.processes.reshard()
        if self.unfreezing is not None:
            # Before the parameters are checked, since it changes which are trained.
            self.unfreezing.enter(self.step_number, self.sums)
        self.sums.check_parameters()
        start = time.perf_counter()
        self.passes = 0
        # The draw, its bounds, its noise and its divisor come together, so that they are of one
        # step.
        draw = self.sampler.draw(self.step_number, self.streams)
        if self.restarts is not None:
            self.restarts.enter(draw.stage)
        # A record's norm is over whole parameters, which all processes gather together.
        with self.processes.gather_parameters():
            clipped = self.charger.charge(draw, self._sum_over)
        # Counted before the release, and never shown: it tells of records.
        self.rejected += clipped.rejected
        update = self._release(clipped, draw)
        if self.watch is not None:
            # Reads the released update alone, never the sum without noise.
            self.watch.take(self.step_number + 1, update, draw)
        # Where each stage trains a model of its own, its schedule counts the stage's steps.
        count = self.step_number if self.restarts is None else draw.step_of_stage
        learning_rate = self.updates.apply(count, self.sums.parameters, update)
        self.step_number += 1
        # Looked at after the update, so that a warning never stops a step half-way.
        if self.watch is not None:
            self.watch.look(self.step_number)
        seconds = time.perf_counter() - start
        progress = Progress(self.step_number, steps, draw.stage, seconds, learning_rate)
        for callback in self.callbacks:
            callback(progress)
        return progress

    def _sum_over(self, records: Integers, clip_norms: Floats) -> ClippedSum:
        """Return the sum over `records`, clipped at `clip_norms`, from a pass of its own.

        Every pass draws the model's randomness anew: one record's pass must not depend on who else
        is in it.
        """
        # Of its own for each process and each pass: no two of them are equal.
        shard = self.processes.rank + self.passes * self.processes.world
        self.passes += 1
        return self.sums.over(records, clip_norms, self.streams.model(self.step_number, shard))

    def _release(self, clipped: ClippedSum, draw: Draw) -> dict[str, torch.Tensor]:
        """Return the noisy sum over all processes, divided by the expected batch size."""
        # Sums of all processes first, then noise once: not a share of noise from each.
        total = self.processes.gather(clipped)
        noisy = total.gradients
        if self.processes.adds_noise:
            generator = self._noise_of_step()
            mean = draw.expected_batch_size
            # The divisor is the plan's expectation, so that the update tells no batch size.
            noisy = noisy_mean(total, draw.noise_stddev, mean, generator=generator)
        update = self.processes.share(noisy)
        # Recorded before it is applied, so that a kill in between leaves a record of it.
        if self.journal is not None:
            tensors = self.processes.prepare_record(update)
            if self.processes.rank == 0:
                self.journal(self.step_number, tensors)
        return update

    def _noise_of_step(self) -> Generator:
        """Return the source of the step's noise, by the key that the run has now."""
        if self.correlated is None:
            return self.streams.noise(self.step_number)
        return self.correlated.at(self.step_number, self.streams)


class Descent(Uncopied):
    """A run of the step loop: its progress, the proof of its model, and its rejected records."""

    _loop: Loop

    @property
    def step_number(self) -> int:
        """Number of steps taken so far."""
        return self._loop.step_number

    @property
    def proof(self) -> Proof | None:
        """The proof of model and loss, or why there is none; None before the first batch."""
        return self._loop.sums.proof

    @property
    def rejected(self) -> int:
        """Number of times that a sampled record was not finite and left out; private."""
        return self._loop.rejected


# Steps at which a window ends. The first window may clear a parameter, and names none.
_WINDOW_ENDS = (10, 30, 70, 150, 310)

# Chance that noise alone passes for a gradient, in one window of one parameter.
_FALSE_ALARM = 1e-3

# The part of an even share among the parameters that a test must be able to see.
_VISIBLE_SHARE = 0.1

# Chance with which it must see that part.
_POWER = 0.99

# The standard normal distribution's quantile at _POWER.
_POWER_QUANTILE = 2.33

# Entries above which a normal distribution stands for the noncentral χ².
_MANY_ENTRIES = 10_000

# Part of the trained entries that must lie still for a warning: a bias may have nowhere to go.
_STILL_PART = 2 / 3


@dataclass(slots=True)
class _Window:
    """A parameter's noisy sums over a window, with the noise in them and their largest norm.

    variance: of each entry's noise. reach: about the largest norm of the sum without noise.
    """

    total: torch.Tensor
    variance: float = 0.0
    reach: float = 0.0

    def moves(self) -> bool:
        """Return whether noise alone is unlikely to have given this sum: a test by χ²."""
        # In double precision, as a sum of very many squares.
        squared_norm = float(self.total.double().square().sum())
        # Negated, as a sum that is not finite is not noise either.
        return not squared_norm / self.variance <= self._quantile

    def would_show(self, share: float) -> bool:
        """Return whether the test would have seen a part of `share` in the sum.

        With a gradient the squared norm follows the noncentral χ², whose mean is size + excess and
        whose variance is 2·(size + 2·excess).
        """
        size = self.total.numel()
        # The noncentrality: the squared norm of the visible part, in units of the noise's variance.
        excess = (share * self.reach) ** 2 / self.variance
        # Normal approximation: P(χ² > quantile) ≥ power where quantile ≤ mean − z·σ.
        if size > _MANY_ENTRIES:
            mean = size + excess
            variance = 2 * (size + 2 * excess)
            return self._quantile <= mean - _POWER_QUANTILE * math.sqrt(variance)
        return bool(1 - chndtr(self._quantile, size, excess) >= _POWER)

    @property
    def _quantile(self) -> float:
        """The squared norm, in variances, that noise alone exceeds with chance _FALSE_ALARM."""
        return float(chdtri(self.total.numel(), _FALSE_ALARM))


class NoiseAlone:
    """Warns where the noisy sums of most trained entries cannot be told from noise.

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
        self._has_warned = False

    def take(self, step: int, update: Mapping[str, torch.Tensor], draw: Draw) -> None:
        """Add up one step's update; steps count from 1."""
        # Without noise nothing can pass for it; after the last window there is nothing to tell.
        is_over = step > _WINDOW_ENDS[-1] or self._has_warned
        if is_over or not draw.noise_stddev > 0:
            return
        self._entries = {name: value.numel() for name, value in update.items()}
        for name, value in update.items():
            if name in self._cleared or guards.is_sharded(value):
                continue
            if name not in self._windows:
                self._windows[name] = _Window(torch.zeros_like(value))
            window = self._windows[name]
            # The update is the sum over the expected batch size, which is undone here.
            window.total.add_(value, alpha=draw.expected_batch_size)
            # Independent noises: their variances add up over the window.
            window.variance += draw.noise_stddev**2
            # About B times the stage's smallest bound: what B clipped gradients that agree come to.
            window.reach += draw.expected_batch_size * self._clip_norms[draw.stage]

    def look(self, step: int) -> None:
        """Warn where a window ends."""
        if step not in _WINDOW_ENDS or not self._windows:
            return
        self._cleared |= {name for name, window in self._windows.items() if window.moves()}
        # An even share of a squared norm among k parameters is 1/√k of the norm.
        share = _VISIBLE_SHARE / math.sqrt(len(self._entries))
        still = []
        if step > _WINDOW_ENDS[0]:
            for name, window in self._windows.items():
                if name not in self._cleared and window.would_show(share):
                    still.append(name)
        self._windows.clear()
        # Weighted by entries: a large layer that lies still counts for more than a bias.
        entries = sum(self._entries.get(name, 0) for name in still)
        if entries >= _STILL_PART * sum(self._entries.values()):
            self._has_warned = True
            names = ", ".join(still[:3]) + (", …" if len(still) > 3 else "")
            warnings.warn(
                f"model: until step {step} what moved {names} cannot be told from noise "
                f"({len(still)} of {len(self._entries)} trained): budgets too small for so few "
                "records, or no gradient reaches them (a frozen head or a scale of zero, something "
                "detached, a learning rate far too large)",
                IdleParameterWarning,
                stacklevel=5,
            )
