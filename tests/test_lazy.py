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


# What `make quickstart` does not install (sympy comes with torch).
OTHERS = ("sqlalchemy", "duckdb", "fpdf", "pyspark", "ray", "flwr", "mlflow")
SHAPE = "--records 500 --batch-size 50 --steps 40 --delta 1e-4 --strategy sample"
JOB = """
[data]
source = "german"
[budgets]
delta = 1e-4
groups = [{ name = "a", epsilon = 1.0, share = 0.5 }, { name = "b", epsilon = 3.0, share = 0.5 }]
[training]
batch_size = 50
steps = 5
[run]
seed = 0
"""
COMMANDS = f"""
plan {SHAPE} --groups a:1:.5,b:3:.5
explain --epsilon 1 --delta 1e-5
account --noise-multiplier 1 --sampling-probability .02 --steps 100 --delta 1e-5
risk --records 500 --batch-size 50 --steps 40 --delta 1e-5 --epsilon 2 --others 4 --shares .5
schema german --label good
train job.toml --out run
train job.toml --method pate --public-share .5 --teachers 5 --questions 20 --out pate
report run --out report.html
report run --as statement --out statement.json
audit run run
audit anytime run --max-samples 10
"""


def without_other_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a folder where what `make quickstart` does not install cannot be imported."""
    block = f"import sys; sys.modules |= dict.fromkeys({OTHERS!r})\n"
    return subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, cwd=folder
    )


def test_what_needs_no_other_extra_runs_without_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    lines = COMMANDS.strip().splitlines()
    done = without_other_extras(
        "from apiece.cli import run\n"
        f"for line in {lines!r}: print(line, run(line.split()), file=sys.stderr)\n"
        "import numpy as np\n"
        "from apiece.sklearn import Numeric, PrivateClassifier\n"
        "x = np.linspace(-1, 1, 90)[:, None]\n"
        "model = PrivateClassifier(classes=[False, True], columns=Numeric(-1, 1), steps=5)\n"
        "model.fit(x, x[:, 0] > 0, epsilon=1.0, delta=1e-3).report()\n",
        tmp_path,
    )
    statuses = [line.rsplit(" ", 1)[-1] for line in done.stderr.splitlines() if line[:-2] in lines]
    assert statuses == ["0"] * len(lines), done.stderr
    assert done.returncode == 0, done.stderr


def test_what_needs_another_extra_names_it(tmp_path: Path) -> None:
    done = without_other_extras(
        "from apiece.cli import run; sys.exit(run(['ledger', 'verify', 'sqlite:///a.db']))",
        tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("sqlalchemy is not installed; pip install 'apiece[ledger]'")
