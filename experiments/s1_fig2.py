"""S1 Fig. 2, scaled: is the group that asks ε = 20 easier to tell than the group that asks 10?

MNIST in place of CIFAR-10: 200 images of each digit, half of each budget group in every shadow
model (500 at ε = 10, 500 at ε = 20; δ = 1e-5, Sample), MLP 784-128-64-10, AdamW, B = 64, 15 epochs.
Every model is attacked in turn with all the others as its shadows (S1: 512 shadow models of a
ResNet on 25,000 images, one target model; five in its appendix).

    python experiments/s1_fig2.py train --work DIR        # resumable
    python experiments/s1_fig2.py result --work DIR --out experiments/results/s1_fig2.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from s5_data import mnist
from scipy import stats

from apiece.assignment import Sample, assign
from apiece.audit import Roc, ShadowScores, biregular, lira_each, roc, roc_by_group, student_t
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.stacked import StackedMlp
from apiece.audit.stacked_training import Recipe
from apiece.budgets import Budgets
from apiece.plan import Plan

DELTA, BATCH, EPOCHS, MODELS, STRICT, WEAK = 1e-5, 64, 15, 128, "epsilon 10", "epsilon 20"


def job() -> ShadowJob:
    table = mnist(10, 200)
    size = len(table.ids)
    groups = np.empty(size, dtype=np.int64)
    groups[np.random.default_rng(1).permutation(size)] = np.arange(size) % 2
    plan = assign(
        Budgets.from_groups([(STRICT, 0.5, 10.0), (WEAK, 0.5, 20.0)], size // 2, DELTA),
        Sample(),
        steps=size // 2 * EPOCHS // BATCH,
        expected_batch_size=BATCH,
        clip_norm=1.0,
    )
    pool = Pool(table.ids, torch.from_numpy(table.inputs), torch.from_numpy(table.targets), groups)
    split = biregular(MODELS, groups, generator=np.random.default_rng(2))
    model = StackedMlp((table.inputs.shape[1], 128, 64, table.classes))
    return ShadowJob(pool, plan, model, split, Recipe(), seed=0, block=8)


def train(folder: Path) -> None:
    torch.set_num_threads(1)
    one = job()
    scores = train_shadows(one, folder=folder, progress=partial(print, folder.name, flush=True))
    (folder / "plan.json").write_text(one.plan.to_json())
    scores.save(folder / "scores.npz")


def points(curve: Roc) -> dict[str, Any]:
    """The curve at 200 false-positive rates, evenly spaced on a logarithmic axis."""
    at = np.unique(np.geomspace(1 / curve.others, 1, 200))
    return {"fpr": at.tolist(), "tpr": [curve.tpr_at(x) for x in at], **curve.summary()}


def result(folder: Path) -> dict[str, Any]:
    shadows = ShadowScores.load(folder / "scores.npz")
    plan = Plan.from_json((folder / "plan.json").read_text())
    scores = lira_each(shadows)
    strict = shadows.groups == STRICT
    areas = np.array(
        [
            [roc(row[of], member[of]).auc for of in (strict, ~strict)]
            for row, member in zip(scores, shadows.included, strict=True)
        ]
    )
    inside = shadows.included.sum(axis=0)
    likelihood = np.where(shadows.included, scores, 0.0).sum(axis=0) / inside
    first = shadows.included[0]  # S1's t-test is of one target model's members
    gap = areas[:, 1] - areas[:, 0]
    return {
        "data": "MNIST, 200 images a digit",
        "models": shadows.models,
        "steps": plan.steps,
        "delta": DELTA,
        "accuracy_on_non_members": float((shadows.confidences > 0)[~shadows.included].mean()),
        "groups": {
            str(name): {
                "epsilon_spent": float(plan.curve(g).epsilon(DELTA).upper),
                "advantage": float(plan.curve(g).advantage().upper),
            }
            for g, name in enumerate(plan.budgets.name)
        },
        "roc": {
            name: points(curve)
            for name, curve in roc_by_group(scores, shadows.included, shadows.groups).items()
        },
        "auc_by_target_model": {"mean": areas.mean(0).tolist(), "std": areas.std(0).tolist()},
        "target_models_with_the_order": int((gap > 0).sum()),
        "wilcoxon_p_value": float(stats.wilcoxon(gap, alternative="greater").pvalue),
        "student_t_of_the_first_model": asdict(
            student_t(scores[0][first & ~strict], scores[0][first & strict])
        ),
        "student_t_of_the_mean_over_models": asdict(
            student_t(likelihood[~strict], likelihood[strict])
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["train", "result"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.work / "s1-fig2"
    if options.action == "train":
        train(folder)
        return
    text = json.dumps(result(folder), indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
