"""S5 Table I, scaled: privacy scores of both groups against the share of the strict group.

For 20, 40, 60 and 80 % of the records in the strict group: a pool of records, shadow models
trained on half of each group under one plan, LiRA's privacy score of every record, and the
Jonckheere–Terpstra test of a rise. MLP and training of S5; δ = 1e-12; one random assignment of
budgets (S5: five), 128 models on tables and 64 on images (S5: 512).

    python experiments/s5_table1.py train --work DIR [--only german:sample …]    # resumable
    python experiments/s5_table1.py result --work DIR --out experiments/results/s5_table1.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from s5_data import Table, credit_default, german, mnist

from apiece.assignment import Sample, Scale, assign
from apiece.audit.likelihood import privacy_scores
from apiece.audit.records import ShadowScores
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.splits import biregular
from apiece.audit.stacked import StackedMlp
from apiece.audit.stacked_training import Recipe
from apiece.audit.trend import jonckheere_terpstra
from apiece.budgets import Budgets
from apiece.plan import Plan

DELTA, SHARES, SEED = 1e-12, (0.2, 0.4, 0.6, 0.8), 1
EXCESS = 0.05


class Setting(NamedTuple):
    strict: float
    weak: float
    batch: int
    epochs: int
    models: int


SETTINGS = {
    "german": Setting(4.0, 16.0, 32, 60, 128),
    "credit": Setting(4.0, 20.0, 32, 60, 128),
    "mnist": Setting(16.0, 50.0, 128, 15, 64),
}


def table(name: str) -> Table:
    if name == "mnist":
        return mnist(4, 1000)
    return german() if name == "german" else credit_default(1000)


def make_plan(setting: Setting, half: int, share: float, strategy: str) -> Plan:
    """The plan of one shadow model's half of the pool, the same for every split."""
    strict = round(half * share)
    epsilon = np.repeat([setting.strict, setting.weak], [strict, half - strict])
    labels = np.repeat(["strict", "weak"], [strict, half - strict])
    excess = EXCESS if strategy == "hybrid" else None
    budgets = Budgets(epsilon, DELTA, excess=excess, labels=labels)
    chosen = {"sample": Sample(), "scale": Scale()}.get(strategy, strategy)
    steps = half * setting.epochs // setting.batch
    return assign(budgets, chosen, steps=steps, expected_batch_size=setting.batch, clip_norm=1.0)


def job(name: str, strategy: str, share: float) -> ShadowJob:
    setting, data = SETTINGS[name], table(name)
    size = len(data.ids)
    plan = make_plan(setting, size // 2, share, strategy)
    order = np.random.default_rng(SEED).permutation(size)  # nested: 20 % ⊂ 40 % ⊂ …
    groups = np.ones(size, dtype=np.int64)
    groups[order[: 2 * round(size // 2 * share)]] = 0
    included = biregular(setting.models, groups, generator=np.random.default_rng(SEED + 1))
    pool = Pool(data.ids, torch.from_numpy(data.inputs), torch.from_numpy(data.targets), groups)
    model = StackedMlp((data.inputs.shape[1], 128, 64, data.classes))
    seed = int(100 * share) + {"sample": 0, "scale": 1000, "hybrid": 2000}[strategy]
    return ShadowJob(pool, plan, model, included, Recipe(), seed=seed, block=16)


def folder(work: Path, name: str, strategy: str, share: float) -> Path:
    return work / f"{name}-{strategy}-{share:g}"


def say(done: int, total: int) -> None:
    print(done, total, flush=True)


def train(work: Path, only: list[str]) -> None:
    torch.set_num_threads(1)
    for pair in only:
        name, strategy = pair.split(":")
        for share in SHARES:
            one = job(name, strategy, share)
            path = folder(work, name, strategy, share)
            print(path, flush=True)
            scores = train_shadows(one, folder=path, progress=say)
            (path / "plan.json").write_text(one.plan.to_json())
            scores.save(path / "scores.npz")


def row(work: Path, name: str, strategy: str) -> dict[str, object] | None:
    """The trend of both groups for one data set and strategy; None where it was not run."""
    paths = [folder(work, name, strategy, share) / "scores.npz" for share in SHARES]
    if not all(path.exists() for path in paths):
        return None
    setting, scores = SETTINGS[name], [ShadowScores.load(path) for path in paths]
    found = [privacy_scores(s) for s in scores]
    groups: dict[str, object] = {}
    for group in ("strict", "weak"):
        columns = [f.score[f.groups == group] for f in found]
        trend = jonckheere_terpstra(columns)
        groups[group] = {
            **asdict(trend),
            "stars": trend.stars,
            "mean": [float(c.mean()) for c in columns],
            "standard_error": [float(c.std(ddof=1) / len(c) ** 0.5) for c in columns],
        }
    correct = [float((s.confidences > 0)[~s.included].mean()) for s in scores]
    return {
        "data": name,
        "strategy": strategy,
        "setting": setting._asdict(),
        "delta": DELTA,
        "pool": len(scores[0]),
        "shares": SHARES,
        "groups": groups,
        "accuracy_on_non_members": correct,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["train", "result"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["german:sample", "german:scale"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.action == "train":
        train(options.work, options.only)
        return
    rows = [row(options.work, n, s) for n in SETTINGS for s in ("sample", "scale", "hybrid")]
    text = json.dumps([r for r in rows if r is not None], indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
