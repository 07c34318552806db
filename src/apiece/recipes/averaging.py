"""The average of a model's parameters over its last steps: free, since it looks at no record."""

from __future__ import annotations

import torch
from torch import nn

from apiece import _check
from apiece.training import Progress


class WeightAverage:
    """A callback that keeps the exponential average of a model's parameters.

    Args:
        model: That is trained.
        decay: Weight of the past in each step, in [0, 1); the first steps are averaged evenly.

    Raises:
        InputError: For a decay outside [0, 1).

    Guarantee:
        What is averaged are the parameters after every step, which the plan's promises cover
        together; nothing is added to them.

    References:
        Polyak and Juditsky 1992; De et al. 2022 §4 with private training.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> average = WeightAverage(model, 0.9)
        >>> average(Progress(step=1, steps=10, stage=0, seconds=0.0, learning_rate=0.1))
        >>> average.put()
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = _check.probability("decay", decay, high_open=True)
        self._model = model
        self._mean: list[torch.Tensor] | None = None

    @torch.no_grad()
    def __call__(self, progress: Progress) -> None:
        """Take the parameters after one step into the average.

        Args:
            progress: Of the run.
        """
        now = list(self._model.parameters())
        if self._mean is None:
            self._mean = [p.detach().clone() for p in now]
            return
        share = max(1 - self.decay, 1 / progress.step)
        for mean, parameter in zip(self._mean, now, strict=True):
            mean.lerp_(parameter, share)

    @torch.no_grad()
    def put(self) -> None:
        """Put the average in the model's place; without a step nothing changes."""
        for parameter, mean in zip(self._model.parameters(), self._mean or [], strict=False):
            parameter.copy_(mean)
