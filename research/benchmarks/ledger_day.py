"""A day in the life of a ledger: consents, askers, trainings, withdrawals, kills; what must hold.

python -m research.benchmarks.ledger_day --people 1000000 --out research/results/ledger_day.json

A process enrolls people from a table of consents and works through the day: ten askers charge
queries in their scopes, two trainings draw their batches, people withdraw in the middle. It is
killed at random and started again until it is through. Then everything is checked, by reading what
was charged and drawn: nobody over any scope or beyond what they permit, the honest asker's share,
receipts, and that nobody who withdrew is in a later batch or answer.
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
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from apiece.assignment import Sample, assign
from apiece.budgets import Budgets, ConsentMapping, read_consents
from apiece.ledger import Ledger, check_receipt, codec, enroll_consents
from apiece.plan import BoundPlan, Plan
from apiece.training import charge_training
from apiece.training.batches import PlannedSampler
from apiece.training.randomness import Streams
from research.machine import describe_machine

MAPPING = """
source = "csv"
levels = { low = 1, medium = 3, high = 8 }
decision = { no = "deny" }
purpose = { counts = "statistics", models = "training" }
columns = { person = "who", level = "level", until = "until", purpose = "for" }
"""
ASKERS = ["honest", *(f"asker{k}" for k in range(9))]
QUOTA = 0.3
POLICY = f"""
version = 1
[querier.honest]
sure = 0.1
[querier.lab]
quota = 0.4
[querier."*"]
quota = {QUOTA}
[purpose.statistics]
quota = 1.0
[purpose.training]
quota = 0.6
"""
STEPS = 30
HOURS = range(4)


def consents(people: int) -> Iterator[str]:
    """Yield a table: some say no or said yes until a day that is past, half permit one purpose."""
    yield "who,level,until,for\n"
    for i in range(people):
        level = "no" if i % 40 == 0 else ("low", "medium", "high")[i % 3]
        until = "2020-05-01" if i % 50 == 7 else ("", "2199-05-01")[i // 3 % 2]
        yield f"p{i},{level},{until},{('', 'counts', '', 'models')[i // 7 % 4]}\n"


def noise_of(asker: str) -> float:
    """Return the noise on an asker's sums; all but the honest one ask for more than there is."""
    return 40.0 if asker == "honest" else 6.0


def leaves_of(people: int) -> list[list[int]]:
    """Return who withdraws at which of three times, a thousandth of all in the end."""
    who = np.random.default_rng(7).permutation(people)[: max(people // 1000, 6)]
    return [part.tolist() for part in np.array_split(who, 3)]


@functools.cache
def enrolled(folder: Path) -> dict[str, Any]:
    """Return the accounts' ids, and who permits statistics and trainings."""
    return dict(np.load(folder / "people.npz"))


def enroll(ledger: Ledger, folder: Path) -> None:
    """Enroll everyone as they consent, and note it; done again, it is the same."""
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        seconds[name] = round(time.process_time() - start, 2)

    with stage("read"):
        records = read_consents(folder / "consents.csv", ConsentMapping.from_toml(MAPPING))
    with stage("on a day"):
        standing = records.on(date.today())
    with stage("enroll"):
        ledger.set_policy(POLICY)
        enroll_consents(ledger, standing, 1e-6)
    permits = {name: standing.permits({"purpose": name}) for name in ("statistics", "training")}
    (folder / "enrolled.json").write_text(json.dumps(seconds))
    np.savez(folder / "new.npz", ids=standing.ids, **permits)
    (folder / "new.npz").rename(folder / "people.npz")


@functools.cache
def plan_of(folder: Path) -> Plan:
    """Return the plan of both trainings."""
    ids = enrolled(folder)["ids"]
    epsilon = np.array([0.4, 0.5, 0.6])[np.arange(ids.size) * 3 // ids.size]
    budgets = Budgets(epsilon, 1e-8, ids=ids)
    return assign(budgets, Sample(), steps=STEPS, expected_batch_size=ids.size / 100, clip_norm=1.0)


def train(ledger: Ledger, name: str, folder: Path, leaving: Any) -> None:
    """Draw a training's batches, of which every one is written down; people leave half-way."""
    plan = plan_of(folder)
    own = ledger.within({"querier": "lab", "purpose": "training"})
    charge = charge_training(own, name, plan, resumed=True)
    sampler = PlannedSampler(BoundPlan.of(plan), charge.included, withdrawn=charge.withdrawn)
    streams = Streams.from_seed(3)
    for step in range(STEPS):
        if step == STEPS // 2:
            ledger.withdraw(leaving)
            time.sleep(1)  # the next step is one that begins when this was looked at
        place = folder / f"{name} {step}.npy"
        if not place.exists():
            np.save(folder / "new.npy", sampler.draw(step, streams).records)
            (folder / "new.npy").rename(place)
    charge.release({"weights": torch.zeros(1)})


def live(url: str, folder: Path) -> None:
    """Work through the day, or through what is left of it."""
    ledger = Ledger.open(url)
    if not (folder / "people.npz").exists():
        enroll(ledger, folder)
    ids = enrolled(folder)["ids"]
    first, second, third = (ids[part] for part in leaves_of(ids.size))
    for hour in HOURS:
        for asker in ASKERS:
            own = ledger.within({"querier": asker, "purpose": "statistics"})
            name = f"{asker} {hour}"
            if own.status(name) != "committed":
                own.reserve_everyone(name, 1.0, noise_of(asker))
                own.commit(name, hour)
        if hour == 1:
            train(ledger, "model 1", folder, first)
            ledger.withdraw(second)
        if hour == 2:
            train(ledger, "model 2", folder, third)
    (folder / "done").touch()


def faults(url: str, folder: Path, receipts: int = 3) -> list[str]:
    """Return what does not hold at the end of the day."""
    ledger, people = Ledger.open(url), enrolled(folder)
    found = list(ledger.verify().problems)
    found += drawn_faults(folder, people)
    found += charged_faults(ledger, people)
    head, rng = ledger.publish(), np.random.default_rng(1)
    for place in [
        leaves_of(people["ids"].size)[0][0],
        *rng.integers(people["ids"].size, size=receipts),
    ]:
        found += check_receipt(ledger.prove(people["ids"][place].item(), head), head)
    return found


def drawn_faults(folder: Path, people: dict[str, Any]) -> Iterator[str]:
    """Yield the batches with somebody who had withdrawn or does not permit it, by their draws."""
    first, second, third = leaves_of(people["ids"].size)
    out = ~people["training"]
    for name, before, leaving in (("model 1", [], first), ("model 2", second, third)):
        out[before] = True
        for step in range(STEPS):
            out[leaving if step >= STEPS // 2 else []] = True
            if out[np.load(folder / f"{name} {step}.npy")].any():
                yield f"{name}, step {step}: somebody who withdrew or permits it not was drawn"


def charged_faults(ledger: Ledger, people: dict[str, Any]) -> Iterator[str]:
    """Yield who is over a budget, a quota or what they permit, by who paid for which answer."""
    first, second, third = leaves_of(people["ids"].size)
    index, gone = pd.Index(people["ids"]), {2: first + second, 3: first + second + third}
    blocks = [
        (ids, codec.read_limits(terms), spent) for ids, terms, spent in ledger.account_blocks()
    ]
    ids, limits, spent = (np.concatenate(each) for each in zip(*blocks, strict=True))
    if (spent > limits).any():
        yield "somebody is over their budget"
    most = np.zeros(len(index))
    most[index.get_indexer(ids)] = limits[:, 0] * codec.UNIT
    for asker in ASKERS:
        total = np.zeros(len(index))
        for hour in HOURS:
            paid = np.zeros(len(index), dtype=bool)
            for part in ledger.admitted(f"{asker} {hour}", withdrawn=True):
                paid[index.get_indexer(part)] = True
            total += paid * noise_of(asker) ** -2
            if (paid & ~people["statistics"]).any() or paid[gone.get(hour, [])].any():
                yield f"{asker} {hour}: somebody who withdrew or permits it not was charged"
            expected = people["statistics"].copy()
            expected[first + second + third] = False
            if asker == "honest" and (expected & ~paid).any():
                yield f"{asker} {hour}: the honest asker did not get its share"
        if asker != "honest" and (total > QUOTA * most * (1 + 1e-9)).any():
            yield f"{asker}: somebody is over its quota"


def day(people: int, kills: int, receipts: int, seed: int = 0) -> dict[str, Any]:
    """Return what happened, how long it took, and what did not hold."""
    rng, start = np.random.default_rng(seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"sqlite:///{name}/people.db"
        with (folder / "consents.csv").open("w") as table:
            table.writelines(consents(people))
        killed, context = 0, multiprocessing.get_context("spawn")
        while not (folder / "done").exists():
            worker = context.Process(target=live, args=(url, folder))
            worker.start()
            if killed < kills:
                worker.join(float(rng.uniform(3, 6 + people / 1e4)))
                if worker.is_alive():
                    os.kill(int(worker.pid or 0), signal.SIGKILL)
                    killed += 1
            worker.join()
        lived = time.perf_counter() - start
        found = faults(url, folder, receipts)
        usage = resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF
        peak = max(resource.getrusage(each).ru_maxrss for each in usage) / 1024
        accounts = enrolled(folder)["ids"].size
        return {
            "machine": describe_machine(),
            "consents": people,
            "accounts": accounts,
            "kills": killed,
            "entries": Ledger.open(url).head().number + 1,
            "withdrawn": sum(map(len, leaves_of(accounts))),
            "receipts": receipts + 1,
            "seconds": {"day": round(lived), "checks": round(time.perf_counter() - start - lived)},
            "processor seconds": json.loads((folder / "enrolled.json").read_text()),
            "peak MB": round(peak),
            "faults": found,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--receipts", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = json.dumps(day(given.people, given.kills, given.receipts), indent=1) + "\n"
    print(text, end="") if given.out is None else given.out.write_text(text)


if __name__ == "__main__":
    main()
