"""Python's values that a model and its loss hold: walked, watched, put back.

A capture has frozen what their code reads, and puts back what a forward writes (`Watch`). What is
looked at here of single values is what `alone` compares, too.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import decimal
import dis
import functools
import gc
import hashlib
import hmac
import io
import itertools
import logging
import operator
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.training.clipping.ambient import is_highest
from apiece.training.clipping.libraries import PYTHON, is_of_a_library, library_named

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, torch.dtype)


def walk(
    roots: Sequence[object],
    within: Callable[[Any], Iterable[object]],
    further: Callable[[], Iterable[object]] = tuple,
) -> Iterator[tuple[Any, int | None]]:
    """Yield what `within` leads to, outer values first; with its place, what came before.

    further: asked for more, as long as there is some, where nothing is left.
    """
    places: dict[int, int] = {}
    alive: list[object] = []  # an id stands for its value only while that lives
    waiting = [*reversed(roots)]
    while waiting:
        value = waiting.pop()
        plain = isinstance(value, PLAIN)
        place = None if plain else places.get(id(value))
        yield value, place
        if place is None and not plain:
            places[id(value)] = len(alive)
            alive.append(value)
            waiting += reversed(list(within(value)))
        waiting = waiting or [*reversed(list(further()))]


def content_of(cell: types.CellType) -> Any:
    """Return what a cell of a closure holds, None where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


# ---------------------------------------------------------------- what a capture has frozen

# Libraries whose objects are looked into only where code of a model names what holds them.
_BY_NAME = {"torch", "numpy"}
# Parts of Python whose objects hold nothing that a forward reads, but for a logger's level.
_CLOSED = {"logging", "_io", "re"}
# Libraries whose objects move as a run goes on: the Trainer, its loops, its loggers.
_OF_RUNS = {"lightning", "lightning_fabric", "pytorch_lightning"}
# What a LightningModule tells of its Trainer.
_TOLD_BY_RUNS = {"trainer", "fabric", "current_epoch", "global_step", "global_rank"}
_CODE = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)
_DYNAMIC = {"getattr", "vars", "eval", "exec", "globals", "__dict__", "attrgetter", "methodcaller"}
_END = object()


class Binding:
    """A name in a module's attributes, a class or the globals of a file; and how it is told."""

    def __init__(self, holder: Any, name: str, said: str) -> None:
        self._holder, self._name, self.said = holder, name, said

    def get(self) -> Any:
        """Return what is there, None where there is nothing."""
        holder = self._holder
        return (vars(holder) if isinstance(holder, type) else holder).get(self._name)

    def put(self, value: object) -> None:
        """Let another value be there."""
        if isinstance(self._holder, type):
            setattr(self._holder, self._name, value)
        else:
            self._holder[self._name] = value


class Watch:
    """The Python values that code of a model and a loss may read: a change of any is noticed.

    The walk goes into all that they hold, into the classes of that, and wherever their code, and
    the code that it names, goes by name: globals, attributes of modules and classes. Of libraries'
    code nothing is followed. It is asked at every call, and so must cost less than a small step.

    classes: of named tuples among inputs and targets, whose methods a forward may call. key: what a
    graph of model and loss depends on besides tensors' values. moving: what could not
    be watched, if anything.
    """

    def __init__(self, model: nn.Module, loss_fn: object, *classes: type) -> None:
        self._paths = {id(m): name for name, m in model.named_modules()}
        self._alive: list[Any] = []  # an id stands for its value only while that lives
        self._mappings: list[Any] = []  # dicts, and what classes hold
        self._lists: list[Any] = []
        self._objects: list[object] = []
        self._functions: list[types.FunctionType] = []
        self._calls: list[Callable[[], object]] = []  # of weak references and context variables
        self._buffers: list[Any] = []  # memory that holds no Python values
        self._spaces: dict[int, tuple[Any, set[str]]] = {}  # globals, and those that code names
        self._owners: dict[int, tuple[Any, str]] = {}  # of a mapping: whose it is, as it is told
        self._open: list[tuple[Any, bool]] = []  # classes and modules, whose names are yet to come
        self._told: set[tuple[int, str]] = set()  # of these, the names that have come
        self._closed: list[tuple[str, object]] = []  # libraries' objects, by what holds them
        self._makers: set[type] = set()  # classes that code can reach, and so make instances of
        self._attributes = {"forward", "backward", "setup_context", "jvp", "vmap"}  # torch calls
        self._makes_any = False  # whether code may make another instance of any class
        self.moving = ""
        self._own = set(map(id, model.buffers()))
        self._streams: list[tuple[Any, Callable[[Any], object]]] = []
        self.changed: list[str] = []
        self.places: dict[str, Binding] = {}
        marks = tuple(self._marks([model, loss_fn, *classes, *hooks()]))
        spaces = ((h, sorted(n)) for h, n in self._spaces.values())
        self._bytes = list(map(memory_of, self._buffers))
        named = (_mark(here.get(name)) for here, names in spaces for name in names)
        self._states = self._states_of_streams()
        self.key = (marks, *named, *self._bytes, *map(repr, self._states), *ambient())
        self._globals = [functools.partial(map, h.get, sorted(n)) for h, n in self._spaces.values()]
        self._empty = [m for m in self._mappings if not m]  # most of a module's, at no cost
        self._full = [m for m in self._mappings if m]
        self._values = [m.values() for m in self._full]
        self._odd = [m for m in self._full if not all(isinstance(k, PLAIN) for k in m)]
        odd = set(map(id, self._odd))
        self._even = [m for m in self._full if id(m) not in odd]
        self._keys = [*itertools.chain.from_iterable(self._even)]
        self._ambient = ambient()
        self._lengths, self._before = self._sizes(), list(self._contents())

    def unchanged(self) -> bool:
        """Return whether everything is the very same object as it was."""
        return (
            self._sizes() == self._lengths
            and not any(self._empty)
            and [*itertools.chain.from_iterable(self._even)] == self._keys
            and all(map(operator.is_, self._contents(), self._before))
            and self._ambient == ambient()
            and (not self._buffers or list(map(memory_of, self._buffers)) == self._bytes)
            and (not self._streams or self._states_of_streams() == self._states)
        )

    def _states_of_streams(self) -> list[object]:
        return [read(one) for one, read in self._streams]

    def _sizes(self) -> list[int]:
        return [*map(len, self._full), *map(len, self._lists)]

    def _contents(self) -> Iterator[object]:
        """Return all contents, one after the other."""
        some, functions = itertools.chain.from_iterable, self._functions
        return itertools.chain(
            some(self._odd),
            some(self._values),
            some(self._lists),
            some((*gc.get_referents(one), _END) for one in self._objects),
            some(read() for read in self._globals),
            map(operator.attrgetter("__code__"), functions),
            map(operator.attrgetter("__defaults__"), functions),
            map(operator.attrgetter("__kwdefaults__"), functions),
            (call() for call in self._calls),
            (_END,),
        )

    # ------------------------------------------------------------ the walk

    def _marks(self, roots: list[object]) -> Iterator[Hashable]:
        """Yield what tells each value from others, outer ones first."""
        for value, place in walk(roots, self._within, self._named):
            if place is not None:
                yield place
            elif id(value) in self._own:
                yield value.shape, value.dtype, value.device  # one of another value is taken
            else:
                yield _mark(value)

    def _within(self, value: Any) -> Iterable[object]:
        """Note how a change of a value is seen; return what is within it."""
        self._alive.append(value)
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return [value.__dict__] if kind in (torch.Tensor, nn.Parameter) else []
        if isinstance(value, nn.Module):
            if (read := state_reader(value)) is not None:
                self._streams.append((value, read))
            path = self._paths.get(id(value), "loss_fn") or kind.__name__
            self._owners[id(value.__dict__)] = value, path
            for key, inner in value.__dict__.items():
                if not (key.startswith("_") and _is_a_layer_of_torch(value)):
                    self._owners.setdefault(id(inner), (None, f"{path}.{key.removeprefix('_')}"))
            return [value.__dict__, kind]
        if isinstance(value, types.FunctionType):
            return self._within_function(value)
        if isinstance(value, type):
            return self._within_class(value)
        if isinstance(value, types.ModuleType):
            self._open.append((value, is_of_a_library(value)))
            return []
        if isinstance(value, dict | types.MappingProxyType):
            self._mappings.append(value)
            self._note_classes(value.values())
            own = [] if type(value) in (dict, collections.OrderedDict) else _attributes(value)
            held = list(value.values())
            owner, _ = self._owners.get(id(value), (None, ""))
            if isinstance(owner, nn.Module) and not is_of_a_library(type(owner)):
                held = [inner for key, inner in value.items() if not self._is_put_off(key, inner)]
            return [*held, *(k for k in value if not isinstance(k, PLAIN)), *own]
        if isinstance(value, list | set | collections.deque):
            self._lists.append(value)
            self._note_classes(value)
            return [*value, *_attributes(value)]
        if isinstance(value, weakref.ref):
            self._calls.append(value)
            return [value()]
        if isinstance(value, contextvars.ContextVar):
            self._calls.append(functools.partial(value.get, None))
            return [value.get(None)]
        if isinstance(value, functools._lru_cache_wrapper):
            return [value.__wrapped__]
        if has_memory(value):
            self._buffers.append(value)
            return []
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            self.moving = self.moving or f"a {kind.__name__} is held, which moves as it is read"
        if has_hidden_state(value):
            self.moving = self.moving or f"a {kind.__name__} is held, whose state nothing shows"
        if (read := state_reader(value)) is not None and not self.moving:
            self._streams.append((value, read))
            return []
        if isinstance(value, logging.Logger):
            self._calls += [
                value.getEffectiveLevel,
                lambda: (value.disabled, value.manager.disable),
            ]
        if _closed_by(kind) in _CLOSED | _OF_RUNS or isinstance(value, OPAQUE):
            return []
        self._objects.append(value)
        if _closed_by(kind) == "torch" and hasattr(
            value, "__dict__"
        ):  # it may keep what it works out
            self._owners.setdefault(id(value.__dict__), (value, kind.__name__))
        referents = gc.get_referents(value)
        if not isinstance(value, types.CellType):
            self._note_classes(one for one in referents if one is not kind)
        return [*_attributes(value), *referents]

    def _note_classes(self, values: Iterable[object]) -> None:
        self._makers.update(value for value in values if isinstance(value, type))

    def _is_put_off(self, key: str, value: object) -> bool:
        """Return whether a model's attribute is a library's object, of interest once it is named.

        A model may hold its optimizer or its Trainer, which change at every step; where no code
        that a forward may run names them, that changes nothing.
        """
        if isinstance(value, (torch.Tensor, nn.Module, np.ndarray, *OPAQUE, *PLAIN)):
            return False
        if _closed_by(type(value)) not in _BY_NAME | _OF_RUNS:
            return False
        self._closed.append((key.lstrip("_"), value))
        return True

    def _opened(self) -> Iterator[object]:
        """Yield libraries' objects whose keys code has named since; note a run's that is read."""
        known = self._attributes
        every = known >= _DYNAMIC
        waiting, self._closed = self._closed, []
        for key, value in waiting:
            of_a_run = _closed_by(type(value)) in _OF_RUNS
            if of_a_run and (key in known or (key == "trainer" and known & _TOLD_BY_RUNS)):
                kind = type(value).__name__
                self.moving = self.moving or f"a {kind} of Lightning is read, which moves"
            elif not of_a_run and (every or key in known):
                yield value
            else:
                self._closed.append((key, value))

    def _within_function(self, function: types.FunctionType) -> list[object]:
        if is_of_a_library(function):
            return [*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__]
        self._functions.append(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._note_classes(content_of(cell) for name, cell in cells if name != "__class__")
        here, (names, attributes, imports) = function.__globals__, _named_by(function.__code__)
        self._attributes |= attributes
        if _DYNAMIC & (names | attributes):
            self._attributes |= _DYNAMIC
        known = names & here.keys()
        if "globals" in names:
            known |= {n for n, v in here.items() if isinstance(v, PLAIN) or n in attributes}
        self._spaces.setdefault(id(here), (here, set()))[1].update(known)
        self._note_classes(here[name] for name in known)
        if "type" in names or "__class__" in attributes:
            self._makes_any = True
        imported = (sys.modules.get(name) for name in imports)
        environ = [os.environ] if "getenv" in names | attributes else []
        return [
            *(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__,
            function.__dict__, *(here[n] for n in sorted(known)), *imported, *environ,
        ]  # fmt: skip

    def _within_class(self, owner: type) -> list[object]:
        if is_of_a_library(owner):
            return [one for one in owner.__mro__[1:] if not is_of_a_library(one)]
        self._mappings.append(vars(owner))
        self._owners[id(self._mappings[-1])] = owner, owner.__qualname__
        self._open.append((owner, False))
        held = [v for k, v in vars(owner).items() if k not in NOTED and not isinstance(v, _CODE)]
        return [*held, *owner.__mro__[1:], type(owner)]

    def _named(self) -> Iterator[object]:
        """Yield what code names of classes and modules that were met, and was not yet walked."""
        yield from self._opened()
        known = self._attributes
        every = known >= _DYNAMIC
        for owner, of_library in list(self._open):
            held = vars(owner)
            if isinstance(owner, type):
                code = [k for k, v in held.items() if isinstance(v, _CODE)]
                names = [k for k in code if every or k.startswith("__") or k in known]
                if self._is_never_made(owner):
                    names = [name for name in names if name != "__init__"]
            else:
                own = every and not of_library
                names = sorted(k for k in held if k in known or (own and not k.startswith("__")))
            for name in names:
                value = held[name]
                if value is sys.modules:
                    continue
                if of_library and callable(value) and is_of_a_library(value):
                    continue
                if not isinstance(owner, type) and not of_library:
                    self._spaces.setdefault(id(held), (held, set()))[1].add(name)
                if not isinstance(value, PLAIN) and (id(owner), name) not in self._told:
                    self._told.add((id(owner), name))
                    self._note_classes([value])
                    yield value

    def _is_never_made(self, owner: type) -> bool:
        """Return whether no code that is walked makes modules of a class: they are only held."""
        if self._makes_any or not issubclass(owner, nn.Module):
            return False
        return not any(issubclass(maker, owner) for maker in self._makers)

    # ------------------------------------------------------------ what a forward writes

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put everything back that changes meanwhile; note what did."""
        cells = [one for one in self._objects if isinstance(one, types.CellType)]
        streams = self._states_of_streams()
        mappings = [(m, dict(m)) for m in self._mappings]
        lists = [(one, [*one]) for one in self._lists]
        spaces = [(here, {n: here[n] for n in names}) for here, names in self._spaces.values()]
        contents = [(cell, content_of(cell)) for cell in cells]
        self.changed, self.places = [], {}
        try:
            yield
        finally:
            for mapping, content in mappings:
                self._put_back(mapping, content)
            for here, content in spaces:
                for name in [n for n in content if here.get(n) is not content[n]]:
                    here[name] = content[name]
                    self._note(Binding(here, name, name))
            for one, items in lists:
                if len(one) != len(items) or any(map(operator.is_not, one, items)):
                    one.clear()
                    (one.update if isinstance(one, set) else one.extend)(items)
                    self._tell(one)
            for cell, held in contents:
                if content_of(cell) is not held:
                    cell.cell_contents = held
                    self._tell(cell)
            if streams != self._states_of_streams():
                self.changed.append("a generator that the model or the loss holds, or a stream")
            if not self.unchanged():
                self._tell(None)

    def _put_back(self, mapping: Any, content: dict[Any, Any]) -> None:
        moved = [
            k for k in {**content, **mapping} if mapping.get(k, _END) is not content.get(k, _END)
        ]
        owner, _ = self._owners.get(id(mapping), (None, ""))
        if isinstance(owner, type):
            moved = [k for k in moved if not k.startswith(("__", "_abc_", "_torchdynamo"))]
            for key in moved:
                if key in content:
                    setattr(owner, key, content[key])
                else:
                    delattr(owner, key)
        elif moved or list(mapping) != list(content):
            mapping.clear()
            mapping.update(content)
        if owner is None and moved:
            self._tell(mapping)
        for key in () if owner is None or _is_a_layer_of_torch(owner) else moved:
            held = owner if isinstance(owner, type) else mapping
            self._note(Binding(held, key, f"{self._owners[id(mapping)][1]}.{key}"))

    def _note(self, place: Binding) -> None:
        self.changed.append(place.said)
        self.places[place.said] = place

    def _tell(self, holder: object) -> None:
        said = self._owners.get(id(holder), (None, "something that the model or the loss holds"))[1]
        self.changed += [said] if said else []


def _is_a_layer_of_torch(module: object) -> bool:
    """Return whether changes are torch's own: recurrent layers note which weights they hold."""
    return isinstance(module, nn.Module) and type(module).__module__.startswith("torch.nn.modules.")


def _closed_by(kind: type) -> str | None:
    """Return which library's class this is, by what decides how its objects are looked into."""
    name = library_named(kind)
    return str(kind.__module__).partition(".")[0] if name == PYTHON else name


def _attributes(value: object) -> list[Any]:
    """Return the attributes of an object, as one dict, where it has any."""
    held = getattr(value, "__dict__", None)
    return [held] if isinstance(held, dict) else []


def has_memory(value: object) -> bool:
    """Return whether a value is memory without Python values: an array, bytes to be written."""
    try:
        memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return isinstance(value, np.ndarray)
    return True


def memory_of(value: Any, most: int = sys.maxsize) -> Hashable:
    """Return what tells the contents of memory from others; of more than `most` bytes, its form."""
    memory = value if isinstance(value, np.ndarray) else memoryview(value)
    if isinstance(memory, np.ndarray) and memory.dtype.hasobject:
        return repr(memory.tolist())
    form = memory.shape, getattr(memory, "dtype", None)
    return (*form, digest(memory.tobytes())) if memory.nbytes <= most else form


def digest(data: bytes) -> bytes:
    """Return a hash, the same for no other bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def hooks() -> list[object]:
    """Return the hooks that torch runs for every module."""
    of: Any = nn.modules.module
    return [of._global_forward_hooks, of._global_forward_pre_hooks,
            of._global_backward_hooks, of._global_backward_pre_hooks]  # fmt: skip


def ambient() -> tuple[Hashable, ...]:
    """Return torch's settings that a capture depends on."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.get_num_threads(),
        is_highest(),
        torch._C._len_torch_function_stack(),
        *_decimals(),
        *np.geterr().values(),
    )


def _decimals() -> tuple[Hashable, ...]:
    """Return what decides how decimals are rounded."""
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.clamp


def names_in(code: types.CodeType, *operations: str) -> set[str]:
    """Return the names that operations of code have, those of functions within it too."""
    own = {at.argval for at in dis.get_instructions(code) if at.opname in operations}
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return own.union(*(names_in(one, *operations) for one in inner))


@functools.lru_cache(4096)
def _named_by(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the globals that code names, attributes or texts that may be such, and imports."""
    attributes = names_in(code, "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
    names = names_in(code, "LOAD_GLOBAL", "LOAD_NAME")
    return (
        frozenset(names),
        frozenset(attributes | (names_within(code) - set(code.co_names))),
        frozenset(names_in(code, "IMPORT_NAME")),
    )


def _mark(value: Any) -> Hashable:
    """Return what tells a value from others; functions and methods are made anew at each look."""
    if isinstance(value, PLAIN):
        return type(value), value if isinstance(value, int | str | bytes) else repr(value)
    if isinstance(value, types.FunctionType):
        return id(value.__code__)
    if isinstance(value, types.MethodType | types.CellType | types.MappingProxyType):
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        return id(value), value.requires_grad
    if isinstance(value, dict | list | tuple | set | frozenset) and not value:
        return type(value)
    if isinstance(value, dict):
        return id(value), tuple(k if isinstance(k, PLAIN) else id(k) for k in value)
    return id(value)


# ---------------------------------------------------------------- what is not followed

NOTED = {  # in classes, by Python itself
    "__weakref__", "__dict__", "_abc_impl", "__doc__", "__slotnames__", "__annotations__",
}  # fmt: skip
OPAQUE = (
    types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, types.ModuleType, weakref.ref,
    torch.device, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_HASHES = tuple({
    type(hashlib.new(name)) for name in ("sha256", "sha3_256", "blake2b", "blake2s", "shake_128")
} | {type(hashlib.sha3_256()), type(hashlib.blake2b()), type(hashlib.blake2s())})  # fmt: skip
# Objects with a state that no attribute shows, and how it is read.
STREAMS: dict[Any, Callable[[Any], object]] = {
    torch.Generator: lambda stream: stream.get_state().numpy().tobytes(),
    random.SystemRandom: lambda _stream: None,  # holds nothing
    random.Random: lambda stream: stream.getstate(),
    np.random.Generator: lambda stream: repr(stream.bit_generator.state),
    np.random.RandomState: lambda stream: repr(stream.get_state(legacy=False)),
    np.random.BitGenerator: lambda stream: repr(stream.state),
    np.random.SeedSequence: lambda stream: repr(stream.state),
    itertools.count: lambda stream: stream,
    io.BytesIO: lambda stream: stream.closed or stream.__getstate__(),
    io.StringIO: lambda stream: stream.closed or stream.__getstate__(),
    _HASHES: lambda stream: stream.copy().digest(*[16] * (stream.digest_size == 0)),
    hmac.HMAC: lambda stream: stream.copy().digest(),
    torch.jit.ScriptModule: lambda module: _attributes_of_script(module),
    type(threading.Lock()): lambda lock: lock.locked(),
    type(threading.RLock()): lambda lock: repr(lock).partition(" at ")[0],
}
# Modules in C whose objects have a state that nothing shows: connections, queues, codecs.
_HIDDEN = {
    "_asyncio", "_bz2", "_csv", "_curses", "_elementtree", "_lzma", "_multiprocessing", "_queue",
    "_socket", "_ssl", "pyexpat", "select", "sqlite3", "zlib",
}  # fmt: skip


def state_reader(value: object) -> Callable[[Any], object] | None:
    """Return how the state of a stream, a hash or a lock is read; None for other values."""
    return next((read for kind, read in STREAMS.items() if isinstance(value, kind)), None)


def _attributes_of_script(module: Any) -> tuple[str, ...]:
    """Return the values that a module of TorchScript holds outside of Python."""
    held = module._c
    names = sorted(module._concrete_type.get_attributes())
    values = ((name, held.getattr(name)) for name in names)
    return tuple(f"{name} {v!r}" for name, v in values if not isinstance(v, torch.Tensor))


def has_hidden_state(value: object) -> bool:
    """Return whether an object has a state that cannot be read: a connection, a queue, a codec."""
    kinds = type(value).__mro__
    return any(one.__module__ in _HIDDEN and not is_written_in_python(one) for one in kinds)


def is_written_in_python(kind: type) -> bool:
    """Return whether a class has functions of Python's, and so a dict or slots that show it all."""
    return any(isinstance(held, types.FunctionType) for held in vars(kind).values())


def names_within(code: types.CodeType) -> set[str]:
    """Return the names in a function's code and in that of the functions within it."""
    result = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            result |= names_within(constant)
        elif isinstance(constant, str):
            result.add(constant)  # setattr(module, "name", …)
    return result
