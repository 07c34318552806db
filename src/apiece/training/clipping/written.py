"""Everything that a model and a loss can write to and read again, as one value to compare.

One record alone runs on copies of the model, the loss and their closures; what copies do not reach
(globals, classes, caches of functions, a library's attributes) is looked at before and after. The
walk goes wherever the code of the model and the loss goes by name, and into whatever it finds.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import random
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, torch.dtype)
_SMALL = 1 << 14  # bytes of a tensor that are hashed after each record; of others, the version
_LIBRARIES = sys.stdlib_module_names | {
    "torch", "numpy", "transformers", "timm", "peft", "torchvision", "apiece", "accelerate",
    "scipy", "pandas", "sklearn", "einops", "sympy", "pytest", "_pytest", "hypothesis",
}  # fmt: skip
_ANYWHERE = {"globals", "vars", "exec", "eval", "__globals__", "locals"}
_NOTED = {  # in classes, by Python itself
    "__weakref__", "__dict__", "_abc_impl", "__doc__", "__slotnames__", "__annotations__",
}  # fmt: skip
_OPAQUE = (
    types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, weakref.ref, torch.device,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip


def written(model: nn.Module, loss_fn: Any, *, whole: bool) -> list[Any]:
    """Return what a forward of the model, or the loss, may have written, to be compared.

    Args:
        model: Its modules, with all that they hold, their classes, and what their code names.
        loss_fn: As the model.
        whole: Whether large tensors are hashed; if not, it is their version that counts.
    """
    walk = _Walk(whole)
    walk.go([model, loss_fn])
    return walk.found


class _Walk:
    """A walk through values, with what is found of each, in order."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.found: list[Any] = []
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an id stands for its value only while that lives

    def go(self, waiting: list[Any]) -> None:
        """Go through values and whatever is within them."""
        while waiting:
            value = waiting.pop()
            if isinstance(value, _PLAIN):
                # an int as it is: Python writes none of more than 4,300 digits
                exact = isinstance(value, int)
                self.found.append((type(value), value) if exact else repr(value))
                continue
            if id(value) in self._seen:
                self.found.append(self._seen[id(value)])
                continue
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            if not isinstance(value, _OPAQUE):
                waiting += reversed(list(self._within(value)))

    def _within(self, value: Any) -> Iterator[Any]:
        """Note what a value is, and yield what is within it."""
        self.found.append(type(value).__qualname__)
        if isinstance(value, torch.Tensor):
            self.found.append(self._of_tensor(value))
            yield value.__dict__
        elif isinstance(value, nn.Module):
            yield from (value.__dict__, *type(value).__mro__)
        elif isinstance(value, dict | types.MappingProxyType):
            for key, inner in list(value.items()):
                yield from (key, inner)
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, types.ModuleType):
            self.found.append(value.__name__)  # what of it is named is looked at from there
        else:
            yield from self._of_object(value)

    def _of_tensor(self, tensor: torch.Tensor) -> Any:
        kind = (tuple(tensor.shape), tensor.dtype, tensor._version, tensor.requires_grad)
        size = tensor.numel() * tensor.element_size()
        if tensor.layout is not torch.strided or tensor.is_meta:
            return kind
        if size > _SMALL and not self.whole:
            return (*kind, tensor.data_ptr())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        return (*kind, _hash(plain.view(torch.uint8).numpy().tobytes() if size else b""))

    def _of_function(self, function: types.FunctionType) -> Iterator[Any]:
        self.found.append(id(function.__code__))
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                yield None
        yield from (function.__defaults__, function.__kwdefaults__)
        for key, value in list(function.__dict__.items()):
            if not key.startswith(("__", "_torchdynamo")):  # a library's notes on functions
                yield from (key, value)
        if not _is_of_a_library(function.__module__):
            yield from _named(function)

    def _of_class(self, kind: type) -> Iterator[Any]:
        held = vars(kind)
        library = _is_of_a_library(kind.__module__)
        if library:
            self.found.append(sorted(held.keys() - _NOTED))
        for key, value in list(held.items()):
            if library and not isinstance(value, (*_PLAIN, torch.Tensor, np.ndarray)):
                continue
            if key not in _NOTED:
                yield from (key, value)
        if not library:
            yield from kind.__mro__[1:]

    def _of_object(self, value: Any) -> Iterator[Any]:
        """An object of any other kind: its state where it says it, and all that it refers to."""
        if isinstance(value, np.ndarray | bytearray | memoryview) and value is not None:
            yield from self._of_buffer(value)
        elif isinstance(value, torch.Generator):
            self.found.append(_hash(value.get_state().numpy().tobytes()))
        elif isinstance(value, random.SystemRandom):
            pass  # holds nothing
        elif isinstance(value, random.Random):
            self.found.append(_hash(repr(value.getstate()).encode()))
        elif isinstance(value, np.random.Generator):
            self.found.append(_hash(repr(value.bit_generator.state).encode()))
        elif isinstance(value, np.random.RandomState):
            self.found.append(_hash(repr(value.get_state(legacy=False)).encode()))
        elif isinstance(value, itertools.count):
            self.found.append(repr(value))
        else:
            yield from _referred(value)

    def _of_buffer(self, value: Any) -> Iterator[Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                yield value.tolist()
            elif self.whole or value.nbytes <= _SMALL:
                self.found.append((value.shape, _hash(np.ascontiguousarray(value).tobytes())))
        else:
            self.found.append(_hash(bytes(value)))


def _referred(value: Any) -> Iterator[Any]:
    """Yield what an object holds, in slots, in C or in a dict; not its class where a library's."""
    for inner in gc.get_referents(value):
        if inner is type(value) and _is_of_a_library(type(value).__module__):
            continue
        yield inner


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _is_of_a_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _LIBRARIES


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's code names: globals, and attributes of modules among them."""
    names = _names(function.__code__)
    here = function.__globals__
    if _ANYWHERE & names:
        yield [value for name, value in list(here.items()) if not name.startswith("__")]
    waiting = [here[name] for name in sorted(names & here.keys())]
    modules: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in modules:
            modules.add(id(value))
            held = vars(value)
            for name in sorted(names & held.keys()):
                inner = held[name]
                own = not _is_of_a_library(getattr(inner, "__module__", value.__name__))
                if own or not callable(inner):
                    waiting.append(inner)


def _names(code: types.CodeType) -> set[str]:
    """Return the names in a function's code and in that of the functions within it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
        elif isinstance(constant, str):
            found.add(constant)  # setattr(module, "name", …)
    return found
