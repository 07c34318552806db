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

from apiece.errors import IsolationWarning, UnsupportedError
from apiece.training.clipping import records, torch_internals
from apiece.training.clipping.ambient import keep_streams, widen
from apiece.training.clipping.engine import clip_gradient
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
    memory_of,
    names_in,
    names_within,
    state_reader,
    walk,
)

Gradients = dict[str, torch.Tensor]
# A row's loss (1,) and its gradients, zeros where the loss depends on no parameter.
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
    # closed also where something is raised, so that no process is left over
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
    # A driver's state does not survive the copying of its process.
    accelerators = {tensor.device.type for tensor in tensors} - {"cpu"}
    if accelerators:
        return f"{min(accelerators)} is not usable in a copy of a process"
    # torch before 2.6 has no word for all of them
    accelerator = getattr(torch, "accelerator", torch.cuda)
    if accelerator.is_available():
        return "beside an accelerator torch's backward uses threads, which a copy does not have"
    return ""


def _persons(batch: Batch, rows: Iterator[LossAndGradients]) -> Iterator[ClippedSum]:
    """Yield the clipped share of each record or person, of whose rows these are the gradients."""
    for person in batch.parts(1):
        # A person's gradient is the sum over their rows, clipped once; a record is a person with
        # one row.
        total: Gradients = {}
        losses: list[torch.Tensor] = []
        # rows come in the order of the batch, in which each person's lie side by side
        for loss, gradients in itertools.islice(rows, len(person)):
            losses.append(loss)
            for name, gradient in gradients.items():
                total[name] = total[name] + gradient if name in total else gradient
        yield clip_gradient(total, torch.cat(losses), person.clip_norms)


def _row_of(rows: Batch, k: int) -> Batch:
    """Return row k, in memory of its own: a view of the batch's would lead to the others."""
    row = slice(k, k + 1)
    return replace(
        rows,
        inputs=records.tree_map(torch.clone, records.select(rows.inputs, row)),
        targets=records.tree_map(torch.clone, records.select(rows.targets, row)),
        clip_norms=rows.clip_norms[row],
    )


# 2⁶⁴ divided by the golden ratio, odd: its multiples lie far apart, and none comes twice.
_SEED_STEP = 0x9E3779B97F4A7C15


def _seed_row(base: int, k: int) -> None:
    """Start the streams of row k: of torch, Python and NumPy."""
    # The seed follows from the base and the row's number: how many lanes there are changes nothing.
    seed = (base + _SEED_STEP * (k + 1)) % 2**63
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

    with _wipe_memory():  # set before any process is copied: setting it takes an import
        yield from run_rows(work, len(rows), rows.parameters, min(lanes, torch.get_num_threads()))


def _rows_in_one_process(rows: Batch, base: int) -> Generator[LossAndGradients, None, None]:
    """Yield loss and gradients of each row, made one after the other on fresh copies."""
    modules = dict(sys.modules)  # what is first imported by a record holds nothing of one before
    read_state = functools.partial(readable_state, rows.model, rows.loss_fn, modules=modules)
    with keep_streams(), _wipe_memory():
        # The state before any record ran: each row must leave exactly this.
        state = read_state()
        for k in range(len(rows)):
            # Each row has streams of its own: what one has drawn shows in no other's.
            _seed_row(base, k)
            loss, gradients = _gradients(_row_of(rows, k), *_copy_all(rows))
            # Compared after every row, before the next one could read what was left.
            if read_state() != state:
                raise UnsupportedError(
                    "model, loss_fn: running a record changes something outside of them (a "
                    "global, a class's attribute, a cache, a setting, a tensor that both hold), "
                    "which the next record would read; give it as an input, or compute it before"
                )
            complete: Gradients = {}
            # Zeros where the loss depends on no parameter, as a proved graph gives them.
            for name, parameter in rows.parameters.items():
                gradient = gradients[name]
                if gradient is None:
                    gradient = torch.zeros_like(parameter, dtype=widen(parameter.dtype))
                complete[name] = gradient
            yield loss, complete


@contextlib.contextmanager
def _wipe_memory() -> Iterator[None]:
    """Let memory that nobody has written hold NaN, and not what another record left in it."""
    settings: Any = torch.utils.deterministic
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills_memory = settings.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        try:
            # torch fills memory under deterministic algorithms alone
            if not is_deterministic:
                torch.use_deterministic_algorithms(True, warn_only=True)
            settings.fill_uninitialized_memory = True
            yield
        finally:
            torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
            settings.fill_uninitialized_memory = fills_memory


def _gradients(
    row: Batch, model: nn.Module, loss_fn: LossFunction, parameters: dict[str, nn.Parameter]
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Return the loss and gradients of one row; None where the loss depends on no parameter."""
    with torch.enable_grad():  # whatever the caller has set
        outputs = records.call(model, row.inputs)
        losses = records.check_losses(loss_fn(outputs, row.targets), 1, loss_fn)
        gradients = records.gradients_of(losses, list(parameters.values()))
    result: dict[str, torch.Tensor | None] = {}
    for name, gradient in zip(parameters, gradients, strict=True):
        result[name] = None
        if gradient is not None:
            # of an embedding with sparse=True
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            result[name] = dense.detach().to(widen(dense.dtype))
    return losses.detach(), result


def _copy_all(batch: Batch) -> tuple[nn.Module, LossFunction, dict[str, nn.Parameter]]:
    """Return copies of model and loss, with their parameters by name."""
    functions, libraries = _find_uncopied(batch.model, batch.loss_fn)
    # `deepcopy` takes functions for what cannot change, and cannot copy libraries: both are put
    # where it looks first for what it has copied.
    memo: dict[int, Any] = {id(library): library for library in libraries}
    memo |= {id(function): _copy_function(function) for function in functions}
    try:
        # Filled only now, since closures may hold one another.
        for function in functions:
            _copy_content(function, memo[id(function)], memo)
        model = copy.deepcopy(batch.model, memo)
        loss_fn = copy.deepcopy(batch.loss_fn, memo)
    except Exception as error:  # whatever an object raises that cannot be copied
        raise UnsupportedError(
            "model, loss_fn: cannot be copied for each record alone "
            f"({type(error).__name__}: {str(error)[:120]}); hold plain values and tensors"
        ) from None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return model, loss_fn, {name: parameters[name] for name in batch.parameters}


def _copy_function(function: types.FunctionType) -> types.FunctionType:
    """Return the function with a closure of its own, still empty."""
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    result = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, None, cells or None
    )
    result.__dict__.update(function.__dict__)
    return result


def _copy_content(
    function: types.FunctionType, copied: types.FunctionType, memo: dict[int, Any]
) -> None:
    """Give a copied function copies of defaults and of what the closure holds."""
    copied.__defaults__ = copy.deepcopy(function.__defaults__, memo)
    copied.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    cells = zip(function.__closure__ or (), copied.__closure__ or (), strict=True)
    for cell, copied_cell in cells:
        with contextlib.suppress(ValueError):  # an empty one stays empty
            copied_cell.cell_contents = copy.deepcopy(cell.cell_contents, memo)


# ---------------------------------------------------------------- what copies reach


def _find_uncopied(
    model: nn.Module, loss_fn: object
) -> tuple[list[types.FunctionType], list[object]]:
    """Return the functions with closures or defaults that model and loss hold, and libraries.

    Libraries are Python's modules and operators registered with torch: nobody can copy them.
    """
    functions: list[types.FunctionType] = []
    libraries: list[object] = []
    library_types = types.ModuleType | torch_internals.CustomOperator
    for value, number in walk([model, loss_fn], _parts_of):
        if number is not None:  # it came before
            continue
        if isinstance(value, library_types):
            libraries.append(value)
        elif isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__):
            functions.append(value)
    return functions, libraries


def _parts_of(value: Any) -> list[Any]:
    """Return what a value holds that `deepcopy` would copy, or would have to."""
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
    attributes = getattr(value, "__dict__", None)
    is_users = isinstance(value, nn.Module) or library_named(type(value)) not in ("torch", "numpy")
    return [attributes] if isinstance(attributes, dict) and is_users else []


# ---------------------------------------------------------------- what copies do not reach

# Names by which code reaches any global of its file.
_ANYWHERE = {"globals", "vars", "exec", "eval", "__globals__", "locals"}


def readable_state(
    model: nn.Module, loss_fn: object, *, modules: Mapping[str, object]
) -> list[object]:
    """Return all that a forward of the model, or the loss, could read or write, to be compared.

    The walk goes into what they hold, their classes, torch's hooks of all modules, and wherever
    their code goes by name, in these of Python's modules where it imports; and to the settings of
    the process.
    """
    # Hooks of all modules are roots, too: a forward calls them.
    roots = [model, loss_fn, *torch_internals.global_hooks()]
    values = walk(roots, functools.partial(_within, modules))
    # Later occurrences stand as numbers: two names for one object must stay so.
    marks = [_mark(value) if number is None else number for value, number in values]
    return [*marks, ambient(), repr(decimal.getcontext()), _settings_of_process()]


def _settings_of_process() -> tuple[object, ...]:
    """Return settings that a forward could leave for the next, of torch, Python and the system."""
    mask = os.umask(0o077)  # can be read only by setting it
    os.umask(mask)
    # The smallest subnormal: times one it is zero where the processor flushes such numbers.
    smallest = torch.full((1,), 5e-324, dtype=torch.float64)
    return (
        mask,
        Path.cwd(),
        dict(os.environ),
        *_settings_of_posix(),
        threading.active_count(),
        bool((smallest * 1.0).eq(0).all()),  # whether tiny numbers are taken for zero
        locale.setlocale(locale.LC_ALL),
        [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        sys.gettrace(),
        sys.getprofile(),
        gc.get_threshold(),
        gc.isenabled(),
        [*map(id, warnings.filters)],
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        np.get_printoptions(),
    )


def _settings_of_posix() -> tuple[list[object], list[object]]:
    """Return the variables of the environment as C has them, and limits and priority."""
    if os.name != "posix":
        return [], []
    import resource  # which only POSIX has

    kinds = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
    limits: list[object] = [resource.getrlimit(getattr(resource, name)) for name in kinds]
    limits.append(os.getpriority(os.PRIO_PROCESS, 0))
    # What a library in C has set is not in `os.environ`; the list ends with a null.
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    variables = itertools.takewhile(bool, (environ[k] for k in itertools.count()))
    return list(variables), limits


def _mark(value: Any) -> object:
    """Return what is compared of a value itself."""
    if isinstance(value, PLAIN):
        # an int as it is: Python writes none of more than 4,300 digits
        return (type(value), value) if isinstance(value, int) else repr(value)
    return type(value).__qualname__, _state_of(value)


def _state_of(value: Any) -> object:
    """Return the state of an object beside what is within it; None where it has none."""
    if isinstance(value, torch.Tensor):
        return _state_of_tensor(value)
    if isinstance(value, torch.UntypedStorage):
        # Storage is compared as bytes, whatever tensors look into it.
        in_bytes = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
        return _state_of_tensor(in_bytes)
    if isinstance(value, types.FunctionType):
        return id(value.__code__)
    if isinstance(value, types.ModuleType):
        return value.__name__  # what of it is named is looked at from there
    if isinstance(value, type):
        return sorted(vars(value).keys() - NOTED) if is_of_a_library(value) else None
    if (read := state_reader(value)) is not None:
        return digest(repr(read(value)).encode())
    if has_hidden_state(value):
        # Never the same twice, so that a model that holds such an object is refused.
        return os.urandom(16)  # nothing tells one state from another
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return None  # its objects are walked themselves
    return memory_of(value) if has_memory(value) else None


def _state_of_tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what tells a tensor's form and values, to the bit, from others."""
    form = (
        tuple(tensor.shape),
        tensor.dtype,
        torch_internals.write_count(tensor),
        tensor.requires_grad,
    )
    if tensor.layout is not torch.strided or tensor.is_meta:
        return form
    if tensor.numel() * tensor.element_size() == 0:
        return (*form, digest(b""))
    # as bytes: NaN of several bits and both zeros are told apart
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes()
    return (*form, digest(data))


def _within(modules: Mapping[str, object], value: Any) -> Iterator[object]:
    """Yield what is within a value, in slots, in C or in a dict, and what its code names."""
    # The order matters: a value is taken for the first kind that it is of.
    if isinstance(value, torch.Tensor):
        yield value.__dict__
    # The classes, too, since a forward may write their attributes.
    elif isinstance(value, nn.Module):
        yield from (value.__dict__, *type(value).__mro__)
    elif isinstance(value, dict | types.MappingProxyType):
        yield from itertools.chain.from_iterable(list(value.items()))
    elif isinstance(value, types.FunctionType):
        yield from map(content_of, value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__)
        for key, inner in list(value.__dict__.items()):
            # a compiler's notes on functions
            if not key.startswith(("__", torch_internals.COMPILER_NOTES)):
                yield from (key, inner)
        # Of libraries' code nothing is followed: what it keeps is found from what holds it.
        if not is_of_a_library(value):
            yield from _find_named(value, modules)
    elif isinstance(value, type):
        of_library = is_of_a_library(value)
        for key, inner in list(vars(value).items()):
            is_value = isinstance(inner, (*PLAIN, torch.Tensor, np.ndarray))
            if (is_value or not of_library) and key not in NOTED:
                yield from (key, inner)
        if not of_library:
            yield from value.__mro__[1:]
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield value.tolist()
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(value, contextvars.ContextVar):
        yield value.get(None)
    elif not isinstance(value, OPAQUE) and state_reader(value) is None:
        # CPython keeps attributes without a dict until one is asked for: ask, so that it is there.
        with contextlib.suppress(AttributeError):
            object.__getattribute__(value, "__dict__")
        # What the collector sees of an object is all that it holds, in slots and in C too.
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
        # To be copied, an iterator says what it is of and how far it has come.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that copies in itertools end with Python 3.14
            return iterator.__reduce__()
    except (TypeError, RuntimeError):
        return os.urandom(16)


def _find_named(function: types.FunctionType, modules: Mapping[str, object]) -> Iterator[object]:
    """Yield what a function's code names: globals, and attributes of modules among them."""
    names = names_within(function.__code__)
    space = function.__globals__
    if _ANYWHERE & names:
        # a list, since globals may change while they are walked
        items = list(space.items())
        yield [value for name, value in items if not name.startswith("__")]
    waiting = [space[name] for name in sorted(names & space.keys())]
    imports = sorted(names_in(function.__code__, "IMPORT_NAME"))
    waiting += [modules[name] for name in imports if name in modules]
    seen: set[int] = set()
    # Of a module only attributes that the code names count; one that is a module leads further.
    while waiting:
        value = waiting.pop()
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            attributes = vars(value)
            for name in sorted(names & attributes.keys()):
                inner = attributes[name]
                # a library's functions hold nothing of a record's; its classes may
                is_function = callable(inner) and not isinstance(inner, type)
                if not (is_function and is_of_a_library(inner)):
                    waiting.append(inner)
