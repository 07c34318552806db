"""Scopes beneath an account: quotas, sure shares, periods; against a model of plain numbers."""

import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from apiece.errors import AnalysisError, ApieceError, BudgetError, InputError, StateError
from apiece.filters import Costs
from apiece.ledger import Ledger, Policy, accounts, codec
from apiece.ledger import scopes as scopes_module
from apiece.ledger.charging import Demand
from apiece.ledger.scopes import WHOLE, Ceiling, read_scope
from refusals import refused

from .tables import another_process

POLICY = """
version = 1
every = "month"
[querier.clinic]
sure = 0.3
[querier.press]
quota = 0.2
[querier.lab]
quota = 0.25
sure = 0.1
renews = true
[querier."*"]
quota = 0.5
[purpose.care]
[purpose.research]
quota = 0.7
"""
ASKERS, PURPOSES = ("clinic", "press", "lab", "ad1", "ad2"), ("care", "research")
IDS = np.arange(6)


def day(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Set the clock to noon of a day."""
    monkeypatch.setattr("time.gmtime", lambda: time.strptime(f"{text} 12", "%Y-%m-%d %H"))


class Model:
    """Who may pay what, by the promises: the quotas, and what others are sure of."""

    def __init__(self, ledger: Ledger) -> None:
        self.limits = [tuple(each) for each in ledger.balances(IDS)[0].tolist()]
        self.spent: dict[tuple[str, int], list[int]] = {}
        self.gone: set[int] = set()

    def of(self, key: str, person: int) -> list[int]:
        return self.spent.setdefault((key, person), [0, 0])

    def charge(self, policy: Policy, person: int, scope: dict[str, str], month: str, units) -> bool:
        """Charge a person, if every promise is kept to them and to each asker."""
        asker = scope["querier"] if scope["querier"] in policy.quotas["querier"] else "*"
        keys = ["", asker, f"{asker}@{month}", scope["purpose"]]
        can = person not in self.gone
        for k, (limit, more) in enumerate(zip(self.limits[person], units, strict=True)):
            for name, key in ((asker, asker), (scope["purpose"], scope["purpose"])):
                own = {**policy.quotas["querier"], **policy.quotas["purpose"]}[name]
                key = f"{key}@{month}" if own.renews else key
                within = self.of(key, person)[k] + more <= Fraction(own.most, WHOLE) * limit
                can &= within or more == 0
            kept = beyond = 0
            for name, sure in policy.sure.items():
                left = int(Fraction(sure, WHOLE) * limit) - self.of(name, person)[k]
                kept += max(left - (more if name == asker else 0), 0)
                beyond += min(more, max(left, 0)) if name == asker else 0
            spent = self.of("", person)[k] + more
            can &= spent <= limit
            # Where a lowered budget leaves less than all sure shares, each still takes of its own.
            can &= more == beyond or spent + kept <= limit
        if can:
            for key in keys:
                for k, more in enumerate(units):
                    self.of(key, person)[k] += more
        return can


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_ledger_keeps_every_promise_of_its_policy(
    seed: int, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has no pool: it adds up what each of the others is still sure of."""
    rng = np.random.default_rng(seed)
    ledger = Ledger.make(ledger_url, IDS, rng.choice([0.5, 1.0, 3.0], IDS.size), 1e-6)
    model, policy, month = Model(ledger), ledger.set_policy(POLICY), 1
    day(monkeypatch, "2030-01-05")
    paid = changes = refused = 0
    for step in range(40):
        if step == 15:
            day(monkeypatch, "2030-02-05")
            month = 2
        if step == 25:  # others are sure of more from now on
            changed = POLICY.replace("sure = 0.1", "sure = 0.2").replace("version = 1", "version=2")
            policy = ledger.set_policy(
                changed.replace("[querier.press]", "[querier.press]\nsure=0.1")
            )
        if step == 30:
            ledger.withdraw([3])
            model.gone.add(3)
        if step % 4 == 3:  # somebody changes their mind
            one = int(rng.integers(IDS.size))
            epsilon = float(rng.choice([0.4, 0.7, 1.5, 3.0]))
            try:
                ledger.enroll([one], epsilon, 1e-6)
                changes += one not in model.gone
            except BudgetError:
                refused += 1
            if one not in model.gone:
                model.limits[one] = tuple(ledger.balances([one])[0][0].tolist())
        scope = {"querier": str(rng.choice(ASKERS)), "purpose": str(rng.choice(PURPOSES))}
        ids = rng.permutation(IDS)[: rng.integers(1, 7)]
        limits = np.array([model.limits[i] for i in ids])
        units = limits * rng.choice([0.02, 0.08, 0.3], (ids.size, 1)) * rng.random((ids.size, 2))
        units = units.astype(np.int64)
        costs = Costs.fixed(units[:, 0] * codec.UNIT, units[:, 1] * codec.SLACK_UNIT)
        charged = Demand.of(costs).pairs[:, 0].tolist()
        admitted = ledger.reserve_costs(f"a{step}", ids, costs, scope=scope).tolist()
        expected = [
            i for i, own in zip(ids.tolist(), charged, strict=True)
            if model.charge(policy, i, scope, str(month), own)
        ]  # fmt: skip
        assert admitted == expected, step
        paid += len(admitted)
        assert ledger.within(scope).reserve_costs(f"a{step}", ids, costs).tolist() == admitted
    assert 40 < paid < 150
    assert changes > 3
    left = [i for i in IDS if i != 3]
    assert ledger.balances(left)[1].tolist() == [model.of("", i) for i in left]
    for each in (ledger, Ledger.open(ledger_url)):
        found = each.verify()
        assert found.problems == ()


def spend(ledger: Ledger, asker: str, share: float, name: str) -> bool:
    """Take a share of everyone's account for an asker; return whether anybody could pay."""
    limits = ledger.balances(IDS)[0][:, 0]
    costs = Costs.fixed(limits * share * codec.UNIT * (1 - 1e-8))
    return ledger.reserve_costs(name, IDS, costs, scope={"querier": asker}).size > 0


SURE = """
version = 1
[querier.honest]
sure = 0.25
[querier."*"]
quota = 0.9
"""


def kept(ledger: Ledger) -> float:
    """Return what an honest asker still gets after a hungry crowd took all that it could."""
    for size in (0.2, 0.05, 0.01):
        k = 0
        while spend(ledger, f"sybil {size} {k}", size, f"{size} {k}"):
            k += 1
    return sum(spend(ledger, "honest", 0.05, f"honest {k}") for k in range(20)) * 0.05


def test_an_honest_asker_gets_its_share_whatever_others_do(ledger_url: str) -> None:
    ledger = Ledger.make(ledger_url, IDS, 1.0, 1e-6)
    ledger.set_policy(SURE)
    assert kept(ledger) == pytest.approx(0.25)
    assert ledger.verify().ok


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no pool": lambda m: m.setattr(Policy, "pool", property(lambda self: WHOLE)),
    "each Sybil its own": lambda m: m.setattr(
        Policy, "ceilings", lambda self, scope, at: [Ceiling("", WHOLE)]),
    "the share of the pool": lambda m: m.setattr(
        scopes_module, "take_share", lambda limits, share: limits),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_the_crowd_takes_it_from_a_ledger_that_is_broken(
    name: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BREAKS[name](monkeypatch)
    ledger = Ledger.make(f"{tmp_path}/p.db", IDS, 1.0, 1e-6)
    ledger.set_policy(SURE)
    taken = kept(ledger)
    monkeypatch.undo()
    assert taken < 0.24
    assert not Ledger.open(f"{tmp_path}/p.db").verify().ok  # and the history tells it


PERIODS = 'version = 1\nunit = "person-period"\nevery = "month"\n[source.web]\nquota = 0.5\n'


def test_an_account_of_a_period_is_of_that_period_s_data(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.make(ledger_url, IDS, 1.0, 1e-6)
    ledger.set_policy(PERIODS)
    day(monkeypatch, "2030-03-05")
    limit = ledger.balances(IDS)[0][0, 0]
    half = Costs.fixed(np.full(IDS.size, int(limit * 0.4) * codec.UNIT))

    def ask(name: str, *periods: str, people=IDS) -> int:
        scope = {"source": "web", "period": periods}
        some = Costs.fixed(half.loss[: len(people), 0])
        return ledger.reserve_costs(name, people, some, scope=scope).size

    assert ask("a", "2030-01") == ask("b", "2030-02", people=IDS[:2]) + 4 == 6
    assert ask("c", "2030-01") == 0  # web's half of January is spent
    assert ask("d", "2030-02", "2030-03") == 4  # in both, or in none
    assert ask("e", "2030-03") == 2
    for odd in (("2030-04",), ("2030-1",), (), ("2030-01", "x")):
        with pytest.raises(InputError, match=r"^scope: period"):
            ask("f", *odd)
    march = ledger.within({"period": "2030-03"})
    assert (march.spent(IDS) > 0).all()
    assert ledger.spent(IDS).tolist() == march.spent(IDS).tolist()  # it is March
    assert (ledger.within({"period": "2029-12"}).spent(IDS) == 0).all()
    assert "one month" in ledger.policy.protects
    assert ledger.verify().ok
    with pytest.raises(StateError, match="unit = 'person'"):
        ledger.set_policy("version = 2\n")


def test_a_clock_set_back_renews_nothing(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", IDS, 1.0, 1e-6)
    ledger.set_policy('version=1\nevery="month"\n[querier.a]\nquota=0.1\nrenews=true\n')
    day(monkeypatch, "2030-01-05")
    assert spend(ledger, "a", 0.1, "1")
    assert not spend(ledger, "a", 0.1, "2")
    day(monkeypatch, "2030-02-01")
    assert spend(ledger, "a", 0.1, "3")
    day(monkeypatch, "2029-12-01")
    assert not spend(ledger, "a", 0.1, "4")
    assert "never renews" in ledger.policy.protects


def test_what_is_refused_depends_on_scope_and_policy_alone(tmp_path) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", IDS, 1.0, 1e-6)
    some = {"norms": 1.0, "noise_stddev": 30.0}
    ledger.reserve("before", IDS, **some, scope={"querier": "anyone"})  # of a ledger without one
    ledger.set_policy("version = 3\n[querier.clinic]\nquota = 0.5\n")
    ledger.set_policy("version = 3\n[querier.clinic]\nquota = 0.5\n")
    ledger.reserve("q", IDS, **some, terms="t", scope={"querier": "clinic", "purpose": "any"})
    entries = ledger.head().number
    for scope in (None, {}, {"querier": "press"}, {"purpose": "any"}, {"querier": 7},
                  {"who": "clinic"}, {"querier": "clinic", "period": "2030-01"},
                  {"querier": "a=b"}, {"querier": ["clinic"]}):  # fmt: skip
        with refused(InputError, "scope"):
            ledger.reserve("r", IDS, **some, scope=scope)
    for call in (
        lambda: ledger.reserve("q", IDS, **some, terms="t", scope={"querier": "clinic"}),
        lambda: ledger.reserve("q", IDS, **some, terms="t"),
        lambda: ledger.status("q", "t"),
        lambda: ledger.within({"querier": "press"}).status("q", "t"),
    ):
        with pytest.raises(AnalysisError, match="another analysis or other terms"):
            call()
    assert ledger.status("q", "t", {"querier": "clinic", "purpose": "any"}) == "reserved"
    later = [
        "odd=1", "unit='x'", "unit='person-period'", "every='h'", "every=[1]", "[querier]",
        "querier=1", "[querier.a]\nquota=2", "[querier.a]\nrenews=true", "[purpose.a]\nsure=0.1",
        "[querier.a]\nsure=0.6\n[querier.b]\nsure=0.6", "[querier.a]\nsure=0.3\nquota=0.2",
        '[querier."*"]\nsure=0.3', '[querier."a@b"]\nquota=0.3', "[source.a]\nquota='x'",
    ]  # fmt: skip
    for text in ("version = 3\n", "version = 2\n", "", "version = true\n", "x",
                 *(f"version = 4\n{each}" for each in later)):  # fmt: skip
        with refused(InputError, "policy"):
            ledger.set_policy(text)
    assert ledger.head().number == entries
    assert read_scope("querier=a, purpose=b,period=1,period=2") == {
        "querier": "a", "purpose": "b", "period": ["1", "2"]}  # fmt: skip
    for text in ("a", "querier=a,querier=b", "", "who=b", "querier="):
        with refused(InputError, "scope"):
            read_scope(text)


def test_everyone_and_queries_are_charged_in_scopes(ledger_url: str) -> None:
    ledger = Ledger.make(ledger_url, np.arange(codec.BLOCK + 3), 1.0, 1e-6)
    ledger.set_policy(SURE)
    own = ledger.within({"querier": "press"})
    assert own.reserve_everyone("a", 1.0, 20.0) == codec.BLOCK + 3
    assert own.reserve_everyone("a", 1.0, 20.0) == codec.BLOCK + 3
    ledger.enroll([10**6], 1.0, 1e-6)
    assert own.reserve("b", [10**6, 3], 1.0, 20.0).size == 2
    ledger.withdraw([3])
    assert own.reserve_everyone("a", 1.0, 20.0) == codec.BLOCK + 2
    with pytest.raises(InputError, match="querier = None"):
        ledger.reserve_everyone("c", 1.0, 20.0)
    assert own.verify().problems == ()


@pytest.mark.parametrize("edit", [
    "UPDATE apiece_entry SET body = replace(body, 'sure = 0.25', 'sure = 0.05') WHERE number = 2",
    "UPDATE apiece_entry SET body = replace(body, 'honest', 'harmed') WHERE number = 3",
    "DELETE FROM apiece_scope WHERE scope = 'pool'",
    "DELETE FROM apiece_scope",
    "UPDATE apiece_scope SET scope = 'querier=harmed' WHERE scope = 'querier=honest'",
    "UPDATE apiece_scope SET size = 5 WHERE scope = 'querier=*'",
    "UPDATE apiece_scope SET digest = (SELECT digest FROM apiece_scope WHERE scope = 'pool')",
    "UPDATE apiece_scope SET spent = (SELECT spent FROM apiece_scope WHERE scope = 'querier=*')",
    "DELETE FROM apiece_payload WHERE number = 5",
    "UPDATE apiece_payload SET data = (SELECT data FROM apiece_payload WHERE number = 3) "
    "WHERE number = 5",
    "UPDATE apiece_entry SET body = replace(body, 'withdraw', 'policy') WHERE number = 5",
])  # fmt: skip
def test_no_edit_of_policy_or_scopes_buys_anything(edit: str, ledger_url: str) -> None:
    ledger = Ledger.make(ledger_url, IDS, 1.0, 1e-6)
    ledger.set_policy(SURE)
    assert spend(ledger, "honest", 0.2, "a")
    assert spend(ledger, "others", 0.5, "b")
    ledger.withdraw([2])
    assert Ledger.open(ledger_url).withdrawn([2]).all()
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        connection.exec_driver_sql(edit)
    another_process()
    for each in (ledger, *opened(ledger_url)):
        try:
            found = spend(each, "others", 0.3, "c")  # more than the pool has
            found |= 2 in each.reserve("d", [1, 2], 0.0, 1.0, scope={"querier": "x"})
        except ApieceError:
            found = False
        assert not found
        assert missed(each) == []


def opened(url: str) -> list[Ledger]:
    try:
        return [Ledger.open(url)]
    except ApieceError:
        return []


def missed(ledger: Ledger) -> list[str]:
    try:
        return [] if ledger.verify().problems else ["verify: no problem found"]
    except ApieceError:
        return []


TWO_SURE = """version = 1
[querier.clinic]
sure = 0.2
[querier.lab]
sure = 0.1
[querier."*"]
"""


def lower(ledger: Ledger, share: float) -> None:
    """Give everyone the ε whose account is just not below a share of their present one."""
    wanted = share * float(ledger.balances(IDS)[0][0, 0])
    low, high = 0.1, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = codec.make_terms(IDS[:1], middle, 1e-6)["limit"][0] >= wanted
        low, high = (low, middle) if enough else (middle, high)
    ledger.enroll(IDS, high, 1e-6)


def sure_after_lowering(ledger: Ledger, share: float) -> bool:
    """Return whether the lab gets its share after the clinic took its own and others all else."""
    ledger.set_policy(TWO_SURE)
    assert spend(ledger, "clinic", 0.2, "own")
    lower(ledger, share)
    for k in range(20):
        spend(ledger, "press", 0.05, f"press {k}")
    return spend(ledger, "lab", 0.0999, "lab")


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.25])
def test_a_sure_share_survives_a_lowered_budget(share: float, ledger_url: str) -> None:
    ledger = Ledger.make(ledger_url, IDS, 3.0, 1e-6)
    assert sure_after_lowering(ledger, share)
    assert ledger.verify().problems == ()
    another_process()
    assert Ledger.open(ledger_url).verify().problems == ()


def test_without_finding_anew_what_was_taken_a_sure_share_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apiece.ledger.accounts.compute_pools", lambda *_: {})
    ledger = Ledger.make(str(tmp_path / "p.db"), IDS, 3.0, 1e-6)
    assert not sure_after_lowering(ledger, 0.5)
    assert not ledger.verify().ok  # the entry says that it was found anew


def test_a_change_of_before_is_folded_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older apiece left the pool as it was, and its entry says nothing of it."""
    append = accounts.chain.append

    def older(at, salt, last, body, *more):
        return append(at, salt, last, {k: v for k, v in body.items() if k != "pools"}, *more)

    monkeypatch.setattr("apiece.ledger.accounts.compute_pools", lambda *_: {})
    monkeypatch.setattr("apiece.ledger.accounts.chain.append", older)
    ledger = Ledger.make(str(tmp_path / "p.db"), IDS, 3.0, 1e-6)
    assert not sure_after_lowering(ledger, 0.5)
    monkeypatch.undo()
    assert ledger.verify().problems == ()
    ledger.enroll(IDS, 2.9, 1e-6)
    assert ledger.verify().problems == ()


def test_where_too_much_was_spent_only_who_is_sure_of_a_share_still_charges(tmp_path: Path) -> None:
    ledger = Ledger.make(str(tmp_path / "p.db"), IDS, 3.0, 1e-6)
    ledger.set_policy(TWO_SURE)
    assert spend(ledger, "press", 0.6, "much")
    lower(ledger, 0.7)
    assert not spend(ledger, "press", 0.01, "press")
    assert spend(ledger, "clinic", 0.1, "clinic")
    assert not spend(ledger, "clinic", 0.15, "beyond")
    assert ledger.verify().problems == ()
