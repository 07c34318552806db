"""Each row in a process of its own: a copy of one process in which no record has run.

A lane is a copy of this process, made before any row of the batch has run. It runs nothing of the
model: it makes a copy of itself for each of its rows. So whatever a row's forward leaves in memory
(in Python's objects, in C, in a library's settings, in the process's own) is gone with its
process, and no other row can read it, by construction. What comes back is the loss and the
gradients, as numbers through a pipe. A lane does not see them either.

Memory that is shared with other processes is made read-only in a lane, files that are open have a
position of their own, and pipes and sockets lead nowhere. What goes by a path or a network (a file
that is opened anew, another process) is outside of this.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

import apiece.errors
from apiece.errors import ApieceError, StateError, UnsupportedError
from apiece.training.clipping.ambient import widen

Gradients = dict[str, torch.Tensor]
# Loss and gradients of one row; a gradient is None where the loss does not depend on a parameter.
Row = tuple[torch.Tensor, Mapping[str, torch.Tensor | None]]

# Seconds for which a row's process may use no processor before it is given up.
PATIENCE = 120.0
# Bytes that a pipe holds, where the system allows it.
_PIPE = 1 << 20
# Types of a loss, which goes through the pipe as its number here.
_LOSS_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# How an answer begins: whether the row failed, the type of the loss, the loss.
_HEADER = struct.Struct("<BBd")
# The length of an error's text, in bytes.
_LENGTH = struct.Struct("<Q")
# Of prctl: the signal that a process gets when its parent ends.
_PARENT_DEATH_SIGNAL = 1
# Of mprotect: to be read, and not written.
_READABLE = 1
# The status with which a lane ends that could not be cut off from others: no signal's number.
_NOT_CUT_OFF = 250


def run_rows(
    work: Callable[[int], Row], count: int, types: Mapping[str, torch.Tensor], lanes: int
) -> Iterator[tuple[torch.Tensor, Gradients]]:
    """Yield loss (1,) and gradients of each row, in order, each made in a process of its own.

    Args:
        work: Makes them of the row with this number; whatever it changes is lost.
        count: How many rows.
        types: The trained parameters, whose shapes and types the gradients have (or wider).
        lanes: How many rows run at a time, each in one thread.

    Raises:
        UnsupportedError: Where a process was ended by a signal: it wrote into shared memory.
        StateError: Where one has done nothing for `PATIENCE` seconds.
        Exception: What `work` raised, by its type where that is Python's or apiece's own.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # what is in its buffer would be written by each copy
    # Lanes that have begun, so that every one of them is ended below, also after an error.
    running: list[_Lane] = []
    try:
        for first in range(min(lanes, count)):
            # Every `lanes`-th row, so that answers are read from the lanes in turn. Each is in the
            # list before the next one is begun, so that it is ended whatever happens.
            running.append(_Lane(work, range(first, count, lanes), types))  # noqa: PERF401
        # Row r comes from lane r mod lanes: the order of rows does not depend on which lane is
        # quicker.
        for row in range(count):
            yield running[row % lanes].read(types)
    finally:
        for lane in running:
            lane.end()


class _Lane:
    """A copy of this process, and the pipe by which its rows' processes answer."""

    def __init__(
        self,
        work: Callable[[int], Row],
        rows: range,
        types: Mapping[str, torch.Tensor],
    ) -> None:
        # The parent keeps the reading end, each copy the writing one.
        self._reads, writes = os.pipe()
        with contextlib.suppress(OSError):  # as large as the system's own, where that is the limit
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a copy lacks
            self._pid = os.fork()
        if self._pid == 0:  # the copy, which ends within
            _serve(work, rows, list(types), writes)
        os.close(writes)  # so that the pipe ends when the copy does

    def read(self, types: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Gradients]:
        """Return the answer of the next row."""
        # An answer: header, then either an error's text or flags and gradients in the parameters'
        # order.
        failed, kind, value = _HEADER.unpack(self._take(_HEADER.size))
        if failed:
            (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
            raise _error_of(json.loads(bytes(self._take(length))))
        # one byte a parameter: whether its gradient follows
        flags = self._take(len(types))
        gradients: Gradients = {}
        # Zeros are prepared first, and stay where the row's loss does not depend on the parameter.
        for flag, (name, parameter) in zip(flags, types.items(), strict=True):
            gradient = torch.zeros(parameter.shape, dtype=widen(parameter.dtype))
            if flag and gradient.numel():
                self._fill(_bytes_of(gradient))
            gradients[name] = gradient
        return torch.tensor([value], dtype=_LOSS_TYPES[kind]), gradients

    def _take(self, size: int) -> bytearray:
        result = bytearray(size)
        self._fill(memoryview(result))
        return result

    def _fill(self, view: memoryview) -> None:
        """Read as many bytes as there is room for."""
        filled = 0
        # A pipe gives what it has, mostly less than was asked for.
        while filled < len(view):
            self._wait()
            count = os.readv(self._reads, [view[filled:]])
            if not count:  # the pipe's other end is closed, since its process has ended
                raise self._describe_end()
            filled += count

    def _wait(self) -> None:
        """Return once there is something to be read."""
        # Patience is measured against the use of processor time: a slow record works, a deadlock
        # does not.
        latest_use: object = None
        since = time.monotonic()
        while not self._is_readable():
            use = _processor_use(self._pid)
            if use != latest_use:
                latest_use = use
                since = time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise StateError(
                    f"model, loss_fn: a record's process has done nothing for {PATIENCE:g} s; it "
                    "may wait for a lock that another thread held when the process was copied: "
                    "let no thread work beside a run, or change the model so that it is proved"
                )

    def _is_readable(self) -> bool:
        """Return whether there is something to be read within a second."""
        readable, _, _ = select.select([self._reads], [], [], 1.0)
        return bool(readable)

    def _describe_end(self) -> ApieceError:
        """Wait for the lane, which has ended, and return the error that says how."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        ended_by = f"status {code}"
        if code in set(signal.Signals):  # a lane ends with the number of its row's signal
            ended_by = signal.Signals(code).name
        return UnsupportedError(
            f"model, loss_fn: a record's process was ended ({ended_by}); SIGSEGV and SIGBUS: it "
            "writes into memory that is shared with other processes (share_memory_(), a memory "
            "map opened for writing, a lock of multiprocessing): hold a copy; SIGKILL: memory ran "
            "out: take a smaller physical_batch_size"
        )

    def end(self) -> None:
        """End the lane and with it its rows' processes."""
        os.close(self._reads)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _processor_use(pid: int) -> object:
    """Return what a lane and its row's process have used of the processor, in ticks."""
    use: list[object] = []
    with contextlib.suppress(OSError, ValueError):
        # Of each process, ticks in user mode and in the system (fields 14 and 15 of proc's stat).
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        for process in [str(pid), *children.split()]:
            # after the name, in brackets, which may have spaces in it
            _, _, after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")
            fields = after_name.split()
            ticks_of_user = fields[11]
            ticks_of_system = fields[12]
            use.append((process, ticks_of_user, ticks_of_system))
    return use


def _error_of(answer: Sequence[str]) -> BaseException:
    """Return an error of a row's process, of its type where that is Python's or apiece's."""
    name, text, trace = answer
    # Only types that can be told by name; others become a RuntimeError that names them.
    kind = getattr(apiece.errors, name, getattr(builtins, name, None))
    error: BaseException = RuntimeError(f"{name}: {text}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):
            error = kind(text)
    if not isinstance(error, ApieceError):  # whose one line says what to do
        error.add_note(trace)
    return error


# ---------------------------------------------------------------- in a copy


def _serve(work: Callable[[int], Row], rows: range, names: list[str], writes: int) -> NoReturn:
    """Copy this process for each row, one after the other; never return."""
    # Until it is cut off, the lane ends with a status that says so.
    code = _NOT_CUT_OFF
    try:
        _settle()
        for row in rows:
            # Forked for each row, so that a row's changes are gone with its process.
            # The lane has run nothing, so that each of its copies is as the first one.
            pid = os.fork()
            if pid == 0:
                _answer(work, row, names, writes)
            _, status = os.waitpid(pid, 0)
            # negative where a signal has ended it; a lane's own status cannot be
            code = abs(os.waitstatus_to_exitcode(status))
            if code:
                break
    finally:
        os._exit(code)  # without what Python does at its end: that is the first process's


def _answer(work: Callable[[int], Row], row: int, names: list[str], writes: int) -> NoReturn:
    """Run one row and write its loss and gradients; never return."""
    # The order: die with the parent first, then no way to other processes, then the user's code.
    code = 1  # where not even the error could be written
    try:
        _end_with_parent()
        _part_from_files(writes)  # not in the lane, whose copies would share their positions
        if row:  # each copy would warn of the same again
            warnings.showwarning = lambda *_args, **_kwargs: None
        _write(writes, _pack(*work(row), names))
        code = 0
    except BaseException as error:  # whatever it is, the first process raises it
        _write(writes, [_pack_error(error)])
        code = 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        os._exit(code)


def _pack(
    loss: torch.Tensor, gradients: Mapping[str, torch.Tensor | None], names: Sequence[str]
) -> list[bytes | memoryview]:
    """Return an answer: the header, a flag for each parameter, and the gradients there are."""
    # A loss is one number, exact as a double in each of the types.
    header = _HEADER.pack(0, _LOSS_TYPES.index(loss.dtype), float(loss))
    flags = bytes(gradients[name] is not None for name in names)
    parts: list[bytes | memoryview] = [header, flags]
    for name in names:
        gradient = gradients[name]
        if gradient is not None and gradient.numel():
            parts.append(_bytes_of(gradient))
    return parts


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a tensor, of at least one entry."""
    plain: Any = tensor.contiguous().view(-1).numpy()
    return memoryview(plain).cast("B")


def _pack_error(error: BaseException) -> bytes:
    """Return an answer that says what a row's process raised."""
    import traceback

    trace = "".join(traceback.format_exception(error))
    answer = [type(error).__name__, str(error), trace]
    text = json.dumps(answer).encode()
    return _HEADER.pack(1, 0, 0.0) + _LENGTH.pack(len(text)) + text


def _write(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all of these bytes, of which the system takes some at a time."""
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def _settle() -> None:
    """Cut a copy of this process off from others, and let it work in one thread."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()  # which would print of each end by a signal
    # a process that is ended leaves no file with records' values behind
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))
    torch.set_num_threads(1)  # the threads of the first process are not in its copy
    _protect_shared_memory()
    gc.freeze()  # a collection would write to every page, and so copy it


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _part_from_files(writes: int) -> None:
    """Give open files a position of this process's own; let pipes and sockets lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        descriptor = int(name)
        if descriptor in (1, 2, writes, nowhere):
            continue
        try:
            # The type of file decides: regular files are opened anew, pipes and sockets lead
            # nowhere.
            kind = os.fstat(descriptor).st_mode
        except OSError:  # that of the listing
            continue
        # Devices and folders hold nothing of a record's; what is typed is for the first process.
        if stat.S_ISREG(kind):
            _reopen(descriptor, nowhere)
        elif descriptor == 0 or not (stat.S_ISCHR(kind) or stat.S_ISDIR(kind)):
            os.dup2(nowhere, descriptor)


def _reopen(descriptor: int, nowhere: int) -> None:
    """Open a file anew under its number, at its position; lead it nowhere where that fails."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    try:
        reopened = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        # The new descriptor takes the old number, with the position that this process had.
        os.dup2(nowhere, descriptor)
        return
    os.lseek(reopened, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(reopened, descriptor)
    os.close(reopened)


def _protect_shared_memory() -> None:
    """Let memory that other processes have, too, be read and not written."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        # rights are such as "rw-s": to be read and written, not run, shared
        if rights[1] == "w" and rights[3] == "s":
            # Only writable shared mappings: private ones are copied at the first write.
            start, end = (int(address, 16) for address in span.split("-"))
            if protect(start, end - start, _READABLE):
                raise OSError(ctypes.get_errno(), f"mprotect of {span}")
