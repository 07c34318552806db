"""LiRA against sacroml's on the same confidences: both attack the same model with the same shadows.

Shadow models of German Credit, trained here (MLP of Kaiser et al. 2026, ε = 16, 32 models, the last
one attacked). sacroml (SACRO-ML, MIT) is a tool for disclosure control with an independent
implementation of LiRA; install it with `pip install --no-deps sacroml fpdf pypdf pyyaml
dictdiffer`.

    python -m research.benchmarks.sacroml_lira --out research/results/sacroml_lira.json
"""

from __future__ import annotations

import argparse
import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special

from apiece.assignment import Uniform, assign
from apiece.audit import Pool, ShadowJob, ShadowScores, lira, train_shadows
from apiece.audit.membership import roc
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.packaged import PACKAGED
from apiece.training.stacked import StackedMlp

Floats = npt.NDArray[np.float64]
MODES = {"online": "online-carlini", "offline": "offline"}


def theirs(target: Floats, shadows: ShadowScores, variant: str) -> Floats:
    """Return sacroml's score of each record: log p_in/p_out online, Φ of the out-normal offline.

    It takes probabilities of class 0 or 1; every record's true class is called 1.
    """
    from sacroml.attacks.likelihood_attack import LIRAAttack

    logging.disable(logging.INFO)
    attack = LIRAAttack(write_report=False, mode=MODES[variant])
    chance = special.expit(target)
    worlds: list[dict[int, list[float]]] = [
        {i: shadows.confidences[own[:, i], i].tolist() for i in range(len(shadows))}
        for own in (~shadows.included, shadows.included)
    ]
    labels = np.ones(len(shadows), dtype=int)
    pairs, _ = attack._compute_scores(labels, np.stack([1 - chance, chance], 1), *worlds)
    return np.array(pairs)[:, 1]


def german_shadows(models: int) -> ShadowScores:
    """Return the confidences of `models` shadow models of German Credit."""
    frame, label = load("german"), PACKAGED["german"].label
    schema = packaged_schema("german")
    inputs = torch.from_numpy(encode(frame, schema.features(but={label})).features)
    targets = torch.from_numpy(encode_labels(frame, label, ("good", "bad")))
    plan = assign(
        Budgets(np.full(500, 16.0), 1e-5),
        Uniform(),
        steps=300,
        expected_batch_size=32,
        clip_norm=1.0,
    )
    groups = np.zeros(1000, dtype=np.int64)
    split = biregular(models, groups, generator=np.random.default_rng(0))
    pool = Pool(np.arange(1000), inputs, targets, groups)
    model = StackedMlp((inputs.shape[1], 128, 64, 2))
    return train_shadows(ShadowJob(pool, plan, model, split, UpdateRule(), seed=0, block=8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=33)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = german_shadows(options.models)
    target, truth = every.confidences[-1], every.included[-1]
    shadows = ShadowScores(every.ids, every.groups, every.included[:-1], every.confidences[:-1])
    found: dict[str, Any] = {
        "sacroml": version("sacroml"),
        "data": "German Credit, 1,000 records",
        "shadow_models": shadows.models,
    }
    for variant in MODES:
        own, other = lira(target, shadows, variant=variant), theirs(target, shadows, variant)
        if variant == "offline":
            other = -np.log1p(-other)  # ours is −log of the tail that theirs is one less
        found[variant] = {
            "largest_difference": float(np.abs(own - other).max()),
            "largest_score": float(np.abs(own).max()),
            "auc_apiece": roc(own, truth).auc,
            "auc_sacroml": roc(other, truth).auc,
        }
    text = json.dumps(found, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
