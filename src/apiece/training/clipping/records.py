"""Batches and their clipped sums: what is clipped, record by record, and what comes of it.

Inputs and targets are a tensor, or tuples, lists and dicts of them, records first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from apiece._types import Integers
from apiece.errors import InputError, UnsupportedError

# A tensor, or tuples, lists and mappings of trees and of leaves of `LEAF_TYPES`.
Tree: TypeAlias = Any
LossFunction = Callable[[Tree, Tree], torch.Tensor]
# Leaves beside tensors: values of Python's that nothing can change, of exactly these types.
LEAF_TYPES = (type(None), bool, int, float, str)
_SEQUENCES = (tuple, list)  # asked for before mappings, which takes longer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """What is to be clipped: the records, their bounds (B,), and what makes gradients of them.

    owner: (B,), where rows are clipped by person: the person of each row, numbered from 0 on, never
    falling. Then there is one bound a person, and parts are of whole persons.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: LossFunction
    inputs: Tree
    targets: Tree
    clip_norms: torch.Tensor
    owner: torch.Tensor | None = None

    def __len__(self) -> int:
        by_row = self.clip_norms if self.owner is None else self.owner
        return int(by_row.numel())

    def of_rows(self) -> Batch:
        """Return the rows as records, each with its person's bound."""
        if self.owner is None:
            return self
        return replace(self, clip_norms=self.clip_norms[self.owner], owner=None)

    def parts(self, width: int) -> Iterator[Batch]:
        """Yield the batch in parts of at most `width` records; a person with more is one."""
        if self.owner is None:  # each row is one of its own
            for start in range(0, len(self), width):
                rows = slice(start, min(start + width, len(self)))
                yield self._part(rows, rows)
            return
        # where each person's rows end
        counts = torch.bincount(self.owner, minlength=self.clip_norms.numel())
        ends = counts.cumsum(0)
        start = 0
        person = 0
        while start < len(self):
            # As many whole persons as fit into `width` rows from `start` on.
            next_person = int(torch.searchsorted(ends, start + width, right=True))
            next_person = max(next_person, person + 1)  # a person whose rows are too many
            end = int(ends[next_person - 1])
            yield self._part(slice(start, end), slice(person, next_person))
            start = end
            person = next_person

    def _part(self, rows: slice, persons: slice) -> Batch:
        """Return the batch of these rows, which are those of these persons."""
        return replace(
            self,
            inputs=select(self.inputs, rows),
            targets=select(self.targets, rows),
            clip_norms=self.clip_norms[persons],
            owner=None if self.owner is None else self.owner[rows] - persons.start,
        )


# ---------------------------------------------------------------- trees of tensors


def tree_map(function: Callable[[torch.Tensor], Tree], tree: Tree) -> Tree:
    """Return `tree` with every tensor replaced by `function` of it; other leaves stay."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named one takes its fields apart
        return type(tree)(*(tree_map(function, part) for part in tree))
    if isinstance(tree, _SEQUENCES):
        return type(tree)(tree_map(function, part) for part in tree)
    if isinstance(tree, Mapping):  # plain from here on, whatever a library made of it
        return {name: tree_map(function, part) for name, part in tree.items()}
    return tree


def leaves(tree: Tree) -> list[torch.Tensor]:
    """Return the tensors of `tree` in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if not isinstance(tree, _SEQUENCES):  # asked first: whether something is a mapping takes long
        if not isinstance(tree, Mapping):
            return []
        tree = tree.values()
    return [tensor for part in tree for tensor in leaves(part)]


def outline(tree: Tree) -> object:
    """Return the form of `tree`: its containers and what in it is no tensor.

    A value stands with its type, so that True, 1 and 1.0 differ; a float by its text, so that 0.0
    and -0.0 differ and NaN is itself.
    """
    if isinstance(tree, torch.Tensor):
        return torch.Tensor
    if isinstance(tree, _SEQUENCES):
        # The class is part of the outline: a list and a tuple are called differently.
        return (type(tree), *map(outline, tree))
    if isinstance(tree, Mapping):
        items = ((outline(name), outline(part)) for name, part in tree.items())
        return (dict, *items)
    if type(tree) not in LEAF_TYPES:  # whose values the key could not hold
        raise TypeError(f"a leaf of type {type(tree).__name__}; read_tree refuses it")
    return type(tree), repr(tree) if isinstance(tree, float) else tree


def named_tuples(tree: Tree) -> list[type]:
    """Return the classes of the named tuples in `tree`: code that a forward may call."""
    if isinstance(tree, Mapping):
        return [kind for part in tree.values() for kind in named_tuples(part)]
    if not isinstance(tree, _SEQUENCES):
        return []
    kinds: list[type] = [type(tree)] if hasattr(tree, "_fields") else []
    for part in tree:
        kinds += named_tuples(part)
    return kinds


def fill(tree: Tree, tensors: list[torch.Tensor]) -> Tree:
    """Return `tree` with its tensors replaced by `tensors`, in order."""
    replacements = iter(tensors)
    return tree_map(lambda _: next(replacements), tree)


def select(tree: Tree, index: slice | torch.Tensor) -> Tree:
    """Return the records of `tree` at `index`."""
    return tree_map(lambda tensor: tensor[index], tree)


def count(inputs: Tree, targets: Tree) -> int:
    """Return the number of records, which every tensor must have as its first dimension."""
    of_inputs = _dense_tensors(inputs)
    tensors = of_inputs + _dense_tensors(targets)
    # of targets alone a model has nothing to run on
    if not of_inputs:
        raise InputError("inputs: no tensor in them; give a tensor, or a tuple or dict of tensors")
    sizes = {t.shape[0] if t.dim() else None for t in tensors}  # None: a number without axes
    if len(sizes) != 1 or None in sizes:
        shapes = [tuple(t.shape) for t in tensors]
        raise InputError(
            f"inputs, targets: shapes {shapes} do not have one record per first dimension; "
            "put the records first in every tensor"
        )
    return int(tensors[0].shape[0])


def _dense_tensors(tree: Tree) -> list[torch.Tensor]:
    """Return the tensors of `tree`; raise `UnsupportedError` where records are not dense rows."""
    if isinstance(tree, torch.Tensor):
        if tree.is_meta:
            raise UnsupportedError(
                "inputs, targets: a tensor is on the device meta and has no values; give one of "
                "the model's device"
            )
        if tree.layout is torch.strided and not tree.is_nested:
            return [tree]
        kind = "nested" if tree.is_nested else str(tree.layout).removeprefix("torch.")
        raise UnsupportedError(
            f"inputs, targets: a tensor is {kind}, which cannot be taken record by record; give "
            "dense ones (to_dense(), or torch.nested.to_padded_tensor)"
        )
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, _SEQUENCES):
        return []
    return [tensor for part in tree for tensor in _dense_tensors(part)]


def call(model: nn.Module, inputs: Tree) -> Tree:
    """Return model(inputs), with tuples as positional and dicts as keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, _SEQUENCES) else model(inputs)


def check_losses(losses: object, size: int, loss_fn: LossFunction) -> torch.Tensor:
    """Return `losses` if they are one number a record; refuse a loss that has been reduced."""
    # What is wrong is named by what mostly causes it; in the end, by its shape.
    if isinstance(losses, torch.Tensor) and losses.shape == (size,):
        # Integers have no gradient, and the gradient of a complex loss is not that of one number.
        if losses.is_floating_point():
            return losses
        raise InputError(
            f"loss_fn: returned numbers of type {str(losses.dtype).removeprefix('torch.')}; a loss "
            "must be real (of complex outputs, take abs() or real)"
        )
    got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
    reduction = getattr(loss_fn, "reduction", None)
    # By the loss's own word, where it has one: torch's losses have the attribute.
    is_reduced = reduction not in (None, "none")
    if not is_reduced and size == 1 and got == ():
        raise InputError(
            "loss_fn: returned one number without an axis for one record; a squeeze() without an "
            "axis drops the records' axis too where a record stands alone: name the axis, as "
            "squeeze(-1), or, where the loss is a mean over the batch, use reduction='none'"
        )
    if size > 1 and got == (size, size):
        raise InputError(
            f"loss_fn: returned {got} for {size} records; outputs of shape (B, 1) and targets of "
            "shape (B,) broadcast to every pair of records: use outputs.squeeze(-1)"
        )
    remark = f" (its reduction is {reduction!r})" if is_reduced else ""
    raise InputError(
        f"loss_fn: returned {got} for {size} records{remark}; it must return one loss a record, "
        f"shape ({size},): use reduction='none', and average over positions within a record only"
    )


def gradients_of(
    losses: torch.Tensor, wanted: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Return the gradients of the losses' sum, not under autocast; None where it has none."""
    if not losses.requires_grad:  # `grad` would raise
        return [None] * len(wanted)
    # Of the sum: the losses are the records' own, so that record i's share of it is ∇ℓ_i. The casts
    # of the forward are undone by their own backward.
    with torch.autocast(losses.device.type, enabled=False):
        return torch.autograd.grad(losses.sum(), wanted, allow_unused=True)


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClippedSum:
    """The sum over B records of gradients clipped at each record's own norm.

    Norms and losses are data about people: they are for filters and audits, not for printing. Where
    rows were clipped by person, norms and clip_norms are the persons', losses the rows'.

    Attributes:
        gradients: Parameter name → the sum, a tensor of the parameter's shape.
        norms: (B,), each record's ℓ2 gradient norm before clipping, NaN or infinite where the
            record was left out.
        losses: (B,), each record's loss.
        clip_norms: (B,), the bounds.

    Guarantee:
        Without record (or person) i the sum differs by a vector of norm at most clip_norms[i].

    Example:
        >>> import torch
        >>> from apiece.training import ClippedSum
        >>> one = torch.ones(2)
        >>> total = ClippedSum({"weight": one}, one, one, one)
        >>> len(total), (total + total).norms.numel()
        (2, 4)
    """

    gradients: Mapping[str, torch.Tensor]
    norms: torch.Tensor
    losses: torch.Tensor
    clip_norms: torch.Tensor

    def __len__(self) -> int:
        return int(self.norms.numel())

    @property
    def rejected(self) -> int:
        """How many records were not finite and so contributed zero; a private count."""
        # mostly nobody, which one sum shows; it may overflow, and then all are counted
        if math.isfinite(float(self.norms.sum())):
            return 0
        is_rejected = ~torch.isfinite(self.norms)
        return int(is_rejected.sum())

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Return the sum over the records of both, which must be different records."""
        if not isinstance(other, ClippedSum):
            return NotImplemented
        # a missing one would count as zero, though its records were clipped with it
        if self.gradients.keys() != other.gradients.keys():
            raise InputError("clipped sums: of different parameters; add those of one model")
        sums = {name: value + other.gradients[name] for name, value in self.gradients.items()}
        # Norms, losses and bounds are put one after the other: they are by record.
        return _concatenate(sums, [self, other])

    def ordered(self, places: Integers) -> ClippedSum:
        """Return the same sum with its k-th record put at places[k].

        Args:
            places: (B,) A permutation; norms, losses and bounds have one entry a record.

        Example:
            >>> import numpy as np
            >>> import torch
            >>> from apiece.training import ClippedSum
            >>> total = ClippedSum({}, *torch.arange(6.0).view(3, 2))
            >>> total.ordered(np.array([1, 0])).norms
            tensor([1., 0.])
        """
        if bool((places == np.arange(places.size)).all()):  # in order already
            return self
        # of a permutation `argsort` is the inverse: by new place, the old one
        inverse = np.argsort(places)
        order = torch.from_numpy(inverse).to(self.norms.device)
        return ClippedSum(
            self.gradients, self.norms[order], self.losses[order], self.clip_norms[order]
        )


def _concatenate(sums: Mapping[str, torch.Tensor], parts: Sequence[ClippedSum]) -> ClippedSum:
    """Return sums over all parts, with the norms, losses and bounds of one after the other."""
    return ClippedSum(
        sums,
        torch.cat([part.norms for part in parts]),
        torch.cat([part.losses for part in parts]),
        torch.cat([part.clip_norms for part in parts]),
    )


def add_up(parts: Iterable[ClippedSum]) -> ClippedSum:
    """Return the sum over the records of all parts, at least one, which are given up to it."""
    # The parts are made one at a time: each part's gradients are added to the first's and let go.
    first, *others = _add_in_turn(parts)
    return _concatenate(first.gradients, [first, *others]) if others else first


def _add_in_turn(parts: Iterable[ClippedSum]) -> Iterator[ClippedSum]:
    """Yield the first part, and the others without gradients, which are added to the first's."""
    sums: Mapping[str, torch.Tensor] = {}
    for part in parts:
        if sums:
            part = _move_gradients(part, sums)  # freed before the next part makes its own
        else:
            sums = part.gradients
        yield part


def _move_gradients(part: ClippedSum, sums: Mapping[str, torch.Tensor]) -> ClippedSum:
    """Return a part without its gradients, which are added to `sums` in place."""
    for name, value in part.gradients.items():
        # In place, into tensors of the first part, which nobody else holds.
        sums[name].add_(value)
    return replace(part, gradients={})


def slack(dtype: torch.dtype) -> float:
    """Return the relative room under every bound for round-off of norms in this type."""
    # Single precision: 2⁻¹⁷ is 64 units (2⁻²³), far more than norms and products lose.
    return 2.0**-40 if dtype == torch.float64 else 2.0**-17


def clip_factors(norms: torch.Tensor, clip_norms: torch.Tensor) -> torch.Tensor:
    """Return min(1, clip/norm) rounded down: what a record's gradient is multiplied by.

    Args:
        norms: Of any shape, at least the true norms but for a relative error of half the slack.
        clip_norms: Bounds of the same shape; 0 leaves a record out.

    Returns:
        Factors in the type of `norms`; 0 where a norm is not finite.

    Guarantee:
        A factor is below the exact one by the slack, which is more than can be lost in computing
        the norm and in multiplying, so that round-off cannot lift a record over its bound.

    Example:
        >>> import torch
        >>> from apiece.training.clipping.records import clip_factors
        >>> clip_factors(torch.tensor([0.5, 2.0, torch.inf]), torch.ones(3)) <= 1 / torch.tensor(
        ...     [1.0, 2.0, torch.inf]
        ... )
        tensor([True, True, True])
    """
    # In double precision: a quotient rounded up in single would take some of the room.
    lowered = clip_norms.to(torch.float64) * (1 - slack(norms.dtype))
    factors = lowered.div_(norms).clamp_(max=1.0)
    return factors.nan_to_num_(nan=0.0).to(norms.dtype)  # bound/inf is 0 already
