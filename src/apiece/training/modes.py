"""A model's modes: put in evaluation mode for a while, and back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Yield with every part of a model in evaluation mode; put it back as it was, whatever happens.

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
