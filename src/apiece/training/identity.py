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
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.training.clipping import torch_internals
from apiece.training.clipping.libraries import library_named
from apiece.training.clipping.watch import names_in

# Types whose values are digested by their text.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))

# Types whose values are digested by their name.
_BY_NAME = (torch.dtype, torch.device, torch.layout, np.dtype, enum.Enum)

# Attributes that torch itself puts on every module.
_MODULE_ATTRIBUTES = frozenset(
    {*nn.Module().__dict__, "_compiled_call_impl", "_is_full_backward_hook"}
)

# Marks by which other training loops know a user's model again; no forward reads them.
_MARKS = frozenset({"_is_accelerate_prepared"})

# Dicts of hooks that run around a module's own forward or backward.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Attributes of a class that say where it stands and not what it does.
_CLASS_LABELS = ("__module__", "__doc__", "__qualname__", "__firstlineno__")

# Limits on objects that are looked into, in all and inside one another; beyond, only types count.
_MOST_OBJECTS = 20_000
_MOST_DEPTH = 60


class Seen(dict[int, tuple[int | str, object]]):
    """The objects of a walk: id → number or name, and the object, which keeps the id in use.

    known: how many of them are the model's tensors. depth: of the walk at present.
    """

    known = 0
    depth = 0

    def copy(self) -> Seen:
        """Return a copy for a walk that shares nothing further with this one."""
        seen = Seen(self)
        seen.known = self.known
        seen.depth = self.depth
        return seen


def identity_of(value: object, key: bytes, *, model: nn.Module) -> str:
    """Return a keyed digest of a loss, a model or a setting: its code, settings and tensors.

    Functions go by their code and what they close over; modules by their type, settings, mode and
    parts; objects of a library by their type. Names of files and of places in them do not count,
    nor do the values that the model's own tensors have just now.
    """
    # The model's tensors count by their names, as objects that were met before.
    seen = Seen()
    # By `state_dict`, which also names buffers; tied tensors keep their first name.
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            seen.setdefault(id(tensor), (name, tensor))
    seen.known = len(seen)
    digest = hashlib.blake2b(key=key, digest_size=16)
    for part in _yield_parts(value, seen):
        # With its length, so that no two sequences of parts run together into the same bytes.
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's values as they are in memory: numpy lacks some of torch's types."""
    # As bytes, since numpy lacks bfloat16 and others.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def copy_settings(optimizer: torch.optim.Optimizer, scheduler: Any) -> dict[str, Any]:
    """Return the settings of an optimizer and a scheduler as they are now, for `identity_of`."""
    # Parameters are left out of the copy: they count by the names the model gives them.
    groups = copy.deepcopy([{**group, "params": None} for group in optimizer.param_groups])
    parameters = [group["params"] for group in optimizer.param_groups]
    rates = None
    if scheduler is not None:
        state = copy.deepcopy(scheduler.state_dict())
        # The functions of a LambdaLR are not in its state, and are looked at as code.
        rates = [type(scheduler), state, getattr(scheduler, "lr_lambdas", None)]
    return {"scheduler": rates, "optimizer": [type(optimizer), groups, parameters]}


def _yield_parts(value: object, seen: Seen) -> Iterator[bytes]:
    """Yield the bytes that identify a value; for one that was met before, its number."""
    kind = type(value)
    # By the text of a plain value with its type: 1, 1.0 and True differ.
    if isinstance(value, _PLAIN):
        yield f"{kind.__name__} {value!r}".encode()
    elif isinstance(value, _BY_NAME):
        yield f"{kind.__qualname__} {value}".encode()
    elif id(value) in seen or len(seen) > _MOST_OBJECTS or seen.depth > _MOST_DEPTH:
        # A value that was met before stands as its number; beyond the limits only the type counts.
        number, _ = seen.get(id(value), ("-", None))
        yield f"{kind.__qualname__} {number}".encode()
    else:
        # Numbers count from the model's tensors on, so that a model of more tensors changes nothing
        # else.
        seen[id(value)] = len(seen) - seen.known, value
        seen.depth += 1
        if isinstance(value, Mapping | tuple | list | set | frozenset):
            yield from _yield_container(value, seen)
            # Stored under another key: its id stays in use, and a container with equal items is
            # taken apart again wherever it is met, as it may be made anew each time.
            seen[-len(seen)] = seen.pop(id(value))
        elif isinstance(value, torch.Tensor | np.ndarray | np.generic):
            yield from _yield_array(value, seen)
        elif isinstance(value, nn.Module):
            yield from _yield_module(value, seen)
        else:
            yield from _yield_object(value, seen)
        seen.depth -= 1


def _yield_container(value: Any, seen: Seen) -> Iterator[bytes]:
    yield f"{type(value).__name__} {len(value)}".encode()
    if isinstance(value, set | frozenset):
        # A set has another order in each process. So each item is walked as if it were the first,
        # but with all that is around the set: an object may hold the set that it is in.
        yield from sorted(b"".join(_yield_parts(item, seen.copy())) for item in value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _yield_parts(name, seen)
            yield from _yield_parts(item, seen)
    else:
        for item in value:
            yield from _yield_parts(item, seen)


def _yield_array(value: Any, seen: Seen) -> Iterator[bytes]:
    # Shape and type first, since the bytes alone could be of another form.
    yield f"array {tuple(value.shape)} {value.dtype}".encode()
    if isinstance(value, torch.Tensor):
        is_dense = value.layout is torch.strided
        yield bytes_of(value if is_dense else value.detach().to_dense())
    elif value.dtype.hasobject:
        yield from _yield_parts(value.tolist(), seen)
    else:
        yield value.tobytes()


def _yield_object(value: object, seen: Seen) -> Iterator[bytes]:
    """Yield the parts of a function, of a class, or of an object with attributes."""
    if isinstance(value, functools.partial):
        yield from _yield_parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _yield_parts((value.__func__, value.__self__), seen)
    elif isinstance(value, types.FunctionType):
        yield from _yield_function(value, seen)
    elif isinstance(value, type):
        yield from _yield_class(value, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _yield_parts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _yield_parts((value.fget, value.fset), seen)
    elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        yield f"{getattr(value, '__module__', '')} {value.__name__}".encode()
    else:
        yield from _yield_parts(type(value), seen)
        if not _is_of_library(type(value)):
            # The attributes, and the values in slots.
            # By `object`'s own method, since a class's `__getstate__` may leave some of them out.
            yield from _yield_parts(object.__getstate__(value) or {}, seen)


def _is_of_library(value: object) -> bool:
    """Return whether a class or function comes with Python or an installed library."""
    return library_named(value) is not None


def _yield_function(value: types.FunctionType, seen: Seen) -> Iterator[bytes]:
    if _is_of_library(value):
        yield f"{value.__module__}.{value.__qualname__}".encode()
        return
    yield from _yield_code(value.__code__, seen)
    # Closed-over values, defaults and globals: all by which a function can be another one.
    cells = [_read_cell(cell) for cell in value.__closure__ or ()]
    yield from _yield_parts((cells, value.__defaults__, value.__kwdefaults__), seen)
    # Only globals that the code names; their order is that of the names.
    names = names_in(value.__code__, "LOAD_GLOBAL", "LOAD_NAME")
    for name in sorted(names & value.__globals__.keys()):
        yield name.encode()
        yield from _yield_parts(value.__globals__[name], seen)


def _read_cell(cell: types.CellType) -> object:
    """Return a closure's value; an ellipsis where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _yield_code(code: types.CodeType, seen: Seen) -> Iterator[bytes]:
    yield code.co_code
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    yield repr(names).encode()
    # Functions within functions are constants of their code.
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _yield_code(constant, seen)
        else:
            yield from _yield_parts(constant, seen)


def _yield_class(value: type, seen: Seen) -> Iterator[bytes]:
    """Yield the names of a class and its bases, and the definitions in those of the user."""
    digested = (types.FunctionType, staticmethod, classmethod, property, *_PLAIN)
    # The whole line of bases: a method may come from any of them.
    for base in value.__mro__:
        if _is_of_library(base):
            yield f"{base.__module__}.{base.__qualname__}".encode()
            continue
        yield base.__qualname__.encode()
        for name, definition in sorted(vars(base).items()):
            if isinstance(definition, digested) and name not in _CLASS_LABELS:
                yield name.encode()
                yield from _yield_parts(definition, seen)


def _yield_module(value: nn.Module, seen: Seen) -> Iterator[bytes]:
    """Yield a module's type, mode, settings, hooks, tensors and parts."""
    yield from _yield_parts(type(value), seen)
    yield f"training {value.training}".encode()
    parameters = torch_internals.parameters_of(value)
    buffers = torch_internals.buffers_of(value)
    # In the order of registration, which is that of `named_parameters`.
    for name, tensor in itertools.chain(parameters.items(), buffers.items()):
        yield name.encode()
        if tensor is not None:
            shape = tuple(tensor.shape)
            yield f"{tensor.requires_grad} {shape} {tensor.dtype}".encode()
            yield from _yield_parts(tensor, seen)
    is_of_library = _is_of_library(type(value))
    for name, attribute in sorted(value.__dict__.items()):
        # A library's private attributes are its own affair, such as caches.
        is_private = is_of_library and name.startswith("_")
        if name in _HOOKS:
            yield from _yield_parts([name, *attribute.values()], seen)
        elif name not in _MODULE_ATTRIBUTES | _MARKS and not is_private:
            yield from _yield_parts([name, attribute], seen)
    for name, part in torch_internals.submodules_of(value).items():
        yield name.encode()
        yield from _yield_parts(part, seen)
