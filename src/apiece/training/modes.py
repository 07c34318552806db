"""A model's modes: put in evaluation mode for a while, and back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part of the model in evaluation mode, and back as it was, whatever happens.

    Args:
        model: Its parts may be in different modes.

    Example:
        >>> model = nn.Sequential(nn.Dropout())
        >>> with evaluating(model):
        ...     model[0].training
        False
        >>> model[0].training
        True
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
