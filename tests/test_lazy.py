"""Names that are imported on first use are those of their modules, and no others."""

import importlib
import subprocess
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


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        ("torch", "from apiece import Trainer", "train"),
        ("torch", "from apiece.training import Trainer", "train"),
        ("torch", "from apiece.pate import teach", "train"),
        ("sqlalchemy", "from apiece import Ledger", "ledger"),
        ("sklearn", "from apiece.sklearn import Numeric", "sklearn"),
    ],
)
def test_what_is_not_installed_names_its_extra(missing: str, statement: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: ")
    assert said.endswith(f"is not installed; pip install 'apiece[{extra}]'")


def test_training_needs_neither_ledger_nor_queries() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('sqlalchemy', 'duckdb', 'sympy', 'fpdf'));"
        "import apiece.sklearn, apiece.jobs.running; apiece.sklearn.PrivateClassifier"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
