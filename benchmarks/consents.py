"""Enrolling people from a table of consents and charging as they permit: processor seconds.

python benchmarks/consents.py --people 1000000 --out benchmarks/results/consents.json
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from apiece.budgets import ConsentMapping, read_consents
from apiece.ledger import Ledger, check_receipt, enroll_consents
from apiece.reproduce import machine

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
POLICY = "version = 1\n[purpose.research]\n[purpose.'*']\n"
SCOPE = {"purpose": "research"}


def rows(people: int) -> Iterator[str]:
    """Yield a table: a third say no, half of all until some day, a fifth for research alone."""
    yield "who,level,until,for\n"
    for i in range(people):
        level, until = ("low", "high", "no")[i % 3], ("", "2031-05-01")[i % 2]
        yield f"{i},{level},{until},{'science' if i % 5 == 0 else ''}\n"


def measured(people: int, folder: Path) -> dict[str, float]:
    """Return seconds of processor time by stage, and the peak of memory in MB."""
    result: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        result[name] = round(time.process_time() - start, 2)

    path = folder / "consents.csv"
    with path.open("w") as table:
        table.writelines(rows(people))
    with stage("read"):
        records = read_consents(path, ConsentMapping.from_toml(MAPPING))
    with stage("on a day"):
        standing = records.on(date(2030, 1, 5))
    ledger = Ledger.open(f"sqlite:///{folder}/people.db")
    ledger.set_policy(POLICY)
    with stage("enroll"):
        enroll_consents(ledger, standing, 1e-6)
    plain = Ledger.make(f"sqlite:///{folder}/plain.db", standing.ids, 1.0, 1e-6)
    for name in ("first", "again"):
        with stage("reserve"):
            ledger.reserve_everyone(name, 1.0, 400.0, scope=SCOPE)
        with stage("reserve, no consents"):
            plain.reserve_everyone(name, 1.0, 400.0)
    with stage("verify"):
        assert ledger.verify().ok
    with stage("publish"):
        head = ledger.publish()
    with stage("prove"):
        receipt = ledger.prove(str(standing.ids[7]), head)
    assert check_receipt(receipt, head) == []
    result["accounts"] = len(standing)
    result["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return result


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(given.people, Path(folder))
    document = {"people": given.people, "machine": machine(), "seconds": found}
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
