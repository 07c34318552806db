"""Kaiser et al. 2026, Tables I and II, scaled: privacy scores against the share of the strictest.

For 20, 40, 60 and 80 % of the records in the strict group: a pool of records, shadow models trained
on half of each group under one plan, LiRA's privacy score of every record, and the
Jonckheere–Terpstra test of a rise. Model, optimizer, epochs, B, ε and δ = 1e-12 are Kaiser et al.
2026's; pools of 1,000 clients of Credit Default (Kaiser et al. 2026: all 30,000) and one random
assignment of budgets (Kaiser et al. 2026: five).

The populations are compared on common ground: the strict groups are nested, and every population
has the same splits, starts and noise seeds. So a difference between two populations is not one
between two draws. Beside Kaiser et al. 2026's score, which is a magnitude and so never below about
0.8/√K, the result has the signed score (μ_in − μ_out)/(σ_in + σ_out), which has no such floor.

Training is resumable; a replicate is 128 models (64 on images) with a split of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats

from apiece.assignment import Sample, Scale, Uniform, assign
from apiece.audit import Pool, ShadowJob
from apiece.audit.findings import jonckheere_terpstra
from apiece.audit.membership import privacy_scores, world
from apiece.audit.records import ShadowScores
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.contract.exposure import exposure
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments import kaiser_2026_data
from research.experiments.kaiser_2026_data import Table as Data
from research.experiments.kaiser_2026_data import cifar, isolet, medical, mnist, shadows, tabular

DELTA, SHARES, SEED, FOLDS = 1e-12, (0.2, 0.4, 0.6, 0.8), 1, 16
STRATEGIES = ("sample", "scale", "hybrid")
NAMES = {"german": "German Credit", "credit": "Credit Default", "mnist": "MNIST [4, 1000]",
         "isolet": "ISOLET", "organcmnist": "OrganCMNIST [2000]",
         "organsmnist": "OrganSMNIST [2000]", "pneumoniamnist": "Pneumonia [2000]",
         "dermamnist": "HAM10k [2000]", "cifar": "CIFAR-10 (JPEG) [500]"}  # fmt: skip
TABLE_IV = {  # mean accuracy at 20 / 40 / 60 / 80 %, with Sample
    "german": ".7144 / .7084 / .6826 / .6674", "credit": ".7198 / .7178 / .6914 / .6709",
    "mnist": ".9706 / .9705 / .9696 / .9689", "isolet": ".7351 / .7111 / .6580 / .5724",
    "organcmnist": ".7485 / .7391 / .7322 / .7233",
    "organsmnist": ".5940 / .5858 / .5731 / .5631",
    "pneumoniamnist": ".8531 / .8559 / .8560 / .8508",
    "dermamnist": ".6883 / .6808 / .6832 / .6758", "cifar": ".4637 / .4577 / .4519 / .4427",
}  # fmt: skip
FIRST_LOOK = {"german": 256, "credit": 128, "mnist": 64}  # K when Sample's p was first looked at


class Setting(NamedTuple):
    strict: float
    weak: float
    batch: int
    epochs: int
    models: int  # of one replicate
    excess: float  # Δ̄ for Hybrid
    rate: float = 0.01  # Kaiser et al. 2026's learning rate


SETTINGS = {
    "german": Setting(4.0, 16.0, 32, 60, 128, 0.02),
    "credit": Setting(4.0, 20.0, 32, 60, 128, 0.02),
    "mnist": Setting(16.0, 50.0, 128, 15, 64, 0.02),
    "german10": Setting(4.0, 16.0, 32, 10, 128, 0.02),
    "credit10": Setting(4.0, 20.0, 32, 10, 128, 0.02),
    "mnist5": Setting(16.0, 50.0, 128, 5, 64, 0.02),
    "mnist5slow": Setting(16.0, 50.0, 128, 5, 64, 0.02, 1e-3),  # gradients reach their clip norm
    "isolet": Setting(1.0, 10.0, 256, 25, 64, 0.02),
    # an MLP on flat pixels in place of the published CNN and ResNet-9
    "cifar": Setting(16.0, 50.0, 128, 15, 64, 0.02),
    "organcmnist": Setting(8.0, 32.0, 128, 25, 64, 0.02, 0.005),
    "organsmnist": Setting(8.0, 32.0, 128, 25, 64, 0.02, 0.005),
    "pneumoniamnist": Setting(8.0, 32.0, 128, 25, 64, 0.02, 0.005),
    "dermamnist": Setting(8.0, 32.0, 128, 25, 64, 0.02, 0.005),  # the images of HAM10k
}
MEDICAL = {"organcmnist": 11, "organsmnist": 11, "pneumoniamnist": 2, "dermamnist": 7}  # classes


def table(name: str) -> Data:
    if name.startswith("mnist"):
        return mnist(4, 1000)
    if name == "isolet":
        return isolet()
    if name == "cifar":
        return cifar(500)
    if name in MEDICAL:
        return medical(name, MEDICAL[name], 2000)
    return tabular("german" if name.startswith("german") else "credit_default", 1000)


def make_plan(setting: Setting, half: int, share: float, strategy: str) -> Plan:
    """The plan of one shadow model's half of the pool, the same for every split."""
    strict = round(half * share)
    budgets = Budgets(
        np.repeat([setting.strict, setting.weak], [strict, half - strict]),
        DELTA,
        excess=setting.excess if strategy == "hybrid" else None,
        labels=np.repeat(["strict", "weak"], [strict, half - strict]),
    )
    chosen = {"sample": Sample(), "scale": Scale()}.get(strategy, strategy)
    steps = half * setting.epochs // setting.batch
    return assign(budgets, chosen, steps=steps, expected_batch_size=setting.batch, clip_norm=1.0)


def tiers(size: int) -> np.ndarray:
    """Fifths of the pool at random: the strict group is the first one, two, three or four."""
    order = np.random.default_rng(SEED).permutation(size)
    found = np.empty(size, dtype=np.int64)
    found[order] = np.arange(size) * 5 // size
    return found


def data_of(name: str) -> list[str]:
    """Folders of data that a setting reads; none for a packaged table."""
    if name.startswith("mnist"):
        return ["mnist"]
    if name in MEDICAL:
        return ["medmnist"]
    return {"isolet": ["isolet"], "cifar": ["cifar10-jpeg"]}.get(name, [])


def job(name: str, strategy: str, share: float, replicate: int) -> ShadowJob:
    setting, data = SETTINGS[name], table(name)
    fifths = tiers(len(data.ids))
    plan = make_plan(setting, len(data.ids) // 2, share, strategy)
    groups = (fifths >= round(5 * share)).astype(np.int64)
    generator = np.random.default_rng((SEED, replicate))
    included = biregular(setting.models, fifths, generator=generator)
    pool = Pool(data.ids, torch.from_numpy(data.inputs), torch.from_numpy(data.targets), groups)
    model = StackedMlp((data.inputs.shape[1], 128, 64, data.classes))
    recipe = UpdateRule(learning_rate=setting.rate)
    return ShadowJob(pool, plan, model, included, recipe, seed=replicate, block=8)


def folder(work: Path, name: str, strategy: str, share: float, replicate: int) -> Path:
    return work / f"{name}-{strategy}-{share:g}-{replicate}"


def train(work: Path, only: list[str], replicates: int) -> None:
    """Train what is missing; keep each population's scores beside its plan."""
    torch.set_num_threads(1)
    for pair in only:
        name, strategy = pair.split(":")
        for replicate in range(replicates):
            for share in SHARES:
                about = (name, strategy, share, replicate)
                shadows(folder(work, *about), partial(job, *about))


def gather(work: Path, name: str, strategy: str) -> tuple[list[ShadowScores], list[Plan]] | None:
    """The scores of each share, over the replicates that all shares have; None without any."""
    done = 0
    while all((folder(work, name, strategy, s, done) / "scores.npz").exists() for s in SHARES):
        done += 1
    if not done:
        return None
    joined, plans = [], []
    for share in SHARES:
        paths = [folder(work, name, strategy, share, r) for r in range(done)]
        parts = [ShadowScores.load(path / "scores.npz") for path in paths]
        included = np.concatenate([p.included for p in parts])
        confidences = np.concatenate([p.confidences for p in parts])
        joined.append(ShadowScores(parts[0].ids, parts[0].groups, included, confidences))
        plans.append(Plan.from_json((paths[0] / "plan.json").read_text()))
    return joined, plans


def signed(scores: ShadowScores) -> np.ndarray:
    """Each record's (μ_in − μ_out)/(σ_in + σ_out): no floor, since noise goes either way."""
    inside = world(scores.confidences, scores.included)
    outside = world(scores.confidences, ~scores.included)
    return ((inside.mean - outside.mean) / (inside.std + outside.std))[:, 0]


def without(scores: ShadowScores, fold: int) -> ShadowScores:
    """The scores without the models of one fold, for the jackknife."""
    kept = np.arange(scores.models) % FOLDS != fold
    return ShadowScores(scores.ids, scores.groups, scores.included[kept], scores.confidences[kept])


def contrast(populations: list[ShadowScores], group: str) -> float:
    """The mean signed score of the group in the last population less that in the first."""
    last, first = (signed(s)[s.groups == group].mean() for s in (populations[-1], populations[0]))
    return float(last - first)


def trend(populations: list[ShadowScores], plans: list[Plan], group: str) -> dict[str, Any]:
    """The paper's test for one group, and the same on records that are in the group everywhere.

    The standard error of the contrast is a jackknife over models, so that it covers what records
    share through a model.
    """
    found = [privacy_scores(s).score for s in populations]
    columns = [f[s.groups == group] for f, s in zip(found, populations, strict=True)]
    always = np.all([s.groups == group for s in populations], axis=0)
    page = stats.page_trend_test(np.stack([f[always] for f in found], axis=1), method="asymptotic")
    left = [contrast([without(s, k) for s in populations], group) for k in range(FOLDS)]
    error = float(np.sqrt((FOLDS - 1) * np.var(left)))
    risen = contrast(populations, group)
    directed = [signed(s)[s.groups == group] for s in populations]
    means = [float(column.mean()) for column in directed]
    test = jonckheere_terpstra(columns)
    return {
        **asdict(test),
        "stars": test.stars,
        "mean": [float(c.mean()) for c in columns],
        "standard_error": [float(c.std(ddof=1) / len(c) ** 0.5) for c in columns],
        "page_p_value_same_records": float(page.pvalue),
        "same_records": int(always.sum()),
        "signed_mean": means,
        "signed_trend": asdict(jonckheere_terpstra(directed)),
        "signed_rise": risen,
        "signed_rise_standard_error": error,
        "signed_rise_p_value": float(stats.t.sf(risen / error, FOLDS - 1)),
        "signed_relative_change": risen / means[0],
        **theory(plans, group),
    }


def look(populations: list[ShadowScores], models: slice) -> dict[str, Any]:
    """The paper's test on some of the models."""
    parts = [
        ShadowScores(s.ids, s.groups, s.included[models], s.confidences[models])
        for s in populations
    ]
    found = [privacy_scores(part).score for part in parts]
    tests = {
        group: jonckheere_terpstra(
            [f[part.groups == group] for f, part in zip(found, parts, strict=True)]
        )
        for group in ("strict", "weak")
    }
    return {"models": parts[0].models, **{group: asdict(test) for group, test in tests.items()}}


def looks(populations: list[ShadowScores], first: int | None) -> dict[str, Any] | None:
    """The paper's test on the models of a first look, and on those trained after it alone."""
    if first is None:
        return None
    return {
        "first": look(populations, slice(0, first)),
        "later": look(populations, slice(first, None)),
    }


def theory(plans: list[Plan], group: str) -> dict[str, Any]:
    """Advantage and excess of the group in each population, from the plans alone."""
    of = int(np.flatnonzero(plans[0].budget_groups.name == group)[0])
    size = int(plans[0].budget_groups.records.sum())
    alone = Budgets(np.full(size, plans[0].budget_groups.epsilon[of]), DELTA)
    batch = plans[0].stages[0].expected_batch_size
    settings = {"steps": plans[0].steps, "expected_batch_size": batch, "clip_norm": 1.0}
    promised = assign(alone, Uniform(), **settings).curve(0)
    faced = [exposure(plan, of) for plan in plans]
    return {
        "advantage": [float(f.advantage.upper) for f in faced],
        "advantage_promised": float(promised.advantage().upper),
        "excess": [float(f.forward.upper) for f in faced],
        "excess_backward": [float(f.backward.upper) for f in faced],
        "epsilon_spent": [float(f.epsilon.upper) for f in faced],
    }


def row(work: Path, name: str, strategy: str) -> dict[str, Any] | None:
    """The trend of both groups for one data set and strategy; None where it was not run."""
    found = gather(work, name, strategy)
    if found is None:
        return None
    populations, plans = found
    setting = SETTINGS[name]
    return {
        "data": name,
        "strategy": strategy,
        "setting": {**setting._asdict(), "models": populations[0].models, "steps": plans[0].steps},
        "delta": DELTA,
        "pool": len(populations[0]),
        "shares": SHARES,
        "groups": {group: trend(populations, plans, group) for group in ("strict", "weak")},
        "accuracy_on_non_members": [
            float((s.confidences > 0)[~s.included].mean()) for s in populations
        ],
        "looks": looks(populations, FIRST_LOOK.get(name) if strategy == "sample" else None),
    }


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Train what is missing of a data set and strategy, and return its row."""
    torch.set_num_threads(1)
    kaiser_2026_data.DATA = place.data
    name, strategy = unit["data"], unit["strategy"]
    train(place.work, [f"{name}:{strategy}"], unit["models"] // SETTINGS[name].models)
    found = row(place.work, name, strategy)
    assert found is not None
    return found


def units(seeds: int, scale: float) -> list[Unit]:
    """Kaiser et al. 2026's 512 models at scale 1; there is one random assignment of budgets."""
    return [
        {"data": name, "strategy": strategy,
         "models": max(1, round(512 * scale / setting.models)) * setting.models}
        for name, setting in SETTINGS.items() for strategy in STRATEGIES
    ]  # fmt: skip


def published_of(found: Mapping[str, Any]) -> str:
    """Table IV is of Sample."""
    return TABLE_IV.get(found["data"], "–") if found["strategy"] == "sample" else "–"


def tables(done: Sequence[Outcome]) -> list[Table]:
    scores, accuracies = [], []
    for one in done:
        found = one.result
        setting = found["setting"]
        about = [f"{NAMES[found['data'].rstrip('0123456789slow')]}, {setting['epochs']} epochs"
                 + f", learning rate {setting['rate']:g}" * (setting["rate"] != 0.01),
                 found["strategy"], str(setting["models"])]  # fmt: skip
        for group, its in found["groups"].items():
            scores.append([
                *about, group, " / ".join(f"{score:.3f}" for score in its["mean"]),
                f"{its['p_value']:.0e} {its['stars']}".strip().replace("*", "\\*"),
                f"{its['concordance']:+.3f}",
                f"{its['signed_rise']:+.3f} ± {its['signed_rise_standard_error']:.3f}",
                f"{its['advantage'][0]:.2f} → {its['advantage'][-1]:.2f}",
            ])  # fmt: skip
        if "accuracy_on_non_members" in found:
            accuracies.append([*about, *(f"{a:.4f}" for a in found["accuracy_on_non_members"]),
                               published_of(found)])  # fmt: skip
    head = ["data", "strategy", "K"]
    return [
        Table([*head, "group", "score at 20 / 40 / 60 / 80 %", "JT p", "concordance", "signed rise",
               "advantage"], scores, "Tables I and II: privacy score by the share of the strict"),
        Table([*head, "20 %", "40 %", "60 %", "80 %", "published, on all data"], accuracies,
              "Table IV: accuracy on records that a model was not trained on"),
    ]  # fmt: skip


def notes(done: Sequence[Outcome]) -> str:
    ran = {one.unit["data"] for one in done}
    left = ", ".join(NAMES[name] for name in NAMES if name not in ran)
    text = "[Auditing](auditing.md) says what the columns mean and what is scaled down."
    text += (
        " `kaiser-2026-table1.json` was measured on or before 2026-11-22 with the code up to "
        "`e1a580f7`, and not again since: that needs hours on one thread."
    )
    return text + (f" Not run: {left}." if left else "")


EXPERIMENT = Experiment(
    name="kaiser-2026-table1",
    paper="Kaiser et al. 2026",
    shows="Tables I, II and IV: privacy scores and accuracy by the share of the strict",
    cost="20 minutes to 4 hours a data set and strategy on one thread",
    units=units,
    run=run,
    tables=tables,
    notes=notes,
    seeds=1,
    needs=("mnist", "isolet", "medmnist", "cifar10-jpeg"),
    reads=lambda unit: data_of(unit["data"]),
    open="Scale and Hybrid at 60 epochs, CIFAR-10: hours each; no copy of the other data sets here",
)
