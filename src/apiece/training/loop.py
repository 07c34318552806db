"""The step loop: draw, charge, clip and sum, noise, update, tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from apiece._types import Floats, Integers
from apiece.training.callbacks import Callback, Progress
from apiece.training.chargers import Charger
from apiece.training.clipping import ClippedSum
from apiece.training.distributed import Processes
from apiece.training.idle import NoiseAlone
from apiece.training.noise import add_noise, normalise
from apiece.training.randomness import Randomness, Uncopied
from apiece.training.samplers import Draw, Sampler
from apiece.training.stages import Restarts
from apiece.training.sums import Sums
from apiece.training.unfreezing import Unfreezing
from apiece.training.updates import Updates

Journal = Callable[[int, Iterable[torch.Tensor]], None]  # step, noisy update


@dataclass(kw_only=True, eq=False, repr=False)
class Loop(Uncopied):
    """Private gradient descent, step by step; who takes part and who pays is plugged in.

    A step: `sampler` draws; `charger` charges, and has the records of those who paid clipped and
    summed by `sums`; noise is added once, over all `processes`; the noisy sum is divided by the
    expected batch size; `journal` notes it; `updates` applies it; the callbacks are told.

    Args:
        sums: Of the model, the loss and the data.
        sampler: Says who takes part in a step, and with which bounds, noise and divisor.
        charger: Says who of them has paid.
        updates: Optimizer and learning rate.
        streams: All randomness but the model's first parameters.
        processes: This one's place among those that train the model together.
        callbacks: Told of each step when it is done.
        restarts: For plans in which each stage begins from the first parameters.
        unfreezing: Which parameters a step trains, where not all of them.
        journal: Told of each noisy update before it is applied.
        watch: Warns of parameters that noise alone moves.
        step_number: Updates made.
        rejected: How many times a record was not finite and left out; a private count.

    Guarantee:
        Parameters change by noisy sums only, each made from records whose share is bounded by what
        the charger was told, with the noise and the divisor of the draw.
    """

    sums: Sums
    sampler: Sampler
    charger: Charger
    updates: Updates
    streams: Randomness
    processes: Processes
    callbacks: tuple[Callback, ...] = ()
    restarts: Restarts | None = None
    unfreezing: Unfreezing | None = None
    journal: Journal | None = None
    watch: NoiseAlone | None = None
    step_number: int = 0
    rejected: int = 0

    def step(self, steps: int) -> Progress:
        """Take one step, and return what the callbacks were told of it.

        Args:
            steps: In all, as far as is known; told to the callbacks.

        Raises:
            StateError: Where the last update was interrupted half-way, or other parameters are
                trainable than at first.
        """
        self.updates.check_whole(self.step_number)
        self.processes.settle()
        if self.unfreezing is not None:
            self.unfreezing.enter(self.step_number, self.sums)
        self.sums.check_same()
        begun = time.perf_counter()
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
        if records.size == 0:
            return self.sums.nothing()
        seed = self.streams.model(self.step_number, self.processes.rank)
        return self.sums.over(records, clip_norms, seed)

    def _released(self, clipped: ClippedSum, draw: Draw) -> dict[str, torch.Tensor]:
        """Return the noisy sum over all processes, divided by the expected batch size."""
        total = self.processes.gather(clipped)
        noisy = total.gradients
        if self.processes.adds_noise:
            generator = self.streams.noise(self.step_number)
            noisy = add_noise(total, draw.noise_stddev, generator=generator)
        update = self.processes.share(noisy)
        normalise(update, draw.expected_batch_size)
        if self.journal is not None:
            noted = self.processes.noted(update)
            if self.processes.rank == 0:
                self.journal(self.step_number, noted)
        return update
