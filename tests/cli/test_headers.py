"""A CSV file without a header, or with one that cannot be read: no message repeats a cell."""

from pathlib import Path

import pytest

from apiece.cli import run
from apiece.ledger import Ledger

ROWS = [f"patient{k},{k + 20}.5,diagnosis{k % 2},{1 + k % 2},{k}" for k in range(8)]
CELLS = ("patient", "diagnosis", "20.5")
FORMS = {
    "no header": "\n".join(ROWS),
    "texts alone": "\n".join("patienta,diagnosisb,patientc" for _ in range(3)),
    "a cell twice": "\n".join("patient1,diagnosis1,patient1,diagnosis1" for _ in range(3)),
    "another separator": "\n".join(ROWS).replace(",", ";"),
    "one column": "\n".join(f"patient{k}" for k in range(8)),
    "an empty cell": "\n".join("patient1,,diagnosis1" for _ in range(3)),
}
COMMANDS = {
    "plan": "plan --data {data} --epsilon consent --delta 1e-5 --batch-size 2 --steps 2 "
    "--clip-norm 1 --strategy sample",
    "train": "train --data {data} --label outcome --epsilon consent --delta 1e-5 --steps 2 "
    "--strategy sample --batch-size 2 --out {out}",
    "ledger": "ledger init {url} --data {data} --person id --epsilon consent --delta 1e-6",
    "query": "query {data} count(persons) --person id --ledger {url} --epsilon 1 --delta 1e-6",
    "query by": "query {data} mean(age) --person id --bounds age=0:100 --epsilon 1 --delta 1e-6 "
    "--ledger {url}",
    "schema": "schema {data} --label outcome",
    "audit": "audit {data} --score outcome --included consent --delta 1e-5",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", FORMS)
def test_without_a_header_no_cell_is_told(
    form: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, url = tmp_path / "d.csv", f"sqlite:///{tmp_path}/l.db"
    data.write_text(FORMS[form])
    Ledger.make(url, ["ann"], 9.0, 1e-6)
    asked = COMMANDS[command].format(data=data, out=tmp_path / "out", url=url)
    assert run(asked.split()) == 2
    said = capsys.readouterr()
    for cell in CELLS:
        assert cell not in said.out + said.err


@pytest.mark.parametrize(
    "header",
    ["id,größe,age".encode("latin-1"), "größe,id,age".encode("latin-1"), b"\xff\xfei\0d\0,\0",
     "id,age".encode("utf-16"), b"", b'"id","age', b"id\xff,id,age"],
    ids=repr,
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_refused_and_nobody_is_charged(
    header: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that was passed over gave its cells to the next: the answer was noise, and charged."""
    data, url = tmp_path / "d.csv", f"sqlite:///{tmp_path}/l.db"
    data.write_bytes(header + b"\nann,170,30\nbob,180,40\n")
    ledger = Ledger.make(url, ["ann", "bob"], 9.0, 1e-6)
    asked = COMMANDS["query by"].format(data=data, url=url)
    assert run(asked.split()) == 2
    assert "charg" not in capsys.readouterr().out
    assert ledger.spent(["ann", "bob"]).tolist() == [0.0, 0.0]
    assert ledger.head().number == 1
