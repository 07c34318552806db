"""A model in evaluation mode, or with other values, and then as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

Held = Mapping[str, torch.Tensor | None]
Values = tuple[torch.Tensor, torch.Tensor]  # a buffer, and a copy of what it held


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Yield with every part of a model in evaluation mode; put it back as it was, whatever happens.

    So are its buffers: what a forward pass writes there would be of the records that it ran on.
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with unchanged(model):
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[str]]:
    """Put back what was replaced of parameters and buffers, and what buffers held.

    Yields a list that names, in the end, what was put back. Values of parameters are not.
    """
    held = [
        (path, place, dict(place))
        for path, part in model.named_modules()
        for place in (part._parameters, part._buffers)
    ]
    buffers = {id(b): (b, b.detach().clone()) for b in model.buffers()}
    written: list[str] = []
    try:
        yield written
    finally:
        for path, place, then in held:
            names = [name for name in {**then, **place} if _written(name, place, then, buffers)]
            written += [f"{path}.{name}".lstrip(".") for name in names]
            place.clear()
            place.update(then)
        with torch.no_grad():
            for buffer, was in buffers.values():
                if not _same(buffer, was):
                    buffer.copy_(was)


def _written(name: str, now: Held, then: Held, buffers: dict[int, Values]) -> bool:
    """Return whether another tensor is at a place, or other values in a buffer there."""
    if name not in now or name not in then or now[name] is not then[name]:
        return True
    buffer, was = buffers.get(id(now[name]), (None, None))
    return buffer is not None and was is not None and not _same(buffer, was)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def called_with(
    model: nn.Module, values: Mapping[str, torch.Tensor], *args: object, **kwargs: object
) -> Any:
    """Return model(*args, **kwargs) with `values` in the place of its parameters, and leave it be.

    As torch's `functional_call`, which leaves its values behind in a module that has two names.
    values: by the names of `named_parameters`; what has none here keeps its own.
    """
    names = {id(p): name for name, p in model.named_parameters() if name in values}
    everywhere = {
        f"{path}.{name}".lstrip("."): values[names[id(p)]]
        for path, module in model.named_modules()
        for name, p in module._parameters.items()
        if id(p) in names
    }
    return functional_call(model, everywhere, args, kwargs, tie_weights=False)
