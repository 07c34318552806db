"""The run folder: whole files, whole lines, and nobody's files touched."""

import json
from pathlib import Path

import pytest

from apiece.errors import DataError
from apiece.jobs.prepared import RunFolder, find_free_folder, refuse_used


def test_files_are_written_whole_and_listed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.write("b.txt", "text")
    folder.write("a.bin", b"\x00\x01")
    assert sorted(path.name for path in folder.path.iterdir()) == ["a.bin", "b.txt"]
    folder.write("b.txt", "other")
    assert (folder.path / "b.txt").read_text() == "other"
    assert sorted(path.name for path in folder.path.iterdir()) == ["a.bin", "b.txt"]


def test_the_log_has_a_line_an_event_and_no_nan(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log("trained", strategy="scale", steps=3)
    with pytest.raises(ValueError, match="Out of range"):
        folder.log("broken", value=float("nan"))
    RunFolder(tmp_path).log("resumed")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["trained", "resumed"]
    assert lines[0]["steps"] == 3
    assert lines[0]["seconds"] >= 0


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be used"):
        RunFolder(tmp_path / "file" / "run")


def test_used_places_are_refused(tmp_path: Path) -> None:
    refuse_used(tmp_path)
    refuse_used(tmp_path / "new")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for used in (tmp_path, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(DataError, match="not empty"):
            refuse_used(used)


def test_the_first_free_name(tmp_path: Path) -> None:
    assert find_free_folder(tmp_path, "run") == tmp_path / "run"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    assert find_free_folder(tmp_path, "run") == tmp_path / "run-3"
    (tmp_path / "run-3").mkdir()  # empty: free
    assert find_free_folder(tmp_path, "run") == tmp_path / "run-3"
