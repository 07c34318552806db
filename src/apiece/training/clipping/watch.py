"""What of Python's a captured graph has frozen: watched, so that a change is seen."""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 6  # of objects within objects
_UNSEEN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}


class Kept:
    """Python's state of a model and a loss: what a forward may have written.

    changed: the places that had changed when `restored` put them back.
    attributes: of those, by place, a module and its attribute's name where it is no more than that.
    """

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        self._modules = [module for _, module in model.named_modules()]
        if isinstance(loss_fn, nn.Module):
            self._modules += [module for _, module in loss_fn.named_modules()]
        names = {id(m): n for n, m in model.named_modules()}
        self._names = [names.get(id(m), "loss_fn") or type(m).__name__ for m in self._modules]
        self._loss_fn = loss_fn
        self.changed: list[str] = []
        self.attributes: dict[str, tuple[nn.Module, str]] = {}

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put everything back that changes meanwhile; note what did."""
        before = [_copied(module.__dict__) for module in self._modules]
        cells = [(cell, _content(cell)) for cell in _cells(self._loss_fn, self._modules)]
        lists = _mutables(before, cells)
        try:
            yield
        finally:
            self.changed, self.attributes = [], {}
            for name, module, held in zip(self._names, self._modules, before, strict=True):
                self._put_back(name, module, held)
            for cell, content in cells:
                if _content(cell) is not content:
                    self.changed.append("loss_fn")
                    cell.cell_contents = content
            for holder, content in lists:
                self._refill(holder, content)

    def _put_back(self, name: str, module: nn.Module, held: dict[str, Any]) -> None:
        now, noted = module.__dict__, len(self.changed)
        for key in [k for k in now if k not in held]:
            self._note(name, module, key)
            del now[key]
        for key, value in held.items():
            if isinstance(value, dict) and isinstance(now.get(key), dict) and key.startswith("_"):
                inner = now[key]
                if list(inner) != list(value) or any(inner[k] is not value[k] for k in value):
                    self.changed.append(f"{name}.{key.removeprefix('_')}")
                    inner.clear()
                    inner.update(value)
            elif key not in now or now[key] is not value:
                self._note(name, module, key)
                now[key] = value
        if type(module).__module__.startswith("torch.nn.modules."):
            for place in self.changed[noted:]:  # recurrent ones note which weights they hold
                self.attributes.pop(place, None)
            del self.changed[noted:]

    def _note(self, name: str, module: nn.Module, key: str) -> None:
        self.changed.append(f"{name}.{key}")
        self.attributes[self.changed[-1]] = module, key

    def _refill(self, holder: Any, content: Any) -> None:
        if isinstance(holder, list):
            if len(holder) != len(content) or any(map(_differs, holder, content)):
                self.changed.append("a list that the model or the loss holds")
                holder[:] = content
        elif isinstance(holder, dict):
            if holder.keys() != content.keys() or any(holder[k] is not content[k] for k in content):
                self.changed.append("a dict that the model or the loss holds")
                holder.clear()
                holder.update(content)
        elif isinstance(holder, set) and holder != content:
            self.changed.append("a set that the model or the loss holds")
            holder.clear()
            holder.update(content)


def _differs(one: Any, other: Any) -> bool:
    return one is not other


def _copied(held: dict[str, Any]) -> dict[str, Any]:
    """Return a copy; torch's own dicts of a module (`_buffers`, hooks) are copied too."""
    return {
        key: dict(value) if isinstance(value, dict) and key.startswith("_") else value
        for key, value in held.items()
    }


def _mutables(before: list[dict[str, Any]], cells: list[Any]) -> list[tuple[Any, Any]]:
    """Return lists, dicts and sets within what is held, each with a copy of what is in it."""
    found: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [
        (value, 0) for held in before for key, value in held.items() if key not in _UNSEEN
    ]
    waiting += [(content, 0) for _, content in cells]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (*_PLAIN, torch.Tensor, nn.Module, type)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | dict | set) and not _is_of_torch(value):
            found.append((value, type(value)(value) if type(value) in (list, dict, set) else None))
            if found[-1][1] is None:
                found[-1] = (value, {**value} if isinstance(value, dict) else list(value))
        if depth < _DEPTH:
            waiting += [(inner, depth + 1) for inner in _within(value)]
    return found


def _within(value: Any) -> list[Any]:
    if isinstance(value, types.ModuleType):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [*(_content(cell) for cell in value.__closure__ or ()), value.__dict__]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    held = getattr(value, "__dict__", None)
    own = isinstance(value, nn.Module) or not _is_of_torch(value)
    return [held] if isinstance(held, dict) and own else []


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("torch", "numpy")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _cells(loss_fn: Any, modules: list[nn.Module]) -> list[Any]:
    """Return the cells of the closures of the loss, of forwards and of functions they hold."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [loss_fn, type(loss_fn).__call__]
    for module in modules:
        waiting += [module.__dict__.get("forward"), type(module).forward]
        waiting += [v for v in module.__dict__.values() if isinstance(v, types.FunctionType)]
    while waiting:
        function = waiting.pop()
        function = getattr(function, "__func__", function)
        function = getattr(function, "func", function)
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        for cell in function.__closure__ or ():
            found.append(cell)
            waiting.append(_content(cell))
    return found


class Watch:
    """The Python values that a capture has seen, held so that a change of any is noticed.

    It is asked at every call, and so must cost less than a small step.

    Args:
        model: As captured.
        loss_fn: As captured.
    """

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        self._holders = [(read, tuple(read())) for read in _readers(model, loss_fn)]
        self._ambient = _ambient()

    def unchanged(self) -> bool:
        """Whether everything is the very same object as it was."""
        for read, before in self._holders:
            now = tuple(read())
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return self._ambient == _ambient()


def _ambient() -> tuple[Any, ...]:
    """Return torch's settings that a capture depends on."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
    )


def _readers(model: nn.Module, loss_fn: Any) -> list[Callable[[], Any]]:
    """Return what gives the contents of everything that holds Python values."""
    found: list[Callable[[], Any]] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(module, 0) for module in model.modules()] + [(loss_fn, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (*_PLAIN, torch.Tensor)) or id(value) in seen or depth > _DEPTH:
            continue
        seen.add(id(value))
        inner: list[Any] = []
        if isinstance(value, nn.Module):
            held = value.__dict__
            found.append(held.values)
            kept = {k: v for k, v in held.items() if k != "_buffers"}
            inner = [v for v in kept.values() if not isinstance(v, _PLAIN)]
            inner.append(type(value).forward)
            if depth:
                waiting += [(module, 0) for module in value.modules()]
        elif isinstance(value, dict):
            found.append(value.values)
            inner = list(value.values())
        elif isinstance(value, list | set):
            found.append(functools.partial(iter, value))
            inner = list(value)
        elif isinstance(value, tuple | frozenset):
            inner = list(value)
        elif isinstance(value, types.FunctionType):
            inner = _of_a_function(value, found)
        elif isinstance(value, types.MethodType):
            inner = [value.__func__, value.__self__]
        elif not _is_of_torch(value) and isinstance(getattr(value, "__dict__", None), dict):
            inner = [value.__dict__, type(value).__dict__.get("__call__")]
        waiting += [(one, depth + 1) for one in inner]
    return found


def _of_a_function(function: types.FunctionType, found: list[Callable[[], Any]]) -> list[Any]:
    """Note what a function reads, and return it: closure, defaults, and globals of its own."""
    cells, code = function.__closure__ or (), function.__code__
    inner = [*(_content(cell) for cell in cells), *(function.__defaults__ or ())]
    if cells:
        found.append(functools.partial(map, _content, cells))
    if _is_of_a_library(function):
        return inner
    names = [n for n in code.co_names if n in function.__globals__]
    here = function.__globals__
    values = [here[n] for n in names]
    kept = [n for n, v in zip(names, values, strict=True) if not isinstance(v, _FIXED)]
    if kept:
        found.append(functools.partial(map, here.get, kept))
    return [*inner, *(here[n] for n in kept)]


_FIXED = (types.ModuleType, type, types.BuiltinFunctionType)


def _is_of_a_library(function: types.FunctionType) -> bool:
    library = (function.__module__ or "").partition(".")[0]
    return library in ("torch", "transformers", "timm", "peft", "torchvision", "apiece")


def fingerprint(model: nn.Module, loss_fn: Any) -> tuple[Any, ...]:
    """Return what a graph of model and loss depends on besides tensors' values.

    Args:
        model: Its modules, their modes, hooks, flags and forwards.
        loss_fn: Its code, and what its closure, defaults and globals hold.
    """
    found: list[Any] = []
    seen: set[int] = set()
    for module in model.modules():
        _of_module(module, found, seen)
    _of(loss_fn, found, seen, 0)
    return (*found, *_ambient())


Functions: TypeAlias = list[types.FunctionType]


def held_by(model: nn.Module, loss_fn: Any) -> tuple[Functions, list[Any]]:
    """Return the functions with closures or defaults that a model and a loss hold, and libraries.

    Libraries are Python's modules and operators registered with torch: nobody can copy them.
    """
    found: Functions = []
    libraries: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [model.__dict__, loss_fn]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (*_PLAIN, torch.Tensor, type)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.ModuleType | CustomOpDef):
            libraries.append(value)
            continue
        if isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__):
            found.append(value)
        waiting += _within(value)
    return found, libraries


def _of_module(module: nn.Module, found: list[Any], seen: set[int]) -> None:
    seen.add(id(module))
    found.append(id(module))
    _of(type(module).forward, found, seen, 1)
    for key, value in module.__dict__.items():
        if key == "_parameters":
            found += [(k, id(p), p is not None and p.requires_grad) for k, p in value.items()]
        elif key in ("_modules", "_buffers"):
            found += [(k, id(v)) for k, v in value.items()] if key == "_modules" else list(value)
        elif isinstance(value, _PLAIN):
            found.append((key, value))
        elif not isinstance(value, nn.Module) and not _is_empty(value):
            found.append(key)
            _of(value, found, seen, 1)


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set) and not value


def _of(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN):
        found.append(value)
        return
    if not isinstance(value, types.FunctionType | types.MethodType):  # made anew at each look
        found.append(id(value))
    if depth > _DEPTH or id(value) in seen or isinstance(value, torch.Tensor | type):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        for module in value.modules():
            if module is value or id(module) not in seen:
                _of_module(module, found, seen)
        return
    if isinstance(value, dict):
        found += [k if isinstance(k, _PLAIN) else id(k) for k in value]
        for inner in value.values():
            _of(inner, found, seen, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _of(inner, found, seen, depth + 1)
    elif isinstance(value, types.FunctionType):
        _of_function(value, found, seen, depth)
    elif isinstance(value, types.MethodType):
        _of(value.__func__, found, seen, depth + 1)
        _of(value.__self__, found, seen, depth + 1)
    elif not _is_of_torch(value):
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            _of(held, found, seen, depth + 1)
        call = type(value).__dict__.get("__call__")
        if isinstance(call, types.FunctionType):
            _of_function(call, found, seen, depth)


def _of_function(
    function: types.FunctionType, found: list[Any], seen: set[int], depth: int
) -> None:
    found.append(id(function.__code__))
    for cell in function.__closure__ or ():
        _of(_content(cell), found, seen, depth + 1)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _of(default, found, seen, depth + 1)
    if _is_of_a_library(function):
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            value = function.__globals__[name]
            if not isinstance(value, types.ModuleType | type):
                _of(value, found, seen, depth + 1)
