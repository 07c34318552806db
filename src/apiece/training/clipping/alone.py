"""One record at a time, each where nothing that another has left behind can be read.

On Linux's processors each row runs in a process of its own (`isolated.py`): independence holds by
construction, whatever a forward writes. Elsewhere rows run in this process, on fresh copies of all
that copies reach. What they do not reach (a module's globals, attributes of classes, memory that
they hold, settings of libraries) is compared after each row, and a batch that changed it is
refused.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import ctypes
import decimal
import functools
import gc
import itertools
import locale
import os
import random
import signal
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef

from apiece.errors import IsolationWarning, UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.ambient import streams_kept, wide
from apiece.training.clipping.engine import clip_one
from apiece.training.clipping.libraries import is_of_a_library, library_named
from apiece.training.clipping.records import Batch, ClippedSum, LossFunction, add_up
from apiece.training.clipping.watch import (
    NOTED,
    OPAQUE,
    PLAIN,
    ambient,
    content_of,
    digest,
    has_hidden_state,
    has_memory,
    hooks,
    memory_of,
    names_in,
    names_within,
    state_reader,
    walk,
)

Gradients = dict[str, torch.Tensor]
LossAndGradients = tuple[torch.Tensor, Gradients]


@torch.inference_mode(False)  # in which nothing has a gradient
def clip_alone(batch: Batch, lanes: int = sys.maxsize) -> ClippedSum:
    """Return the clipped sum of a batch, each row made by itself.

    On Linux's processors each row runs in a process of its own, a copy of one in which no record
    has run. Elsewhere it runs in this process, on fresh copies of model and loss, and a comparison
    afterwards finds what copies do not reach.

    Args:
        batch: The records or persons.
        lanes: How many rows may run at a time, of processes; at most torch's number of threads.

    Raises:
        UnsupportedError: In one process, for a model or loss that cannot be copied, or that writes
            where copies do not reach; in processes, for one that writes into shared memory.
    """
    base = int(torch.randint(2**62, ()))  # of which the run's own stream is one draw further
    reason = why_not_isolated(batch)
    if reason:
        warnings.warn(
            f"model: records run alone in one process ({reason}); what a forward leaves in memory "
            "or settings that Python does not show would reach the next record: change the model "
            "so that it is proved, or train on a processor under Linux",
            IsolationWarning,
            stacklevel=4,
        )
        rows = _rows_in_one_process(batch.of_rows(), base)
    else:
        rows = _rows_in_processes(batch.of_rows(), base, lanes)
    with contextlib.closing(rows):
        return add_up(_persons(batch, rows))


def why_not_isolated(batch: Batch) -> str:
    """Return why the rows of a batch cannot have processes of their own; empty where they can."""
    if sys.platform != "linux":
        return f"{sys.platform} does not copy a process that runs torch"
    tensors = [
        *batch.model.parameters(),
        *batch.model.buffers(),
        *records.leaves([batch.inputs, batch.targets]),
    ]
    others = {tensor.device.type for tensor in tensors} - {"cpu"}
    if others:
        return f"{min(others)} is not usable in a copy of a process"
    accelerator = getattr(torch, "accelerator", torch.cuda)
    if accelerator.is_available():
        return "beside an accelerator torch's backward uses threads, which a copy does not have"
    return ""


def _persons(batch: Batch, rows: Iterator[LossAndGradients]) -> Iterator[ClippedSum]:
    """Yield the clipped share of each record or person, of whose rows these are the gradients."""
    for person in batch.parts(1):
        total: Gradients = {}
        losses: list[torch.Tensor] = []
        for loss, gradients in itertools.islice(rows, len(person)):
            losses.append(loss)
            for name, g in gradients.items():
                total[name] = total[name] + g if name in total else g
        yield clip_one(total, torch.cat(losses), person.clip_norms)


def _row_of(rows: Batch, k: int) -> Batch:
    """Return row k, in memory of its own: a view of the batch's would lead to the others."""
    part = slice(k, k + 1)
    inputs, targets = (
        records.tree_map(torch.clone, records.select(tree, part))
        for tree in (rows.inputs, rows.targets)
    )
    return replace(rows, inputs=inputs, targets=targets, clip_norms=rows.clip_norms[part])


def _seed_row(base: int, k: int) -> None:
    """Start the streams of row k: of torch, Python and NumPy."""
    seed = (base + 0x9E3779B97F4A7C15 * (k + 1)) % 2**63
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _rows_in_processes(
    rows: Batch, base: int, lanes: int
) -> Generator[LossAndGradients, None, None]:
    """Yield loss and gradients of each row, each from a process of its own."""
    from apiece.training.clipping.isolated import run_rows  # needs what only POSIX has

    def work(k: int) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        _seed_row(base, k)
        row = _row_of(rows, k)
        return _gradients(row, row.model, row.loss_fn, row.parameters)

    with _memory_wiped():  # set before any process is copied: setting it takes an import
        yield from run_rows(work, len(rows), rows.parameters, min(lanes, torch.get_num_threads()))


def _rows_in_one_process(rows: Batch, base: int) -> Generator[LossAndGradients, None, None]:
    """Yield loss and gradients of each row, made one after the other on fresh copies."""
    modules = dict(sys.modules)  # what is first imported by a record holds nothing of one before
    seen = functools.partial(written, rows.model, rows.loss_fn, modules=modules)
    with streams_kept(), _memory_wiped():
        before = seen()
        for k in range(len(rows)):
            _seed_row(base, k)
            loss, gradients = _gradients(_row_of(rows, k), *_fresh(rows))
            if seen() != before:
                raise UnsupportedError(
                    "model, loss_fn: running a record changes something outside of them (a "
                    "global, a class's attribute, a cache, a setting, a tensor that both hold), "
                    "which the next record would read; give it as an input, or compute it before"
                )
            yield (
                loss,
                {
                    name: torch.zeros_like(p, dtype=wide(p.dtype)) if g is None else g
                    for (name, p), g in zip(
                        rows.parameters.items(), gradients.values(), strict=True
                    )
                },
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


def _gradients(
    row: Batch, model: nn.Module, loss_fn: LossFunction, parameters: dict[str, nn.Parameter]
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Return the loss and gradients of one row; None where the loss depends on no parameter."""
    with torch.enable_grad():
        outputs = records.call(model, row.inputs)
        losses = records.check_losses(loss_fn(outputs, row.targets), 1, loss_fn)
        gradients = records.gradients_of(losses, list(parameters.values()))
    result: dict[str, torch.Tensor | None] = {}
    for name, gradient in zip(parameters, gradients, strict=True):
        result[name] = None
        if gradient is not None:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            result[name] = dense.detach().to(wide(dense.dtype))
    return losses.detach(), result


def _fresh(batch: Batch) -> tuple[nn.Module, LossFunction, dict[str, nn.Parameter]]:
    """Return copies of model and loss, with their parameters by name."""
    functions, libraries = _held_by(batch.model, batch.loss_fn)
    memo: dict[int, Any] = {id(library): library for library in libraries}
    memo |= {id(function): _with_cells(function) for function in functions}
    try:
        for function in functions:
            made = memo[id(function)]
            made.__defaults__ = copy.deepcopy(function.__defaults__, memo)
            made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
            for cell, new in zip(function.__closure__ or (), made.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # an empty one stays empty
                    new.cell_contents = copy.deepcopy(cell.cell_contents, memo)
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


# ---------------------------------------------------------------- what copies reach


def _held_by(model: nn.Module, loss_fn: object) -> tuple[list[types.FunctionType], list[object]]:
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


def _held(value: Any) -> list[Any]:
    """Return what a value itself holds."""
    if isinstance(value, torch.Tensor | types.ModuleType | type):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [*map(content_of, value.__closure__ or ()), value.__dict__]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    held = getattr(value, "__dict__", None)
    own = isinstance(value, nn.Module) or library_named(type(value)) not in ("torch", "numpy")
    return [held] if isinstance(held, dict) and own else []


# ---------------------------------------------------------------- what copies do not reach

_ANYWHERE = {"globals", "vars", "exec", "eval", "__globals__", "locals"}


def written(model: nn.Module, loss_fn: object, *, modules: Mapping[str, object]) -> list[object]:
    """Return what a forward of the model, or the loss, may have written, to be compared.

    The walk goes into what they hold, their classes, torch's hooks of all modules, and wherever
    their code goes by name, in these of Python's modules where it imports; and to the settings of
    the process.
    """
    result = walk([model, loss_fn, *hooks()], functools.partial(_writable, modules))
    seen = [_seen(value) if place is None else place for value, place in result]
    return [*seen, ambient(), repr(decimal.getcontext()), _settings_of_process()]


def _settings_of_process() -> tuple[object, ...]:
    """Return settings that a forward could leave for the next, of torch, Python and the system."""
    mask = os.umask(0o077)
    os.umask(mask)
    smallest = torch.full((1,), 5e-324, dtype=torch.float64)
    in_c: list[bytes] = []
    of_system: list[object] = []
    if os.name == "posix":
        import resource  # which only POSIX has

        kinds = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
        of_system = [resource.getrlimit(getattr(resource, name)) for name in kinds]
        of_system.append(os.getpriority(os.PRIO_PROCESS, 0))
        variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        in_c = list(itertools.takewhile(bool, (variables[k] for k in itertools.count())))
    return (
        mask,
        Path.cwd(),
        dict(os.environ),
        in_c,
        of_system,
        threading.active_count(),
        bool((smallest * 1.0).eq(0).all()),  # whether tiny numbers are taken for zero
        locale.setlocale(locale.LC_ALL),
        [signal.getsignal(one) for one in sorted(signal.valid_signals())],
        (sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile()),
        (gc.get_threshold(), gc.isenabled()),
        [*map(id, warnings.filters)],
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        np.get_printoptions(),
    )


def _seen(value: Any) -> object:
    """Return what is compared of a value itself."""
    if isinstance(value, PLAIN):
        # an int as it is: Python writes none of more than 4,300 digits
        return (type(value), value) if isinstance(value, int) else repr(value)
    own: object = None
    if isinstance(value, torch.Tensor):
        own = _of_tensor(value)
    elif isinstance(value, torch.UntypedStorage):
        bytes_of = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
        own = _of_tensor(bytes_of)
    elif isinstance(value, types.FunctionType):
        own = id(value.__code__)
    elif isinstance(value, types.ModuleType):
        own = value.__name__  # what of it is named is looked at from there
    elif isinstance(value, type):
        own = sorted(vars(value).keys() - NOTED) if is_of_a_library(value) else None
    elif (read := state_reader(value)) is not None:
        own = digest(repr(read(value)).encode())
    elif has_hidden_state(value):
        own = os.urandom(16)  # nothing tells one state from another
    elif has_memory(value) and not (isinstance(value, np.ndarray) and value.dtype.hasobject):
        own = memory_of(value)
    return type(value).__qualname__, own


def _of_tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    kind = (tuple(tensor.shape), tensor.dtype, tensor._version, tensor.requires_grad)
    size = tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.strided or tensor.is_meta:
        return kind
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return (*kind, digest(plain.view(torch.uint8).numpy().tobytes() if size else b""))


def _writable(modules: Mapping[str, object], value: Any) -> Iterator[object]:
    """Yield what is within a value, in slots, in C or in a dict, and what its code names."""
    if isinstance(value, torch.Tensor):
        yield value.__dict__
    elif isinstance(value, nn.Module):
        yield from (value.__dict__, *type(value).__mro__)
    elif isinstance(value, dict | types.MappingProxyType):
        yield from itertools.chain.from_iterable(list(value.items()))
    elif isinstance(value, types.FunctionType):
        yield from map(content_of, value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__)
        for key, inner in list(value.__dict__.items()):
            if not key.startswith(("__", "_torchdynamo")):  # a library's notes on functions
                yield from (key, inner)
        if not is_of_a_library(value):
            yield from _named(value, modules)
    elif isinstance(value, type):
        library = is_of_a_library(value)
        for key, inner in list(vars(value).items()):
            kept = not library or isinstance(inner, (*PLAIN, torch.Tensor, np.ndarray))
            if kept and key not in NOTED:
                yield from (key, inner)
        yield from () if library else value.__mro__[1:]
    elif isinstance(value, np.ndarray):
        yield from [value.tolist()] if value.dtype.hasobject else []
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(value, contextvars.ContextVar):
        yield value.get(None)
    elif not isinstance(value, OPAQUE) and state_reader(value) is None:
        # CPython keeps attributes without a dict until one is asked for: ask, so that it is there.
        with contextlib.suppress(AttributeError):
            object.__getattribute__(value, "__dict__")
        for inner in gc.get_referents(value):
            if inner is not type(value) or not is_of_a_library(type(value)):
                yield inner
        if type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
            yield _position(value)


def _position(iterator: Any) -> object:
    """Return how far an iterator of Python's own has come; nothing twice where that is unknown."""
    if isinstance(iterator, types.GeneratorType):
        return iterator.gi_frame and iterator.gi_frame.f_lasti
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that copies in itertools end with Python 3.14
            return iterator.__reduce__()
    except (TypeError, RuntimeError):
        return os.urandom(16)


def _named(function: types.FunctionType, modules: Mapping[str, object]) -> Iterator[object]:
    """Yield what a function's code names: globals, and attributes of modules among them."""
    names, here = names_within(function.__code__), function.__globals__
    if _ANYWHERE & names:
        yield [value for name, value in list(here.items()) if not name.startswith("__")]
    waiting = [here[name] for name in sorted(names & here.keys())]
    imports = sorted(names_in(function.__code__, "IMPORT_NAME"))
    waiting += [modules[name] for name in imports if name in modules]
    known: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in known:
            known.add(id(value))
            held = vars(value)
            for inner in (held[name] for name in sorted(names & held.keys())):
                plain_code = callable(inner) and not isinstance(inner, type)
                waiting += [] if plain_code and is_of_a_library(inner) else [inner]
