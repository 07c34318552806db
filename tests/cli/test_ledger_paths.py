"""No command that writes to a ledger changes what is no regular file of one's own.

The table names every command that is given a ledger; a test holds it against the commands. What
lies at the path of the ledger, its head file, its journal or its anchor looks the same afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from apiece import Ledger, _files, cli
from apiece.ledger import back_up_ledger
from tests.ledger.tables import another_process
from tests.strange_paths import ANOTHER_USER, STRANGE, look, plant

from .test_outputs import commands

TABLE = "id,age,e,y\n" + "".join(f"p{k},{k % 9},1.0,{'ab'[k % 2]}\n" for k in range(30))
QUERY = "query t.csv count(persons) --person id --epsilon 1 --delta 1e-5"
TRAIN = (
    "train --data t.csv --schema s.toml --epsilon e --ids id --label y --delta 1e-3 "
    "--batch-size 6 --steps 1 --strategy scale --analysis m --test-share 0 --out run"
)
SYNTHESIZE = (
    "synthesize t.csv --schema s.toml --person id --rows-per-person 1 --epsilon 1 --delta 1e-5 "
    "--analysis made --out made.csv"
)
# By command: the words, with URL where the ledger's address goes; what it does to the ledger.
WRITING = {
    "ledger init": "ledger init URL --data t.csv --person id --epsilon e --delta 1e-6",
    "ledger init, empty": "ledger init URL",
    "ledger enroll": "ledger enroll URL --consents c.csv --mapping m.toml --delta 1e-6",
    "ledger restore": "ledger restore l.backup URL --head HEAD",
    "ledger policy": "ledger policy URL p.toml",
    "ledger charge": "ledger charge URL --pure .1 --analysis q",
    "ledger commit": "ledger commit URL --analysis first --result 1",
    "withdraw": "withdraw URL p1",
    "query": f"{QUERY} --ledger URL",
    "train": f"{TRAIN} --ledger URL",
}
# Of an extra: without it, a command refuses before it looks at a ledger.
OF_EXTRAS = {"synthesize": ("mbi", f"{SYNTHESIZE} --ledger URL")}
WRITING |= {name: words for name, (module, words) in OF_EXTRAS.items() if find_spec(module)}
READING = {
    "ledger policy": "ledger policy URL",
    "ledger status": "ledger status URL",
    "ledger receipt": "ledger receipt URL p1",
    "ledger head": "ledger head URL",
    "ledger history": "ledger history URL",
    "ledger verify": "ledger verify URL",
    "ledger export": "ledger export URL --out x.parquet",
    "ledger backup": "ledger backup URL --out x.backup",
}
# Parameters that are the address of a ledger.
ADDRESSES = ("url", "ledger")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger and all that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "t.csv").write_text(TABLE)
    (folder / "c.csv").write_text("who,level\np1,low\n")
    (folder / "m.toml").write_text(
        'source = "csv"\nlevels = { low = 1 }\ncolumns = { person = "who", level = "level" }\n'
    )
    (folder / "p.toml").write_text('version = 1\n[querier."*"]\nquota = 0.5\n')
    (folder / "s.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 9\n'
        '[columns.y]\nkind = "categorical"\nvalues = ["a", "b"]\n'
    )
    ledger = Ledger.make(f"{folder}/l.db", [f"p{k}" for k in range(30)], 3.0, 1e-6)
    ledger.reserve("first", ["p7"], 1.0, 30.0)
    back_up_ledger(ledger, folder / "l.backup")
    (folder / "head").write_text("{0.number}:{0.digest}".format(ledger.head()))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, entered."""
    own = tmp_path / "own"
    shutil.copytree(made, own)
    monkeypatch.chdir(own)
    another_process()
    return own


def test_every_command_that_takes_a_ledger_is_in_the_tables() -> None:
    asked = {name.partition(",")[0] for name in (*WRITING, *READING, *OF_EXTRAS)}
    for name, one in commands():
        named = [each for each in one.params if each.name in ADDRESSES]
        assert not named or name in asked, name
        for each in named:
            assert isinstance(each, click.Parameter)


def refused(words: str, capsys: Any, *statuses: int) -> str:
    words = words.replace("HEAD", Path("head").read_text())
    assert cli.run(words.split(" ")) in (2, *statuses), words
    said: str = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_file_of_one_s_own_is_no_ledger(kind: str, folder: Path, capsys: Any) -> None:
    content = (folder / "l.db").read_bytes()
    plant(kind, folder / "strange", content)
    if kind in ("theirs", "hard link"):
        shutil.copy(folder / "l.db.head", folder / "strange.head")
    before = look(folder)
    asked = {**WRITING, **{f"{name}, read": words for name, words in READING.items()}}
    if kind in (
        "theirs",
        "hard link",
    ):  # it may be read, which is all that these do where there is a ledger
        asked = {**WRITING}
        del asked["ledger init, empty"]
    for words in asked.values():
        for address in ("strange", "sqlite:///strange"):
            said = refused(words.replace("URL", address), capsys)
            assert re.search(STRANGE[kind], said), said
        assert look(folder) == before, words


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("beside", ["l.db.head", "l.db-journal", "l.db-wal"])
def test_what_lies_beside_a_ledger_is_looked_at_too(
    beside: str, kind: str, folder: Path, capsys: Any
) -> None:
    head = (folder / "l.db.head").read_bytes()
    (folder / beside).unlink(missing_ok=True)
    plant(kind, folder / beside, head if beside == "l.db.head" else b"")
    before = look(folder)
    for words in WRITING.values():
        if "init URL" in words or "restore" in words:
            continue  # of a ledger that is there nothing changes
        said = refused(words.replace("URL", "l.db"), capsys, 1)
        assert re.search(STRANGE[kind], said), said
        assert look(folder) == before, words


@pytest.mark.parametrize("kind", STRANGE)
def test_an_anchor_is_looked_at_before_anything_is_charged(
    kind: str, folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(kind, folder / "anchor", (folder / "l.db.head").read_bytes())
    monkeypatch.setenv("APIECE_LEDGER_ANCHOR", str(folder / "anchor"))
    before = look(folder)
    for url in ("l.db", "new.db"):
        for name in ("ledger init", "ledger charge", "ledger commit", "withdraw", "query"):
            if url == "l.db" and name == "ledger init":
                continue
            said = refused(WRITING[name].replace("URL", url), capsys, 1)
            assert re.search(STRANGE[kind], said) or (url == "new.db" and "is of one" in said), said
            assert look(folder) == before, (url, name)


def test_a_ledger_of_another_user_is_read_and_left_as_it_is(folder: Path, capsys: Any) -> None:
    for name in ("l.db", "l.db.head"):
        (folder / name).chmod(0o644)
        try:
            os.chown(folder / name, ANOTHER_USER, ANOTHER_USER)
        except PermissionError:
            pytest.skip("only root can give a file away")
    before = look(folder)
    for name, words in READING.items():
        if name not in ("ledger export", "ledger backup"):
            assert cli.run(words.replace("URL", "l.db").split(" ")) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert look(folder) == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666])
def test_no_mode_of_a_ledger_that_is_there_is_changed(mode: int, folder: Path, capsys: Any) -> None:
    for name in ("l.db", "l.db.head"):
        (folder / name).chmod(mode)
    for name in ("ledger charge", "ledger commit", "ledger policy"):
        assert cli.run(WRITING[name].replace("URL", "l.db").split(" ")) == 0
    capsys.readouterr()
    for name in ("l.db", "l.db.head"):
        assert (folder / name).stat().st_mode & 0o777 == mode


def test_a_planted_fault_is_seen(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is looked at and modes are set, as once, a private node loses its own."""
    for name in ("require_own", "require_regular"):
        monkeypatch.setattr(_files, name, lambda *_, **__: None)
    looked = _files.open_own

    def made(path: Path, *arguments: Any, **options: Any) -> Any:
        path.chmod(0o600)
        return looked(path, *arguments, **options)

    monkeypatch.setattr(_files, "open_own", made)
    plant("device", folder / "strange")
    before = look(folder)
    cli.run(["ledger", "init", "strange"])
    capsys.readouterr()
    assert look(folder) != before
