"""Charges a ledger from processes that are killed, or from many at once; prints what held.

Run as `python charger.py kill|crowd URL COUNT SEED FOLDER`. It forks, so it must stay free of
threads; that is why the tests run it as a program of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd  # noqa: F401  imported before the forks

from apiece.errors import StateError
from apiece.filters import Costs
from apiece.ledger import Ledger, chain, schema

PEOPLE, WRITERS, TIMING = 9000, 10, "timing"
IDS = np.arange(PEOPLE)


def charge_until_killed(url: str, child: int, releases: Path, ready: int) -> None:
    """Reserve, compute, commit, release; over and over."""
    rng = np.random.default_rng(child)
    schema.CHUNK = chain.CHUNK = 1
    ledger = Ledger.open(url)
    os.write(ready, b"!")
    with releases.open("a") as out:
        for k in range(10_000):
            analysis = f"{child}-{k}"
            norms = rng.random(PEOPLE)
            if k % 3 == 0:  # a list, everyone block by block, or a training with a slack
                admitted = ledger.reserve(analysis, IDS, norms, 30.0)
            elif k % 3 == 1:
                admitted = ledger.reserve_costs(
                    analysis, IDS, Costs.fixed((norms / 30) ** 2, norms * 2e-9)
                )
            else:
                ledger.reserve_everyone(analysis, lambda ids, of=norms: of[ids], 30.0)
                admitted = np.concatenate([IDS[:0], *ledger.admitted(analysis)])
            answer = ledger.commit(analysis, float(admitted.sum()))
            out.write(json.dumps([analysis, answer]) + "\n")
            out.flush()
            os.fsync(out.fileno())


def longest(ledger: Ledger) -> float:
    """Return seconds in which this machine, as busy as it is, makes a few charges."""
    start = time.perf_counter()
    ledger.reserve_everyone(TIMING, 0.01, 30.0)
    ledger.commit(TIMING)
    return max(0.25, 6 * (time.perf_counter() - start))


def over_budget(ledger: Ledger) -> int:
    """Return how many have spent more than they had, of budget or slack."""
    limits, spent = ledger.balances(IDS)
    return int((spent > limits).any(axis=1).sum())


def kill(url: str, count: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill `count` charging processes at random moments; check all that must hold."""
    rng, releases = random.Random(seed), folder / "releases"
    ledger = Ledger.open(url)
    ledger.enroll(IDS, np.where(IDS % 2, 0.3, 1.0), 1e-6)
    latest = longest(ledger)
    for child in range(count):
        hears, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            charge_until_killed(url, child, releases, ready)
            os._exit(1)
        os.read(hears, 1)  # the delay counts from the first charge, however busy the machine
        os.close(hears)
        os.close(ready)
        time.sleep(rng.uniform(0.005, latest))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"child {child} ended by itself"
    lines = releases.read_text().splitlines() if releases.exists() else []
    # The last line of a killed process may be half a line: it was never out.
    answers = dict(json.loads(line) for line in lines if line.endswith("]"))
    uncharged = [a for a, value in answers.items() if ledger.result(a) != value]
    found = ledger.verify()
    kinds = [entry.kind for entry in ledger.history() if entry.analysis != TIMING]
    return {
        "killed": count,
        "reserved": kinds.count("reserve"),
        "committed": kinds.count("commit"),
        "released": len(answers),
        "released_uncharged": len(uncharged),
        "over_budget": over_budget(ledger),
        "spent": float(ledger.spent(IDS).sum()),
        "slack_spent": float((np.float64(1e-7) - ledger.remaining_slack(IDS)).sum()),
        "problems": list(found.problems),
    }


def crowd(url: str, count: int, seed: int, folder: Path) -> dict[str, object]:
    """Charge from ten processes at once, `count` analyses each: lists in any order, or everyone."""
    ledger = Ledger.open(url)
    ledger.enroll(IDS, 0.3, 1e-6)
    children = []
    for child in range(WRITERS):
        pid = os.fork()
        if pid == 0:
            admitted = 0
            mine, order = Ledger.open(url), np.random.default_rng(seed + child).permutation(IDS)
            for k in range(count):
                if child % 2:
                    admitted += mine.reserve(f"{child}-{k}", order, 1.0, 40.0).size
                else:
                    admitted += mine.reserve_everyone(f"{child}-{k}", 1.0, 40.0)
            (folder / f"admitted-{child}").write_text(str(admitted))
            os._exit(0)
        children.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    spent = ledger.spent(IDS)
    total = sum(int((folder / f"admitted-{c}").read_text()) for c in range(WRITERS))
    fits = int((spent[0] + ledger.remaining(IDS[:1])[0]) * 40.0**2)
    return {
        "failed": sum(s != 0 for s in statuses),
        "admitted": total,
        "admitted_by_balance": round(float(spent.sum()) * 40.0**2),
        "expected": PEOPLE * min(fits, WRITERS * count),
        "over_budget": over_budget(ledger),
        "problems": list(ledger.verify().problems),
    }


def main() -> None:
    """Parse, run, print one JSON document."""
    mode, url, count, seed, folder = sys.argv[1:]
    what = {"kill": kill, "crowd": crowd}[mode]
    try:
        print(json.dumps(what(url, int(count), int(seed), Path(folder))))
    except StateError as error:
        print(json.dumps({"error": str(error)}))
        raise


if __name__ == "__main__":
    main()
