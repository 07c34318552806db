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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from apiece.training.clipping import torch_internals
from apiece.training.clipping.ambient import computes_in_single
from apiece.training.clipping.libraries import PYTHON, is_of_a_library, library_named

# From a stream, a hash or a lock to its state, in a form that can be compared.
ReadState: TypeAlias = Callable[[Any], object]
# Types whose values nothing can change: they are compared as such, and nothing is within them.
PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, torch.dtype)


def walk(
    roots: Sequence[object],
    within: Callable[[Any], Iterable[object]],
    further: Callable[[], Iterable[object]] = tuple,
) -> Iterator[tuple[Any, int | None]]:
    """Yield what `within` leads to, outer values first; with its number, what came before.

    further: asked for more, as long as there is some, where nothing is left.
    """
    numbers: dict[int, int] = {}  # by id, in the order in which values come
    alive: list[object] = []  # an id stands for its value only while that lives
    # The list is a stack, read from its end: what is pushed reversed comes out in order.
    waiting = [*reversed(roots)]
    while waiting:
        value = waiting.pop()
        is_plain = isinstance(value, PLAIN)
        # Plain values get no number: whether two equal ones are one object must not matter.
        number = None if is_plain else numbers.get(id(value))
        yield value, number
        if number is None and not is_plain:
            numbers[id(value)] = len(alive)
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
# Attributes of a LightningModule that say something of its Trainer.
_ATTRIBUTES_OF_RUNS = {"trainer", "fabric", "current_epoch", "global_step", "global_rank"}
# What a class holds that is code, and is looked at when something names it.
_CODE = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)
# Names by which code reaches attributes that it does not name: from there on every name counts.
_DYNAMIC = {"getattr", "vars", "eval", "exec", "globals", "__dict__", "attrgetter", "methodcaller"}
# Stands after what an object holds, and for what is not there: no value of anybody's.
_END = object()


class Binding:
    """A name in a module's attributes, a class or the globals of a file.

    label: how messages name it.
    """

    def __init__(self, holder: Any, name: str, label: str) -> None:
        self._holder = holder
        self._name = name
        self.label = label

    def get(self) -> Any:
        """Return what is there, None where there is nothing."""
        # A class gives a read-only view of its attributes; a dict is the holder itself.
        holder = self._holder
        names = vars(holder) if isinstance(holder, type) else holder
        return names.get(self._name)

    def put(self, value: object) -> None:
        """Let another value be there."""
        if isinstance(self._holder, type):
            setattr(self._holder, self._name, value)
        else:
            self._holder[self._name] = value


class _Owner(NamedTuple):
    """Whose a mapping is: of a class, of an instance of a kind, or of neither.

    label: how messages name it.
    """

    label: str
    owner: type | None = None
    kind: type | None = None

    @property
    def is_layer_of_torch(self) -> bool:
        """Whether changes are torch's own: recurrent layers note which weights they hold."""
        kind = self.kind
        is_module = kind is not None and issubclass(kind, nn.Module)
        return is_module and kind.__module__.startswith("torch.nn.modules.")


class Watch:
    """The Python values that code of a model and a loss may read: a change of any is noticed.

    The walk goes into all that they hold, into the classes of that, and wherever their code, and
    the code that it names, goes by name: globals, attributes of modules and classes. Of libraries'
    code nothing is followed. It is asked at every call, and so must cost less than a small step.

    The model itself is not kept alive, but where something that it or the loss holds leads to it.

    classes: of named tuples among inputs and targets, whose methods a forward may call. key: what a
    graph of model and loss depends on besides tensors' values. moving: what could not be watched,
    if anything. keeps_model: whether the model lives as long as this. changed: after
    `undo_changes`, what has changed, as messages name it; bindings: those of it that are names.
    """

    def __init__(self, model: nn.Module, loss_fn: object, *classes: type) -> None:
        self.moving = ""
        self.changed: list[str] = []
        self.bindings: dict[str, Binding] = {}
        self._paths = {id(module): name for name, module in model.named_modules()}
        self._model_buffers = set(map(id, model.buffers()))
        self._model = weakref.ref(model)
        self.keeps_model = False
        # An id stands for its value only while that lives.
        self._alive: list[Any] = []

        # What the walk has found, by how a change of it is seen.
        # Dicts, and what classes hold.
        self._mappings: list[Any] = []
        # Lists, sets and deques.
        self._lists: list[Any] = []
        # Values in slots, in C or in cells of closures, by what the collector sees of them.
        self._objects: list[object] = []
        self._functions: list[types.FunctionType] = []
        # Of weak references, context variables and loggers: what they give now.
        self._calls: list[Callable[[], object]] = []
        # Memory that holds no Python values.
        self._memories: list[Any] = []
        # Globals of a file, by their id, and those of their names that code has.
        self._globals: dict[int, tuple[Any, set[str]]] = {}
        # Generators, hashes and locks, and how their state is read.
        self._streams: list[tuple[Any, ReadState]] = []
        # By the id of a mapping.
        self._owners: dict[int, _Owner] = {}

        # What the walk knows of code, on its way.
        # Classes and modules, whose names are yet to come, and whether a module is a library's.
        self._open: list[tuple[Any, bool]] = []
        # Of these, by id: the names that have come.
        self._walked: set[tuple[int, str]] = set()
        # Libraries' objects that are looked into once code names the attribute that holds them.
        self._put_off: list[tuple[str, object]] = []
        # Classes that code can reach, and so make instances of.
        self._makers: set[type] = set()
        # Whether code may make another instance of any class.
        self._makes_any = False
        # Attributes that code names; the first ones torch calls.
        self._attributes = {"forward", "backward", "setup_context", "jvp", "vmap"}

        # Order matters: number 0 is the model (`_marks`), and the key lists what is met in this
        # order.
        roots = [model, loss_fn, *classes, *torch_internals.global_hooks()]
        marks = tuple(self._marks(roots))
        self._contents_of_memory = list(map(memory_of, self._memories))
        self._states = self._states_of_streams()
        # Names are sorted: the walk collects them in sets, whose order must not enter the key.
        marks_of_globals = [
            _mark(space.get(name))
            for space, names in self._globals.values()
            for name in sorted(names)
        ]
        self.key = (
            marks,
            *marks_of_globals,
            *self._contents_of_memory,
            *map(repr, self._states),
            *ambient(),
        )
        self._prepare_comparison()

    def _prepare_comparison(self) -> None:
        """Note all contents as they are, in the form in which they are compared fastest."""
        self._read_globals = [
            functools.partial(map, space.get, sorted(names))
            for space, names in self._globals.values()
        ]
        # most of a module's dicts are empty, and compared at no cost
        self._empty = [mapping for mapping in self._mappings if not mapping]
        self._full = [mapping for mapping in self._mappings if mapping]
        # The views below are live: each call of `is_unchanged` reads the dicts as they are then.
        self._values = [mapping.values() for mapping in self._full]
        # Keys that are plain are compared by value, in one list; others by identity.
        self._with_objects_for_keys: list[Any] = []
        self._with_plain_keys: list[Any] = []
        for mapping in self._full:
            if all(isinstance(key, PLAIN) for key in mapping):
                self._with_plain_keys.append(mapping)
            else:
                self._with_objects_for_keys.append(mapping)
        # In one flat list, which one comparison goes through in C.
        self._keys = self._read_keys()
        self._ambient = ambient()
        self._lengths = self._read_lengths()
        # Contents are held as objects, and compared by `is`: none can be freed and its id be used
        # again.
        self._contents = list(self._read_contents())

    def is_unchanged(self) -> bool:
        """Return whether everything is the very same object as it was."""
        # `map` ends with the shorter of both: lengths are compared before, and `_END` stands where
        # an object's contents end.
        # The order is by cost: what is cheap, and changes most, comes first.
        return (
            self._read_lengths() == self._lengths
            and not any(self._empty)
            and self._read_keys() == self._keys
            and all(map(operator.is_, self._read_contents(), self._contents))
            and self._ambient == ambient()
            and (
                not self._memories
                or list(map(memory_of, self._memories)) == self._contents_of_memory
            )
            and (not self._streams or self._states_of_streams() == self._states)
        )

    def _states_of_streams(self) -> list[object]:
        """Return the states of generators, hashes and locks."""
        return [read(stream) for stream, read in self._streams]

    def _read_keys(self) -> list[object]:
        """Return the keys of dicts whose keys are all plain."""
        return [*itertools.chain.from_iterable(self._with_plain_keys)]

    def _read_lengths(self) -> list[int]:
        """Return the lengths of what holds others."""
        return [*map(len, self._full), *map(len, self._lists)]

    def _read_contents(self) -> Iterator[object]:
        """Return all contents, one after the other."""
        chain = itertools.chain.from_iterable
        functions = self._functions
        return itertools.chain(
            chain(self._with_objects_for_keys),
            chain(self._values),
            chain(self._lists),
            chain((*gc.get_referents(value), _END) for value in self._objects),
            chain(read() for read in self._read_globals),
            map(operator.attrgetter("__code__"), functions),
            map(operator.attrgetter("__defaults__"), functions),
            map(operator.attrgetter("__kwdefaults__"), functions),
            (call() for call in self._calls),
            (_END,),
        )

    # ------------------------------------------------------------ the walk

    def _marks(self, roots: list[object]) -> Iterator[Hashable]:
        """Yield what tells each value from others, outer ones first."""
        # A value that came before stands as its number, so that the key says which holders share an
        # object.
        for value, number in walk(roots, self._within, self._named):
            if number is not None:
                self.keeps_model |= number == 0  # the first root is the model
                yield number
            elif id(value) in self._model_buffers:
                yield value.shape, value.dtype, value.device  # one of another value is taken
            else:
                yield _mark(value)

    def _within(self, value: Any) -> Iterable[object]:
        """Note how a change of a value is seen; return what is within it."""
        if value is not self._model():
            self._alive.append(value)
        kind = type(value)
        if isinstance(value, torch.Tensor):
            # values of tensors are the graph's inputs, or its constants, and no part of the key
            is_plain = kind in (torch.Tensor, nn.Parameter)
            return [value.__dict__] if is_plain else []
        if isinstance(value, nn.Module):
            return self._within_module(value)
        if isinstance(value, types.FunctionType):
            return self._within_function(value)
        if isinstance(value, type):
            return self._within_class(value)
        if isinstance(value, types.ModuleType):
            self._open.append((value, is_of_a_library(value)))
            return []
        if isinstance(value, dict | types.MappingProxyType):
            return self._within_mapping(value)
        if isinstance(value, list | set | collections.deque):
            self._lists.append(value)
            self._note_classes(value)
            return [*value, *_attributes(value)]
        if isinstance(value, weakref.ref):  # which may come to nothing
            self._calls.append(value)
            return [value()]
        if isinstance(value, contextvars.ContextVar):
            self._calls.append(functools.partial(value.get, None))
            return [value.get(None)]
        if isinstance(value, functools._lru_cache_wrapper):
            return [value.__wrapped__]  # what it remembers follows from that
        if has_memory(value):
            self._memories.append(value)
            return []
        return self._within_object(value)

    def _within_module(self, module: nn.Module) -> list[object]:
        """Note whose a module's attributes are, and its state outside of Python if it has one."""
        if (read := state_reader(module)) is not None:
            # TorchScript keeps attributes outside of Python: they are read, as no dict of them can
            # be compared.
            self._streams.append((module, read))
            self.keeps_model = True
        path = self._paths.get(id(module), "loss_fn") or type(module).__name__
        owner = _Owner(path, kind=type(module))
        self._owners[id(module.__dict__)] = owner
        # dicts and lists among the attributes, such as `_buffers`, are named by the attribute
        for key, value in module.__dict__.items():
            if not (key.startswith("_") and owner.is_layer_of_torch):
                label = f"{path}.{key.removeprefix('_')}"
                self._owners.setdefault(id(value), _Owner(label))
        return [module.__dict__, type(module)]

    def _within_mapping(self, mapping: Any) -> list[object]:
        """Note a dict; return its values, and those of its keys that are objects."""
        self._mappings.append(mapping)
        self._note_classes(mapping.values())
        # A user's subclass of dict may hold attributes beside its items.
        is_plain = type(mapping) in (dict, collections.OrderedDict)
        attributes = [] if is_plain else _attributes(mapping)
        # Of a user's module, libraries' objects wait until code names the attribute.
        values = list(mapping.values())
        kind = self._owners.get(id(mapping), _Owner("")).kind
        if kind is not None and issubclass(kind, nn.Module) and not is_of_a_library(kind):
            values = [value for key, value in mapping.items() if not self._is_put_off(key, value)]
        keys = [key for key in mapping if not isinstance(key, PLAIN)]
        return [*values, *keys, *attributes]

    def _within_object(self, value: Any) -> list[object]:
        """Note an object of no container's type, by what shows its state."""
        kind = type(value)
        # An iterator moves when it is read: to look at it would move it as well.
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            self.moving = self.moving or f"a {kind.__name__} is held, which moves as it is read"
        # The first reason stays: it is what the message names.
        if has_hidden_state(value):
            self.moving = self.moving or f"a {kind.__name__} is held, whose state nothing shows"
        if (read := state_reader(value)) is not None and not self.moving:
            self._streams.append((value, read))
            return []
        if isinstance(value, logging.Logger):
            # whether it writes is a branch in the code that calls it
            self._calls.append(value.getEffectiveLevel)
            self._calls.append(lambda: (value.disabled, value.manager.disable))
        package = _package_of(kind)
        if package in _CLOSED | _OF_RUNS or isinstance(value, OPAQUE):
            return []
        # A cell, an instance with slots, an object in C: by what the collector sees of it.
        self._objects.append(value)
        if package == "torch" and hasattr(value, "__dict__"):  # it may keep what it works out
            self._owners.setdefault(id(value.__dict__), _Owner(kind.__name__, kind=kind))
        referents = gc.get_referents(value)
        if not isinstance(value, types.CellType):
            self._note_classes(referent for referent in referents if referent is not kind)
        return [*_attributes(value), *referents]

    def _note_classes(self, values: Iterable[object]) -> None:
        """Note the classes among values that code can reach."""
        self._makers.update(value for value in values if isinstance(value, type))

    def _is_put_off(self, key: str, value: object) -> bool:
        """Return whether a model's attribute is a library's object, of interest once it is named.

        A model may hold its optimizer or its Trainer, which change at every step; where no code
        that a forward may run names them, that changes nothing.
        """
        if isinstance(value, (torch.Tensor, nn.Module, np.ndarray, *OPAQUE, *PLAIN)):
            return False
        if _package_of(type(value)) not in _BY_NAME | _OF_RUNS:
            return False
        self._put_off.append((key.lstrip("_"), value))
        return True

    def _named_since(self) -> Iterator[object]:
        """Yield libraries' objects whose keys code has named since; note a run's that is read."""
        attributes = self._attributes
        waiting = self._put_off
        # Taken over first: what is still not named is put back below.
        self._put_off = []
        for key, value in waiting:
            is_named = key in attributes
            if _package_of(type(value)) in _OF_RUNS:
                if is_named or (key == "trainer" and attributes & _ATTRIBUTES_OF_RUNS):
                    kind = type(value).__name__
                    self.moving = self.moving or f"a {kind} of Lightning is read, which moves"
                    continue
            elif is_named or attributes >= _DYNAMIC:
                yield value
                continue
            self._put_off.append((key, value))

    def _within_function(self, function: types.FunctionType) -> list[object]:
        """Note a user's function and what its code names; a library's has but what it was given."""
        cells = function.__closure__ or ()
        if is_of_a_library(function):
            return [*cells, function.__defaults__, function.__kwdefaults__]
        self._functions.append(function)
        # `__class__` is the class that a method stands in, of which it makes no instance.
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            if name != "__class__":
                self._note_classes([content_of(cell)])
        # From here on, what the function's code can reach by name in the globals of its file.
        space = function.__globals__
        names, attributes, imports = _names_of(function.__code__)
        self._attributes |= attributes
        if _DYNAMIC & (names | attributes):  # that all of them are there says so to all code
            self._attributes |= _DYNAMIC
        read = names & space.keys()
        if "globals" in names:  # plain values, and what is named anywhere in the function
            read |= {n for n, v in space.items() if isinstance(v, PLAIN) or n in attributes}
        _, names_of_space = self._globals.setdefault(id(space), (space, set()))
        names_of_space.update(read)
        self._note_classes(space[name] for name in read)
        # The code may make an instance of whatever class it meets: none is spared its `__init__`.
        if "type" in names or "__class__" in attributes:
            self._makes_any = True
        return [
            *cells,
            function.__defaults__,
            function.__kwdefaults__,
            function.__dict__,
            *(space[name] for name in sorted(read)),
            *(sys.modules.get(name) for name in imports),
            *([os.environ] if "getenv" in names | attributes else []),
        ]

    def _within_class(self, owner: type) -> list[object]:
        """Note what a user's class holds; its code is looked at when something names it."""
        if is_of_a_library(owner):
            return [base for base in owner.__mro__[1:] if not is_of_a_library(base)]
        mapping = vars(owner)
        self._mappings.append(mapping)  # and so alive: `vars` makes a new view at each call
        self._owners[id(mapping)] = _Owner(owner.__qualname__, owner)
        self._open.append((owner, False))
        values = [
            value
            for key, value in mapping.items()
            if key not in NOTED and not isinstance(value, _CODE)
        ]
        return [*values, *owner.__mro__[1:], type(owner)]

    def _named(self) -> Iterator[object]:
        """Yield what code names of classes and modules that were met, and was not yet walked."""
        yield from self._named_since()
        # A copy, since what is yielded is walked and adds to the list.
        for owner, of_library in list(self._open):
            held = vars(owner)
            for name in self._names_of_owner(owner, of_library):
                value = held[name]
                # The table of all modules leads everywhere; what is imported is followed by its own
                # name.
                if value is sys.modules:
                    continue
                if of_library and callable(value) and is_of_a_library(value):
                    continue
                # A user's module is read as globals are: by the names that code has, and no others.
                if not isinstance(owner, type) and not of_library:
                    _, names_of_space = self._globals.setdefault(id(held), (held, set()))
                    names_of_space.add(name)
                if not isinstance(value, PLAIN) and (id(owner), name) not in self._walked:
                    self._walked.add((id(owner), name))
                    self._note_classes([value])
                    yield value

    def _names_of_owner(self, owner: Any, of_library: bool) -> list[str]:
        """Return the names of a class, or a module, that code may use."""
        attributes = self._attributes
        uses_any = attributes >= _DYNAMIC
        held = vars(owner)
        if not isinstance(owner, type):
            uses_any = uses_any and not of_library
            return sorted(
                name
                for name in held
                if name in attributes or (uses_any and not name.startswith("__"))
            )
        names = [name for name, value in held.items() if isinstance(value, _CODE)]
        # What begins with two underscores is called by Python itself, whoever names it.
        names = [n for n in names if uses_any or n.startswith("__") or n in attributes]
        if self._is_never_made(owner):
            names = [name for name in names if name != "__init__"]
        return names

    def _is_never_made(self, owner: type) -> bool:
        """Return whether no code that is walked makes modules of a class: they are only held."""
        # A module's `__init__` is long, and what it names would be watched for nothing.
        if self._makes_any or not issubclass(owner, nn.Module):
            return False
        return not any(issubclass(maker, owner) for maker in self._makers)

    # ------------------------------------------------------------ what a forward writes

    @contextlib.contextmanager
    def undo_changes(self) -> Iterator[None]:
        """Put everything back that changes meanwhile; note what did."""
        # Shallow copies suffice: whatever a value holds is in one of these lists itself.
        streams = self._states_of_streams()
        mappings = [(mapping, dict(mapping)) for mapping in self._mappings]
        lists = [(values, [*values]) for values in self._lists]
        spaces = [
            (space, {name: space[name] for name in names})
            for space, names in self._globals.values()
        ]
        cells = [
            (value, content_of(value))
            for value in self._objects
            if isinstance(value, types.CellType)
        ]
        self.changed = []
        self.bindings = {}
        try:
            yield
        finally:
            # What has a name comes first: of it `bindings` can be made.
            for mapping, content in mappings:
                self._restore_mapping(mapping, content)
            for space, content in spaces:
                for name in [n for n in content if space.get(n) is not content[n]]:
                    space[name] = content[name]
                    self._note_binding(Binding(space, name, name))
            for values, items in lists:
                self._restore_list(values, items)
            for cell, item in cells:
                if content_of(cell) is not item:
                    cell.cell_contents = item
                    self._note_change(cell)
            if streams != self._states_of_streams():
                self.changed.append("a generator that the model or the loss holds, or a stream")
            if not self.is_unchanged():  # what cannot be put back
                self._note_change(None)

    def _restore_list(self, values: Any, items: list[object]) -> None:
        """Let a list, a set or a deque hold what it held."""
        differs = any(map(operator.is_not, values, items))
        if len(values) == len(items) and not differs:
            return
        values.clear()
        fill = values.update if isinstance(values, set) else values.extend
        fill(items)
        self._note_change(values)

    def _restore_mapping(self, mapping: Any, content: dict[Any, Any]) -> None:
        """Let a dict or a class hold what it held, in the same order."""
        # Keys of both, so that what was added and what was taken away are found as well.
        moved = [
            key
            for key in {**content, **mapping}
            if mapping.get(key, _END) is not content.get(key, _END)
        ]
        owned = self._owners.get(id(mapping), _Owner(""))
        owner = owned.owner
        # A class takes assignments only through `setattr`, one name at a time.
        if owner is not None:
            # Python's notes on a class, and a compiler's
            notes = ("__", "_abc_", torch_internals.COMPILER_NOTES)
            moved = [key for key in moved if not key.startswith(notes)]
            for key in moved:
                if key in content:
                    setattr(owner, key, content[key])
                else:
                    delattr(owner, key)
        # Cleared and filled again, which also restores the order in which a dict is read.
        elif moved or list(mapping) != list(content):
            mapping.clear()
            mapping.update(content)
        # A mapping of no class or module has no name to settle; changes in torch's own layers are
        # its own notes.
        if owner is None and owned.kind is None:
            if moved:
                self._note_change(mapping)
        elif not owned.is_layer_of_torch:
            for key in moved:
                self._note_binding(Binding(owner or mapping, key, f"{owned.label}.{key}"))

    def _note_binding(self, binding: Binding) -> None:
        """Note that a name was given another value."""
        self.changed.append(binding.label)
        self.bindings[binding.label] = binding

    def _note_change(self, holder: object) -> None:
        """Note that what holds other values has changed, where it has no name of its own."""
        unknown = _Owner("something that the model or the loss holds")
        label = self._owners.get(id(holder), unknown).label
        if label:
            self.changed.append(label)


def _package_of(kind: type) -> str | None:
    """Return the library of a class, of Python's own the package: `logging`, `re`."""
    library = library_named(kind)
    if library == PYTHON:
        return str(kind.__module__).partition(".")[0]
    return library


def _attributes(value: object) -> list[Any]:
    """Return the attributes of an object, as one dict, where it has any."""
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else []


def has_memory(value: object) -> bool:
    """Return whether a value is memory without Python values: an array, bytes to be written."""
    # By the buffer protocol, which covers bytearray, mmap and arrays of other libraries.
    try:
        memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return isinstance(value, np.ndarray)
    return True


def memory_of(value: Any) -> Hashable:
    """Return what tells the contents of memory from others: shape, type and bytes."""
    memory = value if isinstance(value, np.ndarray) else memoryview(value)
    if isinstance(memory, np.ndarray) and memory.dtype.hasobject:
        return repr(memory.tolist())  # whose bytes are addresses
    return memory.shape, getattr(memory, "dtype", None), digest(memory.tobytes())


def read_numpy_state(state: Any) -> Hashable:
    """Return the state of a stream of NumPy's with its arrays by their bytes."""
    # As text an array of it may be shortened: by `np.set_printoptions`, and by its length.
    if isinstance(state, dict):
        return tuple((name, read_numpy_state(part)) for name, part in state.items())
    if isinstance(state, list | tuple):
        return tuple(map(read_numpy_state, state))
    value: Hashable = memory_of(state) if isinstance(state, np.ndarray) else state
    return value


def digest(data: bytes) -> bytes:
    """Return a hash, the same for no other bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


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
        computes_in_single(),
        torch_internals.function_mode_depth(),
        *_decimal_rounding(),
        *np.geterr().values(),
    )


def _decimal_rounding() -> tuple[Hashable, ...]:
    """Return what decides how decimals are rounded."""
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.clamp


def names_in(code: types.CodeType, *operations: str) -> set[str]:
    """Return the names that operations of code have, those of functions within it too."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in operations}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant, *operations)
    return names


class _Names(NamedTuple):
    """What code names: globals, attributes (or texts that may be such), and modules to import."""

    names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]


@functools.lru_cache(4096)
def _names_of(code: types.CodeType) -> _Names:
    """Return what code names, functions within it too."""
    attributes = names_in(code, "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
    texts = names_within(code) - set(code.co_names)
    return _Names(
        frozenset(names_in(code, "LOAD_GLOBAL", "LOAD_NAME")),
        frozenset(attributes | texts),
        frozenset(names_in(code, "IMPORT_NAME")),
    )


def _mark(value: Any) -> Hashable:
    """Return what tells a value from others; functions and methods are made anew at each look."""
    if isinstance(value, PLAIN):
        # by text a float is told from its negative zero, and NaN is itself
        is_comparable = isinstance(value, int | str | bytes)
        return type(value), value if is_comparable else repr(value)
    if isinstance(value, types.FunctionType):
        return id(value.__code__)
    if isinstance(value, types.MethodType | types.CellType | types.MappingProxyType):
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        return id(value), value.requires_grad
    # Empty containers are made anew at each look, too; what comes into one is seen by its length.
    if isinstance(value, dict | list | tuple | set | frozenset) and not value:
        return type(value)
    if isinstance(value, dict):
        return id(value), tuple(key if isinstance(key, PLAIN) else id(key) for key in value)
    return id(value)


# ---------------------------------------------------------------- what is not followed

# Names in classes under which Python itself notes things.
NOTED = {
    "__weakref__", "__dict__", "_abc_impl", "__doc__", "__slotnames__", "__annotations__",
}  # fmt: skip
# Types whose values hold nothing that code could change.
OPAQUE = (
    types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, types.ModuleType, weakref.ref,
    torch.device, torch_internals.Overload, torch_internals.OverloadPacket,
)  # fmt: skip
# The types of hashes under way, by OpenSSL and by Python itself.
_HASHES = tuple({
    type(hashlib.new(name)) for name in ("sha256", "sha3_256", "blake2b", "blake2s", "shake_128")
} | {type(hashlib.sha3_256()), type(hashlib.blake2b()), type(hashlib.blake2s())})  # fmt: skip
# Objects with a state that no attribute shows, and how it is read.
STREAMS: dict[Any, ReadState] = {
    torch.Generator: lambda stream: stream.get_state().numpy().tobytes(),
    random.SystemRandom: lambda _stream: None,  # holds nothing
    random.Random: lambda stream: stream.getstate(),
    np.random.Generator: lambda stream: read_numpy_state(stream.bit_generator.state),
    np.random.RandomState: lambda stream: read_numpy_state(stream.get_state(legacy=False)),
    np.random.BitGenerator: lambda stream: read_numpy_state(stream.state),
    np.random.SeedSequence: lambda stream: read_numpy_state(stream.state),
    itertools.count: lambda stream: stream,
    io.BytesIO: lambda stream: stream.closed or stream.__getstate__(),
    io.StringIO: lambda stream: stream.closed or stream.__getstate__(),
    _HASHES: lambda stream: _digest_of_copy(stream),
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


def state_reader(value: object) -> ReadState | None:
    """Return how the state of a stream, a hash or a lock is read; None for other values."""
    for kind, read in STREAMS.items():
        if isinstance(value, kind):
            return read
    return None


def _digest_of_copy(stream: Any) -> bytes:
    """Return what a hash comes to so far; one of any length is asked for 16 bytes."""
    copied = stream.copy()
    digest_so_far: bytes = copied.digest(16) if stream.digest_size == 0 else copied.digest()
    return digest_so_far


def _attributes_of_script(module: Any) -> tuple[str, ...]:
    """Return the values, but for tensors, that a module of TorchScript holds outside of Python."""
    values: list[str] = []
    for name, value in torch_internals.script_attributes(module):
        if not isinstance(value, torch.Tensor):
            values.append(f"{name} {value!r}")
    return tuple(values)


def has_hidden_state(value: object) -> bool:
    """Return whether an object has a state that cannot be read: a connection, a queue, a codec."""
    classes = type(value).__mro__
    return any(c.__module__ in _HIDDEN and not is_written_in_python(c) for c in classes)


def is_written_in_python(kind: type) -> bool:
    """Return whether a class has functions of Python's, and so a dict or slots that show it all."""
    return any(isinstance(member, types.FunctionType) for member in vars(kind).values())


def names_within(code: types.CodeType) -> set[str]:
    """Return the names, and texts, in a function's code and that of the functions within it."""
    result = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            result |= names_within(constant)
        elif isinstance(constant, str):
            result.add(constant)  # setattr(module, "name", …)
    return result
