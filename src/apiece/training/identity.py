"""Identity of a run beside plan and data: loss, model, optimizer, and how it runs, digested.

A resumed run draws the same noise for the same steps; with another loss, say, that noise would be
on two sums, and gone from their difference. So what makes an update goes into a keyed digest.

Not seen: state that a function reaches otherwise than by its closure, defaults and globals (files,
the environment, attributes of modules); what is written in C; versions of libraries, which go by
their names; callbacks.
"""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.training.clipping.libraries import library_named
from apiece.training.clipping.watch import names_in

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_BY_NAME = (torch.dtype, torch.device, torch.layout, np.dtype, enum.Enum)
_OF_MODULES = frozenset({*nn.Module().__dict__, "_compiled_call_impl", "_is_full_backward_hook"})
# What other loops write on a model of the user's to know it again; no forward reads it.
_MARKS = frozenset({"_is_accelerate_prepared"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NAMES = ("__module__", "__doc__", "__qualname__", "__firstlineno__")  # of a class, not its work
_MOST, _DEEPEST = 20_000, 60  # objects that are looked into; of others only the type counts


class Seen(dict[int, tuple[int | str, object]]):
    """What was met: id → number or name, and the object, which keeps the id.

    known: how many are the model's. depth: of the walk.
    """

    known = depth = 0

    def copy(self) -> Seen:
        """Return the same, for a walk of its own."""
        made = Seen(self)
        made.known, made.depth = self.known, self.depth
        return made


def identity_of(value: object, key: bytes, *, model: nn.Module) -> str:
    """Return a keyed digest of what a loss or a model is made of: code, settings, tensors.

    Functions go by their code and what they close over; modules by their type, settings, mode and
    parts; objects of a library by their type. Names of files and of places in them do not count,
    nor do the values that the model's own tensors have just now.
    """
    digest, seen = hashlib.blake2b(key=key, digest_size=16), Seen()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            seen.setdefault(id(tensor), (name, tensor))
    seen.known = len(seen)
    for part in _parts(value, seen):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's values as they are in memory: numpy lacks some of torch's types."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def settings_of(optimizer: torch.optim.Optimizer, scheduler: Any) -> dict[str, Any]:
    """Return what an optimizer and a scheduler are before their first step, for `identity_of`."""
    groups = copy.deepcopy([{**group, "params": None} for group in optimizer.param_groups])
    held = [group["params"] for group in optimizer.param_groups]
    rates = None
    if scheduler is not None:
        state = copy.deepcopy(scheduler.state_dict())
        rates = [type(scheduler), state, getattr(scheduler, "lr_lambdas", None)]
    return {"scheduler": rates, "optimizer": [type(optimizer), groups, held]}


def _parts(value: object, seen: Seen) -> Iterator[bytes]:
    """Yield what makes a value what it is; one that was met before by its number."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, _BY_NAME):
        yield f"{type(value).__qualname__} {value}".encode()
    elif id(value) in seen or len(seen) > _MOST or seen.depth > _DEEPEST:
        number = seen.get(id(value), ("-", None))[0]
        yield f"{type(value).__qualname__} {number}".encode()
    else:
        seen[id(value)] = len(seen) - seen.known, value
        seen.depth += 1
        if isinstance(value, Mapping | tuple | list | set | frozenset):
            yield from _container(value, seen)
            seen[-len(seen)] = seen.pop(id(value))  # kept, and taken apart where it is met again
        elif isinstance(value, torch.Tensor | np.ndarray | np.generic):
            yield from _array(value, seen)
        elif isinstance(value, nn.Module):
            yield from _module(value, seen)
        else:
            yield from _object(value, seen)
        seen.depth -= 1


def _container(value: Any, seen: Seen) -> Iterator[bytes]:
    yield f"{type(value).__name__} {len(value)}".encode()
    if isinstance(value, set | frozenset):
        # In another order in each process, so no item knows of the others, but all of what is
        # around them: an object may hold the set that it is in.
        yield from sorted(b"".join(_parts(item, seen.copy())) for item in value)
        return
    mapping = isinstance(value, Mapping)
    for item in value.items() if mapping else value:
        for part in item if mapping else (item,):
            yield from _parts(part, seen)


def _array(value: Any, seen: Seen) -> Iterator[bytes]:
    yield f"array {tuple(value.shape)} {value.dtype}".encode()
    if isinstance(value, torch.Tensor):
        yield bytes_of(value if value.layout is torch.strided else value.detach().to_dense())
    elif value.dtype.hasobject:
        yield from _parts(value.tolist(), seen)
    else:
        yield value.tobytes()


def _object(value: object, seen: Seen) -> Iterator[bytes]:
    """Yield what makes a function, a class, or what has attributes what it is."""
    if isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _parts((value.__func__, value.__self__), seen)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _parts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _parts((value.fget, value.fset), seen)
    elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        yield f"{getattr(value, '__module__', '')} {value.__name__}".encode()
    else:
        yield from _parts(type(value), seen)
        if not _of_library(type(value)):
            # attributes, and what is in slots, by whatever names
            yield from _parts(object.__getstate__(value) or {}, seen)


def _of_library(value: object) -> bool:
    """Return whether a class or function comes with Python or an installed library."""
    return library_named(value) is not None


def _function(value: types.FunctionType, seen: Seen) -> Iterator[bytes]:
    if _of_library(value):
        yield f"{value.__module__}.{value.__qualname__}".encode()
        return
    yield from _code(value.__code__, seen)
    cells = [_content(cell) for cell in value.__closure__ or ()]  # each may not be filled yet
    yield from _parts((cells, value.__defaults__, value.__kwdefaults__), seen)
    for name in sorted(
        names_in(value.__code__, "LOAD_GLOBAL", "LOAD_NAME") & value.__globals__.keys()
    ):
        yield name.encode()
        yield from _parts(value.__globals__[name], seen)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _code(code: types.CodeType, seen: Seen) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, seen)
        else:
            yield from _parts(constant, seen)


def _class(value: type, seen: Seen) -> Iterator[bytes]:
    """Yield a class's name, and for those of the user what is defined in it."""
    known = (types.FunctionType, staticmethod, classmethod, property, *_PLAIN)
    for one in value.__mro__:
        if _of_library(one):
            yield f"{one.__module__}.{one.__qualname__}".encode()
            continue
        yield one.__qualname__.encode()
        for name, held in sorted(vars(one).items()):
            if isinstance(held, known) and name not in _NAMES:
                yield name.encode()
                yield from _parts(held, seen)


def _module(value: nn.Module, seen: Seen) -> Iterator[bytes]:
    """Yield a module's type, mode, settings, hooks, tensors and parts."""
    yield from _parts(type(value), seen)
    yield f"training {value.training}".encode()
    for name, tensor in [*value._parameters.items(), *value._buffers.items()]:
        yield name.encode()
        if tensor is not None:
            yield f"{tensor.requires_grad} {tuple(tensor.shape)} {tensor.dtype}".encode()
            yield from _parts(tensor, seen)
    library = _of_library(type(value))
    for name, held in sorted(value.__dict__.items()):
        if name in _HOOKS:
            yield from _parts([name, *held.values()], seen)
        elif name not in _OF_MODULES | _MARKS and not (library and name.startswith("_")):
            yield from _parts([name, held], seen)
    for name, part in value._modules.items():
        yield name.encode()
        yield from _parts(part, seen)
