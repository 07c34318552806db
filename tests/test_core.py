"""The core runs on numpy, scipy and click; what needs an extra says so in one line."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiece import Budgets
from apiece.datasets.cells import read_values, select_column
from apiece.datasets.tables import Dialect, read_columns, read_table
from apiece.errors import ApieceError, BudgetError, DataError

ROOT = Path(__file__).parents[1]
# The rooms that need no extra, and the commands of `apiece` that they serve.
ROOMS = (
    "numerics", "mechanisms", "accounting", "budgets", "datasets", "tables", "plan", "assignment",
    "filters", "contract", "cli",
)  # fmt: skip
# Nothing but these and Python's own can be imported.
BLOCK = """
import sys
CORE = {"numpy", "scipy", "click", "apiece", *sys.stdlib_module_names}
class OnlyCore:
    def find_spec(self, name, path=None, target=None):
        # What the interpreter was built with is no package.
        if name.partition(".")[0] not in CORE and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyCore())
"""


def run_in_core(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code where no package but those of the core can be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code], capture_output=True, text=True, cwd=folder
    )


def test_the_project_asks_for_the_core_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    assert names == {"click", "numpy", "scipy"}


def test_every_module_of_the_core_is_imported_without_an_extra(tmp_path: Path) -> None:
    done = run_in_core(
        "import importlib, pkgutil\n"
        "try:\n    import pandas\nexcept ModuleNotFoundError:\n    print('blocked')\n"
        f"for room in {ROOMS!r}:\n"
        "    package = importlib.import_module(f'apiece.{room}')\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "        print(module.name)\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    first, *modules = done.stdout.splitlines()
    assert first == "blocked"
    assert {"apiece.accounting.choose", "apiece.cli.plan", "apiece.budgets.frames"} <= {*modules}


SHAPE = "--delta 1e-5 --batch-size 50 --steps 40"
GROUPS = f"--groups a:1:.5,b:3:.5 --records 500 {SHAPE}"
RISK = (
    "risk --records 500 --batch-size 50 --steps 40 --delta 1e-5 --epsilon 2 --others 4 --shares .5"
)
ACCOUNT = "account --noise-multiplier 1 --sampling-probability .02 --steps 99 --delta 1e-5"
PEOPLE = "--epsilon consent --person id --delta 1e-5 --batch-size 30 --steps 40"
COMMANDS = [
    f"plan {GROUPS} --strategy sample --out plan.json",
    f"plan {GROUPS} --strategy hybrid --option excess=0.02 --json",
    f"plan {GROUPS} --compare",
    f"plan --data people.csv {PEOPLE}",
    f"plan --data people.csv {PEOPLE} --levels 1,3",
    "plan --from plan.json --gaussian",
    ACCOUNT,
    "explain --epsilon 1 --delta 1e-5",
    "explain --plan plan.json --group a",
    RISK,
    "schema german --label risk",
]
# Command and the extra that it names.
REFUSED = {
    f"plan --data people.parquet {PEOPLE}": "tables",
    "schema people.csv --label consent": "tables",
    "audit canaries --canaries people.csv --delta 1e-5": "tables",
    "report plan.json": "reports",
    f"{ACCOUNT} --figure curve.png": "reports",
    f"{RISK} --figure risk.png": "reports",
    "explain --epsilon 1 --delta 1e-5 --figure promise.png": "reports",
    f"explain {GROUPS} --excess .02 --strategy hybrid --page choose.html": "reports",
    "train job.toml": "train",
    "train --data people.csv --label id --epsilon consent --delta 1e-5": "train",
    "ledger verify sqlite:///people.db": "ledger",
    "ledger init people.db --data people.csv --person id --epsilon consent --delta 1e-6": "ledger",
    "withdraw people.db p1": "ledger",
    "query people.csv count(persons) --person id --epsilon .3 --delta 0": "queries",
    "sensitivity a**2 --range a=1:2": "sensitivity",
}


def test_the_commands_of_the_core_run_without_an_extra(tmp_path: Path) -> None:
    words = [f"p{k},{1 + 2 * (k % 2)}" for k in range(200)]
    (tmp_path / "people.csv").write_text("\n".join(["id,consent", *words]))
    done = run_in_core(
        f"from apiece.cli import run\nfor line in {[shlex.split(line) for line in COMMANDS]!r}:\n"
        "    status = run(line)\n"
        "    print('status', status, line, file=sys.stderr)\n",
        tmp_path,
    )
    statuses = re.findall("^status (.*?) ", done.stderr, re.MULTILINE)
    assert statuses == ["0"] * len(COMMANDS), done.stderr


def test_a_command_that_needs_an_extra_names_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,consent\na,1\nb,3\n")
    done = run_in_core(
        "from apiece.cli import run\n"
        f"run({shlex.split(COMMANDS[0])!r})\n"
        f"for line in {[shlex.split(line) for line in REFUSED]!r}:\n"
        "    print('status', run(line), file=sys.stderr, flush=True)\n",
        tmp_path,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
    assert lines[1::2] == ["status 2"] * len(REFUSED), done.stderr
    for message, (command, extra) in zip(lines[::2], REFUSED.items(), strict=True):
        named = re.fullmatch(
            r"apiece \w+: \S+ is not installed \(apiece\[(\w+)\]\): pip install .+", message
        )
        assert named is not None, (command, message)
        assert named[1] == extra, (command, message)


# What a user writes, and the extra that it needs.
STATEMENTS = {
    "from apiece.datasets import load; load('german')": "tables",
    "from apiece.datasets.tables import read_table; read_table('people.csv')": "tables",
    "from apiece.budgets import BudgetLevels as b; b.from_parquet('a.pq', epsilon='e', delta=.1)":
        "tables",
    "from apiece import Budgets; Budgets.from_frame('a.parquet', epsilon='e', delta=.1)": "tables",
    "from apiece import report": "reports",
    "from apiece.reporting import promise": "reports",
    "from apiece import Trainer": "train",
    "from apiece.recipes import RECIPES": "train",
    "from apiece import Ledger": "ledger",
    "from apiece.queries import Session": "queries",
    "from apiece.sensitivity import Expression": "sensitivity",
    "from apiece.sklearn import PrivateClassifier": "sklearn",
}  # fmt: skip


def test_in_python_what_needs_an_extra_raises_one_type(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,consent\na,1\n")
    done = run_in_core(
        f"for statement in {list(STATEMENTS)!r}:\n"
        "    try:\n        exec(statement)\n"
        "    except Exception as error:\n        print(type(error).__name__, error, sep='|')\n"
        "    else:\n        print('none|')\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    outcomes = [line.split("|") for line in done.stdout.splitlines()]
    for (kind, message), (statement, extra) in zip(outcomes, STATEMENTS.items(), strict=True):
        assert kind == "NotInstalledError", (statement, message)
        assert f"(apiece[{extra}])" in message, (statement, message)


# --- one reading of a cell: a plain table says what a pandas table says

CELLS = st.text(st.sampled_from('ab1.," \tä'), max_size=5)


@given(
    st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), st.sampled_from([",", ";", "tab"])
)
def test_a_csv_file_is_read_alike_with_and_without_pandas(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], separator: str
) -> None:
    """Whatever stands in it: the same cells, or the same refusal."""
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    mark = {"tab": "\t"}.get(separator, separator)
    path.write_text("\n".join(mark.join(row) for row in [("x", "y"), *rows]))
    dialect = Dialect(separator=separator)

    def cells(read: object) -> object:
        try:
            table = read()  # type: ignore[operator]
            return {name: read_values(select_column(table, name, "")) for name in ("x", "y")}
        except ApieceError as error:
            return type(error), str(error)

    plain = cells(lambda: read_columns(path, ["x", "y"], dialect))
    assert plain == cells(lambda: read_table(path, dialect))


def test_only_the_columns_that_are_asked_for_are_held(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("id,age,consent\na,30,1\n\nb,40,2\n")
    table = read_columns(path, ["consent", "id", "absent"])
    assert list(table.columns) == ["id", "age", "consent"]
    assert len(table) == 2
    assert (table["id"], table["consent"]) == (["a", "b"], ["1", "2"])
    with pytest.raises(KeyError):
        table["age"]


BUDGETS = [1.0, 3.0, 1.0, 0.5]
PERSONS = ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    "columns",
    [
        {"e": BUDGETS, "who": PERSONS},
        {"e": tuple(BUDGETS), "who": np.array(PERSONS)},
        {"e": np.array(BUDGETS, np.float32), "who": PERSONS},
        {"e": [str(budget) for budget in BUDGETS], "who": np.array(PERSONS, dtype=object)},
    ],
)
def test_columns_by_name_are_a_table(columns: dict[str, object]) -> None:
    frame = pd.DataFrame({"e": BUDGETS, "who": PERSONS})
    for person in ("who", None):
        plain = Budgets.from_frame(columns, epsilon="e", delta=1e-5, person=person)
        tabular = Budgets.from_frame(frame, epsilon="e", delta=1e-5, person=person)
        np.testing.assert_array_equal(plain.epsilon, tabular.epsilon)
        np.testing.assert_array_equal(plain.ids, tabular.ids)


@pytest.mark.parametrize("ids", [[3, 1, 2, 0], np.array([3, 1, 2, 0]), ["3", "1", "2", "0"]])
def test_whole_numbers_of_a_plain_table_stay_numbers(ids: object) -> None:
    budgets = Budgets.from_frame({"e": BUDGETS, "id": ids}, epsilon="e", delta=1e-5, ids="id")
    assert budgets.ids.tolist() == list(ids)  # type: ignore[call-overload]


def test_a_narrow_float_is_its_shortest_text() -> None:
    budgets = Budgets.from_frame({"e": np.array([0.1], np.float32)}, epsilon="e", delta=1e-5)
    assert budgets.epsilon.tolist() == [0.1]


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), "", " "])
def test_a_cell_without_a_value_is_refused(missing: object) -> None:
    with pytest.raises(BudgetError, match="row 2"):
        Budgets.from_frame({"e": [1.0, missing]}, epsilon="e", delta=1e-5)
    with pytest.raises(DataError, match="row 2"):
        Budgets.from_frame(
            {"e": [1.0, 2.0], "id": ["a", missing]}, epsilon="e", delta=1e-5, ids="id"
        )


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"e": []},
        {"e": [1.0], "who": ["a", "b"]},
        {"e": pd.Series([1.0])},
        {"e": 1.0},
        {"e": np.ones((2, 2))},
    ],
)
def test_columns_that_are_no_table_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(DataError, match="table: "):
        Budgets.from_frame(columns, epsilon="e", delta=1e-5)
