"""A day in the life of a ledger: ten askers, two trainings, withdrawals, kills; what must hold.

python benchmarks/ledger_day.py --people 1000000 --out benchmarks/results/ledger_day.json

People are enrolled from a table of levels. A process works through the day: ten askers charge
queries in their scopes, two trainings draw their batches, people withdraw in the middle. It is
killed at random and started again until it is through. Then everything is checked: nobody over
any scope, the honest asker's share, receipts, and that no later batch or answer has anybody who
withdrew, by reading the draws.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from apiece.assignment import Sample, assign
from apiece.budgets import Budgets
from apiece.ledger import Ledger, check_receipt, reserve_plan
from apiece.plan import BoundPlan, Plan
from apiece.training.batches import PlannedSampler
from apiece.training.randomness import Streams

LEVELS = {"low": 1.0, "medium": 3.0, "high": 8.0}
ASKERS = ["honest", *(f"asker{k}" for k in range(9))]
POLICY = """
version = 1
[querier.honest]
sure = 0.1
[querier.lab]
quota = 0.4
[querier."*"]
quota = 0.3
[purpose.statistics]
quota = 1.0
[purpose.training]
quota = 0.6
"""
STEPS = 30


def leaves_of(people: int) -> list[list[int]]:
    """Return who withdraws at which of three times, a thousandth of all in the end."""
    who = np.random.default_rng(7).permutation(people)[: max(people // 1000, 6)]
    return [part.tolist() for part in np.array_split(who, 3)]


@functools.cache
def plan_of(people: int) -> Plan:
    """Return the plan of both trainings."""
    third = people // 3
    epsilon = [0.4] * third + [0.5] * third + [0.6] * (people - 2 * third)
    budgets = Budgets(np.array(epsilon), 1e-8, ids=np.arange(people))
    return assign(budgets, Sample(), steps=STEPS, expected_batch_size=people / 100, clip_norm=1.0)


def train(ledger: Ledger, name: str, plan: Plan, folder: Path, leaving: list[int]) -> None:
    """Draw a training's batches, of which every one is written down; people leave half-way."""
    own = ledger.within({"querier": "lab", "purpose": "training"})
    bound = BoundPlan.of(plan)
    if own.status(name) != "committed":
        reserve_plan(own, name, plan)
    paid = np.concatenate(list(own.admitted(name, withdrawn=True)))
    included = np.isin(bound.ids, paid)
    sampler = PlannedSampler(bound, included, withdrawn=lambda: ledger.withdrawn(bound.ids))
    streams = Streams.from_seed(3)
    for step in range(STEPS):
        if step == STEPS // 2:
            ledger.withdraw(leaving)
        place = folder / f"{name} {step}.npy"
        if not place.exists():
            np.save(folder / "new.npy", sampler.draw(step, streams).records)
            (folder / "new.npy").rename(place)
    if own.status(name) != "committed":
        own.commit(name, {"model": name})


def live(url: str, people: int, folder: Path) -> None:
    """Work through the day, or through what is left of it."""
    ledger, plan = Ledger.open(url), plan_of(people)
    first, second, third = leaves_of(people)
    for hour in range(4):
        for asker in ASKERS:
            own = ledger.within({"querier": asker, "purpose": "statistics"})
            name = f"{asker} {hour}"
            if own.status(name) != "committed":
                own.reserve_everyone(name, 1.0, 40.0 if asker == "honest" else 6.0)
                own.commit(name, hour)
        if hour == 1:
            train(ledger, "model 1", plan, folder, first)
            ledger.withdraw(second)
        if hour == 2:
            train(ledger, "model 2", plan, folder, third)
    (folder / "done").touch()


def faults(url: str, people: int, folder: Path) -> list[str]:
    """Return what does not hold at the end of the day."""
    ledger, found = Ledger.open(url), []
    found += list(ledger.verify().problems)
    left: set[int] = set()
    first, second, third = leaves_of(people)
    for name, before, leaving in (("model 1", [], first), ("model 2", first + second, third)):
        left |= set(before)
        for step in range(STEPS):
            left |= set(leaving) if step >= STEPS // 2 else set()
            drawn = np.load(folder / f"{name} {step}.npy")
            if np.isin(drawn, list(left)).any():
                found.append(f"{name}, step {step}: somebody who withdrew was drawn")
    everyone = np.setdiff1d(np.arange(people), sorted({*first, *second, *third}))
    for name, gone in (("honest 2", first + second), ("honest 3", first + second + third)):
        paid = np.concatenate(list(ledger.admitted(name, withdrawn=True)))
        if np.isin(gone, paid).any():
            found.append(f"{name}: somebody who withdrew was charged")
        if not np.isin(everyone, paid).all():
            found.append(f"{name}: the honest asker did not get its share")
    head = ledger.publish()
    for person in (0, int(everyone[-1]), first[0]):
        found += check_receipt(ledger.prove(person, head), head)
    return found


def day(people: int, kills: int, seed: int = 0) -> dict[str, Any]:
    """Return what happened, how long it took, and what did not hold."""
    rng, start = np.random.default_rng(seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"sqlite:///{name}/people.db"
        epsilon = np.array([LEVELS[level] for level in LEVELS])[np.arange(people) % 3]
        Ledger.make(url, np.arange(people), epsilon, 1e-6).set_policy(POLICY)
        killed, context = 0, multiprocessing.get_context("spawn")
        while not (folder / "done").exists():
            worker = context.Process(target=live, args=(url, people, folder))
            worker.start()
            if killed < kills:
                worker.join(float(rng.uniform(3, 6 + people / 1e5)))
                if worker.is_alive():
                    os.kill(int(worker.pid or 0), signal.SIGKILL)
                    killed += 1
            worker.join()
        lived = time.perf_counter() - start
        found = faults(url, people, folder)
        usage = resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF
        peak = max(resource.getrusage(each).ru_maxrss for each in usage) / 1024
        return {
            "people": people,
            "kills": killed,
            "entries": Ledger.open(url).head().number + 1,
            "withdrawn": sum(map(len, leaves_of(people))),
            "seconds": {"day": round(lived), "checks": round(time.perf_counter() - start - lived)},
            "peak MB": round(peak),
            "faults": found,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = json.dumps(day(given.people, given.kills), indent=1) + "\n"
    print(text, end="") if given.out is None else given.out.write_text(text)


if __name__ == "__main__":
    main()
