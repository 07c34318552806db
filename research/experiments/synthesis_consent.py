"""Consent that depends on the data: what weights get wrong, and what raking repairs and costs.

A unit is a table, how people consent, a share for raking and a seed. Everybody asks for one of
0.1/0.5/1, of 34/43/23 %. Where consent depends on the data, those above the median age ask for them
in shares of 60/30/10 %, the others in 8/56/36 %. Elsewhere it is the same for all.

Weights estimate the weighted people. Raking spends a share of every budget on everybody's columns,
level by level, and makes the model's columns theirs. Errors are total variation between as many
synthetic rows as there are training rows and these, of all people alike: the mean over columns, the
column by which people consent (age), and the mean over pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from apiece.queries.noise import BITS
from apiece.synthesis.fitting import fit_draft
from apiece.synthesis.marginals import Rows
from apiece.synthesis.raking import Levels, estimate_counts, measure_margins, rake_model
from apiece.synthesis.rounds import ExactRandomness
from apiece.synthesis.weights import Account, Weights
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.synthesis import (
    DELTA,
    FINAL_STEPS,
    SHARES,
    measure_errors,
    read_rows,
    run_rounds,
)
from research.intervals import half_width

LEVELS = np.array([0.1, 0.5, 1.0])
# Shares of the levels among those above the median age; all together they are `SHARES`.
SHARES_OF_THE_OLD = (0.6, 0.3, 0.1)
TABLES = ("adult", "NMES1988")
CONSENTS = ("depends on age", "the same for all")
RAKES = (0.0, 0.2)
MEASURES = {"columns": "columns", "age": "age", "pairs": "pairs"}
# The stream of a seed that draws the noise of everybody's columns.
RAKING_STREAM = 1 << 20


def draw_levels(consent: str, age: npt.NDArray[np.int32], seed: int) -> npt.NDArray[np.int64]:
    """Return the level that each person asks for, by number."""
    generator = np.random.default_rng([seed, 53])
    of_all = np.array(SHARES)
    if consent == "the same for all":
        return generator.choice(LEVELS.size, age.size, p=of_all)
    old = age > np.median(age)
    share = old.mean()
    of_old = np.array(SHARES_OF_THE_OLD)
    # Among all together each level has the share that it has where consent is the same for all.
    of_young = np.maximum((of_all - share * of_old) / (1 - share), 0.0)
    of_young /= of_young.sum()
    return np.where(
        old,
        generator.choice(LEVELS.size, age.size, p=of_old),
        generator.choice(LEVELS.size, age.size, p=of_young),
    )


def run(unit: Unit, folders: Folders) -> dict[str, float]:
    """Return the errors of one unit."""
    domain, train, _, _ = read_rows(unit["table"])
    seed = unit["seed"]
    age = domain.names.index("age")
    group = draw_levels(unit["consent"], train[:, age], seed)
    weights = Weights.from_budgets(LEVELS, np.full(LEVELS.size, DELTA))
    account = Account(weights)
    rows = Rows(train, group, domain.sizes)
    margins = None
    if unit["rake"] > 0:
        levels = Levels.from_weights(weights, np.bincount(group, minlength=LEVELS.size))
        randomness = ExactRandomness(seed, RAKING_STREAM)
        margins = measure_margins(rows, account, levels, unit["rake"], randomness, BITS)
    state = run_rounds(rows, account, seed)
    model = fit_draft(domain.sizes, state.measurements, {}, state.model, steps=FINAL_STEPS)
    if margins is not None:
        model = rake_model(model, estimate_counts(model, margins))
    made = model.draw(len(train), np.random.default_rng([seed, 52]))
    size = domain.sizes[age]
    return {
        "columns": measure_errors(domain.sizes, train, made, 1),
        "age": measure_errors([size], train[:, [age]], made[:, [age]], 1),
        "pairs": measure_errors(domain.sizes, train, made, 2),
        "spent": float((account.spending / weights.limit).max()),
    }


def list_units(seeds: int, scale: float) -> list[Unit]:
    """Return the units: seed by seed, so that whatever ran is balanced."""
    return [
        {"table": table, "consent": consent, "rake": rake, "seed": seed}
        for seed in range(seeds)
        for table in TABLES
        for consent in CONSENTS
        for rake in RAKES
    ]


def make_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Return one table: a row a table, a consent and a share, a column a measure."""
    values: dict[tuple[str, str, float], list[dict[str, float]]] = {}
    for outcome in outcomes:
        unit = outcome.unit
        key = unit["table"], unit["consent"], unit["rake"]
        values.setdefault(key, []).append(outcome.result)  # type: ignore[arg-type]
    rows = []
    for table in TABLES:
        for consent in CONSENTS:
            for rake in RAKES:
                results = values.get((table, consent, rake), [])
                if not results:
                    continue
                shown = [show_mean([r[measure] for r in results]) for measure in MEASURES]
                rows.append([table, consent, f"{rake:g}", str(len(results)), *shown])
    head = ["table", "consent", "rake", "seeds", *MEASURES.values()]
    return [Table(head, rows, "Mean total variation to everybody")]


def show_mean(values: Sequence[float]) -> str:
    """Return a mean and the half width of its 95 % interval."""
    array = np.array(values)
    if array.size < 2:
        return f"{array.mean():.4f}"
    return f"{array.mean():.4f} ± {half_width(array):.4f}"


EXPERIMENT = Experiment(
    name="synthesis-consent",
    paper="ours",
    shows="synthetic tables where consent depends on the data, with and without raking",
    cost="seconds on a busy thread",
    units=list_units,
    run=run,
    tables=make_tables,
    seeds=5,
)
