"""A ledger opens no account for a second spelling, and still reads the ledgers that did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apiece import cli
from apiece.budgets import ConsentMapping, read_consents
from apiece.datasets import Schema
from apiece.errors import AnalysisError, ApieceError, DataError, InputError
from apiece.ledger import Ledger, LedgerFilter, Policy, receipt, scopes
from apiece.queries import Session
from apiece.queries.session import release_standing
from refusals import refused

from .tables import another_process

DAYS = """version = 1
unit = "person-period"
every = "day"
[querier.clinic]
[querier."*"]
quota = 0.5"""
WEEKS = DAYS.replace('"day"', '"week"')
# Good answers at .9 about persons of ε = 1 were given for each of these, of the same day.
SPELLINGS = {
    "day": ["2025-05-1٤", "２０２５-05-14", "२०२५-०५-१४", "2025-02-31", "2025-5-14", "20250514",
            "2025-05-14 ", "2025-W20-3", "2025-05-14T00:00", "2025-00-10", "0000-01-01"],
    "week": ["2025-W53", "2025-W00", "2025-w20", "2025-W2٠", "2025W20", "2025-W5", "2024-W53"],
}  # fmt: skip


def made(folder: Path, policy: str = "") -> Ledger:
    ledger = Ledger.make(str(folder / "p.db"), ["ann", "bob"], 1.0, 1e-6)
    if policy:
        ledger.set_policy(policy)
    return ledger


@pytest.mark.parametrize(("every", "policy"), [("day", DAYS), ("week", WEEKS)])
def test_a_period_has_one_account(every: str, policy: str, tmp_path: Path) -> None:
    ledger = made(tmp_path, policy)
    name = {"day": "2025-05-14", "week": "2025-W20"}[every]
    scope = {"querier": "clinic", "period": name}
    assert ledger.reserve("q", ["ann"], 1.0, 5.0, scope=scope).size == 1
    before = ledger.head()
    for k, other in enumerate(SPELLINGS[every]):
        for asked in ({**scope, "period": other}, {**scope, "period": [name, other]}):
            with pytest.raises(InputError, match=r"^scope: period"):
                ledger.reserve(f"q{k}", ["ann"], 1.0, 5.0, scope=asked)
            with pytest.raises(InputError, match=r"^scope: period"):
                ledger.reserve_everyone(f"q{k}", 1.0, 5.0, scope=asked)
            with pytest.raises(InputError):
                ledger.within({"period": other}).remaining(["ann"])
    assert ledger.head() == before
    assert ledger.reserve("again", ["ann"], 1.0, 5.0, scope=scope).size == 0  # it is spent
    assert ledger.verify().notes == ()


ODD = ["clinic ", "clіnic", "clin\u200bic", "ｃlinic", "cli  nic", "clinic٢", "cli\u0301nic"]


@pytest.mark.parametrize("kind", ["querier", "purpose", "source"])
def test_a_scope_has_one_spelling(kind: str, tmp_path: Path) -> None:
    ledger = made(tmp_path, f'version = 1\n[{kind}.clinic]\n[{kind}."*"]\nquota = 0.5')
    for name in ODD:
        with pytest.raises(InputError, match=rf"^scope: {kind}"):
            ledger.reserve("q", ["ann"], 1.0, 30.0, scope={kind: name})
        with pytest.raises(InputError, match=r"^policy: "):
            Policy.from_toml(f'version = 1\n[{kind}."{name}"]\n[{kind}."*"]')
        with pytest.raises(InputError, match=r"^policy: "):
            ledger.set_policy(f'version = 2\n[{kind}."{name}"]\n[{kind}."*"]')
    assert ledger.reserve("q", ["ann"], 1.0, 30.0, scope={kind: "clinic"}).size == 1


def test_an_analysis_has_one_spelling(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    people = {"id": ["ann", "bob"]}
    import pandas as pd

    session = Session(pd.DataFrame(people), Schema({}, person="id"), ledger)
    before = ledger.head()
    for name in ODD:
        calls = (
            lambda at: ledger.reserve(at, ["ann"], 1.0, 30.0),
            lambda at: ledger.reserve_everyone(at, 1.0, 30.0),
            lambda at: session.ask("count(persons)", epsilon=0.1, delta=1e-7, analysis_id=at),
            lambda at: release_standing(ledger, at, noise_stddev=30.0),
            lambda at: LedgerFilter(ledger, ["ann"], at).admit(1.0, 30.0),
        )
        for call in calls[: 4 if name.endswith(" ") else 5]:  # "clinic /0" has no blank at an end
            with refused(InputError, "analysis_id"):
                call(name)
    assert ledger.head() == before


def test_a_person_has_one_spelling(tmp_path: Path, capsys: Any) -> None:
    ledger = made(tmp_path)
    for name in ODD:
        for call in (
            lambda ids: ledger.enroll(ids, 1.0, 1e-6),
            lambda ids: Ledger.make(str(tmp_path / "new.db"), ids, 1.0, 1e-6),
        ):
            with pytest.raises(
                DataError, match=r"^ids\[(0|1)\]: .*written in the one way"
            ) as error:
                call(["cy", name])
            assert name not in str(error.value)  # no id is shown
    assert not (tmp_path / "new.db").exists()
    assert ledger.people == 2
    table = tmp_path / "t.csv"
    for name in ("clin\u200bic", "ann٢", "ann "):
        table.write_text(f"id,e\nann,1.0\n{name},1.0\n")
        words = f"ledger init {tmp_path}/p.db --data {table} --person id --epsilon e --delta 1e-6"
        if name != "ann ":  # blanks around a cell are none of its text
            assert cli.run(words.split(" ")) == 2
    assert "row 2: the id has" in capsys.readouterr().err
    assert ledger.people == 2


def test_a_consent_names_a_person_and_a_day_in_one_way(tmp_path: Path) -> None:
    text = 'source = "csv"\nlevels = { low = 1 }\ncolumns = { person = "who", level = "level", '
    mapping = ConsentMapping.from_toml(text + 'until = "until" }\n')
    path = tmp_path / "c.csv"
    for row, says in (
        ("an\u200bn,low,2030-01-01", "a person's id that could be written in another way"),
        ("ann٢,low,2030-01-01", "a person's id that could be written in another way"),
        ("ann,low,2030-01-0١", "a date that is none"),
        ("ann,low,２０３０-01-01", "a date that is none"),
        ("ann,low,2030-02-31", "a date that is none"),
    ):
        path.write_text(f"who,level,until\n{row}\n")
        with pytest.raises(DataError, match=says):
            read_consents(path, mapping).on()
    for name in ODD:
        purpose = f'purpose = {{ x = "{name}" }}\ncolumns'
        with refused(InputError, "mapping"):
            ConsentMapping.from_toml(text.replace("columns", purpose) + 'until = "u" }\n')


@pytest.mark.parametrize("day", ["20260501", "2026-W18-5", "2026-05-0١", "2026-5-1", "2026-02-30"])
def test_a_day_on_the_command_line_has_one_spelling(day: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.csv").write_text("who,level\nann,low\n")
    columns = 'columns = { person = "who", level = "level" }'
    (tmp_path / "m.toml").write_text(f'source = "csv"\nlevels = {{ low = 1 }}\n{columns}\n')
    words = f"ledger enroll {tmp_path}/p.db --consents {tmp_path}/c.csv --mapping {tmp_path}/m.toml"
    assert cli.run([*words.split(" "), "--delta", "1e-6", "--on", day]) == 2
    assert "must be a day, as 2026-05-01" in capsys.readouterr().err


# --- ledgers that have such identifiers already


@contextmanager
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take what apiece took before identifiers had one spelling."""
    with monkeypatch.context() as patch:
        patch.setattr("apiece.ledger.codec.require_canonical_ids", lambda *_: None)
        patch.setattr("apiece.ledger.charging.check_new_id", lambda *_: None)
        patch.setattr("apiece.ledger.scopes.require_canonical", lambda *_, **__: "")
        patch.setattr("apiece.ledger.scopes._list_periods", scopes._list_older_periods)
        yield


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with a person, an analysis, a querier and a period that are refused today."""
    with as_before(monkeypatch):
        ledger = Ledger.make(str(tmp_path / "p.db"), ["ann", "bob "], 1.0, 1e-6)
        ledger.set_policy(DAYS.replace('"*"]', '"*"]').replace("clinic", '"clinic "'))
        scope = {"querier": "clinic ", "period": "2025-05-1٤"}
        ledger.reserve("q  1", ["ann", "bob "], 1.0, 8.0, scope=scope)
        ledger.reserve("q  2", ["ann", "bob "], 1.0, 20.0, scope=scope)
        ledger.commit("q  1", 7)
    another_process()
    return Ledger.open(str(tmp_path / "p.db"))


def test_an_older_ledger_is_read_and_says_so(older: Ledger, capsys: Any, tmp_path: Path) -> None:
    verification = older.verify()
    assert verification.ok, verification.problems
    assert [note.partition(" could")[0] for note in verification.notes] == [
        "2 ids of analyses", "2 names of a period in charges", "2 names of a querier in charges",
        "1 ids of persons",
    ]  # fmt: skip
    assert cli.run(["ledger", "verify", str(tmp_path / "p.db")]) == 0
    assert "warning: 1 ids of persons could be written in another way" in capsys.readouterr().err
    assert older.result("q  1") == 7
    assert older.status("q  2") == "reserved"
    assert [each.analysis for each in receipt(older, "bob ").charges] == ["q  1", "q  2"]
    assert older.policy.version == 1
    assert older.head() == older.head()


def test_what_was_begun_before_is_ended_and_nothing_new_is_begun(older: Ledger) -> None:
    scope = {"querier": "clinic ", "period": "2025-05-1٤"}
    again = older.reserve("q  2", ["ann", "bob "], 1.0, 20.0, scope=scope)
    assert again.tolist() == ["ann", "bob "]
    assert older.commit("q  2", 8) == 8
    for analysis, asked in (
        ("q  3", {"querier": "x", "period": "2025-05-14"}),
        ("q3", scope),
        ("q3", {"querier": "x", "period": "2025-05-1٤"}),
        ("q3", {"querier": "clinic ", "period": "2025-05-14"}),
    ):
        with pytest.raises(InputError):
            older.reserve(analysis, ["ann"], 1.0, 40.0, scope=asked)
    with pytest.raises(AnalysisError):
        older.reserve("q  1", ["ann"], 1.0, 8.0, scope=scope)
    good = {"querier": "x", "period": "2025-05-14"}
    assert older.reserve("q3", ["ann", "bob "], 1.0, 40.0, scope=good).size == 2
    assert older.verify().ok


def test_a_person_of_an_older_ledger_changes_their_budget_and_leaves(older: Ledger) -> None:
    assert older.enroll(["bob "], 2.0, 1e-6) == 0
    with pytest.raises(DataError, match="one way"):
        older.enroll(["bob  "], 2.0, 1e-6)
    lineage = older.withdraw(["bob "])
    assert lineage.receipts[0].withdrawn is not None
    assert older.verify().ok
    with pytest.raises(ApieceError):
        older.enroll(["cy", "dan "], 1.0, 1e-6)
    assert older.people == 2
