"""Boenisch et al. 2023, Fig. 2, scaled: is who asks ε = 20 easier to tell than who asks 10?

MNIST in place of CIFAR-10: 200 images of each digit, half of each budget group in every shadow
model (500 at ε = 10, 500 at ε = 20; δ = 1e-5, Sample), AdamW, B = 64, 15 epochs. Two networks: an
MLP 784-128-64-10, and Boenisch et al. 2023's CNN for MNIST (two convolutions, 26,010 parameters).
Every model is attacked in turn with all the others as its shadows (Boenisch et al. 2023: 512 shadow
models of a ResNet on 25,000 images, one target model; five in its appendix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from apiece.assignment import Sample, assign
from apiece.audit import Pool, ShadowJob, ShadowScores, roc_by_group
from apiece.audit.findings import student_t
from apiece.audit.membership import Roc, lira_each, roc
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp, StackedModel, StackedModule
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments import kaiser_2026_data
from research.experiments.boenisch_2023_table2 import network as boenisch_2023_cnn
from research.experiments.kaiser_2026_data import mnist

DELTA, BATCH, EPOCHS, MODELS, STRICT, WEAK = 1e-5, 64, 15, 128, "epsilon 10", "epsilon 20"
FOLDS = 16
NETWORKS = {"mlp": "s1-fig2", "cnn": "s1-fig2-cnn"}


def job(name: str) -> ShadowJob:
    table = mnist(10, 200)
    size = len(table.ids)
    groups = np.empty(size, dtype=np.int64)
    groups[np.random.default_rng(1).permutation(size)] = np.arange(size) % 2
    plan = assign(
        Budgets.from_groups([(STRICT, 10.0, 0.5), (WEAK, 20.0, 0.5)], size // 2, DELTA),
        Sample(),
        steps=size // 2 * EPOCHS // BATCH,
        expected_batch_size=BATCH,
        clip_norm=1.0,
    )
    inputs, model = torch.from_numpy(table.inputs), StackedMlp((784, 128, 64, table.classes))
    stacked: StackedModel = model
    if name == "cnn":
        inputs, stacked = inputs.view(-1, 1, 28, 28), StackedModule(boenisch_2023_cnn(), block=4)
    pool = Pool(table.ids, inputs, torch.from_numpy(table.targets), groups)
    split = biregular(MODELS, groups, generator=np.random.default_rng(2))
    return ShadowJob(pool, plan, stacked, split, UpdateRule(), seed=0, block=8)


def points(curve: Roc) -> dict[str, Any]:
    """The curve at 200 false-positive rates, evenly spaced on a logarithmic axis."""
    at = np.unique(np.geomspace(1 / curve.others, 1, 200))
    return {"fpr": at.tolist(), "tpr": [curve.tpr_at(x) for x in at], **curve.summary()}


def areas_of(shadows: ShadowScores) -> np.ndarray:
    """AUC of both groups, (models, 2): each model attacked with all the others as shadows."""
    scores = lira_each(shadows)
    strict = shadows.groups == STRICT
    return np.array(
        [
            [roc(row[of], member[of]).auc for of in (strict, ~strict)]
            for row, member in zip(scores, shadows.included, strict=True)
        ]
    )


def intervals(shadows: ShadowScores) -> dict[str, Any]:
    """AUC of both groups and their difference, means over target models, with 95 % intervals.

    The variance is the sum of two jackknives, leaving out a sixteenth of the models (LiRA made
    again without them) and a sixteenth of the records: what both share is counted twice, so the
    intervals are, if anything, too wide.
    """

    def figures(part: ShadowScores) -> np.ndarray:
        mean = areas_of(part).mean(axis=0)
        return np.array([*mean, mean[1] - mean[0]])

    model = np.arange(shadows.models) % FOLDS
    record = np.random.default_rng(3).permutation(len(shadows)) % FOLDS
    fewer = [
        ShadowScores(shadows.ids, shadows.groups, shadows.included[m], shadows.confidences[m])
        for m in (model != fold for fold in range(FOLDS))
    ]
    fewer += [shadows.select(shadows.ids[record != fold]) for fold in range(FOLDS)]
    left = np.array([figures(part) for part in fewer]).reshape(2, FOLDS, 3)
    error = np.sqrt((FOLDS - 1) * left.var(axis=1).sum(axis=0))
    mean, reach = figures(shadows), stats.t.ppf(0.975, FOLDS - 1) * error
    return {
        name: {
            "auc": float(m),
            "standard_error": float(e),
            "interval": [float(m - r), float(m + r)],
        }
        for name, m, e, r in zip((STRICT, WEAK, "difference"), mean, error, reach, strict=True)
    }


def tests(shadows: ShadowScores) -> dict[str, Any]:
    """Whether the weak group's members score above the strict group's, in several readings."""
    scores, strict = lira_each(shadows), shadows.groups == STRICT
    areas = areas_of(shadows)
    gap = areas[:, 1] - areas[:, 0]
    inside = shadows.included.sum(axis=0)
    likelihood = np.where(shadows.included, scores, 0.0).sum(axis=0) / inside
    each = [  # Boenisch et al. 2023's t-test is of one target model's members
        student_t(row[member & ~strict], row[member & strict])
        for row, member in zip(scores, shadows.included, strict=True)
    ]
    positive = [t.statistic > 0 and t.p_value < 0.05 for t in each]
    return {
        "target_models_with_the_order": int((gap > 0).sum()),
        "wilcoxon_p_value": float(stats.wilcoxon(gap, alternative="greater").pvalue),
        "student_t_of_the_first_model": asdict(each[0]),
        "student_t_of_single_models": {
            "median_statistic": float(np.median([t.statistic for t in each])),
            "share_with_weak_above_at_5_percent": float(np.mean(positive)),
        },
        "student_t_of_the_mean_over_models": asdict(
            student_t(likelihood[~strict], likelihood[strict])
        ),
    }


def result(folder: Path) -> dict[str, Any]:
    """All figures of one network."""
    shadows = ShadowScores.load(folder / "scores.npz")
    plan = Plan.from_json((folder / "plan.json").read_text())
    curves = roc_by_group(lira_each(shadows), shadows.included, shadows.groups)
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
            for g, name in enumerate(plan.budget_groups.name)
        },
        "roc": {name: points(curve) for name, curve in curves.items()},
        "auc_by_target_model": intervals(shadows),
        **tests(shadows),
    }


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Train what is missing of a network's shadow models, and return its figures."""
    torch.set_num_threads(1)
    kaiser_2026_data.DATA = place.data
    folder = place.work / NETWORKS[unit["network"]]
    kaiser_2026_data.shadows(folder, partial(job, unit["network"]))
    return result(folder)


def tables(done: Sequence[Outcome]) -> list[Table]:
    rows = []
    for one in done:
        its = one.result["auc_by_target_model"]
        rows.append([
            f"{one.unit['network']} on MNIST, 2,000 images",
            f"{one.result['accuracy_on_non_members']:.1%}",
            *(f"{its[k]['auc']:.3f} ({its[k]['interval'][0]:.3f} to {its[k]['interval'][1]:.3f})"
              for k in (STRICT, WEAK, "difference")),
            f"{one.result['target_models_with_the_order']} of {one.result['models']} models",
        ])  # fmt: skip
    rows.append(["published: ResNet on CIFAR-10, 25,000 images", "64.9%", "0.537", "0.581", "0.044",
                 "4 of 5 models"])  # fmt: skip
    return [Table(["network", "accuracy", "AUC, ε = 10", "AUC, ε = 20", "difference",
                   "this order in"], rows)]  # fmt: skip


EXPERIMENT = Experiment(
    name="boenisch-2023-fig2",
    paper="Boenisch et al. 2023",
    shows="Figure 2: is who asks ε = 20 easier to tell than who asks 10?",
    cost="an hour a network on one thread; the paper's: 32 hours on an A100",
    units=lambda seeds, scale: [{"network": name} for name in NETWORKS],
    run=run,
    tables=tables,
    notes=lambda done: (
        "How the intervals are made, and the tests: [auditing](auditing.md). "
        "`boenisch-2023-fig2.json` was measured on or before 2026-11-22 with the code up to "
        "`e1a580f7`, and not again since: that needs two hours on one thread."
    ),
    seeds=1,
    needs=("mnist",),
    open="a ResNet on CIFAR-10: 32 hours of an A100, out of reach here",
)
