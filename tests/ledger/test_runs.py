"""Sorted runs on disk find what a dictionary finds; nobody reads them, and memory stays flat."""

import errno
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece.errors import StateError
from apiece.ledger import directory
from apiece.ledger.directory import SortedPart, SortedRun


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "HELD", 10)
    monkeypatch.setattr(directory, "PIECE", 8)


def part(keys: Any, places: Any, second: Any = None) -> SortedPart:
    order = np.argsort(keys, kind="stable")
    columns = [np.asarray(keys)] + ([] if second is None else [np.asarray(second)])
    return SortedPart(tuple(each[order] for each in columns), np.asarray(places)[order])


def found(run: SortedRun, *keys: Any) -> list[int]:
    asked = tuple(np.asarray(each) for each in keys)
    order = np.lexsort(asked[::-1])
    places = np.empty(order.size, np.int64)
    places[order] = run.find(tuple(each[order] for each in asked))
    return list(places.tolist())


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("few", [3, 50, 10**6], ids=["many share a key", "some do", "none do"])
def test_runs_merged_in_any_order_find_what_a_dictionary_finds(few: int) -> None:
    """Parts of any size, keys far apart, interleaved and shared, against all who were put in."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        second = rng.permutation(300).astype(np.uint64)  # tells those of one key apart
        keys = rng.integers(0, few, 300).astype(np.uint64)
        if seed % 2:
            keys.sort()  # as ids that are handed out in turn
        cuts = np.sort(rng.integers(0, 200, 6))
        split = [some for some in np.split(np.arange(200, dtype=np.uint32), cuts) if some.size]
        kept = [SortedRun.of(part(keys[some], some, second[some])) for some in split]
        while len(kept) > 1:
            one, two = (kept.pop(int(rng.integers(len(kept)))) for _ in range(2))
            kept.append(one.merge(two))
        (run,) = kept
        assert run.size == 200
        assert found(run, keys, second) == [*range(200), *[-1] * 100]


@pytest.mark.usefixtures("on_disk")
def test_places_may_need_wider_numbers() -> None:
    low = SortedRun.of(part(np.arange(0, 40, 2), np.arange(20, dtype=np.uint32)))
    high = SortedRun.of(part(np.arange(1, 40, 2), np.arange(2**40, 2**40 + 20, dtype=np.uint64)))
    for run in (low.merge(high), high.merge(low)):
        assert found(run, [0, 1, 38, 39, 40]) == [0, 2**40, 19, 2**40 + 19, -1]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("on_disk")
def test_the_file_has_no_name_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory.tempfile, "tempdir", str(tmp_path))
    gc.collect()  # what other tests left open
    before = open_files()
    run = SortedRun.of(part(np.arange(20), np.arange(20))).merge(SortedRun.of(part([30], [20])))
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before + 1
    del run
    gc.collect()
    assert open_files() == before


@pytest.mark.usefixtures("on_disk")
def test_processes_that_share_the_file_do_not_move_each_other() -> None:
    run = SortedRun.of(part(np.arange(200), np.arange(200))).merge(SortedRun.of(part([300], [200])))
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            good = all(found(run, np.arange(200)) == list(range(200)) for _ in range(50))
            os._exit(0 if good else 1)
        children.append(child)
    assert all(found(run, np.arange(200)) == list(range(200)) for _ in range(50))
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("at", ["open", "write"])
def test_no_room_is_said_and_what_is_there_stays(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (SortedRun.of(part(np.arange(20) + k, np.arange(20))) for k in (0, 50))

    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        write = flush = staticmethod(full)

        def close(self) -> None:
            pass

    monkeypatch.setattr(directory.tempfile, "tempdir", str(tmp_path))
    opened = full if at == "open" else lambda **_: Full()
    monkeypatch.setattr(directory.tempfile, "TemporaryFile", opened)
    with pytest.raises(StateError, match=f"no room .* in {tmp_path} .No space left.*TMPDIR"):
        one.merge(two)
    assert found(one, [3]) == found(two, [53]) == [3]


def test_a_file_that_was_cut_short_finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "HELD", 10)
    run = SortedRun.of(part(np.arange(20), np.arange(20))).merge(SortedRun.of(part([30], [20])))
    run._parts._file.truncate(100)  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="cut short"):
        found(run, [3])


@pytest.mark.parametrize("ordered", [True, False], ids=["ids in turn", "in no order"])
def test_memory_does_not_follow_the_people(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 12 bytes a person is merged and asked in less than four, most of it for pieces."""
    monkeypatch.setattr(directory, "HELD", 2**11)
    monkeypatch.setattr(directory, "PIECE", 2**11)
    rng = np.random.default_rng(0)

    def peak(size: int) -> int:
        kept, keys = list[SortedRun](), np.arange(size) if ordered else rng.permutation(size)
        tracemalloc.start()
        for start in range(0, size, 2**11):
            some = np.arange(start, min(start + 2**11, size), dtype=np.uint32)
            kept.append(SortedRun.of(part(keys[some], some)))
            while len(kept) > 1 and kept[-2].size < 2 * kept[-1].size:
                last = kept.pop()
                kept[-1] = kept[-1].merge(last)
        assert max(found(run, keys[-5:])[0] for run in kept) == size - 5
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(2**14), peak(2**17)
    assert many < 2 * few
    assert many < 4 * 2**17
