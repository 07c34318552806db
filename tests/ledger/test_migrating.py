"""Older ledgers: refused as they are, copied whole, and nobody has more left than before.

`older/` holds two of version 4, written by the release before this currency: five people, a budget
that was raised, an answer, everyone charged at once, and a question that was under way.
"""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from apiece.errors import AnalysisError, BudgetError, DataError, StateError
from apiece.filters import Costs
from apiece.filters.convert import gaussian_budget, renyi_budget
from apiece.ledger import Ledger, migrate_ledger, receipt

from .tables import another_process

OLDER = Path(__file__).parent / "older"
IDS = ["ann", "bob", "cy", "dan", "eve"]
SPENT = {  # as the older release said
    "gaussian": [0.0037618767101603723, 0.0201, 0.0101, 0.0401, 0.0],
    "renyi": [0.7858908305898806, 0.0804, 0.0404, 0.1604, 0.0],
}
LEFT = {
    "gaussian": [5.73e-12, 0.23145409690891672, 0.5070298856399411, 0.2616576152378549, 0.5171298],
    "renyi": [1.57e-9, 0.7054908321544566, 1.7454908321544549, 0.7965501045838783, 1.78589],
}
ORDER = {"gaussian": 2.0, "renyi": 8.0}  # of divergence ρ is μ² = 2ρ/α, and μ² itself is 2μ²/2
METHODS = pytest.mark.parametrize("method", ["gaussian", "renyi"])


@pytest.fixture(autouse=True)
def _alone() -> None:
    """As a process that has seen no other copy of these ledgers."""
    another_process()


def older(folder: Path, method: str, version: int = 4) -> str:
    """Put an older ledger there, as versions before it had been."""
    path = folder / f"{method}.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((OLDER / f"{method}.sql").read_text())
        if version < 3:
            connection.execute("ALTER TABLE apiece_entry DROP COLUMN payload_root")
        if version == 2:
            connection.execute("CREATE TABLE apiece_analysis (id VARCHAR(200) PRIMARY KEY)")
        connection.execute("UPDATE apiece_meta SET value = ? WHERE key = 'schema'", [str(version)])
    connection.close()
    return str(path)


@METHODS
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_older_ledger_is_refused_and_copied_whole(
    tmp_path: Path, method: str, version: int
) -> None:
    old, new = older(tmp_path, method, version), str(tmp_path / "new.db")
    before = Path(old).read_bytes()
    for create in (True, False):
        with pytest.raises(
            StateError, match=rf"version {version}, .*`apiece ledger migrate .* NEW"
        ):
            Ledger.open(old, create=create)
    head = migrate_ledger(old, new)
    assert Path(old).read_bytes() == before
    ledger = Ledger.open(new, create=False)
    assert ledger.head() == head
    assert ledger.verify().ok
    scale = 2 / ORDER[method]
    spent = ledger.spent(IDS)
    assert spent == pytest.approx(np.array(SPENT[method]) * scale, rel=1e-9)
    left = ledger.remaining(IDS)
    assert (left[:4] <= np.array(LEFT[method])[:4] * scale).all()
    assert (left[1:4] >= np.array(LEFT[method])[1:4] * scale * 0.8).all()
    assert left[4] == pytest.approx(gaussian_budget(3.0, 1e-5, 1e-6), rel=1e-9)
    # Who has no room for a slack keeps the account as it was, to the end.
    assert ledger.remaining_slack(IDS) == pytest.approx([0, 1e-6, 1e-6, 1e-7, 1e-6], rel=1e-6)
    assert ledger.result("q") == {"n": 4}
    assert [c.analysis for c in receipt(ledger, "bob").charges] == ["q", "every", "open"]
    assert ledger.status("q", {"query": "count()"}) == "committed"
    with pytest.raises(AnalysisError, match="other terms"):
        ledger.status("q", {"query": "mean(age)"})
    again = ledger.reserve("open", ["cy", "bob"], 1.0, 10.0, terms={"query": "open"})
    # An earlier charge was of the same μ², which a Rényi ledger wrote down as another number.
    assert again.tolist() == ["cy", "bob"]
    assert ledger.spent(IDS).tolist() == spent.tolist()
    assert ledger.reserve_everyone("new", 0.1, 10.0) == 4
    assert ledger.verify().ok


@METHODS
def test_what_everyone_was_asked_is_still_the_same_question(tmp_path: Path, method: str) -> None:
    old, new = older(tmp_path, method), str(tmp_path / "new.db")
    migrate_ledger(old, new)
    ledger = Ledger.open(new)
    assert [ids.tolist() for ids in ledger.admitted("every")] == [["bob", "cy", "dan"]]
    if method == "gaussian":  # as it was charged, to the unit
        assert ledger.reserve_everyone("every", 0.1, 10.0) == 3


def test_accounts_that_were_charged_as_now_can_be_raised(tmp_path: Path) -> None:
    migrate_ledger(older(tmp_path, "gaussian"), str(tmp_path / "new.db"))
    ledger = Ledger.open(str(tmp_path / "new.db"))
    spent, before = ledger.spent(["bob"])[0], ledger.remaining(["bob"])[0]
    assert ledger.enroll(["bob"], 4.0, 1e-5) == 0
    assert ledger.spent(["bob"])[0] == spent
    assert ledger.remaining(["bob"])[0] > before


def test_accounts_that_were_charged_in_divergence_stay_what_they_are(tmp_path: Path) -> None:
    migrate_ledger(older(tmp_path, "renyi"), str(tmp_path / "new.db"))
    ledger = Ledger.open(str(tmp_path / "new.db"))
    assert ledger.enroll(IDS, [2.0, 2.0, 3.0, 2.5, 3.0], [1e-5, 1e-5, 1e-5, 1e-6, 1e-5]) == 0
    with pytest.raises(BudgetError, match="'bob': was charged in Rényi divergence"):
        ledger.enroll(["bob"], 4.0, 1e-5)
    assert ledger.enroll(["fay"], 4.0, 1e-5) == 1
    assert ledger.enroll(["fay"], 5.0, 1e-5) == 0  # whose account is of this ledger
    own = gaussian_budget(5.0, (1e-5 - 1e-6) / (1 - 1e-6))
    assert own * (1 - 1e-9) <= ledger.remaining(["fay"])[0] <= own
    # Still a Rényi filter of its order: ρ = α μ²/2 in all, beside the slack.
    limit = ledger.spent(["bob"])[0] + ledger.remaining(["bob"])[0]
    assert 8.0 * limit / 2 <= renyi_budget(2.0, (1e-5 - 1e-6) / (1 - 1e-6), 8.0)
    assert ledger.reserve_costs("t", ["bob"], Costs.fixed([0.01], 5e-7)).tolist() == ["bob"]
    assert not ledger.reserve_costs("u", ["bob"], Costs.fixed([0.01], 6e-7)).size


@METHODS
@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE apiece_balance SET spent = zeroblob(length(spent))",
        "UPDATE apiece_head SET number = number - 1",
        "DELETE FROM apiece_entry WHERE number = (SELECT max(number) FROM apiece_entry)",
        "UPDATE apiece_entry SET body = replace(body, '10.0', '11.0')",
        "DELETE FROM apiece_payload WHERE number = 2",
        "UPDATE apiece_people SET terms = zeroblob(length(terms))",
        "CREATE TRIGGER t AFTER INSERT ON apiece_entry BEGIN DELETE FROM apiece_entry; END",
    ],
)
def test_a_damaged_one_is_not_copied(tmp_path: Path, method: str, edit: str) -> None:
    old, new = older(tmp_path, method), tmp_path / "new.db"
    with sqlite3.connect(old) as connection:
        connection.execute(edit)
    connection.close()
    with pytest.raises(StateError):
        migrate_ledger(old, str(new))
    assert not new.exists()
    assert not Path(f"{new}.head").exists()


def test_a_shorter_copy_is_told_by_the_head_that_was_kept(tmp_path: Path) -> None:
    old, new = older(tmp_path, "gaussian"), str(tmp_path / "new.db")
    Path(f"{old}.head").write_text("99:" + "0" * 64 + "\n")
    with pytest.raises(StateError, match="last entries are damaged"):
        migrate_ledger(old, new)


def test_addresses_that_do_not_fit(tmp_path: Path) -> None:
    old, new = older(tmp_path, "gaussian"), str(tmp_path / "new.db")
    with pytest.raises(DataError, match="no ledger there"):
        migrate_ledger(str(tmp_path / "none.db"), new)
    migrate_ledger(old, new)
    with pytest.raises(StateError, match="exists already"):
        migrate_ledger(old, new)
    with pytest.raises(StateError, match="is of version 6 already"):
        migrate_ledger(new, str(tmp_path / "third.db"))
