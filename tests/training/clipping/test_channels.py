"""What one record leaves behind, no other reads: by every channel that we could think of."""

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from apiece.errors import DataError, InputError, IsolationWarning, StateError, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import alone

from .channels import CHANNELS, Leaks, reset

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or torch.accelerator.is_available(),
    reason="processes are not copied there",
)
isolated = pytest.importorskip("apiece.training.clipping.isolated")
SIZE = 4
# Of each kind one or two; the others are slow.
EARLY = ("a global's attribute", "a large tensor's data", "a hash", "a lock", "NumPy's bits",
         "the environment in C", "the mask of new files", "tiny numbers", "a data base", "a pipe",
         "memory of C")  # fmt: skip
# What a comparison in one process does not see; `docs/training.md` lists these kinds.
NOT_SEEN = {"a module of torch", "a pipe"}


def squares(out, y):
    return (out - y.unsqueeze(1)).square().sum(1)


def total(model, x, loss=squares, **options):
    torch.manual_seed(1)
    clipped = clip_and_sum(model, loss, x, torch.ones(len(x)), 0.1, method="alone", **options)
    return torch.cat([g.flatten() for g in clipped.gradients.values()])


def moved(name):
    """Return how far the sum is from that of records that nobody was before, in clip norms."""
    torch.manual_seed(0)
    reset(name)
    model, x = Leaks(name), torch.randn(SIZE, 3)
    together = total(model, x)
    apart = torch.zeros_like(together)
    for i in range(SIZE):
        apart += in_a_copy(lambda i=i: total(model, x[i : i + 1]).tolist(), torch.tensor)
    return float((together - apart).norm() / 0.1)


def in_a_copy(work, read=lambda value: value):
    """Return what work gives in a copy of this process, whose changes are lost."""
    with alone._wipe_memory():  # which imports something at first, in each copy else
        pass
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = {"value": work()}
        except UnsupportedError as refusal:
            told = {"refused": str(refusal)}
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        os.write(writes, json.dumps(told).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        told = json.loads(file.read())
    os.waitpid(pid, 0)
    if "refused" in told:
        raise UnsupportedError(told["refused"])
    assert "value" in told, told
    return read(told["value"])


def by_name(some):
    return [n if n in some else pytest.param(n, marks=pytest.mark.slow) for n in CHANNELS]


@pytest.mark.parametrize("name", by_name(EARLY))
def test_nothing_goes_from_one_record_to_the_next(name):
    if name == "shared memory":  # what other processes share is no record's to write
        with pytest.raises(UnsupportedError, match=r"SIGSEGV.*shared with other processes"):
            moved(name)
        return
    assert moved(name) <= 1e-5


@pytest.mark.parametrize("name", by_name(EARLY[:4]))
def test_in_one_process_it_is_refused_or_gone(name, monkeypatch):
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: "a test says so")
    warnings.simplefilter("ignore", IsolationWarning)
    distance = 0.0
    with contextlib.suppress(UnsupportedError):
        distance = in_a_copy(lambda: moved(name))
    assert (distance > 1e-5) == (name in NOT_SEEN)


# ---------------------------------------------------------------- the harness sees what it is for


def serve_without_copies(work, rows, names, writes):
    """A lane that runs its rows itself, one after the other."""
    try:
        isolated._settle()
        for k in rows:
            isolated._write(writes, isolated._pack(*work(k), names))
    finally:
        os._exit(0)


def leaking(names, monkeypatch):
    monkeypatch.setattr(isolated, "_serve", serve_without_copies)
    found = set()
    for name in names:
        with contextlib.suppress(UnsupportedError):
            if moved(name) > 1e-3:
                found.add(name)
    return found


def test_without_copies_leaks_are_caught(monkeypatch):
    assert leaking(EARLY, monkeypatch) == set(EARLY)


@pytest.mark.slow
def test_without_copies_nearly_every_channel_leaks(monkeypatch):
    names = set(CHANNELS) - {"shared memory"}  # which a lane cannot write, either
    assert names - leaking(sorted(names), monkeypatch) == set()
    assert len(CHANNELS) >= 60


# ---------------------------------------------------------------- processes


class Says(nn.Module):
    """Does something that is no computation, for a record whose first entry is positive."""

    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(3, 2), act

    def forward(self, x):
        if float(x[0, 0]) > 0:
            self.act()
        return self.layer(x)


def raising(error):
    def act():
        raise error

    return act


ERRORS = {
    "an error of Python's": (ZeroDivisionError("by a record"), ZeroDivisionError, "by a record"),
    "an error of apiece's": (StateError("in a forward"), StateError, "in a forward"),
    "an index": (IndexError("index out of range in self"), DataError, "a label or an index"),
    "an error of somebody's": (type("Own", (Exception,), {})("said"), RuntimeError, "Own: said"),
    "an exit": (SystemExit(3), RuntimeError, "SystemExit: 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_come_back_as_what_they_are(name):
    error, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words):
        total(Says(raising(error)), torch.ones(SIZE, 3))


def test_a_record_s_process_that_is_killed_is_told():
    with pytest.raises(UnsupportedError, match=r"was ended .SIGKILL.*memory ran out"):
        total(Says(lambda: os.kill(os.getpid(), signal.SIGKILL)), torch.ones(SIZE, 3))


def test_a_record_s_process_that_stands_still_is_given_up(monkeypatch):
    monkeypatch.setattr(isolated, "PATIENCE", 2.0)
    with pytest.raises(StateError, match="has done nothing for 2 s"):
        total(Says(lambda: time.sleep(60)), torch.ones(1, 3))


def test_a_reduced_loss_is_refused_as_ever():
    with pytest.raises(InputError, match="one number without an axis for one record") as refusal:
        total(nn.Linear(3, 2), torch.ones(SIZE, 3), lambda out, y: out.sum())
    assert not hasattr(refusal.value, "__notes__")


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_no_process_and_no_file_is_left_behind():
    before = children(), len(list(Path("/proc/self/fd").iterdir()))
    total(nn.Linear(3, 2), torch.randn(SIZE, 3))
    with pytest.raises(ZeroDivisionError):
        total(Says(raising(ZeroDivisionError())), torch.ones(SIZE, 3))
    assert (children(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_open_files_are_read_from_where_they_stood(tmp_path):
    """Each record's process has a position of its own."""
    path = tmp_path / "words"
    path.write_bytes(bytes([1, 2, 3, 4, 5]))
    with path.open("rb", buffering=0) as file:

        class Reads(nn.Linear):
            def forward(self, x):
                return super().forward(x) * file.read(1)[0]

        torch.manual_seed(0)
        model, x = Reads(3, 2), torch.randn(SIZE, 3)
        together = total(model, x)
        assert file.tell() == 0
        apart = sum(total(model, x[i : i + 1]) for i in range(SIZE))
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("threads", [1, 2])
def test_copies_are_made_after_threads_have_worked(threads):
    """Kernels that ran in many threads before do not stop a copy, which works in one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        large = torch.randn(400, 400)
        assert float((large @ large).square().sum()) > 0
        model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
        x = torch.randn(9, 1, 3)
        model(x).sum().backward()
        together = total(model, x)
        apart = sum(total(model, x[i : i + 1]) for i in range(len(x)))
        proved = clip_and_sum(model, squares, x, torch.ones(9), 0.1, method="proved")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(together, apart)
    flat = torch.cat([g.flatten() for g in proved.gradients.values()])
    torch.testing.assert_close(together, flat, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
def test_types_are_those_of_one_process(dtype, monkeypatch):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(dtype)
    model.spare = nn.Parameter(torch.ones(0, dtype=dtype))
    model.idle = nn.Parameter(torch.ones(2, dtype=dtype))
    x, y = torch.randn(SIZE, 3, dtype=dtype), torch.ones(SIZE, dtype=dtype)
    people = [0, 0, 1, 2]
    given = {"method": "alone", "people": people}
    one = clip_and_sum(model, squares, x, y, 0.1, **given)
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: "a test says so")
    with pytest.warns(IsolationWarning, match=r"run alone in one process .a test says so"):
        other = clip_and_sum(model, squares, x, y, 0.1, **given)
    assert one.losses.dtype == other.losses.dtype
    assert torch.equal(one.losses, other.losses)
    assert torch.equal(one.norms, other.norms)
    for name, value in one.gradients.items():
        assert value.dtype == other.gradients[name].dtype
        assert torch.equal(value, other.gradients[name])


def test_an_accelerator_or_another_system_is_told(monkeypatch):
    model, x = nn.Linear(3, 2), torch.ones(2, 3)
    batch = alone.Batch(model, dict(model.named_parameters()), squares, x, x[:, 0], torch.ones(2))
    assert alone.why_not_isolated(batch) == ""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert "threads" in alone.why_not_isolated(batch)
    monkeypatch.setattr(alone.sys, "platform", "darwin")
    assert "darwin" in alone.why_not_isolated(batch)
