"""What every audit says of nothing, and of a model that is not private.

1,000 audits of scores without signal at 95 % for every method: how many report ε > 0. The same for
`apiece audit` on two files of scores. Then 400 models of German Credit without noise, half of them
trained on one record with its label changed: each method's bound on ε.

    python -m research.experiments.null_audits --out …/null_audits.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner

from apiece.audit import lower_bound, one_run, one_run_by_group, train_shadows
from apiece.audit.findings import ModelScores, audit_scores
from apiece.audit.shadows import Pool, target_job
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.cli.audit import command
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training.stacked import StackedMlp
from research.experiments.kaiser_2026_data import tabular

RUNS, SIZE, DELTA = 1000, 200, 1e-5
WORLDS = [(m, t) for m in ("clopper-pearson", "gdp") for t in ("bonferroni", "split", 0.3)]
Audit = Callable[[np.random.Generator], list[float]]


def two_worlds(method: str, threshold: str | float) -> Audit:
    def once(generator: np.random.Generator) -> list[float]:
        ins, outs = generator.normal(size=(2, SIZE))
        bound = lower_bound(ins, outs, delta=DELTA, method=method, threshold=threshold)
        return [bound.epsilon]

    return once


def canaries(method: str, groups: int) -> Audit:
    """One run; with several groups, the largest bound of any."""

    def once(generator: np.random.Generator) -> list[float]:
        scores, coins = generator.normal(size=SIZE), generator.random(SIZE) < 0.5
        if groups == 1:
            return [one_run(scores, coins, delta=DELTA, method=method).epsilon]
        names = np.arange(SIZE) % groups
        found = one_run_by_group(scores, coins, names, delta=DELTA, method=method)
        return [max(bound.epsilon for bound in found.values())]

    return once


def model(generator: np.random.Generator) -> list[float]:
    members, others = generator.normal(size=(2, SIZE))
    found = audit_scores(
        ModelScores.of(members), ModelScores.of(others), delta=DELTA, generator=generator
    )
    return [bound.epsilon for bound in found.bounds]


def command_line(generator: np.random.Generator) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--json", "--delta", str(DELTA)]
        for name in ("in", "out"):
            path = Path(folder) / name
            np.savetxt(path, generator.normal(size=SIZE))
            arguments += [f"--scores-{name}", str(path)]
        found = CliRunner().invoke(command, arguments, catch_exceptions=False)
    return [bound["epsilon"] for bound in json.loads(found.stdout)["lower_bounds"]]


def audits() -> dict[str, tuple[Audit, list[str]]]:
    """Every audit and what its results are called."""
    found: dict[str, tuple[Audit, list[str]]] = {}
    for method, threshold in WORLDS:
        name = f"{method}, threshold {threshold}"
        found[name] = (two_worlds(method, threshold), [name])
    for method in ("dp", "gdp"):
        for groups, words in ((1, "one run"), (4, "one run, any of four groups")):
            name = f"{words}, {method}"
            found[name] = (canaries(method, groups), [name])
    found["model"] = (model, ["train/test split, dp", "train/test split, gdp"])
    found["cli"] = (command_line, ["apiece audit, clopper-pearson", "apiece audit, gdp"])
    return found


def nulls() -> dict[str, int]:
    """How many of 1,000 audits without signal report ε > 0, by name."""
    found: dict[str, int] = {}
    for at, (once, names) in enumerate(audits().values()):
        generator = np.random.default_rng((2026, at))
        rejected = sum(np.array(once(generator)) > 0 for _ in range(RUNS))
        found |= {name: int(n) for name, n in zip(names, rejected, strict=True)}
    return found


def not_private() -> dict[str, float]:
    """The bounds for 400 models trained without noise, with and without one mislabelled record."""
    table = tabular("german", 200)
    targets = torch.from_numpy(table.targets).clone()
    targets[0] = 1 - targets[0]
    budgets = Budgets(np.full(200, 1.0), DELTA).groups
    stage = Stage(100, 32.0, 1e-6, np.array([0.16]), np.array([1.0]))
    pool = Pool(table.ids, torch.from_numpy(table.inputs), targets, np.zeros(200, dtype=np.int64))
    job = target_job(
        pool,
        Plan("not private", 1.0, budgets, (stage,)),
        table.ids[:1],
        group=0,
        models=400,
        model=StackedMlp((table.inputs.shape[1], 128, 64, 2)),
        recipe=UpdateRule(),
        seed=0,
    )
    shadows = train_shadows(job)
    own, member = shadows.confidences[:, 0], shadows.included[:, 0]
    return {
        f"{method}, threshold {threshold}": lower_bound(
            own[member], own[~member], delta=DELTA, method=method, threshold=threshold
        ).epsilon
        for method, threshold in WORLDS
        if isinstance(threshold, str)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "runs": RUNS,
        "scores_or_canaries": SIZE,
        "delta": DELTA,
        "confidence": 0.95,
        "reported_something": nulls(),
        "not_private_epsilon": not_private(),
    }
    text = json.dumps(found, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
