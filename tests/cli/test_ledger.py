"""apiece ledger: accounts from a table, nothing about anyone unless asked."""

import io
import json
import sqlite3
from pathlib import Path

import pandas as pd
import pytest

from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_laplace, gaussian_of_pure
from apiece.cli import run
from apiece.ledger import Ledger

WORDS = {1: "one more analysis", 2: "two more analyses", 3: "three more analyses"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    people = pd.DataFrame({"person": ["ann", "bob"], "consent": [0.2, 1.0]})
    people.to_csv(tmp_path / "people.csv", index=False)
    address = f"sqlite:///{tmp_path}/people.db"
    flags = ["--data", f"{tmp_path}/people.csv", "--person", "person", "--epsilon", "consent"]
    assert run(["ledger", "init", address, *flags, "--delta", "1e-6"]) == 0
    Ledger.open(address).reserve("wages", ["ann", "bob"], [0.1, 1.0], 8.0)
    return address


def test_people_with_many_rows_get_one_account_each(tmp_path: Path) -> None:
    visits = pd.DataFrame({"who": ["bob", "ann", "bob"], "consent": [1.0, 0.2, 1.0]})
    visits.to_csv(tmp_path / "visits.csv", index=False)
    address = f"sqlite:///{tmp_path}/l.db"
    flags = ["--data", f"{tmp_path}/visits.csv", "--person", "who", "--epsilon", "consent"]
    assert run(["ledger", "init", address, *flags, "--delta", "1e-6"]) == 0
    left = Ledger.open(address).remaining(["ann", "bob"])
    assert left[0] < left[1]
    assert run(["ledger", "init", address, *flags, "--ids", "who", "--delta", "1e-6"]) == 2


def test_status_tells_nothing_about_people(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["ledger", "status", url, "--analysis", "wages", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["people"] == 2
    assert document["analysis"]["status"] == "reserved"
    assert "person" not in document
    assert run(["ledger", "receipt", url, "bob", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["person"] == "bob"
    assert [charge["analysis"] for charge in found["charges"]]
    assert found["left"] == f"What is left pays for {WORDS[found['repeats']]} like the last one."
    assert run(["ledger", "receipt", url, "bob"]) == 0
    out = capsys.readouterr().out
    assert "Receipt of bob: ε = 1 at δ = 1e-06" in out
    assert "What is left pays for" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(["ledger", "receipt", url, "eve"]) == 2
    assert "no account" in capsys.readouterr().err


def test_history_verify_export(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["ledger", "history", url, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [e["kind"] for e in entries] == ["init", "enroll", "reserve"]
    kept = f"{entries[-1]['number']}:{entries[-1]['digest']}"
    assert run(["ledger", "verify", url, "--head", kept]) == 0
    assert run(["ledger", "verify", url, "--head", "2:" + "0" * 64]) == 1
    out = tmp_path / "accounts.parquet"
    assert run(["ledger", "export", url, "--out", str(out)]) == 0
    table = pd.read_parquet(out)
    assert table["id"].tolist() == ["ann", "bob"]
    assert (table["spent"] <= table["limit"]).all()
    assert run(["ledger", "export", url, "--out", str(out), "--table", "history"]) == 0
    assert len(pd.read_parquet(out)) == 3


def test_verify_exits_1_on_a_changed_balance(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE apiece_balance SET spent = zeroblob(16)")
    capsys.readouterr()
    assert run(["ledger", "verify", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"]


def test_a_budget_below_what_is_spent_is_refused_with_the_amount(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two can be lowered and the other not: then neither is."""
    before = Ledger.open(url).remaining(["ann", "bob"]).tolist()
    lower = pd.DataFrame({"person": ["ann", "bob"], "consent": [0.19, 0.3]})
    lower.to_csv(tmp_path / "people.csv", index=False)
    flags = ["--data", f"{tmp_path}/people.csv", "--person", "person", "--epsilon", "consent"]
    capsys.readouterr()
    assert run(["ledger", "init", url, *flags, "--delta", "1e-6"]) == 2
    said = capsys.readouterr().err
    assert "person 'bob'" in said
    assert "what is spent, epsilon = 0." in said
    assert said.count("\n") == 1
    assert Ledger.open(url).remaining(["ann", "bob"]).tolist() == before


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["verify", "sqlite:////nowhere/at/all.db"], 2, "apiece ledger init"),
        (["init", "sqlite:////nowhere/at/all.db"], 1, "unable to open"),
        (["status", "URL", "--analysis", "wagse"], 2, "unknown to this ledger"),
        (["verify", "URL", "--head", "zz"], 2, "number:digest"),
        (["init", "URL", "--data", "x.csv"], 2, "--person"),
        (["export", "URL", "--out", "/proc/no/x.parquet"], 2, "cannot be written"),
        (["export", "URL", "--out", "x.parquet", "--table", "acounts"], 2, "accounts"),
    ],
)
def test_mistakes_are_one_line(
    url: str, arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["ledger", *[url if a == "URL" else a for a in arguments]]) == status
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("person", ["007", "--5", "-07", "+7", "７", "7.0", "1e0", "", "9" * 30])
def test_a_receipt_is_of_the_person_whose_id_is_written_so(
    person: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of whole numbers each is written in one way; of texts, 007 is not 7."""
    for ids in ([7, -5, 5], ["7", "-5"]):
        url = f"sqlite:///{tmp_path}/{type(ids[0]).__name__}.db"
        Ledger.make(url, ids, 1.0, 1e-6)
        assert run(["ledger", "receipt", url, "--", person]) == 2
        said = capsys.readouterr().err
        assert "no account" in said
        assert len(said.splitlines()) == 1
        assert run(["ledger", "receipt", url, "--", "-5"]) == 0
        assert "Receipt of -5" in capsys.readouterr().out


def test_a_ledger_from_before_the_first_release_is_refused_in_one_line(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE apiece_meta SET value = '4' WHERE key = 'schema'")
    connection.close()
    capsys.readouterr()
    assert run(["ledger", "status", url]) == 1
    refusal = capsys.readouterr().err
    assert f"ledger {url}: its schema is version 4, from before the first release" in refusal
    assert "make a new one with `apiece ledger init`" in refusal
    assert refusal.count("\n") == 1


def test_what_is_left_is_private_or_released_with_noise(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["ledger", "status", url, "--left", "--json"]) == 0
    left = json.loads(capsys.readouterr().out)["left"]
    assert left["queries"] == left["trainings"] == [0, 1, 2, 2, 2, 2]
    assert run(["ledger", "status", url, "--left"]) == 0
    assert "PRIVATE, data about people" in capsys.readouterr().out
    assert run(["ledger", "status", url]) == 0
    assert "left" not in capsys.readouterr().out
    noisy = ["ledger", "status", url, "--left", "--noise-stddev", "30", "--analysis", "May"]
    told = []
    for _ in range(2):
        assert run([*noisy, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        told.append(document["left"])
        assert document["analysis"]["status"] == "committed"
    assert told[0] == told[1]  # one charge, one answer
    assert all(any(told[0][kind]) for kind in ("queries", "trainings"))
    assert run(["ledger", "status", url, "--left", "--noise-stddev", "30"]) == 2
    assert "--analysis as the release" in capsys.readouterr().err
    assert run([*noisy[:-3], "31", "--analysis", "May"]) == 2
    assert "other terms" in capsys.readouterr().err


def test_the_slack_is_a_share_or_what_suits_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from apiece.assignment import Sample, assign
    from apiece.budgets import Budgets
    from apiece.ledger import account_shares

    plan = assign(
        Budgets([0.2] * 5000 + [1.4] * 5000, 1e-5), Sample(), steps=8000, expected_batch_size=5,
        clip_norm=1.0,
    )  # fmt: skip
    (tmp_path / "plan.json").write_text(plan.to_json())
    people = pd.DataFrame({"person": ["ann", "bob"], "consent": [0.2, 1.5]})
    people.to_csv(tmp_path / "people.csv", index=False)
    flags = ["--data", f"{tmp_path}/people.csv", "--person", "person", "--epsilon", "consent"]
    for name, given, share in (
        ("tenth", [], 0.1),
        ("half", ["--slack", "0.5"], 0.5),
        ("like", ["--like", f"{tmp_path}/plan.json"], account_shares(plan, [0.2, 1.4])),
        ("four", ["--like", f"{tmp_path}/plan.json", "--times", "4"],
         account_shares(plan, [0.2, 1.4], times=4)),
    ):  # fmt: skip
        url = f"sqlite:///{tmp_path}/{name}.db"
        assert run(["ledger", "init", url, *flags, "--delta", "1e-5", *given]) == 0
        assert Ledger.open(url).remaining_slack(["ann", "bob"]) == pytest.approx(1e-5 * share)
    capsys.readouterr()
    for given, word in (
        (["--slack", ".1", "--like", "plan.json"], "one of the two"),
        (["--times", "4"], "--like"),
        (["--slack", "1"], "must be in [0, 1)"),
        (["--like", f"{tmp_path}/none.json"], "cannot be read"),
    ):
        assert run(["ledger", "init", f"{tmp_path}/x.db", *flags, "--delta", "1e-5", *given]) == 2
        error = capsys.readouterr().err
        assert word in error
        assert error.count("\n") == 1
    assert not (tmp_path / "x.db").exists()
    assert run(["ledger", "init", f"{tmp_path}/x.db", "--slack", ".1"]) == 2


@pytest.mark.parametrize(
    ("given", "stdin", "mu"),
    [
        (["--pure", "0.1"], "", gaussian_of_pure(0.1)),
        (["--bounded-range", "0.1"], "", gaussian_of_bounded_range(0.1)),
        (["-"], '{"laplace": {"scale": 10}}', gaussian_of_laplace(0.1)),
        (["laplace.json"], "", gaussian_of_laplace(0.1)),
        (['{"discrete_gaussian": {"scale": 8.0, "sensitivity": 1}}'], "", 1 / 8),
    ],
)
def test_whatever_is_made_elsewhere_can_be_charged(
    given: list[str],
    stdin: str,
    mu: float,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise of every kind and the exponential mechanism, each at what Gaussian stands for it."""
    monkeypatch.chdir(tmp_path)
    Path("laplace.json").write_text('{"laplace": {"scale": 10}}')
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    before = Ledger.open(url).spent(["ann", "bob"])
    capsys.readouterr()
    assert run(["ledger", "charge", url, *given, "--analysis", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"analysis": "a", "status": "reserved"}
    ledger = Ledger.open(url)
    poor, rich = ledger.spent(["ann", "bob"]) - before
    assert poor == 0  # ann's ε of .2 does not bear it
    assert mu**2 * (1 - 1e-9) <= rich <= mu**2 * 1.01
    assert (
        run(["ledger", "export", url, "--table", "paid", "--analysis", "a", "--out", "p.parquet"])
        == 0
    )
    assert capsys.readouterr().out == "p.parquet\n"
    assert pd.read_parquet("p.parquet")["id"].tolist() == ["bob"]
    assert run(["ledger", "commit", url, "--analysis", "a", "--result", "[41]"]) == 0
    assert run(["ledger", "commit", url, "--analysis", "a", "--result", "[42]"]) == 0
    assert capsys.readouterr().out == "[41]\n[41]\n"
    assert ledger.verify().ok


def test_those_of_a_table_are_charged_and_mistakes_are_one_line(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({"who": ["bob", "bob"]}).to_csv(tmp_path / "some.csv", index=False)
    pd.DataFrame({"who": ["eve"]}).to_csv(tmp_path / "strange.csv", index=False)
    words = ["ledger", "charge", url, "--analysis", "a"]
    some = ["--data", f"{tmp_path}/some.csv", "--person", "who"]
    assert run([*words, "--pure", "0.01", *some]) == 0
    assert [ids.tolist() for ids in Ledger.open(url).admitted("a")] == [["bob"]]
    assert run([*words, "--pure", "0.01", *some]) == 0  # again: no more is charged
    capsys.readouterr()
    for given, word in (
        ([], "give one of"),
        (["--pure", "0.01", "--bounded-range", "1"], "give one of"),
        (["--pure", "0.02"], "other terms"),
        (["--pure", "-1"], "epsilon"),
        (["--bounded-range", "nan"], "eta"),
        (["nowhere.json"], "cannot be read"),
        (["{}"], "mechanism"),
        (["--pure", "0.01", "--person", "who"], "--data"),
        (["--pure", "0.01", "--data", f"{tmp_path}/some.csv"], "--person"),
        (["--pure", "0.01", "--data", f"{tmp_path}/strange.csv", "--person", "who"], "account"),
    ):
        assert run([*words, *given]) == 2, given
        error = capsys.readouterr().err
        assert word in error, (given, error)
        assert error.count("\n") == 1
    for words, word in (
        (
            ["export", url, "--table", "paid", "--out", f"{tmp_path}/p.parquet"],
            "needs the name of an analysis",
        ),
        (["export", url, "--analysis", "a", "--out", f"{tmp_path}/p.parquet"], "leave it out"),
        (["commit", url, "--analysis", "b"], "reserve it first"),
        (["commit", url, "--analysis", "a", "--result", "x"], "not JSON"),
    ):
        assert run(["ledger", *words]) == 2
        assert word in capsys.readouterr().err


POLICY = 'version = 1\n[querier.clinic]\nsure = 0.2\n[querier."*"]\nquota = 0.5\n'


def test_a_policy_is_set_shown_and_kept(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    assert run(["ledger", "policy", url]) == 0
    assert "no policy" in capsys.readouterr().out
    assert run(["ledger", "policy", url, f"{tmp_path}/policy.toml"]) == 0
    assert "querier clinic" in capsys.readouterr().out
    assert run(["ledger", "policy", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quotas"]["querier"]["*"] == {"quota": 0.5, "sure": 0.0, "renews": False}
    charge = ["ledger", "charge", url, "--bounded-range", "0.01", "--analysis", "median"]
    assert run(charge) == 2
    assert "querier = None" in capsys.readouterr().err
    assert run([*charge, "--scope", "querier=press"]) == 0
    assert run([*charge, "--scope", "querier=clinic"]) == 2  # it is one of the terms
    (tmp_path / "policy.toml").write_text("version = 0")
    assert run(["ledger", "policy", url, f"{tmp_path}/policy.toml"]) == 2
    assert "whole number from 1 on" in capsys.readouterr().err
    assert run(["ledger", "verify", url]) == 0


def test_who_withdraws_gets_a_text_and_an_event(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["withdraw", url, "bob"]) == 0
    out = capsys.readouterr().out
    for part in ("bob withdrew on", "at most ε = ", "Models that were released keep", "wages"):
        assert part in out
    assert "recorded already" not in out
    assert max(map(len, out.splitlines())) <= 80
    head = Ledger.open(url).head()
    assert run(["withdraw", url, "bob", "--json"]) == 0
    event = json.loads(capsys.readouterr().out)
    assert event["unreleased"] == ["wages"]
    assert event["recorded_before"]
    assert run(["withdraw", url, "bob"]) == 0
    assert "recorded already, and nothing changes" in " ".join(capsys.readouterr().out.split())
    assert Ledger.open(url).head() == head
    assert run(["withdraw", url, "eve"]) == 2
    assert "no account" in capsys.readouterr().err
    assert Ledger.open(url).withdrawn(["ann", "bob"]).tolist() == [False, True]


def test_people_are_enrolled_as_their_consents_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    system, code = "urn:consent", {"system": "urn:consent", "code": "research"}
    purpose = {"type": "permit", "purpose": [code]}
    consents = [
        ("ann", "active", {"type": "permit"}),
        ("bob", "active", purpose),
        ("cyd", "active", {"type": "permit", "period": {"end": "2025-12-31"}}),
        ("dan", "draft", purpose),
    ]
    entries = [
        {"resource": {"resourceType": "Consent", "status": status, "provision": provision,
                      "scope": {"coding": [code]}, "patient": {"reference": f"Patient/{who}"}}}
        for who, status, provision in consents
    ]  # fmt: skip
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    Path("bundle.json").write_text(json.dumps(bundle))
    mapping = 'source = "fhir"\nlevels = {low = 1}\ndefault = "low"\n'
    Path("m.toml").write_text(
        f'{mapping}[purpose]\n"{system}|research" = "research"\n'
        f'[about]\n"{system}|research" = true\n'
    )
    words = ["ledger", "enroll", "l.db", "--consents", "bundle.json", "--mapping", "m.toml"]
    words += ["--delta", "1e-6", "--on", "2026-05-01", "--scope", "purpose=care", "--json"]
    for enrolled in (2, 0):
        assert run([*words, "--out", "care.parquet"]) == 0
        told = json.loads(capsys.readouterr().out)
        aside = {"status draft": 1}
        assert told == {"enrolled": enrolled, "on": "2026-05-01", "aside": aside}
    assert Ledger.open("l.db").people == 2
    care = pd.read_parquet("care.parquet")
    assert care.to_dict("list") == {"person": ["ann"], "epsilon": [1.0]}


def test_a_receipt_is_checked_and_files_that_are_swapped_are_told(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    files = {name: str(tmp_path / f"{name}.json") for name in ("head", "receipt")}
    for name, words in (("head", [url]), ("receipt", [url, "ann", "--head", files["head"]])):
        assert run(["ledger", name, *words]) == 0
        Path(files[name]).write_text(capsys.readouterr().out)
    right = [files["receipt"], files["head"]]
    assert run(["ledger", "check", *right, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "problems": []}
    assert run(["ledger", "check", *right[::-1]]) == 2
    said = capsys.readouterr().err
    assert "head.json: is not one; give what `apiece ledger receipt --head` printed" in said
    assert said.count("\n") == 1
