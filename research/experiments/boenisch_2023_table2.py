"""Boenisch et al. 2023, Tables 7 and 12, Figure 1: accuracy by strategy, at its own settings.

Figure 1 is accuracy over training, of MNIST: with both shares, and with 3 for all ("uniform 3"),
which nobody who asked for 1 or 2 gets.

Budgets of 1, 2 and 3 are shuffled over the records. A unit's seed fixes them, the first parameters,
batches and noise. Accuracy is of the parameters after the last step, on the test part.

The public code of Boenisch et al. 2023 standardises pixels with constants that come with each data
set's fame, and pads MNIST's first convolution by 2, where the paper has no word on either. Variant
"scaled, padding 3" has pixels in [0, 1] and padding 3.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apiece.assignment import Sample, Scale, Sequential, Threshold, Uniform, assign
from apiece.plan import BoundPlan
from apiece.training import Trainer
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.pictures import Images, cifar_parquet, idx_folder, svhn_mat
from research.experiments.populations import ALAGGAN, NIU, three_groups
from research.intervals import format_deviation, format_gain

DELTA = 1e-5
SHARES = {"34/43/23": ALAGGAN, "54/37/9": NIU}
AUTHORS, OLDER = "standardised, padding 2", "scaled, padding 3"
# Boenisch et al. 2023, Table 4, and the constants of its public code.
DATA = {
    "mnist": {"rate": 0.6, "batch": 512, "steps": 9375, "clip": 0.2,
              "mean": (0.1307,), "std": (0.3081,)},
    "cifar10-jpeg": {"rate": 0.7, "batch": 1024, "steps": 1465, "clip": 0.4,
                     "mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    "svhn": {"rate": 0.2, "batch": 1024, "steps": 2146, "clip": 0.9,
             "mean": (0.43768212, 0.44376972, 0.47280444),
             "std": (0.19803013, 0.20101563, 0.19703615)},
}  # fmt: skip
PUBLISHED = {  # Table 7; mean and standard deviation over ten seeds; on MNIST Table 2 has the same
    ("mnist", "34/43/23"): {"uniform": "96.75 ± 0.15", "sample": "97.81 ± 0.09",
                            "scale": "97.78 ± 0.08", "threshold 2": "97.6", "sequential": "97.4"},
    ("mnist", "54/37/9"): {"uniform": "96.75 ± 0.15", "sample": "97.6 ± 0.11",
                           "scale": "97.54 ± 0.09", "threshold 2": "97.1", "sequential": "97.3"},
    ("cifar10-jpeg", "34/43/23"): {"uniform": "52.77 ± 0.65", "sample": "54.89 ± 0.55",
                                   "scale": "54.92 ± 0.63"},
    ("cifar10-jpeg", "54/37/9"): {"uniform": "52.77 ± 0.65", "sample": "54.88 ± 0.45",
                                  "scale": "55.00 ± 0.65"},
    ("svhn", "34/43/23"): {"uniform": "83.26 ± 0.31", "sample": "84.56 ± 0.25",
                           "scale": "84.48 ± 0.25"},
    ("svhn", "54/37/9"): {"uniform": "83.26 ± 0.31", "sample": "84.32 ± 0.31",
                          "scale": "84.31 ± 0.26"},
}  # fmt: skip
STRATEGIES = {
    "uniform": Uniform("strictest"), "sample": Sample(), "scale": Scale(),
    "threshold 2": Threshold(2.0), "threshold 3": Threshold(3.0), "sequential": Sequential(),
    "uniform 3": Uniform(3.0),
}  # fmt: skip


def network(padding: int = 3) -> nn.Module:
    """The CNN of Tramèr and Boneh for MNIST (Boenisch et al. 2023 §4)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=padding), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def colour_network() -> nn.Module:
    """The CNN of Tramèr and Boneh for 32 by 32 pixels in colour."""
    layers: list[nn.Module] = []
    before = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh(),
                   nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]  # fmt: skip
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 128), nn.Tanh(),
                         nn.Linear(128, 10))  # fmt: skip


def images(data: Path, name: str, split: str) -> Images:
    if name == "mnist":
        return idx_folder(data / name, split)
    if name == "svhn":
        return svhn_mat(data / name / f"{split}_32x32.mat")
    return cifar_parquet(data / name / f"{split}.parquet")


@functools.lru_cache(maxsize=2)
def pixels(data: Path, name: str, split: str, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    there = images(data, name, split)
    values = torch.from_numpy(there.scaled())
    if variant == AUTHORS:
        mean, std = (torch.tensor(DATA[name][key])[:, None, None] for key in ("mean", "std"))
        values = (values - mean) / std
    return values, torch.from_numpy(there.labels)


def plan_of(unit: Unit, records: int) -> BoundPlan:
    setting = DATA[unit["data"]]
    budgets = three_groups(
        records, DELTA, shares=SHARES[unit["shares"]],
        seed=unit["seed"],
    )  # fmt: skip
    return assign(
        budgets, STRATEGIES[unit["strategy"]], method=unit["method"],
        steps=round(setting["steps"] * unit.get("scale", 1)),
        expected_batch_size=setting["batch"], clip_norm=setting["clip"],
    )  # fmt: skip


def accuracy(model: nn.Module, split: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in split[0].split(1000)])
    return 100 * float((guesses == split[1]).double().mean())


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Train one model, or the rest of it from its last checkpoint."""
    torch.set_num_threads(1)
    name, seed = unit["data"], unit["seed"]
    train, test = (pixels(place.data, name, s, unit["variant"]) for s in ("train", "test"))
    plan = plan_of(unit, len(train[1]))
    torch.manual_seed(seed)
    model = network(2 if unit["variant"] == AUTHORS else 3) if name == "mnist" else colour_network()
    model = model.to(memory_format=torch.channels_last)  # twice as fast in max-pooling
    optimizer = torch.optim.SGD(model.parameters(), lr=DATA[name]["rate"])
    loss = nn.CrossEntropyLoss(reduction="none")
    folder = place.work / "-".join(str(v) for v in unit.values()).replace("/", "_")
    if folder.exists():
        trainer = Trainer.resume(folder, model, optimizer, loss, plan, train, save_every=250)
    else:
        trainer = Trainer(
            model, optimizer, loss, plan, train, seed=seed, checkpoint=folder, save_every=250
        )
    curve = []
    while trainer.step_number < plan.steps:
        trainer.fit(min(max(1, plan.steps // 8), plan.steps - trainer.step_number))
        curve.append([trainer.step_number, accuracy(model, test)])
    stage = plan.stages[0]
    return {
        "accuracy": accuracy(model, test),
        "curve": curve,  # of what was left of a resumed run
        "noise stddev": stage.noise_stddev,
        "sampling probability": stage.sampling_probability.tolist(),
        "clip norm": stage.clip_norm.tolist(),
    }


def units(seeds: int, scale: float) -> list[Unit]:
    small = {} if scale == 1 else {"scale": scale}
    return [
        {"data": name, "shares": shares, "variant": variant, "strategy": s, "method": method,
         "seed": seed} | small
        for name in DATA
        for variant in ((AUTHORS, OLDER) if name == "mnist" else (AUTHORS,))
        for seed in range(seeds)
        for shares in SHARES
        for method in ("rdp", "pld")
        for s in STRATEGIES
    ]  # fmt: skip


def found(done: Sequence[Outcome], **wanted: Any) -> list[float]:
    """Accuracies of the units that have these values, and no other scale."""
    wanted = {"scale": None} | wanted
    return [
        one.result["accuracy"]
        for one in sorted(done, key=lambda one: one.unit["seed"])
        if all(one.unit.get(key) == value for key, value in wanted.items())
    ]


def tables(done: Sequence[Outcome]) -> list[Table]:
    rows = []
    for (name, shares), published in PUBLISHED.items():
        cells = [published.get(s, "–") for s in STRATEGIES]
        rows.append([name, shares, "published, ten seeds, RDP", *cells])
        kinds = {
            (one.unit["variant"], one.unit["method"])
            for one in done
            if (one.unit["data"], one.unit["shares"]) == (name, shares)
        }
        for variant, method in sorted(kinds):
            about = {"data": name, "shares": shares, "variant": variant, "method": method}
            cells = [counted(found(done, **about, strategy=s)) for s in STRATEGIES]
            rows.append([name, shares, f"{variant}, {method.upper()}", *cells])
    curves = [
        [str(unit["data"]), unit["shares"], unit["strategy"],
         ", ".join(f"{step}: {value:.1f}" for step, value in one.result["curve"])]
        for one in done for unit in [one.unit] if one.result.get("curve") and unit["seed"] == 0
    ]  # fmt: skip
    return [
        Table(["data", "budgets 1/2/3 at", "setting", *STRATEGIES], rows,
              "Test accuracy in %, ± standard deviation over seeds (how many)"),
        Table(["data", "budgets 1/2/3 at", "strategy", "accuracy by step"], curves,
              "Figure 1: accuracy over training, first seed"),
    ]  # fmt: skip


def counted(values: list[float]) -> str:
    return f"{format_deviation(values)} ({len(values)})" if values else "–"


def notes(done: Sequence[Outcome]) -> str:
    lines = []
    for variant, method in ((OLDER, "rdp"), (OLDER, "pld"), (AUTHORS, "rdp"), (AUTHORS, "pld")):
        own, other = (
            {one.unit["seed"]: one.result["accuracy"] for one in done
             if (one.unit["data"], one.unit["shares"]) == ("mnist", "34/43/23")
             and one.unit.items() >= {"variant": variant, "method": method, "strategy": s}.items()}
            for s in ("sample", "uniform")
        )  # fmt: skip
        if both := sorted(set(own) & set(other)):
            found = format_gain([own[seed] - other[seed] for seed in both])
            lines.append(f"{variant}, {method.upper()}: {found}")
    return (
        "Settings are the paper's (its Table 4), the same for every strategy and full length, "
        "9,375 steps; none was tuned here. The published gain of Sample over Uniform on MNIST, "
        "1.06 points, is not reproduced. Ours, at 34/43/23, paired by seed, with 95 % intervals "
        f"from three seeds on: {'; '.join(lines)}. Uniform is better than published in all of "
        "them. The constants and the padding of the paper's public code do not explain it, and "
        "the paper names nothing else that could. More seeds and the other shares were not run "
        "(eight minutes a training on a thread of its own, by `--only`). The paper's Table 2 has "
        "the other data sets, at settings of their own for each strategy (CIFAR-10: 57.86 with "
        "Sample, 58.03 with Scale). "
        "`boenisch-2023-table2.json` was measured on or before 2026-11-27 with the code up to "
        "`a1e71277`, and not again since: that needs an hour and a half on one thread."
    )


EXPERIMENT = Experiment(
    name="boenisch-2023-table2",
    paper="Boenisch et al. 2023",
    shows="Tables 7 and 12, Figure 1: accuracy by strategy",
    cost="8 minutes a training of MNIST on a thread of its own, 2 hours one of CIFAR-10",
    units=units,
    run=run,
    tables=tables,
    notes=notes,
    seeds=10,
    needs=("mnist", "cifar10-jpeg", "svhn"),
    reads=lambda unit: [unit["data"]],
    open="MNIST, five seeds by RDP and PLD: 4 hours; CIFAR-10: 2 hours a training; no SVHN here",
)
