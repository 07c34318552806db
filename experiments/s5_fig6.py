"""S5 Fig. 6, scaled: does the target leak more when all others ask for less?

A random 500 of the Credit Default clients, the MLP and training of S5 with fewer epochs (AdamW,
10 epochs, B = 32, clip 1). For each target and each budget of the others in {4, 8, 16, 32} (the
target always asks 32; δ = 1e-12, Sample), 64 models under one frozen plan: 32 with the target, 32
without.

    python experiments/s5_fig6.py train --work DIR        # resumable
    python experiments/s5_fig6.py result --work DIR --out experiments/results/s5_fig6.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from s5_data import credit_default

from apiece.accounting import excess
from apiece.assignment import Sample, Uniform, assign
from apiece.audit.attacks import one_plan
from apiece.audit.practice import target_job, target_scores
from apiece.audit.records import ShadowScores
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.stacked import StackedMlp
from apiece.audit.stacked_training import Recipe
from apiece.audit.trend import jonckheere_terpstra, share_that_rises
from apiece.budgets import Budgets
from apiece.plan import Plan

RECORDS, BATCH, EPOCHS, DELTA = 500, 32, 10, 1e-12
OTHERS, OWN, MODELS, PART, PARTS = (4.0, 8.0, 16.0, 32.0), 32.0, 64, 25, 2
ORDER = ((4.0, 32.0), (8.0, 16.0))  # the ends first, so that an unfinished run shows the effect


def make_plan(others: float) -> Plan:
    """Return the one plan of both worlds when all but the target ask for `others`."""
    groups = [("others", RECORDS - 1, others), ("target", 1, OWN)]
    return assign(
        Budgets.from_groups(groups, RECORDS, DELTA),
        Uniform() if others == OWN else Sample(),  # with one budget, Sample is Uniform
        steps=RECORDS * EPOCHS // BATCH,
        expected_batch_size=BATCH,
        clip_norm=1.0,
    )


def job(others: float, part: int) -> ShadowJob:
    """Return the models of the targets of one `part`, 25 of them, for one budget of the others."""
    table, plan = credit_default(RECORDS), make_plan(others)
    pool = Pool(
        table.ids,
        torch.from_numpy(table.inputs),
        torch.from_numpy(table.targets),
        np.zeros(RECORDS, dtype=np.int64),
    )
    return target_job(
        pool,
        plan,
        drawn_ids(part),
        group=len(plan.budgets) - 1,
        models=MODELS,
        model=StackedMlp((table.inputs.shape[1], 128, 64, table.classes)),
        recipe=Recipe(),
        seed=int(1000 * others) + part,
    )


def drawn_ids(part: int) -> np.ndarray:
    """Return the ids of the targets of one part."""
    table = credit_default(RECORDS)
    drawn = np.random.default_rng(6).permutation(RECORDS)[part * PART : (part + 1) * PART]
    return table.ids[drawn]


def folder_of(work: Path, others: float, part: int) -> Path:
    return work / f"others-{others:g}-part-{part}"


def train(work: Path) -> None:
    """Train what is missing; keep each part's scores beside the plan that they were made under."""
    torch.set_num_threads(1)
    for pair in ORDER:
        for part in range(PARTS):
            for others in pair:
                folder, one = folder_of(work, others, part), job(others, part)
                print(folder.name, flush=True)
                scores = train_shadows(one, folder=folder, progress=say)
                (folder / "plan.json").write_text(one.plan.to_json())
                scores.save(folder / "scores.npz")


def result(work: Path) -> dict[str, object]:
    """The privacy scores of all targets, for the budgets of the others that were finished."""

    def finished(others: float, part: int) -> bool:
        return (folder_of(work, others, part) / "scores.npz").exists()

    done = [o for o in OTHERS if finished(o, 0)]
    parts = [p for p in range(PARTS) if all(finished(o, p) for o in done)]
    columns, plans = {}, {}
    for others in done:
        folders = [folder_of(work, others, part) for part in parts]
        found = [
            target_scores(ShadowScores.load(f / "scores.npz"), drawn_ids(p), models=MODELS)
            for p, f in zip(parts, folders, strict=True)
        ]
        columns[others] = {
            int(i): float(s) for f in found for i, s in zip(f.ids, f.score, strict=True)
        }
        plans[others] = one_plan(*(Plan.from_json((f / "plan.json").read_text()) for f in folders))
    ids = sorted(columns[OWN])
    scores = {others: [column[i] for i in ids] for others, column in columns.items()}
    curves = {o: p.curve(len(p.budgets) - 1) for o, p in plans.items()}
    return {
        "data": f"Credit Default, {RECORDS} random clients",
        "targets": len(ids),
        "models": len(ids) * len(done) * MODELS,
        "models_per_target_and_budget": MODELS,
        "steps": RECORDS * EPOCHS // BATCH,
        "delta": DELTA,
        "target_epsilon": OWN,
        "epsilon_spent": {o: float(c.epsilon(DELTA).upper) for o, c in curves.items()},
        "advantage": {o: float(c.advantage().upper) for o, c in curves.items()},
        "excess": {o: float(excess(curves[OWN], c).forward.upper) for o, c in curves.items()},
        "ids": ids,
        "privacy_scores": scores,
        "mean": {o: float(np.mean(column)) for o, column in scores.items()},
        "rise_from_32": {
            o: asdict(share_that_rises(scores[OWN], scores[o])) for o in done if o != OWN
        },
        "trend": asdict(jonckheere_terpstra([scores[o] for o in reversed(done)])),
    }


def say(done: int, total: int) -> None:
    print(done, total, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["train", "result"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.action == "train":
        train(options.work)
        return
    text = json.dumps(result(options.work), indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
