"""Python's values that a model and its loss hold: watched, put back, copied, compared.

One walk goes into all of them. A capture has frozen what their code reads (`Watch`) and puts back
what a forward writes (`Kept`). A record that runs alone gets functions of its own (`held_by`); what
copies do not reach is compared before and after (`written`).
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import hashlib
import itertools
import math
import operator
import random
import sys
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, torch.dtype)
_DEPTH = 6  # of objects within objects that a capture looks at
_FIXED = (types.ModuleType, type, types.BuiltinFunctionType)
_READ = {"torch", "transformers", "timm", "peft", "torchvision", "apiece"}  # their globals stay
Reader = Callable[[], Iterable[object]]


def walk(
    roots: Sequence[object], within: Callable[[Any], Iterable[object]], depth: float = math.inf
) -> Iterator[tuple[Any, int | None]]:
    """Yield what `within` leads to, outer values first; with its place, what came before."""
    places: dict[int, int] = {}
    alive: list[object] = []  # an id stands for its value only while that lives
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:
        value, level = waiting.pop()
        if isinstance(value, _PLAIN):
            yield value, None
            continue
        place = places.get(id(value))
        yield value, place
        if place is None:
            places[id(value)] = len(alive)
            alive.append(value)
            if level < depth:
                inner = reversed(list(within(value)))
                waiting += [(one, 0 if isinstance(one, nn.Module) else level + 1) for one in inner]


def _held(value: Any) -> list[Any]:
    """Return what a value itself holds."""
    if isinstance(value, torch.Tensor | types.ModuleType | type):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [*map(_content, value.__closure__ or ()), value.__dict__]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    held = getattr(value, "__dict__", None)
    own = isinstance(value, nn.Module) or not _is_of_torch(value)
    return [held] if isinstance(held, dict) and own else []


def _is_of_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in ("torch", "numpy")


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def held_by(model: nn.Module, loss_fn: object) -> tuple[list[types.FunctionType], list[object]]:
    """Return the functions with closures or defaults that model and loss hold, and libraries.

    Libraries are Python's modules and operators registered with torch: nobody can copy them.
    """
    functions: list[types.FunctionType] = []
    libraries: list[object] = []
    for value, place in walk([model, loss_fn], _held):
        if place is None and isinstance(value, types.ModuleType | CustomOpDef):
            libraries.append(value)
        elif place is None and isinstance(value, types.FunctionType):
            functions += [value] if value.__closure__ or value.__defaults__ else []
    return functions, libraries


# ---------------------------------------------------------------- what a forward writes


def _run(value: Any) -> list[Any]:
    """Return what a value holds, and the code of its class that a forward runs."""
    if isinstance(value, types.FunctionType):
        return [*map(_content, value.__closure__ or ())]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    call = getattr(type(value), "forward" if isinstance(value, nn.Module) else "__call__", None)
    return [*_held(value), *([call] if isinstance(call, types.FunctionType) else [])]


class Kept:
    """Python's state of a model and a loss: what a forward may have written.

    changed: the places that had changed when `restored` put them back.
    attributes: of those, by place, a module and its attribute's name where it is no more than that.
    """

    def __init__(self, model: nn.Module, loss_fn: object) -> None:
        self._model, self._loss_fn = model, loss_fn
        self.changed: list[str] = []
        self.attributes: dict[str, tuple[nn.Module, str]] = {}

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put everything back that changes meanwhile; note what did."""
        paths = {id(module): name for name, module in self._model.named_modules()}
        owners: dict[int, tuple[nn.Module, str]] = {}
        names: dict[int, str | None] = {}
        before: list[tuple[Any, Any]] = []
        for value, place in walk([self._model, self._loss_fn], _run, _DEPTH):
            if place is not None:
                continue
            if isinstance(value, nn.Module):
                path = paths.get(id(value), "loss_fn") or type(value).__name__
                owners[id(value.__dict__)] = value, path
                for key, inner in value.__dict__.items():
                    silent = key.startswith("_") and _is_a_layer_of_torch(value)
                    names[id(inner)] = None if silent else f"{path}.{key.removeprefix('_')}"
            elif isinstance(value, types.FunctionType):
                before += [(cell, _content(cell)) for cell in value.__closure__ or ()]
            elif isinstance(value, list | dict | set) and not _is_of_torch(value):
                kind = next(k for k in (list, dict, set) if isinstance(value, k))
                before.append((value, kind(value)))
        try:
            yield
        finally:
            self.changed, self.attributes = [], {}
            for holder, content in before:
                if id(holder) in owners:
                    self._put_back_attributes(*owners[id(holder)], content)
                elif _put_back(holder, content):
                    name = names.get(id(holder), "something that the model or the loss holds")
                    self.changed += [] if name is None else [name]

    def _put_back_attributes(self, module: nn.Module, path: str, held: dict[str, Any]) -> None:
        now = module.__dict__
        new = [key for key in now if key not in held]
        moved = [key for key, value in held.items() if key not in now or now[key] is not value]
        for key in new:
            del now[key]
        now.update({key: held[key] for key in moved})
        for key in () if _is_a_layer_of_torch(module) else (*new, *moved):
            self.changed.append(f"{path}.{key}")
            self.attributes[self.changed[-1]] = module, key


def _is_a_layer_of_torch(module: nn.Module) -> bool:
    """Return whether changes are torch's own: recurrent layers note which weights they hold."""
    return type(module).__module__.startswith("torch.nn.modules.")


def _put_back(holder: Any, content: Any) -> bool:
    """Let a holder have its content again; return whether it had another."""
    if isinstance(holder, types.CellType):
        changed = _content(holder) is not content
        if changed:
            holder.cell_contents = content
    elif isinstance(holder, dict):
        changed = list(holder) != list(content) or any(holder[k] is not content[k] for k in content)
        if changed:
            holder.clear()
            holder.update(content)
    elif isinstance(holder, list):
        changed = len(holder) != len(content) or any(map(operator.is_not, holder, content))
        if changed:
            holder[:] = content
    else:
        changed = holder != content
        if changed:
            holder.clear()
            holder.update(content)
    return changed


# ---------------------------------------------------------------- what a capture has frozen


def _read(value: Any) -> list[Any]:
    """Return what code may read from a value: what it holds, and what functions name."""
    named = [here[name] for here, names in _namespaces(value) for name in names]
    if isinstance(value, nn.Module):
        held = [v for k, v in value.__dict__.items() if k != "_buffers"]
        return [*held, *_methods(type(value)), *named]
    if isinstance(value, types.FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*map(_content, value.__closure__ or ()), *defaults, *named]
    return _held(value) if _is_of_torch(value) else _run(value)


def names_in(code: types.CodeType, *operations: str) -> set[str]:
    """Return the names that operations of code have, those of functions within it too."""
    own = {at.argval for at in dis.get_instructions(code) if at.opname in operations}
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return own.union(*(names_in(one, *operations) for one in inner))


def _is_read(name: str | None) -> bool:
    """Return whether a module's code is the user's, so that what it names is watched."""
    return (name or "").partition(".")[0] not in _READ | sys.stdlib_module_names - {"__main__"}


def _methods(owner: type) -> list[types.FunctionType]:
    """Return the user's methods that a forward runs, and those that these name in turn."""
    result: dict[str, types.FunctionType] = {}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        for one in owner.__mro__ if name not in result else ():
            held = vars(one).get(name)
            held = getattr(held, "__func__", None) or getattr(held, "fget", held)
            if isinstance(held, types.FunctionType) and _is_read(one.__module__):
                result[name] = held
                waiting += sorted(names_in(held.__code__, "LOAD_ATTR", "LOAD_METHOD"))
                break
    return [*result.values()]


def _namespaces(value: Any) -> list[tuple[Mapping[str, Any], list[str]]]:
    """Return where code of the user's looks up values, and their names there.

    A function's are its globals and, of modules and classes among these, what it reads of them; a
    model's are its class's. What the code itself writes there (a count of calls) is left out.
    """
    waiting: list[tuple[Mapping[str, Any], set[str]]] = []
    if isinstance(value, nn.Module):
        codes = [method.__code__ for method in _methods(type(value))]
        waiting = [(vars(one), set()) for one in type(value).__mro__ if _is_read(one.__module__)]
    elif isinstance(value, types.FunctionType) and _is_read(value.__module__):
        codes = [value.__code__]
        waiting = [(value.__globals__, names_in(value.__code__, "LOAD_GLOBAL", "LOAD_NAME"))]
    if not waiting:
        return []
    reads = set[str]().union(*(names_in(code, "LOAD_ATTR", "LOAD_METHOD") for code in codes))
    reads -= set[str]().union(*(names_in(code, "STORE_ATTR") for code in codes))
    result: list[tuple[Mapping[str, Any], list[str]]] = []
    seen: set[int] = set()
    while waiting:
        here, names = waiting.pop()
        known = sorted((names or reads) & here.keys())
        result.append((here, [name for name in known if not isinstance(here[name], _FIXED)]))
        for inner in (here[name] for name in known):
            own = getattr(
                inner, "__name__" if isinstance(inner, types.ModuleType) else "__module__", None
            )
            if (
                isinstance(inner, types.ModuleType | type)
                and id(inner) not in seen
                and _is_read(own)
            ):
                seen.add(id(inner))
                waiting.append((vars(inner), reads))
    return [(here, names) for here, names in result if names]


class Watch:
    """The Python values that a capture has seen, held so that a change of any is noticed.

    It is asked at every call, and so must cost less than a small step.

    key: What a graph of model and loss depends on besides tensors' values.
    """

    def __init__(self, model: nn.Module, loss_fn: object) -> None:
        marks: list[Hashable] = []
        self._live: list[Collection[object]] = []  # these show their contents as they are now
        self._readers: list[Reader] = []
        for value, place in walk([model, loss_fn], _read, _DEPTH):
            marks.append(_mark(value) if place is None else place)
            if place is None and isinstance(value, nn.Module):
                self._live.append(value.__dict__.values())
                self._readers += _readers(value)
            elif place is None and isinstance(value, dict | list | set):
                self._live.append(value.values() if isinstance(value, dict) else value)
            elif place is None and isinstance(value, types.FunctionType):
                self._readers += _readers(value)
        self._lengths = list(map(len, self._live))
        self._before = list(self._contents())
        self._ambient = _ambient()
        self.key = (*marks, *self._ambient)

    def unchanged(self) -> bool:
        """Return whether everything is the very same object as it was."""
        return (
            list(map(len, self._live)) == self._lengths
            and all(map(operator.is_, self._contents(), self._before))
            and self._ambient == _ambient()
        )

    def _contents(self) -> Iterator[object]:
        """Return all contents, one after the other; a reader gives as many at each time."""
        some = itertools.chain.from_iterable
        return itertools.chain(some(self._live), some(read() for read in self._readers))


def _ambient() -> tuple[Hashable, ...]:
    """Return torch's settings that a capture depends on."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
    )


def _readers(value: Any) -> list[Reader]:
    """Return what gives the contents of a closure and of what code names, as they are now."""
    cells = getattr(value, "__closure__", None)
    result: list[Reader] = [functools.partial(map, _content, cells)] if cells else []
    return [
        *result,
        *(functools.partial(map, here.get, names) for here, names in _namespaces(value)),
    ]


def _mark(value: Any) -> Hashable:
    """Return what tells a value from others; functions and methods are made anew at each look."""
    if isinstance(value, _PLAIN):
        return type(value), value if isinstance(value, int | str | bytes) else repr(value)
    if isinstance(value, types.FunctionType):
        return id(value.__code__)
    if isinstance(value, types.MethodType):
        return types.MethodType
    if isinstance(value, torch.Tensor):
        return id(value), value.requires_grad
    if isinstance(value, nn.Module):
        return id(value), tuple(value.__dict__), tuple(value._buffers)
    if isinstance(value, dict | list | tuple | set | frozenset) and not value:
        return type(value)
    if isinstance(value, dict):
        return id(value), tuple(k if isinstance(k, _PLAIN) else id(k) for k in value)
    return id(value)


# ---------------------------------------------------------------- what copies do not reach

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
    types.MethodWrapperType, types.ClassMethodDescriptorType, types.ModuleType, weakref.ref,
    torch.device, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_STREAMS: dict[type, Callable[[Any], object]] = {
    torch.Generator: lambda stream: stream.get_state().numpy().tobytes(),
    random.SystemRandom: lambda _stream: None,  # holds nothing
    random.Random: lambda stream: stream.getstate(),
    np.random.Generator: lambda stream: stream.bit_generator.state,
    np.random.RandomState: lambda stream: stream.get_state(legacy=False),
    itertools.count: lambda stream: stream,
}


def written(model: nn.Module, loss_fn: object, *, whole: bool) -> list[object]:
    """Return what a forward of the model, or the loss, may have written, to be compared.

    The walk goes into what they hold, their classes, and wherever their code goes by name. Large
    tensors count by their version, and where `whole` by their values.
    """
    result = walk([model, loss_fn], _writable)
    return [_seen(value, whole) if place is None else place for value, place in result]


def _seen(value: Any, whole: bool) -> object:
    """Return what is compared of a value itself."""
    if isinstance(value, _PLAIN):
        # an int as it is: Python writes none of more than 4,300 digits
        return (type(value), value) if isinstance(value, int) else repr(value)
    own: object = None
    if isinstance(value, torch.Tensor):
        own = _of_tensor(value, whole)
    elif isinstance(value, types.FunctionType):
        own = id(value.__code__)
    elif isinstance(value, types.ModuleType):
        own = value.__name__  # what of it is named is looked at from there
    elif isinstance(value, type):
        own = sorted(vars(value).keys() - _NOTED) if _is_of_a_library(value.__module__) else None
    elif isinstance(value, np.ndarray):
        if not value.dtype.hasobject and (whole or value.nbytes <= _SMALL):
            own = value.shape, _hash(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytearray | memoryview):
        own = _hash(bytes(value))
    elif (read := next((_STREAMS[k] for k in _STREAMS if isinstance(value, k)), None)) is not None:
        own = _hash(repr(read(value)).encode())
    return type(value).__qualname__, own


def _of_tensor(tensor: torch.Tensor, whole: bool) -> tuple[object, ...]:
    kind = (tuple(tensor.shape), tensor.dtype, tensor._version, tensor.requires_grad)
    size = tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.strided or tensor.is_meta:
        return kind
    if size > _SMALL and not whole:
        return (*kind, tensor.data_ptr())
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return (*kind, _hash(plain.view(torch.uint8).numpy().tobytes() if size else b""))


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _is_of_a_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _LIBRARIES


def _writable(value: Any) -> Iterator[object]:
    """Yield what is within a value, in slots, in C or in a dict, and what its code names."""
    if isinstance(value, torch.Tensor):
        yield value.__dict__
    elif isinstance(value, nn.Module):
        yield from (value.__dict__, *type(value).__mro__)
    elif isinstance(value, dict | types.MappingProxyType):
        yield from itertools.chain.from_iterable(list(value.items()))
    elif isinstance(value, types.FunctionType):
        yield from map(_content, value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__)
        for key, inner in list(value.__dict__.items()):
            if not key.startswith(("__", "_torchdynamo")):  # a library's notes on functions
                yield from (key, inner)
        if not _is_of_a_library(value.__module__):
            yield from _named(value)
    elif isinstance(value, type):
        library = _is_of_a_library(value.__module__)
        for key, inner in list(vars(value).items()):
            kept = not library or isinstance(inner, (*_PLAIN, torch.Tensor, np.ndarray))
            if kept and key not in _NOTED:
                yield from (key, inner)
        yield from () if library else value.__mro__[1:]
    elif isinstance(value, np.ndarray):
        yield from [value.tolist()] if value.dtype.hasobject else []
    elif not isinstance(value, (*_OPAQUE, bytearray, memoryview, *_STREAMS)):
        # CPython keeps attributes without a dict until one is asked for: ask, so that it is there.
        with contextlib.suppress(AttributeError):
            object.__getattribute__(value, "__dict__")
        for inner in gc.get_referents(value):
            if inner is not type(value) or not _is_of_a_library(type(value).__module__):
                yield inner


def _named(function: types.FunctionType) -> Iterator[object]:
    """Yield what a function's code names: globals, and attributes of modules among them."""
    names, here = _names(function.__code__), function.__globals__
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
            for inner in (held[name] for name in sorted(names & held.keys())):
                own = not _is_of_a_library(getattr(inner, "__module__", value.__name__))
                waiting += [inner] if own or not callable(inner) else []


def _names(code: types.CodeType) -> set[str]:
    """Return the names in a function's code and in that of the functions within it."""
    result = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            result |= _names(constant)
        elif isinstance(constant, str):
            result.add(constant)  # setattr(module, "name", …)
    return result
