"""Names that are imported on first use are those of their modules, and no others."""

import importlib
import sys
from pathlib import Path

import pytest

from apiece import _lazy

PACKAGES = ("adapters", "audit", "jobs", "pate")


def test_a_module_is_imported_when_one_of_its_names_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "room.py").write_text("chair, table = 1, 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    name_of = _lazy.names_of("house", {"room": ("chair",)})
    assert "house.room" not in sys.modules
    assert name_of("chair") == 1
    assert "house.room" in sys.modules
    with pytest.raises(AttributeError, match="module 'house' has no attribute 'table'"):
        name_of("table")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_no_other(package: str) -> None:
    module = importlib.import_module(f"apiece.{package}")
    assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module 'apiece.{package}' has no attribute"):
        _ = module.no_such_name
