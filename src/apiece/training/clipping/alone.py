"""Alone: one record at a time, each on fresh copies of everything that its forward can write.

Nothing that one record leaves behind (in a buffer, an attribute, a closure, a random stream) is
there for the next: independence holds by construction. What cannot be copied (a module's globals,
attributes of classes) is compared afterwards, and a batch that changed it is refused.
"""

from __future__ import annotations

import contextlib
import copy
import random
import types
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.clipped import ClippedSum, add_up
from apiece.training.clipping.engine import clip_one
from apiece.training.clipping.precision import wide
from apiece.training.clipping.records import Batch
from apiece.training.clipping.watch import held_by
from apiece.training.clipping.written import written


def clip_alone(batch: Batch) -> ClippedSum:
    """Return the clipped sum of a batch, made one record after the other.

    Raises:
        UnsupportedError: For a model or loss that cannot be copied, or that writes where copies do
            not reach.
    """
    model, loss_fn = batch.model, batch.loss_fn
    before, held = (written(model, loss_fn, whole=whole) for whole in (True, False))

    def clipped() -> Iterator[ClippedSum]:
        for person in _each(batch):
            yield _person(person, base)
            _same(written(model, loss_fn, whole=False), held)

    with _streams() as base, _memory_wiped():
        total = add_up(clipped())
    _same(written(model, loss_fn, whole=True), before)
    return total


def _same(now: list[Any], before: list[Any]) -> None:
    if now != before:
        raise UnsupportedError(
            "model, loss_fn: running a record changes something outside of them (a global, a "
            "class's attribute, a cache, a tensor that both hold), which the next record would "
            "read; give it as an input, or compute it before"
        )


@contextlib.contextmanager
def _memory_wiped() -> Iterator[None]:
    """Let memory that nobody has written hold NaN, and not what another record left in it."""
    memory: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        try:
            if not before[0]:
                torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = True
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            memory.fill_uninitialized_memory = before[2]


Seeded = tuple[Batch, int]


def _each(batch: Batch) -> Iterator[Seeded]:
    """Yield each record, or person, with the place of its first row."""
    start = 0
    for part in batch.parts(1):
        yield part, start
        start += len(part)


def _person(one: Seeded, base: int) -> ClippedSum:
    batch, first = one
    total: dict[str, torch.Tensor] = {}
    losses: list[torch.Tensor] = []
    for k, row in enumerate(replace(batch, owner=None, clip_norms=_bounds(batch)).parts(1)):
        _seed(base, first + k)
        loss, gradients = _gradients(_cut_out(row))
        losses.append(loss)
        for name, g in gradients.items():
            total[name] = total[name] + g if name in total else g
    return clip_one(total, torch.cat(losses), batch.clip_norms)


def _bounds(batch: Batch) -> torch.Tensor:
    return batch.clip_norms[:1].expand(len(batch))


def _cut_out(row: Batch) -> Batch:
    """Return a record in memory of its own: a view of the batch's would lead to the others."""
    inputs, targets = (records.tree_map(torch.clone, t) for t in (row.inputs, row.targets))
    return replace(row, inputs=inputs, targets=targets)


def _gradients(batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss and gradients of one record, on copies of the model and the loss."""
    model, loss_fn, parameters = _fresh(batch)
    with torch.enable_grad():
        outputs = records.call(model, batch.inputs)
        losses = records.check_losses(loss_fn(outputs, batch.targets), 1, loss_fn)
        named = list(parameters)
        if not losses.requires_grad:
            found: Any = [torch.zeros_like(parameters[name]) for name in named]
        else:
            with torch.autocast(losses.device.type, enabled=False):
                found = torch.autograd.grad(
                    losses.sum(),
                    [parameters[name] for name in named],
                    allow_unused=True,
                    materialize_grads=True,
                )
    dense = [g.to_dense() if g.is_sparse else g for g in found]
    return losses.detach(), {
        name: g.detach().to(wide(g.dtype)) for name, g in zip(named, dense, strict=True)
    }


def _fresh(batch: Batch) -> tuple[nn.Module, Any, dict[str, nn.Parameter]]:
    """Return copies of model and loss, with their parameters by name."""
    functions, libraries = held_by(batch.model, batch.loss_fn)
    memo: dict[int, Any] = {id(library): library for library in libraries}
    memo |= {id(function): _with_cells(function) for function in functions}
    try:
        for function in functions:
            _fill_cells(function, memo[id(function)], memo)
        model = copy.deepcopy(batch.model, memo)
        loss_fn = copy.deepcopy(batch.loss_fn, memo)
    except Exception as error:  # whatever an object raises that cannot be copied
        raise UnsupportedError(
            "model, loss_fn: cannot be copied for each record alone "
            f"({type(error).__name__}: {str(error)[:120]}); hold plain values and tensors"
        ) from None
    own = dict(model.named_parameters(remove_duplicate=False))
    return model, loss_fn, {name: own[name] for name in batch.parameters}


def _with_cells(function: types.FunctionType) -> types.FunctionType:
    """Return the function with a closure of its own, still empty."""
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, None, cells or None
    )
    made.__dict__.update(function.__dict__)
    return made


def _fill_cells(
    function: types.FunctionType, made: types.FunctionType, memo: dict[int, Any]
) -> None:
    made.__defaults__ = copy.deepcopy(function.__defaults__, memo)
    made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    for cell, new in zip(function.__closure__ or (), made.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty one stays empty
            new.cell_contents = copy.deepcopy(cell.cell_contents, memo)


@contextlib.contextmanager
def _streams() -> Iterator[int]:
    """Yield a seed for the records' own streams; leave Python's, NumPy's and torch's behind."""
    base = int(torch.randint(2**62, ()))
    before, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield base
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.set_rng_state(of_torch)


def _seed(base: int, place: int) -> None:
    seed = (base + 0x9E3779B97F4A7C15 * (place + 1)) % 2**63
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
