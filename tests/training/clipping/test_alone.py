"""One record at a time: what one leaves behind, nobody reads."""

import array
import collections
import contextvars
import decimal
import functools
import io
import itertools
import sys
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import alone
from apiece.training.clipping.alone import readable_state

SIZE = 6


@pytest.fixture
def _one_process(monkeypatch):
    """As on an accelerator, or another system than Linux."""
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: "a test says so")


def squares(out, y):
    return (out - y.unsqueeze(1)).square().sum(1)


class Slots:
    __slots__ = ("held",)


def turning():
    while True:
        yield 1
        yield 2


HELD = {"in": None}
DOUBLES, PAGES, CONTEXT = array.array("d", [0.0]), io.BytesIO(), contextvars.ContextVar("CONTEXT")
CYCLE, TURNING = itertools.cycle([1, 2, 3]), turning()
STORAGE = torch.zeros(8).untyped_storage()
OTHER = types.ModuleType("other_that_holds")
QUEUE, ARRAY, SLOTS = collections.deque(maxlen=1), np.zeros(1), Slots()
STREAM = torch.Generator()


@functools.lru_cache
def cached():
    return {}


class Named:
    held = None


ALIVE = Named()
WEAK = weakref.WeakValueDictionary(one=ALIVE)


def in_a_queue(value):
    QUEUE.append(value)


def in_an_array(value):
    ARRAY[:] = value


def in_slots(value):
    SLOTS.held = value


def in_a_cache(value):
    cached()["held"] = value


def in_a_class(value):
    Named.held = value


def in_a_dict(value):
    HELD["in"] = value


def in_a_stream(value):
    STREAM.manual_seed(int(abs(value) * 1e6))


def on_a_library(value):
    nn.held = value


def by_its_name(value):
    setattr(nn, "held", value)  # noqa: B010


def in_memory(value):
    DOUBLES[0] = value


def in_a_stream_of_bytes(value):
    PAGES.write(b"%a" % value)


def in_a_storage(value):
    STORAGE[0] = 1


def in_a_context(value):
    CONTEXT.set(value)


def in_what_is_held_weakly(value):
    WEAK["one"].held = value


def in_an_iterator(_value):
    next(CYCLE)


def in_a_generator(_value):
    next(TURNING)


def in_a_setting(_value):
    torch.set_default_dtype(torch.float64)


def in_the_context_of_decimals(value):
    decimal.getcontext().prec = 30 + int(abs(value) * 100)


def in_how_numpy_warns(_value):
    np.seterr(divide="ignore")


def in_a_hook_of_all_modules(value):
    from torch.nn.modules.module import register_module_forward_hook as register

    HOOKS.append(register(lambda *_: print(value, end="")))


def on_a_class_of_a_library(value):
    torch.Tensor.held = value


def in_what_is_imported(value):
    import other_that_holds

    other_that_holds.held = value


HOOKS = []


def in_a_function(value):
    in_a_function.held = value


WAYS = [in_a_queue, in_an_array, in_slots, in_a_cache, in_a_class, in_a_dict, in_a_stream,
        on_a_library, by_its_name, in_a_function, in_memory, in_a_stream_of_bytes, in_a_storage,
        in_a_context, in_what_is_held_weakly, in_an_iterator, in_a_generator, in_a_setting,
        in_the_context_of_decimals, in_how_numpy_warns, in_a_hook_of_all_modules,
        on_a_class_of_a_library, in_what_is_imported]  # fmt: skip


class Telling(nn.Module):
    """Leaves something of a record behind, out of reach of copies."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way = nn.Linear(3, 2), way

    def forward(self, x):
        return self.tell(self.layer(x))

    def tell(self, h):
        self.way(float(h.detach().sum()))
        return h


@pytest.fixture
def _as_new(monkeypatch):
    monkeypatch.setitem(sys.modules, OTHER.__name__, OTHER)
    with decimal.localcontext(), np.errstate():
        yield
    for hook in HOOKS:
        hook.remove()
    torch.set_default_dtype(torch.float32)
    QUEUE.clear()
    ARRAY[:] = 0
    SLOTS.held = Named.held = HELD["in"] = None
    cached.cache_clear()
    STREAM.manual_seed(0)
    in_a_function.__dict__.clear()
    for holder in (nn, torch.Tensor, OTHER):
        if hasattr(holder, "held"):
            del holder.held


@pytest.mark.usefixtures("_as_new", "_one_process")
@pytest.mark.parametrize("way", WAYS)
def test_what_copies_do_not_reach_is_seen(way):
    SLOTS.held = None
    with pytest.raises(UnsupportedError, match="changes something outside"):
        total(Telling(way), torch.randn(SIZE, 3))


def total(model, x, loss=squares):
    clipped = clip_and_sum(model, loss, x, torch.ones(len(x)), 0.1, method="alone")
    return torch.cat([g.flatten() for g in clipped.gradients.values()])


def turns():
    """Return a loss in a partial that turns a switch at each call, back and forth."""
    switch = [False]

    def loss(out, y, scale=1.0):
        switch[0] = not switch[0]
        return squares(out, y) * (2.0 if switch[0] else 1.0) * scale

    return functools.partial(loss, scale=2.0)


@pytest.mark.usefixtures("_one_process")
def test_what_is_turned_back_by_the_next_record_is_seen():
    with pytest.raises(UnsupportedError, match="changes something outside"):
        total(nn.Linear(3, 2), torch.randn(SIZE, 3), turns())


class Looking(nn.Module):
    """Looks past its record, by one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(3, 2), how

    def forward(self, x):
        if self.how == "base":
            seen = x if x._base is None else x._base
        elif self.how == "strides" and x.untyped_storage().nbytes() > x.numel() * 4:
            seen = x.as_strided((SIZE, 3), (3, 1), 0)
        elif self.how == "storage":
            seen = torch.empty(0).set_(x.untyped_storage())
        elif self.how == "memory":
            seen = torch.empty(3).nan_to_num()
        else:
            seen = x
        return self.layer(x) * (1 + seen.mean())


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("how", ["base", "strides", "storage", "memory"])
def test_a_record_lies_in_memory_of_its_own(how):
    torch.manual_seed(0)
    model, x = Looking(how), torch.randn(SIZE, 3)
    each = sum(total(model, x[i : i + 1].clone()) for i in range(SIZE))
    torch.testing.assert_close(total(model, x), each)
    assert not torch.are_deterministic_algorithms_enabled()


class Busy(nn.Module):
    """Writes to itself alone."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(3, 2), 0, []
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        h = self.layer(x)
        self.calls += 1
        self.seen.append(h.detach())
        self.mean.data.add_(h.detach().mean(0))
        return h * self.calls + self.mean + len(self.seen)


@pytest.mark.parametrize("reason", ["", "a test says so"])
def test_what_a_record_writes_is_new_for_each(reason, monkeypatch):
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: reason)
    torch.manual_seed(0)
    model, x = Busy(), torch.randn(SIZE, 3)
    each = sum(total(model, x[i : i + 1]) for i in range(SIZE))
    torch.testing.assert_close(total(model, x), each)
    assert (model.calls, model.seen, model.mean.tolist()) == (0, [], [0, 0])


def test_tensors_count_by_their_values():
    model = nn.Linear(300, 300)
    seen = functools.partial(readable_state, model, squares, modules={})
    before = seen()
    with torch.no_grad():
        model.weight.data.view(-1)[7] += 1
    assert seen() != before
