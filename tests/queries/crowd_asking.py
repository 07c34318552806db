"""Eight processes that ask one question under one analysis id at once; prints what they heard.

Run as `python crowd_asking.py URL FOLDER [mixed]`; with `mixed` every other one asks another
question. It forks, so it must stay free of threads until then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pandas as pd

from apiece.datasets import Numeric, Schema
from apiece.errors import AnalysisError
from apiece.ledger import Ledger
from apiece.queries import Session

PROCESSES, PEOPLE = 8, 500


def ask(url: str, query: str, ready: int, begin: int) -> object:
    frame = pd.DataFrame({"id": range(PEOPLE), "x": [i % 7 / 7 for i in range(PEOPLE)]})
    session = Session(
        frame, Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1), Ledger.open(url)
    )
    os.write(ready, b"!")
    os.read(begin, 1)
    try:
        return session.ask(query, epsilon=0.1, delta=1e-6, analysis_id="a").to_dict()
    except AnalysisError as error:
        return str(error)


def main(url: str, folder: Path, mixed: bool) -> dict[str, object]:
    ledger = Ledger.open(url)
    ledger.enroll(range(PEOPLE), 3.0, 1e-6)
    (hears, ready), (begin, starts) = os.pipe(), os.pipe()
    children = []
    for child in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            query = "sum(x)" if mixed and child % 2 else "histogram(x, 50)"
            answer = ask(url, query, ready, begin)
            (folder / f"answer-{child}").write_text(json.dumps(answer))
            os._exit(0)
        children.append(pid)
    for _ in children:
        os.read(hears, 1)
    os.write(starts, b"!" * PROCESSES)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(statuses), statuses
    return {
        "answers": [json.loads((folder / f"answer-{k}").read_text()) for k in range(PROCESSES)],
        "kinds": [entry.kind for entry in ledger.history()],
        "ok": ledger.verify().ok,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), "mixed" in sys.argv[3:])))
