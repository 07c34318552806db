"""Names that are imported on first use are those of their modules, and no others."""

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from apiece import _lazy
from apiece.errors import UnsupportedError

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


ROOT = Path(__file__).parents[1]
TRAIN = "pandas pyarrow tomli-w jinja2 markupsafe matplotlib torch cryptography pillow rich"
# Missing, what a user imports or calls, and what the remedy installs.
STATEMENTS = [
    ("torch", "from apiece import Trainer", "torch"),
    ("torch", "from apiece.training import Trainer", "torch"),
    ("torch", "from apiece.pate import teach", "torch"),
    ("torch", "from apiece.adapters.stepping import PrivateStep", "torch"),
    ("torch,accelerate", "import apiece.adapters.huggingface", "torch transformers accelerate"),
    ("torch", "import apiece.adapters.lightning", "torch lightning"),
    ("torch,cryptography,PIL", "import apiece.adapters.flower", "torch cryptography pillow flwr"),
    ("torch,cryptography", "from apiece.recipes import RECIPES", "torch cryptography"),
    ("cryptography", "from apiece.training import Trainer", "cryptography"),
    ("sqlalchemy,duckdb", "from apiece import Ledger", "sqlalchemy"),
    ("sqlalchemy,duckdb", "from apiece.queries import Session", "sqlalchemy duckdb"),
    ("pyarrow", "from apiece import Ledger", "pyarrow"),
    ("sqlalchemy,psycopg", "from apiece import Ledger", "sqlalchemy 'psycopg[binary]'"),
    ("sklearn", "from apiece.sklearn import Numeric", "scikit-learn"),
    ("sympy", "from apiece.sensitivity import Expression", "sympy"),
    ("typst", "from apiece.reporting.papers import statement_pdf as f; f({})", "typst"),
    ("pyspark", "from apiece.queries.spark import start_spark as f; f('local')", "pyspark"),
    ("ray", "from apiece.adapters import cluster as f; next(f()(abs, [0]))", "ray"),
    ("mlflow", "from apiece.adapters.mlflow import MLflow as f; f(None)", "mlflow-skinny"),
    ("tensorboard", "from apiece.training import TensorBoard as f; f('x', None)", "tensorboard"),
]
# Blocks packages as if they were not there; `sys.modules[name] = None` is more than some bear.
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
try:
    exec({statement!r})
except ModuleNotFoundError as error:
    print(type(error).__module__, type(error).__name__, error.name, error, sep="|")
"""


@pytest.mark.parametrize(("missing", "statement", "remedy"), STATEMENTS)
def test_what_is_not_installed_names_its_packages(
    missing: str, statement: str, remedy: str
) -> None:
    """The remedy lists what is missing of the extra; those that tests lack beside are left out."""
    code = BLOCK.format(blocked=tuple(missing.split(",")), statement=statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    module, kind, _, said = done.stdout.strip().split("|")
    assert (module, kind) == ("apiece.errors", "NotInstalledError"), done.stderr
    found = re.fullmatch(r"(\S+) is not installed \(apiece\[\w+\]\): pip install (.*)", said)
    assert found is not None, said
    optional = {"transformers", "lightning", "flwr", "ray", "mlflow-skinny", "pyspark", "alembic"}
    asked, proposed = remedy.split(), found[2].split()
    assert [name for name in proposed if name in asked] == asked
    assert set(proposed) - set(asked) <= optional | {"accelerate"}


def test_the_extras_are_those_of_the_project() -> None:
    """What a message proposes is what pyproject.toml declares, by other extras too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for line in declared[extra]:
            if inner := re.match(r"apiece\[([\w,]+)\]", line):
                found |= set().union(*(packages(name) for name in inner[1].split(",")))
            else:
                found.add(re.split(r"[<>=]", line)[0])
        return found

    for extra, modules in _lazy.EXTRAS.items():
        assert set(modules.values()) == packages(extra), extra
    of_developers = {
        "all", "bench", "contenders", "dev", "docs", "explainable", "mutants", "networks",
        "oracles",
    }  # fmt: skip
    assert declared.keys() - _lazy.EXTRAS.keys() == of_developers


def test_an_error_of_a_missing_package_is_caught_as_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent: Callable[[str], ModuleSpec | None] = lambda name: None  # noqa: E731
    monkeypatch.setattr(_lazy.importlib.util, "find_spec", absent)
    error = _lazy.lacking("sklearn.base")
    assert isinstance(error, UnsupportedError)
    assert isinstance(error, ModuleNotFoundError)
    assert error.name == "sklearn.base"
    remedy = f"pip install {TRAIN} scikit-learn"
    assert str(error) == f"scikit-learn is not installed (apiece[sklearn]): {remedy}"
    of_others = _lazy.lacking("rope", "ray")
    assert str(of_others) == (
        "rope is not installed, which ray needs: install the package that has it"
    )


def test_no_message_and_no_page_fetches_apiece_by_name_from_an_index() -> None:
    """Nobody here decides what an index has under that name."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.*")]
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.j2"), *pages]
    by_name = re.compile(r"pip install[^`\n]*[\s'\"]apiece\b")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        for line in path.read_text(errors="replace").splitlines()
        if by_name.search(line)
    ]
    assert found == []
    assert by_name.search("pip install 'apiece[train]'")
    assert by_name.search("pip install -U apiece")
    assert not by_name.search("pip install '.[train]'")


def test_every_extra_is_tried_alone() -> None:
    """`.ci/extras-alone` has commands for the core and for each extra of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    smokes = {path.stem for path in (ROOT / ".ci" / "smokes").glob("*.sh")}
    assert smokes == {"core", *project["optional-dependencies"]}


# What neither training nor the estimators need (sympy comes with torch).
OTHERS = ("sqlalchemy", "duckdb", "typst", "pyspark", "ray", "flwr", "mlflow")
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
    """Run code where what neither training nor the estimators need cannot be imported."""
    block = f"import sys; sys.modules |= dict.fromkeys({OTHERS!r})\n"
    return subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, cwd=folder
    )


@pytest.mark.slow  # `make test-extras-alone` runs the commands of each extra where nothing else is
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
    assert done.returncode == 2
    remedy = "sqlalchemy is not installed (apiece[ledger]): pip install sqlalchemy"
    assert done.stderr.strip().endswith(remedy)
