"""Passwords in no address, output, error or file; no parameter that switches a safeguard off."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece import cli
from apiece.errors import ApieceError, InputError
from apiece.jobs.config import job_from_dict
from apiece.ledger import Ledger
from apiece.ledger.database import check_address
from refusals import refused

SECRET = "hunter2-Zx9"
WITH_PASSWORD = [
    f"postgresql://me:{SECRET}@h/db",
    f"postgresql+psycopg://me:{SECRET}@h:5432/db",
    f"postgresql://me:{SECRET}@@h/db",
    f"postgresql://me:a@{SECRET}@h/db",
    f"postgresql://:{SECRET}@h/db",
    f"postgresql://me@h/db?password={SECRET}",
    f"postgresql://me@h/db?sslmode=require&PASSWORD={SECRET}",
    f"postgresql://me@h/db?sslpassword={SECRET}",
    f"postgresql://me@h/db?options=-cx%3D{SECRET}",
    f"postgresql://me@h/db?{SECRET}=1",
    f"postgresql://me@h:{SECRET}/db",
    f"postgresql+psycopg2://me:{SECRET}@h/db",
    f"postgresql+nodriver://me:{SECRET}@h/db",
    f"postgres://me:{SECRET}@h/db",
    f"mysql://me:{SECRET}@h/db",
    f"{SECRET}://me@h/db",
    f"me:{SECRET}@h/db",
    f"sqlite://me:{SECRET}@/p.db",
    f"sqlite:///p.db?password={SECRET}",
    f"sqlite:///p.db?key={SECRET}&nolock=1",
    f"postgresql://me:{SECRET}@h/db\x00",
]


def files(folder: Path) -> str:
    return "".join(p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("address", WITH_PASSWORD)
def test_no_error_repeats_a_password(address: str) -> None:
    for call in (
        lambda: check_address(address),
        lambda: Ledger.open(address),
        lambda: Ledger.make(address, [1], 1.0, 1e-6),
        lambda: job_from_dict({"run": {"ledger": address, "analysis": "m"}}, name="x", changes={
            "source": "adult", "ids": "i", "epsilon": "e"}),
    ):  # fmt: skip
        with pytest.raises(InputError) as error:
            call()
        chain: BaseException | None = error.value
        while chain is not None:
            assert SECRET not in str(chain)
            chain = None if chain.__suppress_context__ else chain.__cause__ or chain.__context__


@pytest.mark.parametrize("address", WITH_PASSWORD[:-1])
def test_no_command_prints_or_writes_a_password(
    address: str, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"p": [1, 2], "e": [1.0, 2.0], "y": ["a", "b"]}).to_csv("t.csv", index=False)
    Path("job.toml").write_text("[data]\nsource = 't.csv'\n")
    people = ["--data", "t.csv", "--ids", "p", "--epsilon", "e", "--delta", "1e-6"]
    train = ["train", *people, "--label", "y", "--analysis", "m", "--out", "run"]
    for words in (
        ["ledger", "init", address],
        ["ledger", "init", address, *people],
        ["ledger", "status", address],
        ["ledger", "verify", address, "--json"],
        ["ledger", "history", address],
        ["ledger", "export", address, "--out", "x.parquet"],
        ["query", "t.csv", "count(persons)", "--person", "p", "--epsilon", "1", "--delta", "1e-6",
         "--ledger", address],
        [*train, "--ledger", address],
        ["train", "--resume", "run", "--ledger", address],
    ):  # fmt: skip
        assert cli.run(words) in (1, 2)
        said = capfd.readouterr()
        assert SECRET not in said.out + said.err
        assert said.err.count("\n") == 1
    assert SECRET not in files(tmp_path)


def test_a_config_with_a_password_is_refused(tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "job.toml"
    config.write_text(
        "[data]\nsource = 'adult'\nids = 'i'\n[budgets]\nepsilon = 'e'\n"
        f"[run]\nledger = 'postgresql://me:{SECRET}@h/db'\nanalysis = 'm'\nout = '{tmp_path}/r'\n"
    )
    assert cli.run(["train", str(config)]) == 2
    said = capsys.readouterr()
    assert "PGPASSFILE" in said.err
    assert SECRET not in said.out + said.err
    assert not (tmp_path / "r").exists()


def test_a_missing_driver_says_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with refused(ApieceError, "psycopg") as error:
        Ledger.open("postgresql://me@h/db")
    assert "me@h" not in str(error.value)


def test_a_password_from_the_environment_is_used_and_never_shown(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the server's library alone, which says that it could not reach the server."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert cli.run(["ledger", "status", "postgresql://me@127.0.0.1:1/db"]) == 1
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert os.environ["PGPASSWORD"] == SECRET


def test_a_ledger_shows_no_password(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    ledger = Ledger.open(ledger_url)
    ledger.enroll(np.arange(3), 1.0, 1e-6)
    ledger.export(tmp_path / "a.parquet")
    assert cli.run(["ledger", "status", ledger_url, "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert SECRET not in repr(ledger) + repr(vars(ledger)) + files(tmp_path)


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:///p.db?nolock=1", "sqlite:///p.db?immutable=1", "sqlite:///p.db?vfs=unix-none",
        "sqlite:///file:p.db?nolock=1&uri=true", "sqlite:///file:p.db", "p.db?nolock=1",
        "sqlite:///p.db?mode=memory", "sqlite:///p.db?timeout=0", "sqlite:///p.db?cache=shared",
        "sqlite:///p.db#x", "sqlite+pysqlite:///p.db?immutable=1", "file:p.db?immutable=1",
        "sqlite+aiosqlite:///p.db", "sqlite:///p.db%3Fnolock=1", "sqlite://", "sqlite:///:memory:",
        "postgresql://h/db?options=-csynchronous_commit%3Doff", "p\x00.db", "",
        "sqlite:///p.db?check_same_thread=false&isolation_level=None",
    ],
)  # fmt: skip
def test_no_parameter_switches_a_lock_off(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        ledger = Ledger.open(address)
    except ApieceError:
        assert list(tmp_path.iterdir()) == []
        return
    # What is taken is a plain file of that very name, with its locks.
    assert [p.name for p in tmp_path.iterdir()] == [str(ledger.engine.url.database)]
    assert not ledger.engine.url.query
    assert "%3F" in address


@pytest.mark.parametrize(
    "address",
    [
        "p.db", "sqlite:///p.db", "sqlite:////tmp/p.db", "sqlite+pysqlite:///p.db",
        "postgresql://h/db", "postgresql://me@h:5432/db?sslmode=verify-full&sslrootcert=/c.pem",
        "postgresql:///db?host=/run/postgresql", "postgresql://me@h/db?passfile=/etc/pgpass",
    ],
)  # fmt: skip
def test_honest_addresses_are_taken(address: str) -> None:
    assert check_address(address) == address
