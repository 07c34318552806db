"""The people of a ledger as a filter: each call charged once, durably, under a name of its own."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import AnalysisError, InputError
from apiece.ledger import Ledger, LedgerFilter
from refusals import refused


def test_each_call_is_an_analysis_of_its_own(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/p.db")
    ledger.enroll([3, 1, 2], [0.05, 1.0, 1.0], 1e-6)
    people = LedgerFilter(ledger, [1, 2, 3], "model")
    assert people.admit([1.0, 0.5, 1.0], 10.0).tolist() == [True, True, False]
    assert people.admit(1.0, 10.0).tolist() == [True, True, False]
    assert [ledger.status(f"model/{k}") for k in range(3)] == ["committed", "committed", "unknown"]
    assert ledger.spent([1, 2, 3]) == pytest.approx([0.02, 0.0125, 0.0], rel=1e-9)
    with pytest.raises(AnalysisError, match="model/0"):
        LedgerFilter(ledger, [1, 2, 3], "model").admit(1.0, 10.0)
    assert ledger.spent([1])[0] == pytest.approx(0.02, rel=1e-9)
    with refused(InputError, "norms"):
        people.admit([-1.0, 0.0, 0.0], 10.0)
    assert people.calls == 2


def test_a_step_that_was_cut_off_is_made_again_by_those_whom_it_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other norms too: who would contribute more than was charged is left out of it."""
    ledger = Ledger.open(f"{tmp_path}/p.db")
    ledger.enroll([1, 2, 3], 1.0, 1e-6)
    with monkeypatch.context() as cut:
        cut.setattr(Ledger, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            LedgerFilter(ledger, [1, 2], "model").admit([0.5, 1.0], 10.0)
    spent = ledger.spent([1, 2, 3])
    with pytest.raises(AnalysisError, match="other terms"):
        LedgerFilter(ledger, [1, 2], "model").admit([0.5, 1.0], 9.0)
    again = LedgerFilter(ledger, [3, 2, 1], "model")
    assert again.admit([0.1, 0.9, 0.6], 10.0).tolist() == [False, True, False]
    assert ledger.spent([1, 2, 3]).tolist() == spent.tolist()
    assert ledger.status("model/0") == "committed"


def test_what_is_affordable_can_be_paid_and_not_much_more(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/p.db")
    ledger.enroll(["ann", "bob"], [0.9, 1.4], 1e-6)
    people = LedgerFilter(ledger, ["ann", "bob"], "model")
    people.admit([0.3, 0.2], 2.0)
    most = people.affordable(2.0)
    assert (most > 0.1).all()
    assert not people.admit(most * (1 + 2.0**-30), 2.0).any()
    assert people.admit(most, 2.0).all()
    assert (people.affordable(2.0) < most * 2.0**-10).all()
    for stddev in (0.0, np.nan):
        with refused(InputError, "noise_stddev"):
            people.affordable(stddev)
