"""No command destroys what it reads: every output, over every input, by every name of it.

What commands with an output are asked below, and what they read; a test holds the list against the
options of every command.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from matplotlib.figure import Figure

from apiece import Budgets, Ledger, Scale, assign, cli
from apiece.cli._command import Command, Output
from apiece.reporting import save
from tests.strange_paths import ANOTHER_USER, STRANGE, look, plant

PLAN = assign(Budgets([2.0] * 60, 1e-5), Scale(), steps=2, expected_batch_size=6, clip_norm=1.0)
SCHEMA = '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 9\n'
SCHEMA += '[columns.y]\nkind = "categorical"\nvalues = ["a", "b"]\n'
OFFER = "--records 60 --delta 1e-5 --batch-size 6 --steps 2"
# What is asked, with OUT where the output goes; the files that it reads.
ASKED = {
    "plan --out": (f"plan --data t.csv --epsilon e --ids id --strategy scale {OFFER} --out OUT"
                   .replace("--records 60 ", ""), ("t.csv",)),
    "plan --from --out": ("plan --from plan.json --out OUT", ("plan.json",)),
    "account --figure": ("account plan.json --figure OUT", ("plan.json",)),
    "explain --figure": ("explain --plan plan.json --group all --figure OUT", ("plan.json",)),
    "explain --page": (f"explain --groups a:1:0.5,b:2:0.5 {OFFER} --excess 1 --page OUT", ()),
    "risk --figure": (f"risk --epsilon 2 --others 1 --shares 0.5 {OFFER} --figure OUT", ()),
    "sensitivity --figure": ("sensitivity a*b --range a=1:2 --range b=1:2 --figure OUT", ()),
    "schema --out": ("schema t.csv --label y --out OUT", ("t.csv",)),
    "ledger export --out": ("ledger export sqlite:///l.db --out OUT", ("l.db",)),
    "ledger export path --out": ("ledger export l.db --table history --out OUT", ("l.db",)),
    "ledger export paid --out": (
        "ledger export l.db --table paid --analysis first --out OUT", ("l.db",),
    ),
    "ledger backup --out": ("ledger backup l.db --out OUT", ("l.db",)),
    "ledger enroll --out": (
        "ledger enroll sqlite:///l.db --consents c.csv --mapping m.toml --delta 1e-5 --out OUT",
        ("l.db", "c.csv", "m.toml"),
    ),
    "query --steward-log": (
        "query t.csv count(persons) --person id --epsilon 1 --delta 1e-5 --ledger sqlite:///l.db "
        "--again --steward-log OUT", ("t.csv", "l.db"),
    ),
    "query --figure": (
        "query t.csv count(persons) --person id --epsilon 1 --delta 1e-5 --ledger sqlite:///l.db "
        "--again --figure OUT", ("t.csv", "l.db"),
    ),
    "report --out": ("report plan.json --out OUT", ("plan.json",)),
    "synthesize --out": (
        "synthesize t.csv --schema s.toml --epsilon 1 --delta 1e-6 --out OUT", ("t.csv", "s.toml"),
    ),
    "synthesize --page": (
        "synthesize t.csv --schema s.toml --epsilon 1 --delta 1e-6 --out synthetic.csv --page OUT",
        ("t.csv", "s.toml"),
    ),
    # folders
    "train --out": ("train job.toml --data t.csv --schema s.toml --epsilon e --ids id "
                    "--label y --delta 1e-3 --batch-size 6 --steps 1 --strategy scale --seed 0 "
                    "--out OUT", ("job.toml", "t.csv", "s.toml")),
    "register --out": ("register t.csv --person id --out OUT", ("t.csv",)),
    "report --as --out": ("report run --as statement --out OUT", ("run/metrics.json",)),
    "audit lira --out": ("audit lira run --models 16 --out OUT", ("run/config.toml",)),
}  # fmt: skip
FOLDERS = ("register --out", "train --out", "report --as --out", "audit lira --out")
OUTPUTS = ("--out", "--figure", "--page", "--steward-log")
ENDINGS = (".json", ".png", ".html", ".parquet", ".toml", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Path:
    """A folder with everything that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    table = pd.DataFrame({"id": [f"p{i}" for i in range(60)], "age": 3, "e": 2.0})
    table.assign(y=["a", "b"] * 30).to_csv(folder / "t.csv", index=False)
    (folder / "s.toml").write_text(SCHEMA)
    (folder / "job.toml").write_text("[run]\nseed = 0\n")
    (folder / "plan.json").write_text(PLAN.to_json(indent=2))
    (folder / "c.csv").write_text("who,level\np1,low\n")
    columns = 'columns = { person = "who", level = "level" }'
    (folder / "m.toml").write_text(f'source = "csv"\nlevels = {{ low = 9 }}\n{columns}\n')
    ledger = Ledger.open(f"sqlite:///{folder}/l.db")
    ledger.enroll([f"p{i}" for i in range(60)], 8.0, 1e-5)
    ledger.reserve("first", ["p7"], 1.0, 9.0)
    (folder / "run").mkdir()
    for path in run_folder.iterdir():
        (folder / "run" / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, entered."""
    for path in made.rglob("*"):
        at = tmp_path / "own" / path.relative_to(made)
        at.mkdir(parents=True) if path.is_dir() else _copied(path, at)
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


def _copied(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(path.read_bytes())


def commands(of: Any = cli.group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    context = click.Context(of)
    for name in of.list_commands(context):
        one = of.get_command(context, name)
        if isinstance(one, click.Group):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def test_every_command_keeps_the_policy_and_every_output_is_asked_below() -> None:
    asked = [words for words, _ in ASKED.values()]
    for name, one in commands():
        assert isinstance(one, Command), name
        for option in (each for each in one.params if isinstance(each, click.Option)):
            named = option.opts[0]
            if isinstance(option.type, Output) or (named in OUTPUTS and not option.is_flag):
                assert any(w.startswith(f"{name} ") and f"{named} OUT" in w for w in asked), name
                assert isinstance(option.type, Output) or name == "train"


def aliases(path: str) -> Iterator[str]:
    real = Path(path).resolve()
    yield path
    yield f"./{path}"
    yield str(real)
    yield f"../{real.parent.name}/{path}" if "/" not in path else f"{path}/../{real.name}"
    # a link and another name, with each ending that some command wants
    for number, ending in enumerate(ENDINGS):
        hard, soft = Path(f"hard{number}{ending}"), Path(f"soft{number}{ending}")
        hard.unlink(missing_ok=True)
        soft.unlink(missing_ok=True)
        hard.hardlink_to(real)
        soft.symlink_to(real)
        yield str(hard)
        yield str(soft)
    if path.endswith(".db"):
        yield from (f"{path}-journal", f"{path}-wal", f"{path}-shm")


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and "soft" not in p.name)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if "hard" not in p.name}


@pytest.mark.parametrize("what", [what for what, (_, inputs) in ASKED.items() if inputs])
def test_no_input_is_written_over(what: str, folder: Path, capsys: Any) -> None:
    words, inputs = ASKED[what]
    for given in inputs:
        for alias in aliases(given):
            before = contents(folder)
            status = cli.run(words.replace("OUT", alias).split(" "))
            said = capsys.readouterr()
            assert status == 2, (alias, said)
            assert said.out == ""
            assert said.err.count("\n") == 1, said.err
            assert contents(folder) == before, alias


@pytest.mark.parametrize("what", ASKED)
def test_what_is_no_file_of_one_s_own_is_not_written_over(
    what: str, folder: Path, capsys: Any
) -> None:
    words, _ = ASKED[what]
    into_folder = what in FOLDERS
    for kind in STRANGE:
        if kind == "folder" and into_folder:
            continue  # an empty folder of one's own is what is asked for
        plant(kind, folder / kind, b"mine")
        before = look(folder)
        words_at = [part.replace("OUT", kind) for part in words.split(" ")]
        assert cli.run(words_at) == 2, kind
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert look(folder) == before, kind
    for ending in ENDINGS:
        (folder / f"notes{ending}").write_text("mine")
        assert cli.run(words.replace("OUT", f"notes{ending}").split(" ")) == 2
        assert (folder / f"notes{ending}").read_text() == "mine"
    assert cli.run([part.replace("OUT", "t\0x") for part in words.split(" ")]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_of_somebody_else_is_no_output(what: str, folder: Path, capsys: Any) -> None:
    (folder / "theirs").mkdir(mode=0o777)
    try:
        os.chown(folder / "theirs", ANOTHER_USER, ANOTHER_USER)
    except PermissionError:
        pytest.skip("only root can give a folder away")
    before = look(folder)
    assert cli.run(ASKED[what][0].replace("OUT", "theirs").split(" ")) == 2
    assert "belongs to another user" in capsys.readouterr().err
    assert look(folder) == before


def test_an_export_is_parquet_by_name_and_for_its_owner_alone(folder: Path, capsys: Any) -> None:
    words = "ledger export sqlite:///l.db --out"
    for name in ("a.csv", "a", "a.parquet.csv", ".parquet"):
        assert cli.run([*words.split(" "), name]) == 2
        assert "give a name ending in .parquet" in capsys.readouterr().err
        assert not Path(name).exists()
    for _ in range(2):  # an earlier export is replaced
        assert cli.run([*words.split(" "), "a.parquet"]) == 0
    assert Path("a.parquet").stat().st_mode & 0o777 == 0o600
    assert len(pd.read_parquet("a.parquet")) == 60
    assert folder.is_dir()


def test_outputs_of_the_same_kind_are_replaced(folder: Path, capsys: Any) -> None:
    for ending in ("png", "svg", "pdf"):
        for _ in range(2):
            save(Figure(), Path(f"a.{ending}"))
    for what, out in (
        ("plan --out", "p.json"), ("report --out", "r.html"), ("query --steward-log", "steward"),
    ):  # fmt: skip
        for _ in range(2):
            assert cli.run(ASKED[what][0].replace("OUT", out).split(" ")) == 0, what
    assert [json.loads(line) for line in Path("steward").read_text().splitlines()].count(
        "apiece query"
    ) == 2
    capsys.readouterr()
    assert folder.is_dir()


def test_a_log_among_the_files_of_the_table_is_refused(folder: Path, capsys: Any) -> None:
    (folder / "parts").mkdir()
    words = "query parts count(persons) --person id --epsilon 1 --delta 1e-5 --engine spark"
    for at in ("parts/new.parquet", "parts/../parts/log", f"{folder}/parts/x"):
        assert cli.run([*words.split(" "), "--steward-log", at]) == 2
        assert "lies in the table" in capsys.readouterr().err
    assert not any((folder / "parts").iterdir())
