"""Correlated noise: each step takes part of the noise of the steps before back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from apiece.correlation.strategies import Banded, Buffered, NoiseStrategy
from apiece.plan.parts import Stage
from apiece.training.randomness import Generator, NormalSource, Streams, draw_normals

# Parameters whose buffers are advanced in a pass, on a processor.
_BLOCK = 1 << 14


class NoiseRecurrence:
    """The noise C⁻¹z of one step after the other, for z independent standard normal.

    It remembers `strategy.memory` copies of the model in double precision.
    """

    def __init__(self, strategy: NoiseStrategy) -> None:
        self._strategy = strategy
        self._memory: torch.Tensor | None = None
        self._steps = 0

    def advance(self, fresh: torch.Tensor) -> torch.Tensor:
        """Return the noise of the next step, by the independent noise z of it, (size,)."""
        if self._strategy.memory == 0:
            return fresh
        if self._memory is None:
            shape = (self._strategy.memory, fresh.numel())
            self._memory = torch.zeros(shape, dtype=torch.float64, device=fresh.device)
        match self._strategy:
            case Banded() as strategy:
                return self._advance_banded(strategy, self._memory, fresh)
            case Buffered() as strategy:
                return self._advance_buffered(strategy, self._memory, fresh)

    def _advance_buffered(
        self, strategy: Buffered, memory: torch.Tensor, fresh: torch.Tensor
    ) -> torch.Tensor:
        # (buffers, 1) and (buffers,).
        decays = torch.tensor(strategy.decays[:, None], device=fresh.device)
        weights = torch.tensor(strategy.weights, device=fresh.device)
        # A copy, where it is double already.
        noise = fresh.to(torch.float64, copy=True)
        # On a processor a block of all buffers stays in its cache, and is read once.
        block = _BLOCK if fresh.device.type == "cpu" else fresh.numel()
        for start in range(0, fresh.numel(), max(block, 1)):
            # Noise of the step: z minus what the buffers remember; then they decay and take it up.
            part = memory[:, start : start + block]
            noise[start : start + block] -= weights @ part
            part.mul_(decays).add_(noise[start : start + block])
        return noise

    def _advance_banded(
        self, strategy: Banded, memory: torch.Tensor, fresh: torch.Tensor
    ) -> torch.Tensor:
        # A ring: the noise of step t lies in row t modulo its length.
        length = strategy.memory
        row = self._steps % length
        # Lag of each row: how many steps ago its noise was made.
        lags = (row - np.arange(length)) % length
        # The row that is written next holds the oldest noise.
        lags[row] = length
        # noise_t = z_t − Σ_lag coefficient[lag]·noise_{t − lag}.
        weights = torch.tensor(strategy.coefficients[lags], device=memory.device)
        noise = fresh.double() - weights @ memory
        memory[row] = noise
        self._steps += 1
        return noise


class CorrelatedNoise:
    """The noise of a run's steps, where it is correlated within a stage; made from the run's key.

    After a resumption the steps before are gone through again: all follows from the key.
    """

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self._stages = stages
        self._recurrence: NoiseRecurrence | None = None
        # The key, and the step whose noise comes next from the recurrence.
        self._position: tuple[bytes, int] | None = None

    def at(self, step: int, streams: Streams) -> Generator:
        """Return the source of the noise of a step, counted from 0."""
        # The stage of the step, and its first step.
        start = 0
        for stage in self._stages:
            if step < start + stage.steps:
                break
            start += stage.steps
        if stage.correlated is None:
            return streams.noise(step)
        return _StepNoise(self, stage.correlated.strategy, range(start, step), streams)

    def draw(
        self,
        strategy: NoiseStrategy,
        earlier: range,
        streams: Streams,
        size: int,
        device: torch.device,
    ) -> torch.Tensor:
        """Return the noise of the step after `earlier`, the steps of its stage so far, (size,)."""
        step = earlier.stop
        # The recurrence stands where it should only if the last call was of the step before, under
        # this key.
        is_next = bool(earlier) and self._position == (streams.key, step)
        if self._recurrence is None or not is_next:
            self._recurrence = NoiseRecurrence(strategy)
            for past in earlier:
                self._recurrence.advance(draw_normals(streams.noise(past), size, device))
        noise = self._recurrence.advance(draw_normals(streams.noise(step), size, device))
        self._position = streams.key, step + 1
        return noise


@dataclass(frozen=True, slots=True, repr=False)
class _StepNoise(NormalSource):
    """The correlated noise of one step; of unit deviation where it were independent."""

    noise: CorrelatedNoise
    strategy: NoiseStrategy
    earlier: range
    streams: Streams

    def normals(self, size: int, device: torch.device) -> torch.Tensor:
        """Return the noise of all parameters, (size,)."""
        return self.noise.draw(self.strategy, self.earlier, self.streams, size, device)
