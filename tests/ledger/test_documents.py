"""Documents from outside, deep, large or false: a line says so, and nothing is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apiece import cli
from apiece._json import DEEPEST, dumps, loads
from apiece.errors import InputError
from apiece.ledger import Ledger, check_receipt
from refusals import refused

from .tables import another_process


def nested(levels: int, last: object = 1) -> Any:
    """Lists within lists, one more than so many levels."""
    value: Any = last
    for k in range(levels):
        value = [value] if k % 2 else {"a": value}
    return value


def text_of(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.make(str(tmp_path / "p.db"), ["ann", "bob"], 1.0, 1e-6)
    ledger.reserve("q", ["ann"], 1.0, 30.0)
    return ledger


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900, 5_000, 200_000])
def test_a_result_or_terms_that_nest_too_deep_are_refused(levels: int, ledger: Ledger) -> None:
    before = ledger.head()
    for call in (
        lambda: ledger.commit("q", nested(levels)),
        lambda: ledger.reserve("r", ["ann"], 1.0, 30.0, terms=nested(levels)),
        lambda: ledger.status("q", nested(levels)),
    ):
        with pytest.raises(InputError, match=r"^(result|terms): nests more than 100 levels deep"):
            call()
    assert ledger.head() == before


def test_what_nests_as_deep_as_is_allowed_is_read_again_by_every_process(
    ledger: Ledger, tmp_path: Path
) -> None:
    deepest = nested(DEEPEST)
    assert ledger.commit("q", deepest) == deepest
    another_process()
    again = Ledger.open(str(tmp_path / "p.db"))
    assert again.result("q") == deepest
    assert again.verify().ok
    assert loads(dumps(deepest, "x"), "x") == deepest


@pytest.mark.parametrize(
    "value", [{1, 2}, float("nan"), float("inf"), b"a", object(), 10**5000], ids=list("abcdef")
)
def test_what_is_no_json_is_refused(value: object, ledger: Ledger) -> None:
    with refused(InputError, "result", "JSON"):
        ledger.commit("q", value)
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(InputError, match=r"^result: nests more than"):
        ledger.commit("q", circle)


def test_a_result_that_no_database_holds_is_refused(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apiece._json.LONGEST", 1000)
    with refused(InputError, 1002, "JSON", 1000):
        ledger.commit("q", "a" * 1000)


@pytest.mark.parametrize(
    "text",
    [text_of(900), text_of(200_000), "[" * 200_000, '{"a":' * 50_000, "1" * 5000, "1e400", "NaN",
     '{"a": 1, "a": 2}', "", "nonsense"],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_a_result_on_the_command_line_is_refused_in_a_line(
    text: str, ledger: Ledger, tmp_path: Path, capsys: Any
) -> None:
    words = ["ledger", "commit", str(tmp_path / "p.db"), "--analysis", "q", "--result", text]
    assert cli.run(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 500
    assert ledger.status("q") == "reserved"


def test_documents_to_check_are_refused_or_found_false(
    ledger: Ledger, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ledger.publish()
    receipt = ledger.prove("ann", head)
    assert check_receipt(receipt, head) == []
    paths = {name: tmp_path / f"{name}.json" for name in ("receipt", "head", "odd")}
    paths["receipt"].write_text(json.dumps(receipt))
    paths["head"].write_text(json.dumps(head))
    deep_text = {**receipt, "account": {**receipt["account"], "text": text_of(100_000)}}
    odd: list[tuple[object, int]] = [
        ({"account": nested(80)}, 1), ({"accounts": nested(80)}, 1), (deep_text, 1),
        ({**receipt, "account": {**receipt["account"], "text": "[1e400]"}}, 1),
        ({**receipt, "charges": [{**receipt["charges"][0], "text": text_of(5000)}]}, 1),
        ({**head, "size": 10**400}, 1), ({**head, "size": -1}, 1), ({**head, "size": "1"}, 1),
    ]  # fmt: skip
    texts = [(json.dumps(value), status) for value, status in odd]
    texts += [(text_of(200_000), 2), ('{"accounts":' * 100_000, 2), ("[1]", 2), ("1" * 10_000, 2)]
    for text, status in texts:
        paths["odd"].write_text(text)
        for first, second in (("odd", "head"), ("receipt", "odd")):
            assert cli.run(["ledger", "check", *(str(paths[x]) for x in (first, second))]) in (
                status, 2
            ), text[:60]  # fmt: skip
            said = capsys.readouterr()
            assert "Traceback" not in said.err
            assert len(said.err) < 500
    monkeypatch.setattr("apiece.cli._command.MAX_BYTES", 100)
    assert cli.run(["ledger", "check", str(paths["receipt"]), str(paths["head"])]) == 2
    assert "is larger than" in capsys.readouterr().err


def test_heads_of_as_many_entries_are_the_same_or_not_consistent(ledger: Ledger) -> None:
    head = ledger.publish()
    receipt = ledger.prove("ann", head)
    changes = ({"accounts": "0" * 64}, {"people": 3}, {"people": 1}, {"root": "0" * 64})
    for change in changes:
        other = {**head, **change}
        forged = {**other, "since": {**head, "proof": []}}
        assert check_receipt(receipt, other) != []
        assert check_receipt(receipt, forged) != []  # it names the receipt's as its beginning
        with pytest.raises(InputError, match="no earlier head of this ledger"):
            ledger.publish({**head, **change})


def test_a_published_head_vouches_for_no_forged_earlier_one(ledger: Ledger) -> None:
    """The same entries with other accounts: what they were is found anew from the history."""
    early = ledger.publish()
    ledger.reserve("r", ["bob"], 1.0, 30.0)
    ledger.enroll(["cy"], 1.0, 1e-6)
    later = ledger.publish(early)
    assert check_receipt(ledger.prove("ann", early), later) == []
    for change in (
        {"accounts": "0" * 64},
        {"people": 1},
        {"people": 3},
        {"size": early["size"] - 1},
    ):
        with pytest.raises(InputError, match="no earlier head"):
            ledger.publish({**early, **change})
    fewer = {**early, "since": {**later, "proof": []}}
    fewer["since"].pop("since", None)
    assert check_receipt(ledger.prove("ann", ledger.publish()), fewer) != []
