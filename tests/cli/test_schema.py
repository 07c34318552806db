"""apiece schema: a template from the header, and what looks like a mistake in one filled in."""

import json
from pathlib import Path
from typing import Any

import pytest

from apiece import cli

from .options import instead

HEADER = "age,City,who,consent,answer\n"
SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
missing = [""]
[columns.city]
kind = "categorical"
values = ["Bonn", "bonn", "NA"]
[columns.who]
kind = "categorical"
values = ["ann"]
[columns.answer]
kind = "categorical"
values = ["no", "yes"]
"""
ASK = ["schema", "people.csv", "--label", "answer"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(HEADER + "not,a,row,at,all,that,is,read\n")
    Path("s.toml").write_text(SCHEMA)
    return tmp_path


def asked(capsys: Any, *words: str) -> tuple[int, str, str]:
    status = cli.run(instead(ASK, *words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_mistakes_are_told_without_a_look_at_rows(capsys: Any) -> None:
    status, out, err = asked(capsys, "--skip", "who", "--check", "s.toml")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 5
    for words in (
        "declares 'city', which is not in the table; it has 'City'",
        "not used: 'consent'",
        "declares 'who' as a feature, but it is the skipped column",
        "'Bonn' and 'bonn' differ in case alone",
        "'NA' looks like a marker",
    ):
        assert sum(words in line for line in lines) == 1


def test_one_json_document(capsys: Any) -> None:
    _, out, _ = asked(capsys, "--check", "s.toml", "--json")
    assert len(json.loads(out)["doubts"]) == 4


def test_a_sound_schema_passes(capsys: Any) -> None:
    Path("s.toml").write_text(SCHEMA.replace("columns.city", "columns.City").replace(
        '"Bonn", "bonn", "NA"', '"Bonn"'))  # fmt: skip
    _, out, _ = asked(capsys, "--skip", "consent", "--check", "s.toml")
    assert out == "s.toml: nothing looks like a mistake\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json"], "give it with --check"),
        (["--check", "s.toml", "--out", "t.toml"], "leave --out out"),
        (["--check", "none.toml"], "cannot be read"),
        (["--check", "people.csv"], "give a TOML file"),
        (["--check", "s.toml", "--label", "age"], "teaches nothing: leave missing out"),
        (["--check", "s.toml", "--skip", "whom"], "did you mean 'who'"),
        (["--label", "age", "--epsilon", "age"], "is the column of another option too"),
    ],
)
def test_what_cannot_be_checked_is_refused(words: list[str], message: str, capsys: Any) -> None:
    status, out, err = asked(capsys, *words)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not Path("t.toml").exists()


@pytest.mark.parametrize("flag", ["--skip", "--person", "--ids", "--epsilon"])
def test_the_template_has_features_and_the_label(flag: str, capsys: Any) -> None:
    status, out, _ = asked(capsys, flag, "who")
    assert status == 0
    assert "[columns.age]" in out
    assert "[columns.who]" not in out
    assert out.count("missing = true") == 3 + 1  # and the line that explains it
