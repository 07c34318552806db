"""How a stack of models learns, each from its own rows: the teachers, and a student as a stack of
one.

Every step takes as many rows of each model, whoever has how many: no shape, and so no rounding of
one model's numbers, depends on another's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apiece import _check
from apiece._types import Integers
from apiece.errors import DataError
from apiece.pate.shares import Shares
from apiece.training.randomness import Streams
from apiece.training.stacked import SUMS, StackedModel

Watcher = Callable[[int, int], object]  # told the step and the number of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """SGD on rows drawn with replacement; the learning rate falls to 0 by a cosine.

    Attributes:
        steps: How many updates.
        batch_size: Rows of each model in a step.
        learning_rate: At first.
        momentum: In [0, 1).
        clip_norm: The bound on a row's gradient, which keeps steps of a hard row small; privacy
            does not depend on it.

    Raises:
        InputError: For values out of bounds.

    Example:
        >>> Lessons(steps=100).rate(50)
        0.5
    """

    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 1.0
    momentum: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("steps", "batch_size"):
            put(self, name, _check.count(name, getattr(self, name)))
        for name in ("learning_rate", "clip_norm"):
            put(self, name, _check.positive(name, getattr(self, name)))
        put(self, "momentum", _check.probability("momentum", self.momentum, high_open=True))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step.

        Args:
            step: Counted from 0.
        """
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps)) / 2


def learn(
    model: StackedModel,
    inputs: Tensor,
    targets: Tensor,
    shares: Shares,
    lessons: Lessons,
    streams: Streams,
    watch: Watcher | None = None,
) -> Tensor:
    """Return the parameters (models, parameters) of models that each learned from its own rows.

    Args:
        model: The architecture.
        inputs: (n, …).
        targets: (n,) Classes.
        shares: The rows of each model.
        lessons: How.
        streams: The randomness, of which each model has its own part.
        watch: Told after each step.

    Guarantee:
        A row changes the parameters of the models that have it, and not one bit of any other's.
    """
    models = shares.sizes.size
    flat = model.initial(models, streams.initialisation()).requires_grad_(False)
    optimizer = torch.optim.SGD([flat], lr=lessons.learning_rate, momentum=lessons.momentum)
    width = lessons.batch_size
    clip = torch.full((models, width), lessons.clip_norm)
    clip[torch.from_numpy(shares.sizes == 0)] = 0.0
    for step in range(lessons.steps):
        coins = streams.sampling(step).uniform(models * width).reshape(models, width)
        rows = torch.from_numpy(shares.drawn(coins))
        clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clip)
        for entry in optimizer.param_groups:
            entry["lr"] = lessons.rate(step)
        flat.grad = clipped.gradients[SUMS].div_(width)
        optimizer.step()
        if watch is not None:
            watch(step + 1, lessons.steps)
    return flat.detach()


def require_classes(targets: Tensor, classes: int) -> None:
    """Raise `DataError` for a label that is no class.

    Args:
        targets: (n,) Labels.
        classes: How many classes there are; labels are 0 to classes − 1.
    """
    if targets.dtype.is_floating_point or targets.dtype.is_complex:
        raise DataError(f"targets: of type {targets.dtype}; give classes as whole numbers")
    odd = (targets < 0) | (targets >= classes)
    if bool(odd.any()):
        raise DataError(
            f"targets: {int(odd.sum())} labels are not in 0 to {classes - 1}, the {classes} "
            "classes; mend them, or declare more classes"
        )


def said(model: StackedModel, flat: Tensor, inputs: Tensor, *, block: int = 64) -> Integers:
    """Return the class that each model says of each input, (models, inputs).

    Without noise: data about those whom the models learned from, and for no eyes or files.

    Args:
        model: The architecture.
        flat: Parameters (models, parameters).
        inputs: (Q, …), at least one.
        block: How many inputs at a time.
    """
    models, found = flat.shape[0], []
    for at in range(0, inputs.shape[0], block):
        part = inputs[at : at + block]
        logits = model.logits(flat, part.expand(models, *part.shape))
        found.append(logits.argmax(dim=2).numpy())
    return np.concatenate(found, axis=1)
