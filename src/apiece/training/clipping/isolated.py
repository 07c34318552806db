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
from apiece.training.clipping.ambient import wide

Gradients = dict[str, torch.Tensor]
# Loss and gradients of one row; a gradient is None where the loss does not depend on a parameter.
Row = tuple[torch.Tensor, Mapping[str, torch.Tensor | None]]

# Seconds for which a row's process may use no processor before it is given up.
PATIENCE = 120.0
# Bytes that a pipe holds, where the system allows it.
_PIPE = 1 << 20
_LOSS_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Whether it failed, the type of the loss, the loss.
_HEADER = struct.Struct("<BBd")
_LENGTH = struct.Struct("<Q")
# Of prctl: the signal that a process gets when its parent ends.
_PARENT_DEATH_SIGNAL = 1
# Of mprotect: to be read, and not written.
_READABLE = 1
# How a lane ends that could not be cut off from others: no signal's number.
_UNSETTLED = 250


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
    running: list[_Lane] = []
    try:
        for first in range(min(lanes, count)):
            running.append(_Lane(work, range(first, count, lanes), types, running))
        for k in range(count):
            yield running[k % lanes].read(types)
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
        others: Sequence[_Lane],
    ) -> None:
        self._reads, writes = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a copy lacks
            self._pid = os.fork()
        if self._pid == 0:
            _serve(work, rows, list(types), writes)
        os.close(writes)

    def read(self, types: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Gradients]:
        """Return the answer of the next row."""
        failed, kind, value = _HEADER.unpack(self._take(_HEADER.size))
        if failed:
            (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
            raise _error_of(json.loads(bytes(self._take(length))))
        flags = self._take(len(types))
        gradients = {}
        for flag, (name, parameter) in zip(flags, types.items(), strict=True):
            made = torch.zeros(parameter.shape, dtype=wide(parameter.dtype))
            if flag and made.numel():
                self._fill(_bytes_of(made))
            gradients[name] = made
        return torch.tensor([value], dtype=_LOSS_TYPES[kind]), gradients

    def _take(self, size: int) -> bytearray:
        result = bytearray(size)
        self._fill(memoryview(result))
        return result

    def _fill(self, view: memoryview) -> None:
        """Read as many bytes as there is room for."""
        have = 0
        while have < len(view):
            self._wait()
            got = os.readv(self._reads, [view[have:]])
            if not got:
                raise self._broken()
            have += got

    def _wait(self) -> None:
        """Return once there is something to be read."""
        used: object = None
        since = time.monotonic()
        while not select.select([self._reads], [], [], 1.0)[0]:
            now = _processor_time(self._pid)
            if now != used:
                used, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise StateError(
                    f"model, loss_fn: a record's process has done nothing for {PATIENCE:g} s; it "
                    "may wait for a lock that another thread held when the process was copied: "
                    "let no thread work beside a run, or change the model so that it is proved"
                )

    def _broken(self) -> ApieceError:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        ended_by = signal.Signals(code).name if code in set(signal.Signals) else f"status {code}"
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


def _processor_time(pid: int) -> object:
    """Return what a lane and its row's process have used of the processor, in ticks."""
    used: list[object] = []
    with contextlib.suppress(OSError, ValueError):
        own = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for one in own:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            used.append((one, fields[11], fields[12]))
    return used


def _error_of(told: Sequence[str]) -> BaseException:
    """Return an error of a row's process, of its type where that is Python's or apiece's."""
    name, text, trace = told
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
    code = _UNSETTLED
    try:
        _settle()
        for k in rows:
            pid = os.fork()
            if pid == 0:
                _answer(work, k, names, writes)
            _, status = os.waitpid(pid, 0)
            code = abs(os.waitstatus_to_exitcode(status))
            if code:
                break
    finally:
        os._exit(code)


def _answer(work: Callable[[int], Row], k: int, names: list[str], writes: int) -> NoReturn:
    """Run one row and write its loss and gradients; never return."""
    code = 1
    try:
        _end_with_parent()
        _part_from_files(writes)  # not in the lane, whose copies would share their positions
        if k:  # each copy would tell the same again
            warnings.showwarning = lambda *_given, **_named: None
        _write(writes, _pack(*work(k), names))
        code = 0
    except BaseException as error:
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
    made = [gradients[name] for name in names]
    header = _HEADER.pack(0, _LOSS_TYPES.index(loss.dtype), float(loss))
    flags = bytes(one is not None for one in made)
    return [header, flags, *(_bytes_of(one) for one in made if one is not None and one.numel())]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a tensor, of at least one entry."""
    plain: Any = tensor.contiguous().view(-1).numpy()
    return memoryview(plain).cast("B")


def _pack_error(error: BaseException) -> bytes:
    import traceback

    trace = "".join(traceback.format_exception(error))
    told = json.dumps([type(error).__name__, str(error), trace]).encode()
    return _HEADER.pack(1, 0, 0.0) + _LENGTH.pack(len(told)) + told


def _write(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def _settle() -> None:
    """Cut a copy of this process off from others, and let it work in one thread."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    torch.set_num_threads(1)  # the threads of the first process are not in its copy
    _protect_shared_memory()
    gc.freeze()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _part_from_files(writes: int) -> None:
    """Give open files a position of this process's own; let pipes and sockets lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        descriptor = int(name)
        if descriptor in (1, 2, writes, nowhere):
            continue
        try:
            kind = os.fstat(descriptor).st_mode
        except OSError:  # that of the listing
            continue
        if stat.S_ISREG(kind):
            _reopen(descriptor, nowhere)
        elif not (stat.S_ISCHR(kind) or stat.S_ISDIR(kind)) or descriptor == 0:
            os.dup2(nowhere, descriptor)


def _reopen(descriptor: int, nowhere: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    try:
        again = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        os.dup2(nowhere, descriptor)
        return
    os.lseek(again, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(again, descriptor)
    os.close(again)


def _protect_shared_memory() -> None:
    """Let memory that other processes have, too, be read and not written."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        if rights[1] == "w" and rights[3] == "s":
            start, end = (int(one, 16) for one in span.split("-"))
            if protect(start, end - start, _READABLE):
                raise OSError(ctypes.get_errno(), f"mprotect of {span}")
