"""Result records are joined by record id, and files are whole or absent."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apiece.audit.records import ShadowScores, join, positions, read_arrays, write_arrays
from apiece.errors import DataError
from refusals import refused

from .worlds import scores


def test_select_follows_ids_not_positions() -> None:
    every = scores(size=10)
    wanted = np.array([107, 101, 104])
    part = every.select(wanted)
    assert part.ids.tolist() == wanted.tolist()
    for at, record in enumerate(wanted):
        column = int(np.flatnonzero(every.ids == record)[0])
        np.testing.assert_array_equal(part.confidences[:, at], every.confidences[:, column])
        np.testing.assert_array_equal(part.included[:, at], every.included[:, column])
    assert len(part) == 3
    assert part.models == every.models


def test_positions_of_texts() -> None:
    known = np.array(["c", "a", "b"])
    assert positions(known, np.array(["a", "c", "a"])).tolist() == [1, 0, 1]


@pytest.mark.parametrize("wanted", [[999], ["x"], [100.5]])
def test_unknown_ids_are_refused(wanted: list[object]) -> None:
    with refused(DataError, "ids"):
        scores().select(np.array(wanted))


def test_save_and_load(tmp_path: Path) -> None:
    every = scores()
    every.save(tmp_path / "s.npz")
    back = ShadowScores.load(tmp_path / "s.npz")
    for name in ("ids", "groups", "included", "confidences"):
        np.testing.assert_array_equal(getattr(back, name), getattr(every, name))
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_files_that_are_not_scores(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        ShadowScores.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(DataError, match="or damaged"):
        read_arrays(tmp_path / "bad.npz")
    write_arrays(tmp_path / "other.npz", {"x": np.zeros(2)})
    with pytest.raises(DataError, match="no confidences"):
        ShadowScores.load(tmp_path / "other.npz")


def test_shapes_and_nan_are_refused() -> None:
    every = scores(size=5)
    bad = every.confidences.copy()
    bad[3, 2] = np.nan
    with pytest.raises(DataError, match=r"confidences\[3, 2\]"):
        replace(every, confidences=bad)
    with refused(DataError, "included"):
        replace(every, included=every.included[:, :4])
    with pytest.raises(DataError, match="confidences: shape"):
        replace(every, confidences=every.confidences[:4])
    with pytest.raises(DataError, match="occurs 2 times"):
        replace(every, ids=np.array([1, 1, 2, 3, 4]))


def test_join_is_by_id_whatever_the_order() -> None:
    known, wanted = np.array(["c", "a", "b"]), np.array(["a", "b", "c"])
    assert known[join("one", known, "two", wanted)].tolist() == wanted.tolist()
    with pytest.raises(DataError, match="c is in one and not in two"):
        join("one", known, "two", np.array(["a", "b", "d"]))
    with pytest.raises(DataError, match="c is in one and not in two"):
        join("one", known, "two", wanted[:2])
    with pytest.raises(DataError, match="c is in two and not in one"):
        join("one", known[1:], "two", wanted)
    with refused(DataError, "two", "id a", 2):
        join("one", known, "two", np.array(["a", "a", "b"]))
