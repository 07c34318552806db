"""Ways by which a forward could leave a word for the next record: memory, settings, the system."""

import array
import collections
import contextvars
import ctypes
import decimal
import functools
import gc
import hashlib
import io
import itertools
import locale
import mmap
import os
import queue
import random
import resource
import signal
import sqlite3
import sys
import threading
import time
import types
import warnings
import weakref
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

LARGE = 1 << 16
MAKERS = {
    "number": lambda: 0.0, "items": list, "mapping": dict, "members": set,
    "slots": lambda: Slots(), "deque": lambda: collections.deque([0.0], maxlen=1),
    "array": lambda: array.array("d", [0.0]), "numpy": lambda: np.zeros(1),
    "large": lambda: np.zeros(LARGE), "tensor": lambda: torch.zeros(1),
    "large_tensor": lambda: torch.zeros(LARGE), "view": lambda: torch.zeros(LARGE),
    "storage": lambda: torch.zeros(8), "bytes": lambda: bytearray(8),
    "large_bytes": lambda: bytearray(LARGE), "memory": lambda: mmap.mmap(-1, 4096),
    "stream": lambda: random.Random(0), "generator": lambda: np.random.default_rng(0),
    "bits": lambda: np.random.PCG64(0), "legacy": lambda: np.random.RandomState(0),
    "torch_stream": lambda: torch.Generator().manual_seed(0), "sha": hashlib.sha256,
    "blake": hashlib.blake2b, "lock": threading.Lock, "event": threading.Event,
    "semaphore": lambda: threading.Semaphore(0), "local": threading.local,
    "queue": queue.SimpleQueue, "context": lambda: contextvars.ContextVar("word", default=0.0),
    "compressor": zlib.compressobj, "pages": io.BytesIO, "text": io.StringIO,
    "cycle": lambda: itertools.cycle([0.0, 1.0]), "counter": itertools.count,
    "turning": lambda: turning(), "base": lambda: a_base(),
    "weak": lambda: weakref.WeakValueDictionary(one=ALIVE),
    "c_int": lambda: ctypes.c_double(0.0),
    "normal": lambda: torch.distributions.Normal(0.0, 1.0), "pipe": os.pipe,
    "foreign": lambda: ctypes.create_string_buffer(LARGE),
}  # fmt: skip


class State:
    """What channels hold: only that of one channel, so that a look at it meets no other's."""


STATE = State()


def reset(name):
    """Begin anew, with what one channel holds as it is before anybody has left anything."""
    STATE.__dict__.clear()
    holders = [key for key in MAKERS if f"STATE.{key}" in SOURCES[name]]
    for key in holders:
        setattr(STATE, key, MAKERS[key]())
    ALIVE.word = Class.word = 0.0
    cached.cache_clear()
    sys.modules.pop("a_made_up_module", None)
    for holder in (function, nn, torch.Tensor):
        if hasattr(holder, "word"):
            del holder.word


def a_base():
    base = sqlite3.connect(":memory:")
    base.execute("create table words (word real)")
    return base


class Slots:
    __slots__ = ("word",)

    def __init__(self):
        self.word = 0.0


class Class:
    word = 0.0


ALIVE = Class()


def function():
    return None


@functools.lru_cache
def cached():
    return [0.0]


def turning():
    while True:
        yield 0.0
        yield 1.0


def word_of(holder):
    """Return a channel that is an attribute `word` of what this returns."""
    return (lambda: getattr(holder(), "word", 0.0), lambda v: setattr(holder(), "word", v))


def item_of(holder, key=0):
    return (lambda: float(holder()[key]), lambda v: holder().__setitem__(key, v))


def _appended():
    return STATE.items[-1] if STATE.items else 0.0


def _environ_of_c(name):
    found = ctypes.CDLL(None).getenv
    found.restype = ctypes.c_char_p
    return float(found(name.encode()) or 0.0)


def _quantum(v):
    """Return a small whole number that stands for a value."""
    return 1 + int(abs(v) * 8) % 7


def _umask(value=None):
    mask = os.umask(0o077 if value is None else value)
    if value is None:
        os.umask(mask)
    return mask


def _flushes():
    return float((torch.full((1,), 5e-324, dtype=torch.float64) * 1.0).eq(0).all())


def _in_base():
    return STATE.base.execute("select coalesce(sum(word), 0) from words").fetchone()[0]


def _peek():
    """Return what a queue holds, and put it back."""
    if STATE.queue.empty():
        return 0.0
    value = STATE.queue.get()
    STATE.queue.put(value)
    return value


def _hooks():
    return nn.modules.module._global_forward_hooks


def _add_hook(v):
    nn.modules.module.register_module_forward_hook(lambda *_: None)


def _limit(value=None):
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if value is not None:
        resource.setrlimit(resource.RLIMIT_STACK, (value, hard))
    return 0.0 if soft == resource.RLIM_INFINITY else soft / 2**20


def _handler(_value):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _import_made_up(v):
    sys.modules.setdefault("a_made_up_module", types.ModuleType("a_made_up_module")).word = v


# name: (read, leave); what is read is 0 until something was left
CHANNELS = {
    "a global's attribute": (lambda: STATE.number, lambda v: setattr(STATE, "number", v)),
    "a list": (_appended, lambda v: STATE.items.append(v)),
    "a dict": (lambda: STATE.mapping.get("word", 0.0), lambda v: STATE.mapping.update(word=v)),
    "a set": (lambda: sum(STATE.members), lambda v: STATE.members.add(v)),
    "a deque": item_of(lambda: STATE.deque),
    "slots": word_of(lambda: STATE.slots),
    "a class": word_of(lambda: Class),
    "a function": word_of(lambda: function),
    "a class of torch": word_of(lambda: torch.Tensor),
    "a module of torch": word_of(lambda: nn),
    "a cache": item_of(cached),
    "a weak dict": (lambda: STATE.weak["one"].word, lambda v: setattr(ALIVE, "word", v)),
    "a thread's own": word_of(lambda: STATE.local),
    "a context variable": (lambda: STATE.context.get(), lambda v: STATE.context.set(v)),
    "doubles": item_of(lambda: STATE.array),
    "an array": item_of(lambda: STATE.numpy),
    "a large array": item_of(lambda: STATE.large, LARGE // 2),
    "a tensor": item_of(lambda: STATE.tensor),
    "a large tensor": item_of(lambda: STATE.large_tensor, LARGE // 2),
    "a large tensor's data": (lambda: float(STATE.view[9]),
                              lambda v: STATE.view.data.view(-1).__setitem__(9, v)),
    "a large tensor's memory": (
        lambda: float(STATE.view[7]),
        lambda v: ctypes.c_float.from_address(STATE.view.data_ptr() + 28).__setattr__("value", v)),
    "a storage": (lambda: float(STATE.storage.untyped_storage()[0]),
                  lambda v: STATE.storage.untyped_storage().__setitem__(0, _quantum(v))),
    "bytes": (lambda: STATE.bytes[0] / 1.0, lambda v: STATE.bytes.__setitem__(0, _quantum(v))),
    "many bytes": (lambda: STATE.large_bytes[-1] / 1.0,
                   lambda v: STATE.large_bytes.__setitem__(LARGE - 1, _quantum(v))),
    "memory of C": (lambda: float(STATE.c_int.value), lambda v: setattr(STATE.c_int, "value", v)),
    "much memory of C": (lambda: STATE.foreign.raw[9] / 1.0,
                         lambda v: STATE.foreign.__setitem__(9, _quantum(v))),
    "Python's stream": (lambda: STATE.stream.getstate()[1][1] % 97,
                        lambda v: STATE.stream.seed(_quantum(v))),
    "NumPy's stream": (lambda: STATE.generator.bit_generator.state["state"]["state"] % 97,
                       lambda v: STATE.generator.random(_quantum(v))),
    "NumPy's bits": (lambda: STATE.bits.state["state"]["state"] % 97,
                     lambda v: STATE.bits.random_raw(_quantum(v))),
    "NumPy's older stream": (lambda: STATE.legacy.get_state()[2] % 97,
                             lambda v: STATE.legacy.random_sample(_quantum(v))),
    "a stream of torch's": (lambda: float(STATE.torch_stream.initial_seed()),
                            lambda v: STATE.torch_stream.manual_seed(_quantum(v))),
    "a hash": (lambda: STATE.sha.digest()[0], lambda v: STATE.sha.update(b"%a" % v)),
    "a hash of another kind": (lambda: STATE.blake.digest()[0],
                               lambda v: STATE.blake.update(b"%a" % v)),
    "a lock": (lambda: float(STATE.lock.locked()), lambda v: STATE.lock.acquire(blocking=False)),
    "an event": (lambda: float(STATE.event.is_set()), lambda v: STATE.event.set()),
    "a semaphore": (lambda: float(STATE.semaphore._value), lambda v: STATE.semaphore.release()),
    "a queue in C": (_peek, lambda v: STATE.queue.put(v)),
    "a compressor": (lambda: float(len(STATE.compressor.copy().flush())),
                     lambda v: STATE.compressor.compress(b"%a" % v)),
    "a data base": (_in_base, lambda v: STATE.base.execute("insert into words values (?)", (v,))),
    "a stream of bytes": (lambda: float(STATE.pages.tell()),
                          lambda v: STATE.pages.write(b"1" * _quantum(v))),
    "a stream of text": (lambda: float(STATE.text.tell()),
                         lambda v: STATE.text.write("1" * _quantum(v))),
    "an iterator": (lambda: next(STATE.cycle), lambda v: None),
    "a counter": (lambda: float(next(STATE.counter)), lambda v: None),
    "a generator": (lambda: next(STATE.turning), lambda v: None),
    "a distribution": (lambda: float(STATE.normal.loc),
                       lambda v: setattr(STATE.normal, "loc", torch.tensor(v))),
    "a module made up": (lambda: getattr(sys.modules.get("a_made_up_module"), "word", 0.0),
                         _import_made_up),
    "the environment": (lambda: float(os.environ.get("A_WORD", 0.0)),
                        lambda v: os.environ.__setitem__("A_WORD", repr(v))),
    "the environment in C": (lambda: _environ_of_c("A_WORD_IN_C"),
                             lambda v: os.putenv("A_WORD_IN_C", repr(v))),
    "the mask of new files": (lambda: float(_umask() & 7), lambda v: _umask(0o070 + _quantum(v))),
    "the working folder": (lambda: float(len(str(Path.cwd())) == 1), lambda v: os.chdir("/")),
    "tiny numbers": (_flushes, lambda v: torch.set_flush_denormal(True)),
    "the default type": (lambda: float(torch.get_default_dtype() == torch.float64),
                         lambda v: torch.set_default_dtype(torch.float64)),
    "the number of threads": (lambda: float(torch.get_num_threads() - 1),
                              lambda v: torch.set_num_threads(2)),
    "a hook of all modules": (lambda: float(len(_hooks())), _add_hook),
    "decimal's context": (lambda: float(decimal.getcontext().prec - 28),
                          lambda v: setattr(decimal.getcontext(), "prec", 28 + _quantum(v))),
    "how NumPy warns": (lambda: float(np.geterr()["over"] == "ignore"),
                        lambda v: np.seterr(over="ignore")),
    "how NumPy prints": (lambda: float(np.get_printoptions()["precision"] - 8),
                         lambda v: np.set_printoptions(precision=8 + _quantum(v))),
    "depth of calls": (lambda: float(sys.getrecursionlimit() % 1000),
                       lambda v: sys.setrecursionlimit(5000 + _quantum(v))),
    "the garbage collector": (lambda: float(gc.get_threshold()[2] > 60),
                              lambda v: gc.set_threshold(700, 10, 70)),
    "a signal's handler": (lambda: float(signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN),
                           _handler),
    "the locale": (lambda: float(locale.setlocale(locale.LC_NUMERIC) != "C"),
                   lambda v: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")),
    "filters of warnings": (lambda: float(len(warnings.filters)),
                            lambda v: warnings.filterwarnings("ignore", message=repr(v))),
    "a limit of the system": (_limit, lambda v: _limit((4 + _quantum(v)) << 20)),
    "the priority": (lambda: float(os.getpriority(os.PRIO_PROCESS, 0)), lambda v: os.nice(1)),
    "a thread that goes on": (lambda: float(threading.active_count() - 1),
                              lambda v: threading.Thread(target=time.sleep, args=(3,),
                                                         daemon=True).start()),
    "a pipe": (lambda: float(_in_the_pipe()), lambda v: os.write(STATE.pipe[1], b"1")),
    "shared memory": (lambda: STATE.memory[0] / 1.0,
                      lambda v: STATE.memory.__setitem__(0, _quantum(v))),
}  # fmt: skip


def _in_the_pipe():
    import select

    return bool(select.select([STATE.pipe[0]], [], [], 0)[0]) and STATE.pipe[0] > 2


def _holders(function):
    """Return the code of a channel's function, of what it calls here and of what it closes over."""
    names = function.__code__.co_names
    called = [globals()[n] for n in names if isinstance(globals().get(n), types.FunctionType)]
    inner = [cell.cell_contents for cell in function.__closure__ or ()]
    more = [one for one in (*called, *inner) if isinstance(one, types.FunctionType)]
    own = {f"STATE.{name}" for name in names}
    return own.union(*(_holders(one) for one in more)) if more else own


SOURCES = {name: _holders(read) | _holders(leave) for name, (read, leave) in CHANNELS.items()}


class Leaks(nn.Module):
    """Scales a record's outputs by what the one before has left, and leaves something itself."""

    def __init__(self, name):
        super().__init__()
        self.layer, self.channel = nn.Linear(3, 2), CHANNELS[name]

    def forward(self, x):
        read, leave = self.channel
        word = float(read())
        out = self.layer(x)
        leave(float(out.detach().abs().sum()))
        return out * (1.0 + abs(word))
