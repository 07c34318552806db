"""Mueller et al. 2021 §5.2: partial sensitivities of bar images, after SGD and after DP-SGD.

5×5 images of a vertical (class 0) or horizontal (class 1) bar plus N(0, 0.2²), scaled to [0, 1];
1,000 a class; 25-8-1 network of sigmoids; full batches, learning rate 0.1; SGD for 1,000 steps,
DP-SGD for 2,000 with clip norm 0.1 and noise multiplier 5. For every seed two maps a class:

- `partial`: ∇ₓ‖∇_θ ℓ‖₂, the partial sensitivity of the definition (Mueller et al. 2021, Eq. 4–6);
- `published`: (∂ℓ/∂xᵢ)/‖∇ℓ‖₂ with ∇ over inputs, label and weights together, which is what the
  code published with it evaluates (the norm's derivative by gradient entry, not by pixel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from apiece._text import figure_text
from apiece.assignment import Uniform, assign
from apiece.budgets import Budgets
from apiece.numerics.gaussian import gaussian_epsilon_above
from apiece.reporting.plots import SIGNED, save
from apiece.sensitivity import ModelLoss, partial_sensitivity
from apiece.training import Trainer
from research.experiment import Experiment, Folders, Outcome, Table, Unit

Floats = npt.NDArray[np.float64]
SIDE, HIDDEN, PER_CLASS, RATE = 5, 8, 1000, 0.1
STEPS = {"SGD": 1000, "DP-SGD": 2000}
CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.1, 5.0, 1e-5
STATISTICS = ("partial", "published")
CLASSES = ("vertical", "horizontal")
BINS = 40


def images(seed: int, per_class: int = PER_CLASS) -> tuple[Tensor, Tensor]:
    """Return images (2·per_class, 25) and labels: first the vertical bars, then the horizontal."""
    generator = np.random.default_rng(seed)
    bars = np.zeros((2, SIDE, SIDE))
    bars[0, :, SIDE // 2] = 1
    bars[1, SIDE // 2, :] = 1
    noisy = np.repeat(bars.reshape(2, -1), per_class, axis=0)
    noisy += generator.normal(0, 0.2, noisy.shape)
    low, high = noisy.min(axis=1, keepdims=True), noisy.max(axis=1, keepdims=True)
    labels = np.repeat([0.0, 1.0], per_class)
    return torch.from_numpy((noisy - low) / (high - low)), torch.from_numpy(labels)


def network(seed: int) -> nn.Sequential:
    """Return the network; its last sigmoid is part of the loss. Weights uniform in [-1, 1]."""
    model = nn.Sequential(
        nn.Linear(SIDE**2, HIDDEN), nn.Sigmoid(), nn.Linear(HIDDEN, 1, bias=False)
    ).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return model


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each record."""
    return binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


def train(kind: str, seed: int) -> nn.Sequential:
    """Return the network after `kind` of training on all images."""
    x, y = images(seed)
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if kind == "DP-SGD":
        Trainer(model, optimizer, loss_fn, plan(), (x, y), seed=seed).fit()
        return model
    for _ in range(STEPS[kind]):
        optimizer.zero_grad()
        loss_fn(model(x), y).mean().backward()
        optimizer.step()
    return model


def plan() -> Any:
    """Return the plan whose full-batch noise multiplier is NOISE_MULTIPLIER."""
    steps, n = STEPS["DP-SGD"], 2 * PER_CLASS
    epsilon = float(gaussian_epsilon_above(np.sqrt(steps) / NOISE_MULTIPLIER, DELTA))
    return assign(
        Budgets([epsilon] * n, DELTA),
        Uniform(),
        steps=steps,
        expected_batch_size=n,
        clip_norm=CLIP_NORM,
    )


def maps(model: nn.Module, seed: int) -> dict[str, Floats]:
    """Return each statistic at every image, (2·per_class, 5, 5)."""
    x, y = images(seed)
    partial = partial_sensitivity(ModelLoss(model, loss_fn), x, y).raw
    names, weights = zip(*model.named_parameters(), strict=True)

    def loss(one: Tensor, target: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        outputs = torch.func.functional_call(model, parameters, (one[None],))
        return loss_fn(outputs, target[None]).sum()

    every = tuple(range(2 + len(weights)))
    per_record = torch.func.vmap(torch.func.grad(loss, every), (0, 0, *[None] * len(weights)))
    gradients = [g.detach().reshape(len(x), -1) for g in per_record(x, y, *weights)]
    published = gradients[0] / torch.cat(gradients, 1).norm(dim=1, keepdim=True)
    shape = (-1, SIDE, SIDE)
    return {"partial": partial.reshape(shape), "published": published.numpy().reshape(shape)}


def histograms(values: dict[str, Floats]) -> dict[str, Any]:
    """Return each pixel's histogram over records, (5, 5, BINS) a kind, on one axis for all kinds;
    the outer bins hold the 1 % beyond."""
    top = max(float(np.quantile(np.abs(v), 0.99)) for v in values.values())
    edges = np.linspace(-top, top, BINS + 1)

    def counts(v: Floats) -> Any:
        pixels = np.clip(v, -top, top).reshape(len(v), -1).T
        return np.reshape([np.histogram(p, edges)[0] for p in pixels], (SIDE, SIDE, -1)).tolist()

    return {"edges": edges.tolist(), "counts": {k: counts(v) for k, v in values.items()}}


def summary(values: Floats, label: int) -> dict[str, Any]:
    """Return a class's map and numbers; `arms` are the other class's bar without the centre."""
    middle = SIDE // 2
    arms = np.zeros((SIDE, SIDE), dtype=bool)
    arms[(middle, slice(None)) if label == 0 else (slice(None), middle)] = True
    arms[middle, middle] = False
    largest = values.max(axis=0)  # the statistic that Mueller et al. 2021 draws
    top = np.zeros(SIDE**2, dtype=bool)
    top[np.argsort(-largest, axis=None)[: arms.sum()]] = True
    mean, spread = values.mean(axis=0), values.std(axis=0)
    return {
        "largest": largest.tolist(),
        "mean": mean.tolist(),
        "top_four_on_the_other_bar": int((top.reshape(SIDE, SIDE) & arms).sum()),
        "mean_on_other_bar": float(mean[arms].mean()),
        "mean_elsewhere": float(mean[~arms].mean()),
        "spread_over_mean": float(np.median(spread / np.abs(mean))),
        "spread": float(np.median(spread)),
        "pixels_whose_sign_differs_between_records": float(
            np.mean((values > 0).any(axis=0) & (values < 0).any(axis=0))
        ),
    }


def one_seed(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the numbers of both kinds of training, and the histograms of the vertical class."""
    runs, found = [], {}
    for kind in STEPS:
        model = train(kind, seed)
        x, y = images(seed + 10_000, 100)
        accuracy = float((((model(x)[:, 0]) > 0) == (y > 0.5)).double().mean())
        found[kind] = maps(model, seed)
        halves = {s: np.split(values, 2) for s, values in found[kind].items()}
        numbers = {
            s: {c: summary(halves[s][k], k) for k, c in enumerate(CLASSES)} for s in STATISTICS
        }
        loss = float(loss_fn(model(images(seed)[0]), images(seed)[1]).mean().detach())
        fit = {"seed": seed, "kind": kind, "test_accuracy": accuracy, "training_loss": loss}
        runs.append(fit | numbers)
    return runs, {
        s: histograms({kind: found[kind][s][:PER_CLASS] for kind in STEPS}) for s in STATISTICS
    }


def run(seeds: int) -> dict[str, Any]:
    """Return all results as JSON types; the histograms of the first seed alone."""
    every = [one_seed(seed) for seed in range(seeds)]
    stage = plan().stages[0]
    mu = np.sqrt(stage.steps) * CLIP_NORM / stage.noise_stddev
    promise = float(gaussian_epsilon_above(mu, DELTA))
    return {
        "epsilon": promise,
        "delta": DELTA,
        "noise_multiplier": float(stage.noise_stddev / stage.clip_norm[0]),
        "steps": STEPS,
        "runs": [result for runs, _ in every for result in runs],
        "histograms": every[0][1],
    }


def maps_figure(maps: Mapping[str, Mapping[str, Floats]]) -> Figure:
    """Return images of partial sensitivities, {row: {column: (h, w)}}, signed, one scale a row.

    A row is one model, whose scale differs from another's. Source: Mueller et al. 2021, Fig. 2A.
    """
    rows, columns = list(maps), list(next(iter(maps.values())))
    figure = Figure(figsize=(2.9 * len(columns) + 0.8, 2.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        top = max(float(np.abs(maps[row][c]).max()) for c in columns) or 1.0
        for column, ax in zip(columns, line, strict=True):
            image = ax.imshow(maps[row][column], cmap=SIGNED, vmin=-top, vmax=top)
            ax.set_xticks([])
            ax.set_yticks([])
            if row == rows[0]:
                ax.set_title(figure_text(column))
        line[0].set_ylabel(figure_text(row))
        figure.colorbar(image, ax=list(line), label="gradient norm per unit")
    return figure


def histograms_figure(edges: Floats, counts: Mapping[str, npt.NDArray[np.int64]]) -> Figure:
    """Return each entry's histogram over records, one colour a run, {run: (h, w, bins)}.

    `edges` (bins + 1,) are one axis for all, so that spreads compare; the outer bins hold what lies
    beyond. Source: Mueller et al. 2021, Fig. 2B.
    """
    height, width, _ = next(iter(counts.values())).shape
    figure = Figure(figsize=(1.6 * width, 1.3 * height + 0.8), layout="constrained")
    grid = figure.subplots(height, width, squeeze=False, sharex=True)
    for (i, j), panel in np.ndenumerate(grid):
        ax: Any = panel
        for k, (run, values) in enumerate(counts.items()):
            shares = values[i, j] / values[i, j].sum()
            ax.stairs(shares, edges, fill=True, alpha=0.6, color=f"C{k}", label=figure_text(run))
        ax.axvline(0, color="black", linewidth=0.5)
        ax.set_yticks([])
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    figure.supxlabel("partial sensitivity of the pixel")
    figure.supylabel("share of records")
    return figure


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw Mueller et al. 2021's Fig. 2A and 2B from stored results."""
    for statistic in STATISTICS:
        first = {r["kind"]: r[statistic] for r in results["runs"] if r["seed"] == 0}
        rows = {
            kind: {f"{c} bar": np.array(found[c]["largest"]) for c in CLASSES}
            for kind, found in first.items()
        }
        save(maps_figure(rows), folder / f"mueller_2021_bars_{statistic}_maps.png")
        found = results["histograms"][statistic]
        counts = {kind: np.array(values) for kind, values in found["counts"].items()}
        figure = histograms_figure(np.array(found["edges"]), counts)
        save(figure, folder / f"mueller_2021_bars_{statistic}_histograms.png")


def run_unit(unit: Unit, place: Folders) -> dict[str, Any]:
    """Return the numbers of so many seeds, and draw the maps into the work folder."""
    torch.set_num_threads(1)
    found = run(unit["seeds"])
    place.work.mkdir(parents=True, exist_ok=True)
    draw(found, place.work)
    return found


def tables(done: Sequence[Outcome]) -> list[Table]:
    runs = [each for one in done for each in one.result["runs"]]
    rows = []
    for kind in STEPS:
        for c in CLASSES:
            its = [r["partial"][c] for r in runs if r["kind"] == kind]
            own = [sum(v["top_four_on_the_other_bar"] for v in its), 4 * len(its)]
            medians = [f"{np.median([v[key] for v in its]):.4f}"
                       for key in ("spread", "mean_on_other_bar")]  # fmt: skip
            ratio = f"{np.median([v['spread_over_mean'] for v in its]):.2f}"
            fits = [r for r in runs if r["kind"] == kind]
            fit = [f"{np.median([r['training_loss'] for r in fits]):.3f}",
                   f"{min(r['test_accuracy'] for r in fits):g}"]  # fmt: skip
            rows.append([kind, c, f"{own[0]} of {own[1]}", medians[0], ratio, medians[1], *fit])
    return [Table(["training", "class", "of the 4 largest pixels, on the other bar",
                   "spread over records", "spread over mean", "mean on the other bar",
                   "training loss", "least test accuracy"], rows,
                  "Medians over pixels, then seeds")]  # fmt: skip


EXPERIMENT = Experiment(
    name="mueller-2021-bars",
    paper="Mueller et al. 2021",
    shows="Figures 2A and 2B: partial sensitivities of bar images, after SGD and DP-SGD",
    cost="two minutes on one thread",
    units=lambda seeds, scale: [{"seeds": seeds}],
    run=run_unit,
    tables=tables,
    notes=lambda done: (
        "The published figures are pictures. Our maps, and which of the paper's three findings "
        "hold, are in [sensitivity](sensitivity.md)."
    ),
)
