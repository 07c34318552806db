"""What a model of a table predicts: one of several declared classes, or a number in a range.

Either way the rows say nothing that is not declared: which classes there are, and from where to
where a number can go, are public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece._types import Floats
from apiece.datasets import Categorical, Numeric, scale, unscale
from apiece.errors import InputError

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Classes:
    """One of several declared classes: a score for each, and cross-entropy.

    Args:
        names: Of the classes, at least two.

    Raises:
        InputError: For fewer, or one given twice.

    Example:
        >>> Classes(("no", "yes")).outputs
        2
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) < 2 or len(set(self.names)) < len(self.names):
            raise InputError(f"classes = {self.names!r}: give at least two, each once")

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out."""
        return len(self.names)

    @property
    def loss(self) -> nn.CrossEntropyLoss:
        """The cross-entropy of each record, from scores (B, classes) and `encoded` labels."""
        return nn.CrossEntropyLoss(reduction="none")

    def encoded(self, labels: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the targets of training.

        Args:
            labels: (n,) Positions in `names`.
        """
        return torch.from_numpy(labels)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in a declared range: one output, and the squared error.

    Training sees the number as a feature is seen: clipped to the range and scaled to [-1, 1]. What
    is predicted is scaled back, and lies in the range.

    Args:
        declared: The range.

    Example:
        >>> amount = Amount(Numeric(0.0, 10.0))
        >>> amount.encoded(np.array([0.0, 5.0, 99.0]))[:, 0].tolist()
        [-1.0, 0.0, 1.0]
        >>> amount.decoded(torch.tensor([[0.5], [3.0]])).tolist()
        [7.5, 10.0]
    """

    declared: Numeric

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out."""
        return 1

    @property
    def loss(self) -> LossFunction:
        """The squared error of each record, from outputs (B, 1) and `encoded` numbers."""
        return _squared_error

    def encoded(self, values: Floats) -> torch.Tensor:
        """Return the targets of training, (n, 1); NaN where the number is not finite.

        Args:
            values: (n,).
        """
        finite = np.where(np.isfinite(values), values, np.nan)
        return torch.from_numpy(scale(finite, self.declared).astype(np.float32)[:, None])

    def decoded(self, outputs: torch.Tensor) -> Floats:
        """Return the numbers that a model's outputs stand for, each in the range.

        Args:
            outputs: (n, 1).
        """
        return unscale(outputs[:, 0].double().numpy(), self.declared)


def _squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum(dim=1)


Target = Classes | Amount


def target_of(declared: Categorical | Numeric) -> Target:
    """Return what is predicted where the label's column is declared so.

    Args:
        declared: The classes, or the range.

    Example:
        >>> target_of(Numeric(0.0, 10.0)).outputs
        1
    """
    return Amount(declared) if isinstance(declared, Numeric) else Classes(declared.values)
