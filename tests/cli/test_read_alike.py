"""`plan`, `train` and `ledger init` read one file alike: the same budgets, or the same refusal."""

from pathlib import Path
from typing import Any

import pytest

from apiece.budgets import Budgets
from apiece.cli import run
from apiece.datasets.tables import Dialect
from apiece.errors import ON_COMMAND_LINE, ApieceError
from apiece.jobs.config import job_from_dict
from apiece.jobs.people import read_people
from apiece.ledger import Ledger
from sample_tables import AGE_AND_ANSWER as SCHEMA

ROWS = [f"p{i},{20 + i},{('no', 'yes')[i % 2]},{('1', '2')[i % 2]}" for i in range(20)]
HEAD = "who,age,answer,eps"


def replaced(text: str) -> str:
    return "\n".join([HEAD, text, *ROWS[1:]]) + "\n"


FILES: dict[str, tuple[str | bytes, dict[str, Any]]] = {
    "plain": (replaced(ROWS[0]), {}),
    "a date among numbers": (replaced("p0,2024-01-01,no,1"), {}),
    "a number with a blank": (replaced("p0,20,no, 1"), {}),
    "an exponent": (replaced("p0,20,no,1e0"), {}),
    "hexadecimal": (replaced("p0,20,no,0x1"), {}),
    "NA": (replaced("p0,20,no,NA"), {}),
    "empty": (replaced("p0,20,no,"), {}),
    "true": (replaced("p0,20,no,true"), {}),
    "thousands": (replaced('p0,20,no,"1,000"'), {}),
    "underscore": (replaced("p0,20,no,1_0"), {}),
    "infinity": (replaced("p0,20,no,inf"), {}),
    "a cap": (replaced("p0,20,no,inf"), {"no_limit_cap": 8.0}),
    "an id of zeros": (replaced("007,20,no,1"), {}),
    "ids that are numbers but one": ("\n".join([HEAD, "7,20,no,1", *ROWS[1:]]), {}),
    "a short line": (replaced("p0,20,no"), {}),
    "a long line": (replaced("p0,20,no,1,1"), {}),
    "an open quote": (replaced('"p0,20,no,1'), {}),
    "byte-order mark": (b"\xef\xbb\xbf" + replaced(ROWS[0]).encode(), {}),
    "latin-1 undeclared": (replaced("pé,20,no,1").encode("latin-1"), {}),
    "latin-1": (replaced("pé,20,no,1").encode("latin-1"), {"encoding": "latin-1"}),
    "european": (
        replaced("p0,20,no,1").replace(",", ";").replace(";1\n", ";1,5\n"),
        {"separator": ";", "decimal": ","},
    ),
    "european undeclared": (replaced("p0,20,no,1").replace(",", ";"), {}),
    "half declared": (replaced("p0;20;no;1,5").replace(",", ";"), {"separator": ";"}),
    "a column twice": (replaced(ROWS[0]).replace("age", "eps", 1), {}),
    "a budget above all": (replaced("p0,20,no,2000"), {}),
}


def planned(path: Path, declared: dict[str, Any]) -> Any:
    rest = dict(declared)
    cap = rest.pop("no_limit_cap", None)
    budgets = Budgets.from_frame(
        path, epsilon="eps", delta=1e-5, ids="who", no_limit_cap=cap, dialect=Dialect(**rest)
    )
    return budgets.ids.tolist(), budgets.epsilon.tolist()


def trained(path: Path, declared: dict[str, Any]) -> Any:
    (path.parent / "schema.toml").write_text(SCHEMA)
    settings = {
        "source": str(path), "label": "answer", "schema": str(path.parent / "schema.toml"),
        "ids": "who", "epsilon": "eps", "delta": 1e-5, "test_share": 0.0, **declared,
    }  # fmt: skip
    people = read_people(job_from_dict({}, name="x", changes=settings))
    return people.budgets.ids.tolist(), people.budgets.epsilon.tolist()


def enrolled(path: Path, declared: dict[str, Any], capsys: Any) -> Any:
    url = f"sqlite:///{path.parent}/l.db"
    options = [word for k, v in declared.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    words = [
        "--data",
        str(path),
        "--person",
        "who",
        "--epsilon",
        "eps",
        "--delta",
        "1e-5",
        *options,
    ]
    capsys.readouterr()
    if run(["ledger", "init", url, *words]):
        said: str = capsys.readouterr().err
        return said.removeprefix("apiece ledger: ").strip()
    return Ledger.open(url).people


@pytest.mark.parametrize("case", FILES)
def test_one_file_is_read_alike(case: str, tmp_path: Path, capsys: Any) -> None:
    content, declared = FILES[case]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found: list[Any] = []
    told = ON_COMMAND_LINE.set(True)  # remedies are in the words of who reads them
    for read in (planned, trained):
        try:
            found.append(read(path, declared))
        except ApieceError as error:
            found.append(str(error))
    ON_COMMAND_LINE.reset(told)
    if case == "a budget above all":
        found[0] = found[1]  # the library leaves to its callers what the commands refuse
    assert found[0] == found[1]
    ledger = enrolled(path, declared, capsys)
    assert ledger == (found[0] if isinstance(found[0], str) else len(found[0][0]))
