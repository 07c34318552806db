"""What a call answers, and whether it does, follows from no account: nobody pays, or everybody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from apiece import cli
from apiece.datasets import Schema
from apiece.filters import Costs
from apiece.ledger import Ledger, LedgerFilter, reserve_alike, standing
from apiece.ledger.codec import BLOCK
from apiece.queries import Session
from apiece.queries.session import release_standing

RICH, POOR = 8.0, 0.05
# People, of whom those from `first` on cannot pay.
CROWDS = {
    "one person": (1, 0),
    "the last block": (BLOCK + 1, BLOCK),
    "the first block": (BLOCK + 1, -BLOCK),
    "everybody": (7, 0),
    "nobody is there": (0, 0),
}


def made(folder: Path, crowd: str, *, text: bool, pay: bool) -> Ledger:
    size, first = CROWDS[crowd]
    ids: Any = [f"p{k}" for k in range(size)] if text else list(range(size))
    epsilon = np.full(size, RICH)
    if not pay and first >= 0:
        epsilon[first:] = POOR
    if not pay and first < 0:
        epsilon[:-first] = POOR
    path = folder / f"{pay}.db"
    ledger = Ledger.open(str(path))
    if size:
        ledger.enroll(ids, epsilon, 1e-6)
    return ledger


def told(call: Callable[[Ledger], Any], ledger: Ledger) -> Any:
    """What somebody sees of an outcome beside the noisy numbers: its form, or the error."""
    try:
        answer = call(ledger)
    except Exception as error:  # whatever it is
        return type(error), str(error).replace("True.db", "").replace("False.db", "")
    return type(answer), sorted(answer) if isinstance(answer, dict) else None


def asked(ledger: Ledger) -> Any:
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(5)]})
    return Session(frame, Schema({}, person="id"), ledger).ask(
        "count(persons)", epsilon=1.0, delta=1e-7
    )


CALLS: dict[str, Callable[[Ledger], Any]] = {
    "release_standing": lambda x: release_standing(x, "s", noise_stddev=3.0),
    "standing": standing,
    "reserve_everyone": lambda x: x.reserve_everyone("q", 1.0, 3.0),
    "reserve_alike": lambda x: reserve_alike(x, "q", Costs.fixed(0.2)),
    "a query": asked,
    "admit": lambda x: LedgerFilter(x, ["p0"] if x.id_kind == "text" else [0], "r").admit(1.0, 3.0),
    "export paid": lambda x: (
        x.reserve_everyone("q", 1.0, 3.0),
        x.export(Path(x.engine.url.database).with_suffix(".parquet"), "paid", analysis_id="q"),
    ),
    "balances of who paid": lambda x: (
        x.reserve_everyone("q", 1.0, 3.0),
        [x.balances(ids) for ids in x.admitted("q")],
    ),
    "spent of who paid": lambda x: (
        x.reserve_everyone("q", 1.0, 3.0),
        [(x.spent(ids), x.remaining(ids), x.remaining_slack(ids)) for ids in x.admitted("q")],
    ),
}


@pytest.mark.parametrize(
    ("crowd", "text"),
    [
        pytest.param(crowd, text, marks=[pytest.mark.slow] if slow else [])
        for crowd in CROWDS
        for text in (True, False)
        for slow in ["block" in crowd and (text or "first" in crowd)]
    ],
)
def test_no_outcome_says_whether_anybody_can_pay(crowd: str, text: bool, tmp_path: Path) -> None:
    for number, (name, call) in enumerate(CALLS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes = [told(call, made(folder, crowd, text=text, pay=pay)) for pay in (True, False)]
        assert outcomes[0] == outcomes[1], name
        if crowd != "nobody is there" and (name != "a query" or text):
            assert not issubclass(outcomes[0][0], Exception), (name, outcomes[0])


def test_the_command_answers_where_nobody_can_pay(tmp_path: Path, capsys: Any) -> None:
    for pay in (True, False):
        made(tmp_path, "one person", text=True, pay=pay)
        words = f"ledger status {tmp_path}/{pay}.db --left --noise-stddev 3 --analysis s --json"
        assert cli.run(words.split(" ")) == 0
        words = f"ledger export {tmp_path}/{pay}.db --table paid --analysis s"
        assert cli.run([*words.split(" "), "--out", f"{tmp_path}/{pay}.parquet"]) == 0
    capsys.readouterr()
    paid, none = (pq.read_table(tmp_path / f"{pay}.parquet") for pay in (True, False))
    assert paid.schema.equals(none.schema)
    assert (paid.num_rows, none.num_rows) == (1, 0)
