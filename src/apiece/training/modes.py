"""A model in evaluation mode, or with other values, and then as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from apiece.training.clipping import torch_internals

Tensors = Mapping[str, torch.Tensor | None]  # of a module's `_parameters` or `_buffers`, by name
BufferCopy = tuple[torch.Tensor, torch.Tensor]  # a buffer, and a copy of its values


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part of a model into evaluation mode, and back as it was, whatever happens.

    Buffers are put back too: what a forward pass writes there depends on the records that it read.
    """
    # By part, since some parts may be in another mode than the model.
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with restoring(model):
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def restoring(model: nn.Module) -> Iterator[list[str]]:
    """Put back, in the end, replaced parameters and buffers, and the values of buffers.

    Values written into a parameter in place are not put back. Yields a list that names, in the
    end, what was put back.
    """
    # Shallow copies of the dicts: they find tensors that were replaced.
    snapshots = [
        (path, tensors, dict(tensors))
        for path, part in model.named_modules()
        for tensors in torch_internals.tensor_dicts_of(part)
    ]
    # Values too: buffers are written in place by forwards.
    copies = {id(b): (b, b.detach().clone()) for b in model.buffers()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for path, current, former in snapshots:
            # Keys of both, so that additions and deletions are found.
            names = {**former, **current}
            changed += [
                f"{path}.{name}".lstrip(".")
                for name in names
                if _has_changed(name, current, former, copies)
            ]
            # Cleared and filled, so that the order of registration stays.
            current.clear()
            current.update(former)
        with torch.no_grad():
            # Only where values differ: a write counts as one for autograd.
            for buffer, copy in copies.values():
                if not _are_equal(buffer, copy):
                    buffer.copy_(copy)


def _has_changed(
    name: str, current: Tensors, former: Tensors, copies: dict[int, BufferCopy]
) -> bool:
    """Return whether a name stands for another tensor now, or for a buffer of other values."""
    if name not in current or name not in former or current[name] is not former[name]:
        return True
    if id(current[name]) not in copies:
        return False
    return not _are_equal(*copies[id(current[name])])


def _are_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)


def call_with(
    model: nn.Module, values: Mapping[str, torch.Tensor], *args: object, **kwargs: object
) -> Any:
    """Return model(*args, **kwargs) with `values` in place of its parameters.

    Unlike torch's `functional_call`, it leaves no value behind in a module that has two names.

    values: tensors by the names of `named_parameters`; a parameter without one keeps its value.
    """
    # By identity: a parameter that is shared has one name among `named_parameters`.
    names = {id(p): name for name, p in model.named_parameters() if name in values}
    # A module that is shared has several paths; the value goes to each of them.
    by_path = {
        f"{path}.{name}".lstrip("."): values[names[id(p)]]
        for path, module in model.named_modules()
        for name, p in torch_internals.parameters_of(module).items()
        if id(p) in names
    }
    return functional_call(model, by_path, args, kwargs, tie_weights=False)
