"""Inputs and targets of a batch: a tensor, or tuples, lists and dicts of them, records first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError

LossFunction = Callable[[Any, Any], torch.Tensor]
Parameters = dict[str, nn.Parameter]
_SEQUENCES = (tuple, list)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """What is to be clipped: the records, their bounds (B,), and what makes gradients of them.

    owner: (B,), where rows are clipped by person: the person of each row, numbered from 0 on, never
    falling. Then there is one bound a person, and parts are of whole persons.
    """

    model: nn.Module
    parameters: Parameters
    loss_fn: LossFunction
    inputs: Any
    targets: Any
    clip_norms: torch.Tensor
    owner: torch.Tensor | None = None

    def __len__(self) -> int:
        return int((self.clip_norms if self.owner is None else self.owner).numel())

    def of_rows(self) -> Batch:
        """Return the rows as records, each with its person's bound."""
        if self.owner is None:
            return self
        return replace(self, clip_norms=self.clip_norms[self.owner], owner=None)

    def losses(self) -> torch.Tensor:
        """Return one loss a record, (B,)."""
        outputs = call(self.model, self.inputs)
        return check_losses(self.loss_fn(outputs, self.targets), len(self), self.loss_fn)

    def at(self, index: torch.Tensor) -> Batch:
        """Return the batch of the records at `index`, where each row is one."""
        return replace(
            self,
            inputs=select(self.inputs, index),
            targets=select(self.targets, index),
            clip_norms=self.clip_norms[index],
        )

    def parts(self, width: int) -> Iterator[Batch]:
        """Yield the batch in parts of at most `width` records; a person with more is one."""
        if self.owner is not None:
            yield from self._parts_of_persons(self.owner, width)
            return
        for start in range(0, len(self), width):
            where = slice(start, start + width)
            yield replace(
                self,
                inputs=select(self.inputs, where),
                targets=select(self.targets, where),
                clip_norms=self.clip_norms[where],
            )

    def _parts_of_persons(self, owner: torch.Tensor, width: int) -> Iterator[Batch]:
        ends = torch.bincount(owner, minlength=self.clip_norms.numel()).cumsum(0)
        first = start = 0
        while first < ends.numel():
            last = int(torch.searchsorted(ends, start + width, right=True))
            last = max(last, first + 1)
            end = int(ends[last - 1])
            yield replace(
                self,
                inputs=select(self.inputs, slice(start, end)),
                targets=select(self.targets, slice(start, end)),
                clip_norms=self.clip_norms[first:last],
                owner=owner[start:end] - first,
            )
            first, start = last, end


def tree_map(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return `tree` with every tensor replaced by `function` of it; other leaves stay."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, part) for part in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, part) for part in tree)
    if isinstance(tree, Mapping):  # plain from here on, whatever a library made of it
        return {name: tree_map(function, part) for name, part in tree.items()}
    return tree


def leaves(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of `tree` in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if not isinstance(tree, _SEQUENCES):  # asked first: whether something is a mapping takes long
        if not isinstance(tree, Mapping):
            return []
        tree = tree.values()
    return [tensor for part in tree for tensor in leaves(part)]


def outline(tree: Any) -> Any:
    """Return the form of `tree`: its containers and what in it is no tensor."""
    if isinstance(tree, torch.Tensor):
        return None
    if isinstance(tree, _SEQUENCES):
        return (type(tree), *map(outline, tree))
    if isinstance(tree, Mapping):
        return tuple((name, outline(part)) for name, part in tree.items())
    return tree if isinstance(tree, bool | int | float | str) else id(tree)


def fill(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `tree` with its tensors replaced by `tensors`, in order."""
    rest = iter(tensors)
    return tree_map(lambda _: next(rest), tree)


def count(inputs: Any, targets: Any) -> int:
    """Return the number of records, which every tensor must have as its first dimension."""
    given = _plain(inputs)
    tensors = given + _plain(targets)
    if not given:
        raise InputError("inputs: no tensor in them; give a tensor, or a tuple or dict of tensors")
    sizes = {t.shape[0] if t.dim() else None for t in tensors}
    if len(sizes) != 1 or None in sizes:
        shapes = [tuple(t.shape) for t in tensors]
        raise InputError(
            f"inputs, targets: shapes {shapes} do not have one record per first dimension; "
            "put the records first in every tensor"
        )
    return int(tensors[0].shape[0])


def _plain(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of `tree`; raise `UnsupportedError` where records are not dense rows."""
    if isinstance(tree, torch.Tensor):
        if tree.layout is torch.strided and not tree.is_nested:
            return [tree]
        kind = "nested" if tree.is_nested else str(tree.layout).removeprefix("torch.")
        raise UnsupportedError(
            f"inputs, targets: a tensor is {kind}, which cannot be taken record by record; give "
            "dense ones (to_dense(), or torch.nested.to_padded_tensor)"
        )
    if isinstance(tree, nn.utils.rnn.PackedSequence):
        raise UnsupportedError(
            "inputs, targets: a PackedSequence has no row for each record; give padded tensors, "
            "records first, with their lengths, and pack them in the model's forward"
        )
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for part in tree for tensor in _plain(part)]


def select(tree: Any, index: Any) -> Any:
    """Return the records of `tree` at `index` (a slice or index tensor)."""
    return tree_map(lambda tensor: tensor[index], tree)


def lift(tree: Any) -> Any:
    """Return one record as a batch of one."""
    return tree_map(lambda tensor: tensor.unsqueeze(0), tree)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as positional and keyword arguments: a mapping gives keywords."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def call(model: nn.Module, inputs: Any) -> Any:
    """Return model(inputs), with tuples as positional and dicts as keyword arguments."""
    args, kwargs = arguments(inputs)
    return model(*args, **kwargs)


def check_losses(losses: Any, size: int, loss_fn: Any) -> torch.Tensor:
    """Return `losses` if they are one number a record; refuse a loss that has been reduced."""
    if isinstance(losses, torch.Tensor) and losses.shape == (size,):
        if losses.is_floating_point():
            return losses
        raise InputError(
            f"loss_fn: returned numbers of type {str(losses.dtype).removeprefix('torch.')}; a loss "
            "must be real (of complex outputs, take abs() or real)"
        )
    got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
    reduction = getattr(loss_fn, "reduction", None)
    said = f" (its reduction is {reduction!r})" if reduction not in (None, "none") else ""
    raise InputError(
        f"loss_fn: returned {got} for {size} records{said}; it must return one loss a record, "
        f"shape ({size},): use reduction='none', and average over positions within a record only"
    )
