"""Files are written whole or not at all, and never over what must stay."""

import os
from pathlib import Path

import pytest

from apiece._files import write_new, write_whole
from apiece.errors import DataError


def test_content_and_rights(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.json"
    write_whole(path, "ε")
    assert path.read_bytes() == "ε".encode()
    old = os.umask(0o027)
    try:
        write_whole(path, b"\x00")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"\x00"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]  # no temporary sibling is left


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left"):
        write_whole(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_never_replaces_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_new(path, "first")
    with pytest.raises(DataError, match="exists and is left untouched"):
        write_new(path, "second")
    assert path.read_text() == "first"


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_whole(tmp_path / "a" / "b.json", "x")
