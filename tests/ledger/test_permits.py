"""A ledger that was enrolled from consents: scopes and last days hold, whatever is charged."""

import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.budgets import ConsentMapping, read_consents
from apiece.budgets.consents import Standing
from apiece.cli import run
from apiece.errors import DataError, StateError
from apiece.filters import Costs
from apiece.ledger import Ledger, codec, enroll_consents, receipt, schema
from apiece.ledger.scopes import Permits

from .tables import another_process
from .test_scopes import day

MAPPING = """
source = "csv"
levels = { low = 1, high = 8 }
[decision]
no = "deny"
[purpose]
science = "research"
[columns]
person = "who"
level = "level"
until = "until"
purpose = "for"
"""
TABLE = """who,level,until,for
ann,high,2030-06-30,science
bob,low,,
cyd,low,2030-01-31,
dan,high,,
dan,no,,science
eve,no,,
"""
POLICY = "version = 1\n[purpose.research]\n[purpose.'*']\n"
ALL = ["ann", "bob", "cyd", "dan"]
RESEARCH, CARE = {"purpose": "research"}, {"purpose": "care"}


def standing(folder: Path, table: str = TABLE, on: str = "2030-01-05") -> Standing:
    path = folder / "consents.csv"
    path.write_text(table)
    return read_consents(path, ConsentMapping.from_toml(MAPPING)).on(date.fromisoformat(on))


@pytest.fixture
def ledger(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    day(monkeypatch, "2030-01-05")
    result = Ledger.open(ledger_url)
    result.set_policy(POLICY)
    assert enroll_consents(result, standing(tmp_path), 1e-6) == 4
    return result


def test_nobody_is_charged_beyond_what_they_permit(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str, scope: dict[str, str]) -> list[str]:
        return ledger.reserve(name, ALL, 1.0, 40.0, terms="t", scope=scope).tolist()

    assert asked("r", RESEARCH) == ["ann", "bob", "cyd"]
    assert asked("c", CARE) == ["bob", "cyd", "dan"]
    assert ledger.reserve_everyone("all", 1.0, 40.0, scope=RESEARCH) == 3
    research = ledger.within(RESEARCH)
    assert research.withdrawn(ALL).tolist() == research.enrolled(ALL).__invert__().tolist()
    assert research.withdrawn([*ALL, "zoe"]).tolist() == [False, False, False, True, False]
    assert research.remaining(ALL)[3] == 0 < research.remaining(ALL)[0]
    assert ledger.withdrawn(ALL).tolist() == [True, False, False, True]  # of an open scope
    day(monkeypatch, "2030-02-01")  # the day after cyd's last
    another_process()
    for each in (ledger, Ledger.open(str(ledger.engine.url.render_as_string(False)))):
        assert each.reserve("r", ALL, 1.0, 40.0, terms="t", scope=RESEARCH).tolist() == ALL[:2]
        assert np.concatenate(list(each.admitted("all"))).tolist() == ALL[:2]
        assert each.reserve_everyone("all", 1.0, 40.0, scope=RESEARCH) == 2
        assert np.concatenate(list(each.admitted("all", withdrawn=True))).tolist() == ALL[:3]
    assert asked("later", CARE) == ["bob", "dan"]
    day(monkeypatch, "2029-01-01")  # a clock that is set back brings nobody back
    assert asked("earlier", CARE) == ["bob", "dan"]
    assert ledger.verify().problems == ()
    assert receipt(ledger, "cyd").charges[0].analysis == "r"


def test_consents_that_change_hold_from_then_on(ledger: Ledger, tmp_path: Path) -> None:
    dear = Costs.fixed(ledger.within(CARE).remaining(["bob", "dan"]) * 0.9)
    ledger.reserve_costs("dear", ["bob", "dan"], dear, scope=CARE)
    spent = ledger.spent(["dan"])
    changed = "who,level,until,for\nann,low,,\ndan,low,,\nfay,high,,\n"
    assert enroll_consents(ledger, standing(tmp_path, changed), 1e-6) == 1
    people = [*ALL, "fay"]
    # bob and cyd are in no consent any more; dan spent more than the new level
    assert ledger.reserve("q", people, 1.0, 40.0, scope=CARE).tolist() == ["ann", "fay"]
    assert receipt(ledger, "ann").epsilon == 1.0
    assert receipt(ledger, "dan").epsilon == 8.0
    assert ledger.spent(["dan"]) == spent
    ledger.enroll(["gil"], 8.0, 1e-6)  # whoever comes without a consent permits nothing
    assert ledger.reserve("p", ["ann", "gil"], 1.0, 40.0, scope=CARE).tolist() == ["ann"]
    ledger.withdraw(["ann"])
    assert enroll_consents(ledger, standing(tmp_path, changed), 1e-6) == 0
    assert ledger.reserve("o", ["ann", "fay"], 1.0, 40.0, scope=CARE).tolist() == ["fay"]
    nobody = standing(tmp_path, "who,level,until,for\nann,no,,\n")
    assert enroll_consents(ledger, nobody, 1e-6) == 0
    assert ledger.reserve("n", people, 1.0, 40.0, scope=CARE).size == 0
    assert ledger.verify().problems == ()
    head = ledger.publish()
    from apiece.ledger import check_receipt

    assert check_receipt(ledger.prove("fay", head), head) == []


def test_ids_are_the_ledgers(ledger_url: str, tmp_path: Path) -> None:
    ledger = Ledger.make(ledger_url, [1, 2], 1.0, 1e-6)
    whole = "who,level,until,for\n1,high,,\n3,low,,\n"
    assert enroll_consents(ledger, standing(tmp_path, whole), 1e-6) == 1
    assert ledger.reserve("q", [1, 2, 3], 1.0, 40.0).tolist() == [1, 3]
    with pytest.raises(DataError, match="1 persons are no whole numbers"):
        enroll_consents(ledger, standing(tmp_path, f"{whole}ann,low,,\n"), 1e-6)


def test_over_several_blocks_everybody_keeps_their_own(tmp_path: Path) -> None:
    rng, people = np.random.default_rng(3), 2 * codec.BLOCK + 7
    allowed = rng.random((people, 1, 2)) < 0.6
    allowed[:, 0, 1] |= ~allowed[:, 0, 0]
    ids, until = np.arange(people).astype(str), rng.integers(740000, 3000000, people)
    said = Standing(date(2030, 1, 5), ids, np.full(people, 2.0), until, ("*",),
                    ("research", "*"), allowed)  # fmt: skip
    ledger = Ledger.make(f"{tmp_path}/p.db", ids[::-1][: people // 2], 1.0, 1e-6)
    ledger.set_policy(POLICY)
    enroll_consents(ledger, said, 1e-6)
    for fresh in (ledger, Ledger.open(f"{tmp_path}/p.db")):
        paid = fresh.reserve("q", ids, 1.0, 40.0, terms=1, scope=RESEARCH)
        now = date.fromisoformat(fresh.store.trail.find_time()[:10]).toordinal()
        assert set(paid) == set(ids[allowed[:, 0, 0] & (until >= now)])
    assert ledger.verify().problems == ()


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the last day": lambda m: m.setattr(
        Permits, "hold", lambda self, scope, at, people: self.allowed.any(axis=(1, 2))[:people]),
    "the scope": lambda m: m.setattr(
        "apiece.ledger.scopes.find_permitting",
        lambda allowed, queriers, purposes, scope: allowed.any(axis=(1, 2))),
    "consents": lambda m: m.setattr(
        "apiece.ledger.entries.Permits.unpack", lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_history_that_charges_without_consent_is_told(
    name: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: ledgers that do not look at who permits what until when."""
    day(monkeypatch, "2030-02-01")
    with monkeypatch.context() as broken:
        BREAKS[name](broken)
        another = Ledger.open(str(ledger.engine.url.render_as_string(False)))
        paid = another.reserve("q", ALL, 1.0, 40.0, scope=RESEARCH).tolist()
    assert set(paid) - {"ann", "bob"}
    assert any("did not permit it" in each for each in ledger.verify().problems)


def test_no_edit_of_what_people_permit_goes_unseen(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte of the array, and each part of the entry, that says who permits what."""
    engine = ledger.engine
    with engine.connect() as connection:
        rows = connection.execute(sa.select(schema.ENTRY).order_by(schema.ENTRY.c.number)).all()
        (entry,) = [row for row in rows if json.loads(row.body)["kind"] == "consent"]
        where = schema.PAYLOAD.c.number == entry.number
        data = bytes(connection.execute(sa.select(schema.PAYLOAD.c.data).where(where)).scalar_one())
    body = json.loads(entry.body)
    others = [
        {**body, "purposes": ["*", "research"]}, {**body, "queriers": ["lab"]},
        {**body, "kind": "withdraw"}, {**body, "day": "2031-01-01"},
    ]  # fmt: skip
    edits = [(schema.PAYLOAD, where, {"data": edited}) for edited in (
        data[:-1], data + b"x", *(bytes([*data[:i], data[i] ^ 1, *data[i + 1 :]])
                                 for i in range(0, len(data), 5)))]  # fmt: skip
    here = schema.ENTRY.c.number == entry.number
    for each in others:
        text = json.dumps(each, sort_keys=True, separators=(",", ":"))
        edits.append((schema.ENTRY, here, {"body": text}))
    original = {schema.PAYLOAD: {"data": data}, schema.ENTRY: {"body": entry.body}}
    writes = engine.execution_options(apiece_writes=True)
    for table, which, values in edits:
        with writes.begin() as connection:
            connection.execute(sa.update(table).where(which).values(values))
        another_process()
        assert not ledger.verify().ok
        with pytest.raises(StateError):
            Ledger.open(str(engine.url.render_as_string(False))).reserve("q", ALL, 1.0, 40.0)
        with writes.begin() as connection:
            connection.execute(sa.update(table).where(which).values(original[table]))
    assert ledger.verify().ok


def test_a_training_leaves_out_who_does_not_permit_it(tmp_path: Path, monkeypatch) -> None:
    from apiece.assignment import Sample, assign
    from apiece.budgets import Budgets
    from apiece.training import charge_training

    day(monkeypatch, "2030-01-05")
    ledger = Ledger.open(f"{tmp_path}/p.db")
    ledger.set_policy(POLICY)
    enroll_consents(ledger, standing(tmp_path), 1e-5)
    plan = assign(Budgets([0.5] * 4, 1e-5, ids=ALL), Sample(), steps=3, expected_batch_size=2,
                  clip_norm=1.0)  # fmt: skip
    charge = charge_training(ledger.within(RESEARCH), "model", plan)
    assert charge.included.tolist() == [True, True, True, False]
    assert charge.withdrawn().tolist() == [False, False, False, True]
    day(monkeypatch, "2030-02-01")  # over night a consent ends, and nothing is written
    monkeypatch.setattr("time.monotonic", lambda later=time.monotonic() + 1e6: later)  # noqa: B008
    assert charge.withdrawn().tolist() == [False, False, True, True]


def test_the_command_enrolls_and_writes_who_permits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.csv").write_text(TABLE)
    (tmp_path / "m.toml").write_text(MAPPING)
    words = ["ledger", "enroll", "l.db", "--consents", "c.csv", "--mapping", "m.toml"]
    words += ["--delta", "1e-6"]
    assert run([*words, "--on", "2030-01-05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"enrolled": 4, "on": "2030-01-05", "aside": {}}
    out = ["--out", "people.parquet", "--scope", "purpose=research", "--on", "2030-01-05"]
    assert run([*words, *out]) == 0
    table = pd.read_parquet("people.parquet")
    assert table.to_dict("list") == {"person": ["ann", "bob", "cyd"], "epsilon": [8.0, 1.0, 1.0]}
    capsys.readouterr()
    (tmp_path / "c.csv").write_text(TABLE + "gil,much,,\n")
    for more, said in (
        ([], "1 consents are not understood: 1 with a code that the mapping lacks"),
        (["--on", "May"], "--on = 'May': must be a day"),
        (["--scope", "purpose=x"], "--scope: says who is in --out"),
        (["--leave-out", "--mapping", "none.toml"], "given 2 times"),
    ):
        assert run([*words, *more]) == 2
        found = capsys.readouterr().err
        assert said in found
        *warned, refused = found.strip().splitlines()
        assert said in refused
        assert "much" not in refused
        assert warned in ([], ["warning: c.csv: codes that the mapping lacks: 'much' (1)"])
        assert bool(warned) == (not more)  # the codes, for who keeps the consents
    assert run([*words, "--leave-out"]) == 0
