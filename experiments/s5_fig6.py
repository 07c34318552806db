"""S5 Fig. 6, scaled: does the target leak more when all others ask for less?

A random 500 of the Credit Default clients, MLP and training of S5 (AdamW, 60 epochs, B = 32,
clip 1). For each target and each budget of the others in {4, 8, 16, 32} (the target always asks
32; δ = 1e-12, Sample), 64 models under one frozen plan: 32 with the target, 32 without.

    python experiments/s5_fig6.py train --work DIR        # resumable
    python experiments/s5_fig6.py result --work DIR --out experiments/results/s5_fig6.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from s5_data import credit_default

from apiece.assignment import Sample, assign
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.splits import one_target
from apiece.audit.stacked import StackedMlp
from apiece.audit.stacked_training import Recipe
from apiece.budgets import Budgets

RECORDS, BATCH, EPOCHS, DELTA = 500, 32, 60, 1e-12
OTHERS, OWN, MODELS, PART = (4.0, 32.0, 8.0, 16.0), 32.0, 64, 25


def job(others: float, part: int) -> ShadowJob:
    """Return the models of the targets of one `part`, 25 of them, for one budget of the others."""
    table = credit_default(RECORDS)
    budgets = Budgets.from_groups(
        [("others", RECORDS - 1, others), ("target", 1, OWN)], RECORDS, DELTA
    )
    plan = assign(
        budgets, Sample(), steps=RECORDS * EPOCHS // BATCH, expected_batch_size=BATCH, clip_norm=1.0
    )
    targets = np.random.default_rng(6).permutation(RECORDS)[part * PART : (part + 1) * PART]
    included = np.concatenate([one_target(MODELS, RECORDS, int(t)) for t in targets])
    groups = np.zeros(included.shape, dtype=np.int64)
    groups[np.arange(len(groups)), np.repeat(targets, MODELS)] = len(plan.budgets) - 1
    pool = Pool(
        table.ids,
        torch.from_numpy(table.inputs),
        torch.from_numpy(table.targets),
        np.zeros(RECORDS, dtype=np.int64),
    )
    model = StackedMlp((table.inputs.shape[1], 128, 64, table.classes))
    return ShadowJob(
        pool,
        plan,
        model,
        included,
        Recipe(),
        seed=int(1000 * others) + part,
        block=MODELS,
        groups=groups,
    )


def say(done: int, total: int) -> None:
    print(done, total, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["train", "result"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in range(options.parts):
        for others in OTHERS:
            name = options.work / f"others-{others:g}-part-{part}"
            train_shadows(job(others, part), folder=name, progress=say)


if __name__ == "__main__":
    main()
