"""How long one analysis of a million people takes to charge, durably, on each database.

python -m research.benchmarks.ledger --postgresql postgresql://… --out research/results/ledger.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count()}


def options(text: str | None) -> Path | None:
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    out: Path | None = parser.parse_args().out
    return out


def emit(document: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(document, indent=1) + "\n"
    if out is None:
        print(text, end="")
    else:
        out.write_text(text)


def measure(url: str, people: int, repeats: int) -> dict[str, float]:
    from apiece.ledger import Ledger

    ids, rng = np.arange(people), np.random.default_rng(0)
    norms, epsilon = rng.random(people), rng.choice([0.5, 1.0, 2.0], people)
    found: dict[str, float] = {}

    def timed(name: str, run: Any) -> Any:
        start = time.perf_counter()
        value = run()
        found[name] = time.perf_counter() - start
        return value

    ledger = Ledger.open(url)
    timed("enroll", lambda: ledger.enroll(ids, epsilon, 1e-6))
    times = []
    for k in range(repeats):
        admitted = timed("reserve", lambda k=k: ledger.reserve(f"a{k}", ids, norms, 20.0))
        times.append(found["reserve"])
        timed("commit", lambda k=k: ledger.commit(f"a{k}", k))
    found["reserve"] = float(np.median(times))
    found |= scoped(ledger, timed, ids, norms)
    fresh = Ledger.open(url)
    fresh = fresh.within({"querier": "asker0", "purpose": "care"})
    timed("reserve in a new process", lambda: fresh.reserve("fresh", ids, norms, 20.0))
    verified = timed("verify", fresh.verify)
    found["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if not verified.ok or admitted.size != people:
        raise SystemExit("the ledger did not hold")
    return found


POLICY = (
    "version = 1\n"
    + "".join(f"[querier.asker{k}]\nsure = 0.05\nquota = 0.4\n" for k in range(10))
    + "[purpose.care]\nquota = 0.8\n"
)


def scoped(ledger: Any, timed: Any, ids: Any, norms: Any) -> dict[str, float]:
    """Let ten askers charge everyone in their scopes, one after another."""
    timed("policy of ten askers", lambda: ledger.set_policy(POLICY))
    times = []
    for k in range(10):
        own = ledger.within({"querier": f"asker{k}", "purpose": "care"})
        start = time.perf_counter()
        own.reserve(f"s{k}", ids, norms, 20.0)
        times.append(time.perf_counter() - start)
    timed("withdraw 100", lambda: ledger.withdraw(ids[:100]))
    head = timed("publish a head", ledger.publish)
    timed("prove a receipt", lambda: ledger.prove(int(ids[500]), head))
    return {"reserve in scopes": float(np.median(times))}


def beside(urls: list[str], people: int, turns: int = 9) -> dict[str, Any]:
    """Charge everyone in a ledger without scopes and in one with ten askers, in turn."""
    from apiece.ledger import Ledger

    ids, rng = np.arange(people), np.random.default_rng(0)
    norms, epsilon = rng.random(people), rng.choice([0.5, 1.0, 2.0], people)
    plain, shared = map(Ledger.open, urls)
    for ledger in (plain, shared):
        ledger.enroll(ids, epsilon, 1e-6)
    shared.set_policy(POLICY)
    times = np.empty((turns, 2, 2))
    for k in range(turns):
        own = shared.within({"querier": f"asker{k}", "purpose": "care"})
        for at in (0, 1) if k % 2 else (1, 0):
            wall, processor = time.perf_counter(), time.process_time()
            (plain, own)[at].reserve(f"a{k}", ids, norms, 20.0)
            times[k, at] = time.perf_counter() - wall, time.process_time() - processor
    ratios = times[:, 1] / times[:, 0]
    return {
        kind: {
            "without and with scopes": np.median(times[:, :, j], axis=0).tolist(),
            "ratio": float(np.median(ratios[:, j])),
            "ratios from and to": [float(ratios[:, j].min()), float(ratios[:, j].max())],
        }
        for j, kind in enumerate(("wall", "processor"))
    }


def peak(url: str, people: int, policy: bool, out: Any) -> None:
    """Tell the megabytes of a process that enrolls and charges everyone once."""
    from apiece.ledger import Ledger

    ids, ledger = np.arange(people), Ledger.open(url)
    ledger.enroll(ids, np.ones(people), 1e-6)
    if policy:
        ledger.set_policy(POLICY)
        ledger = ledger.within({"querier": "asker0", "purpose": "care"})
    ledger.reserve("a", ids, np.full(people, 0.5), 20.0)
    out.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peaks(folder: str, people: int) -> list[float]:
    """Return the memory without and with scopes, each in a process of its own."""
    spawn, found = multiprocessing.get_context("spawn"), []
    for policy in (False, True):
        out = spawn.Queue()
        url = f"sqlite:///{folder}/peak{policy}.db"
        process = spawn.Process(target=peak, args=(url, people, policy, out))
        process.start()
        found.append(out.get())
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgresql", help="Address of an empty database.")
    parser.add_argument("--in-turn", nargs=2, help="Addresses of two more empty databases.")
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seconds, turns = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"sqlite:///{folder}/{name}.db" for name in ("plain", "shared")]
        turns["sqlite"] = beside(urls, given.people)
        megabytes = peaks(folder, given.people)
        seconds["sqlite"] = measure(f"sqlite:///{folder}/p.db", given.people, given.repeats)
    if given.postgresql:
        turns["postgresql"] = beside(given.in_turn, given.people) if given.in_turn else {}
        seconds["postgresql"] = measure(given.postgresql, given.people, given.repeats)
    document = {"machine": machine(), "people": given.people, "seconds": seconds}
    emit(document | {"in turn": turns, "peak MB without and with scopes": megabytes}, given.out)


if __name__ == "__main__":
    main()
