"""Withdrawal: out of all that follows, at once; nobody else's draws, charges or answers change."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from apiece.assignment import Rounds, Sample, Strategy, assign
from apiece.budgets import Budgets
from apiece.datasets import Numeric, Schema
from apiece.errors import BudgetError, DataError, StateError
from apiece.filters import Costs
from apiece.ledger import Ledger, LedgerFilter, codec, receipt
from apiece.queries import Session
from apiece.training import Trainer, charge_training
from apiece.training.batches import PlannedSampler

IDS = np.arange(60)


def made(url: str, epsilon: float = 4.0) -> Ledger:
    return Ledger.make(url, IDS, epsilon, 1e-5)


def test_who_withdrew_is_charged_nothing_and_told_what_remains(ledger_url: str) -> None:
    ledger = made(ledger_url)
    ledger.reserve("answered", IDS, 1.0, 30.0)
    ledger.commit("answered", {"mean": 41})
    ledger.reserve("trained", IDS, 1.0, 30.0)
    ledger.commit("trained", {"model": "ab" * 32})
    ledger.reserve("waiting", IDS, 1.0, 30.0, terms="t")
    lineage = ledger.withdraw([7, 9])
    event, other = lineage.events()
    assert (event["person"], other["person"]) == (7, 9)
    assert [(r["analysis"], r["released"]) for r in event["releases"]] == [
        ("answered", "answer"), ("trained", "model")]  # fmt: skip
    assert event["unreleased"] == ["waiting"]
    assert event["head"]["digest"] == ledger.head().digest
    exact = Costs.fixed(3 / 900).epsilon(1e-5, 0.0)[0]
    assert event["told"]["epsilon"] == pytest.approx(exact, rel=1e-6)
    assert event["told"]["epsilon"] >= Costs.fixed(3 / 900 * (1 - 1e-9)).epsilon(1e-5, 0.0)[0]
    entries = ledger.head().number
    assert ledger.withdraw([9]).events()[0]["at"] == other["at"]
    assert ledger.head().number == entries  # once is enough
    for each in (ledger, Ledger.open(ledger_url)):
        left = [i for i in IDS.tolist() if i not in (7, 9)]
        assert each.reserve("waiting", IDS, 1.0, 30.0, terms="t").tolist() == left
        assert np.concatenate(list(each.admitted("trained"))).tolist() == left
        assert np.concatenate(list(each.admitted("trained", withdrawn=True))).size == 60
        assert each.remaining([7, 9]).tolist() == [0, 0]
        assert each.enrolled([7, 8]).tolist() == [False, True]
        assert each.withdrawn([7, 8, 1000]).tolist() == [True, False, False]
        assert "nothing more is charged" in receipt(each, 7).left
    spent = ledger.spent([7])
    ledger.enroll(IDS, 8.0, 1e-5)  # the same table again brings nobody back
    assert ledger.reserve("new", IDS, 1.0, 30.0).tolist() == left
    assert ledger.spent([7]) == spent
    assert ledger.verify().problems == ()
    with pytest.raises(DataError, match="no account"):
        ledger.withdraw([1000])


def test_a_history_that_charges_who_withdrew_is_told(tmp_path: Path, monkeypatch) -> None:
    """Planted: a ledger that forgets who withdrew."""
    ledger = made(f"{tmp_path}/p.db")
    ledger.withdraw([7])
    with monkeypatch.context() as broken:
        broken.setattr(codec, "mark_members", lambda places, members: np.zeros(len(places), bool))
        assert 7 in ledger.reserve("q", IDS, 1.0, 30.0)
    assert any("had withdrawn" in each for each in ledger.verify().problems)


def draws(plan, gone: dict[int, list[int]], resumed: int = 0) -> list[list[int]]:
    """Return who is drawn in each step; from some steps on somebody has left."""
    from apiece.training.randomness import Streams

    now = np.zeros(IDS.size, dtype=bool)
    sampler = PlannedSampler(plan, np.ones(IDS.size, bool), withdrawn=lambda: now)
    streams, result = Streams.from_seed(5), []
    for step in range(plan.steps):
        now[gone.get(step, [])] = True
        if step >= resumed:
            result.append(sampler.draw(step, streams).records.tolist())
    return result


@pytest.mark.parametrize("strategy", [Sample(), Rounds()], ids=["sample", "rounds"])
def test_the_draws_of_all_others_are_the_same_to_the_bit(strategy: Strategy) -> None:
    """Found by reading the draws, of a run from its start and of one that is resumed."""
    budgets = Budgets([2.0] * 30 + [4.0] * 30, 1e-5, ids=IDS)
    plan = assign(budgets, strategy, steps=40, expected_batch_size=12, clip_norm=1.0)
    gone = {10: [3, 40], 25: [41]}
    before, after = draws(plan, {}), draws(plan, gone)
    left: set[int] = set()
    for step, (all_of_them, others) in enumerate(zip(before, after, strict=True)):
        left |= set(gone.get(step, []))
        assert others == [i for i in all_of_them if i not in left]
    assert {40, 41} <= set().union(*map(set, before[25:]))  # who would have been drawn
    assert draws(plan, gone, resumed=20) == after[20:]


class Seen(torch.utils.data.Dataset):
    """A dataset that remembers which records were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return IDS.size

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(int(at))
        return torch.ones(2) * at, torch.tensor(1.0)


def test_a_resumed_training_leaves_them_out_at_its_next_step(tmp_path: Path) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", [*IDS.tolist(), 99], 5.0, 1e-5)
    budgets = Budgets([2.0] * 60, 1e-5, ids=IDS)
    plan = assign(budgets, Sample(), steps=12, expected_batch_size=30, clip_norm=1.0)

    def trainer(make, *more, **options):
        charge = charge_training(ledger, "model", plan)
        model, data = torch.nn.Linear(2, 1), Seen()
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loss = lambda out, y: (out[:, 0] - y).square()  # noqa: E731
        options |= {"included": charge.included, "withdrawn": charge.withdrawn}
        return make(*more, model, sgd, loss, plan, data, **options), data, charge

    first, data, charge = trainer(Trainer, checkpoint=tmp_path / "run", save_every=1)
    first.fit(4)
    ledger.withdraw([3, 40])
    data.read.clear()
    charge._look = (-1.0, *charge._look[1:])  # a second has passed
    first.fit(2)
    assert data.read
    assert not {3, 40} & set(data.read)
    again, data, charge = trainer(Trainer.resume, tmp_path / "run")
    assert again.step_number == 6
    data.read.clear()  # of the data's fingerprint
    again.fit()
    assert charge.included.all()  # they paid, and were there at first
    assert not {3, 40} & set(data.read)
    assert {5, 41} <= set(data.read)
    charge.release(again.model.state_dict())


def test_no_step_is_made_again_without_somebody_under_the_same_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a checkpoint, then somebody withdraws: two sums under one noise would tell."""
    plan = assign(
        Budgets([2.0] * 60, 1e-5), Sample(), steps=12, expected_batch_size=30, clip_norm=1.0
    )
    gone, data = np.zeros(60, dtype=bool), (torch.arange(120.0).view(60, 2), torch.ones(60))
    drawn: dict[int, list[list[int]]] = {}
    draw = PlannedSampler.draw

    def noted(self, step, streams):
        found = draw(self, step, streams)
        drawn.setdefault(step, []).append(found.records.tolist())
        return found

    monkeypatch.setattr(PlannedSampler, "draw", noted)

    def made(make, *more, **options):
        model = torch.nn.Linear(2, 1)
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loss = lambda out, y: (out[:, 0] - y).square()  # noqa: E731
        return make(*more, model, sgd, loss, plan, data, withdrawn=lambda: gone, **options)

    first = made(Trainer, checkpoint=tmp_path / "run", save_every=3, seed=None)
    for _ in range(5):
        first.step()
    again = made(Trainer.resume, tmp_path / "run")  # nobody left: the same steps are made again
    again.step()
    assert again.step_number == 4
    sampler, streams = again._loop.sampler, again._loop.streams
    whole = {step: draw(sampler, step, streams).records.tolist() for step in range(12)}
    assert drawn[3] == [whole[3], whole[3]]
    journal = (tmp_path / "run" / "journal").read_bytes()
    kept = torch.load(tmp_path / "run" / "state.pt", weights_only=True)["model"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    gone[:30] = True
    with pytest.raises(StateError, match="is a copy, somebody has withdrawn since"):
        made(Trainer.resume, tmp_path / "copy")
    with pytest.warns(UserWarning, match="after its step 3; the steps since, to 5, are paid and"):
        last = made(Trainer.resume, tmp_path / "run")
    assert last.step_number == 5
    assert all(torch.equal(kept[name], value) for name, value in last.model.state_dict().items())
    drawn.clear()
    last.fit()
    assert drawn == {step: [[i for i in whole[step] if i >= 30]] for step in range(5, 12)}
    assert (tmp_path / "run" / "journal").read_bytes()[: len(journal)] == journal
    # somebody leaves while steps are made again: this time it is refused, the next it goes on
    gone[:] = False
    other = made(Trainer, checkpoint=tmp_path / "other", save_every=100, seed=None)
    for _ in range(3):
        other.step()
    late = made(Trainer.resume, tmp_path / "other")
    gone[:30] = True
    with pytest.raises(StateError, match="once more, where somebody has withdrawn"):
        late.fit()
    with pytest.warns(UserWarning, match="goes on with step 4"):
        assert made(Trainer.resume, tmp_path / "other").step_number == 3


def test_a_session_that_runs_leaves_them_out_of_its_next_answer(tmp_path: Path) -> None:
    """Noise of no width: the counts are exact."""
    ledger = Ledger.make(f"{tmp_path}/p.db", IDS, 300.0, 1e-5)
    table = pd.DataFrame({"id": IDS, "age": 40.0})
    session = Session(
        table, Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1), ledger
    )
    ask = {"epsilon": 40.0, "delta": 1e-6}
    assert round(session.ask("count()", **ask, analysis_id="a").groups[0]["estimate"]) == 60
    ledger.withdraw([7])
    assert round(session.ask("count()", **ask, analysis_id="b").groups[0]["estimate"]) == 59
    assert round(session.ask("count()", **ask, analysis_id="a").groups[0]["estimate"]) == 60
    admit = LedgerFilter(ledger, IDS, "steps").admit(np.ones(60), 30.0)
    assert np.flatnonzero(~admit).tolist() == [7]


def test_a_withdrawn_account_is_never_lowered_or_raised(tmp_path: Path) -> None:
    ledger = made(f"{tmp_path}/p.db")
    ledger.reserve("q", IDS, 1.0, 3.0)
    ledger.withdraw([7])
    with pytest.raises(BudgetError, match="below"):
        ledger.enroll([8], 0.01, 1e-5)
    assert ledger.enroll([7], 0.01, 1e-5) == 0
    assert ledger.verify().ok
