"""The figures of the audits, and of the filter, from the stored results alone.

python -m research.experiments.audit_figures --out FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from apiece._text import figure_text
from apiece.audit.membership import Roc
from apiece.errors import InputError
from apiece.reporting.plots import COLOURS, at_most_seven
from research import RESULTS
from research.experiment import Outcome
from research.store import Store

LINES = {"0.3": ("ε = 0.30 for all", "-"), "0.30/0.31": ("ε = 0.30 and 0.31, half each", "--")}


def roc_figure(rocs: Mapping[str, Roc]) -> Figure:
    """Return the ROC of every group on logarithmic axes, from one false positive upwards."""
    at_most_seven("ROC curves", len(rocs))
    figure = Figure(figsize=(5, 4.3), layout="constrained")
    axes = figure.subplots()
    least = min(1 / curve.others for curve in rocs.values())
    for colour, (name, curve) in zip(COLOURS, rocs.items(), strict=False):
        label = f"{figure_text(name)}, AUC {curve.auc:.3f}"
        axes.step(curve.fpr, curve.tpr, where="post", color=colour, label=label)
    axes.plot([least, 1], [least, 1], ":", color="0.5")
    axes.set(
        xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1),
        xlabel="false-positive rate", ylabel="true-positive rate",
    )  # fmt: skip
    axes.legend(frameon=False, loc="lower right")
    return figure


def share_figure(
    shares: Sequence[float],
    means: Mapping[str, Sequence[float]],
    *,
    floor: float | None = None,
    score: str = "privacy score",
) -> Figure:
    """Return each group's mean score by the share of the strict group (Kaiser et al. 2026 Table I).

    `floor` is the score of a record that leaks nothing, drawn dotted.
    """
    at_most_seven("groups", len(means))
    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for colour, (name, column) in zip(COLOURS, means.items(), strict=False):
        if len(column) != len(shares):
            raise InputError(f"means of {name}: {len(column)} for {len(shares)} shares")
        axes.plot(np.asarray(shares) * 100, column, "o-", color=colour, label=figure_text(name))
    if floor is not None:
        axes.axhline(floor, color="0.5", linestyle=":", label="no leak")
    axes.set(xlabel="share of the strict group (%)", ylabel=f"mean {figure_text(score)}")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def spaghetti_figure(budgets: Sequence[float], scores: npt.ArrayLike) -> Figure:
    """Return one line a target, (targets, budgets): its score against what all others ask.

    Lines that rise towards the small budgets are warm, the others cool; the bold one is the median.
    Source: Kaiser et al. 2026, Fig. 6.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(budgets) or not values.size:
        raise InputError(f"scores: shape {values.shape} for {len(budgets)} budgets of the others")
    order = np.argsort(budgets)
    asked, values = np.asarray(budgets, dtype=float)[order], values[:, order]
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axes = figure.subplots()
    rising = values[:, 0] > values[:, -1]
    words = (f"more vulnerable at {asked[0]:g}", "not more vulnerable")
    for colour, name, own in zip(COLOURS[1::-1], words, (rising, ~rising), strict=True):
        for at, line in enumerate(values[own]):
            label = f"{name} ({own.sum()} of {own.size})" if at == 0 else None
            axes.plot(asked, line, color=colour, alpha=0.5, linewidth=0.9, label=label)
    axes.plot(asked, np.median(values, axis=0), "o-", color="black", linewidth=2, label="median")
    axes.set_xscale("log", base=2)
    axes.set_xticks(asked, [f"{a:g}" for a in asked])
    axes.set(xlabel="budget ε of all others", ylabel="privacy score of the target")
    figure.legend(frameon=False, loc="outside upper center")
    return figure


def theory_figure(
    bounds: Mapping[str, float], measured: Mapping[str, float] | None = None
) -> Figure:
    """Return the greatest advantage that each plan allows, and the measured one beside it."""
    if not bounds or (measured is not None and list(measured) != list(bounds)):
        raise InputError(f"measured: not one for each of {list(bounds)}")
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(bounds))
    axes.bar(places, list(bounds.values()), 0.6, color=COLOURS[4], label="bound, from the plan")
    if measured is not None:
        axes.plot(places, list(measured.values()), "D", color=COLOURS[1], label="measured")
    axes.set_xticks(places, list(map(figure_text, bounds)), rotation=20, ha="right")
    least = min([0.0, *(measured or {}).values()])
    axes.set(ylabel="advantage (TPR − FPR)", ylim=(3 * least, 1.15))
    axes.legend(frameon=False, ncols=2, loc="upper center")
    return figure


def stored(name: str) -> list[Outcome]:
    return Store(RESULTS).load(name)


def boenisch_2023_fig2() -> dict[str, Figure]:
    """ROC by group, log–log, one figure a network."""
    return {
        f"boenisch_2023_fig2_roc_{network}": roc_figure(
            {
                name: Roc(np.array(c["fpr"]), np.array(c["tpr"]), c["members"], c["others"])
                for name, c in found["roc"].items()
            }
        )
        for network, found in (
            (one.unit["network"], one.result) for one in stored("boenisch-2023-fig2")
        )
    }


def boenisch_2023_fig3() -> dict[str, Figure]:
    """How many records of MNIST are active; a panel a clip norm, a line a set of budgets."""
    done = [one for one in stored("feldman-2021-table") if one.unit["data"].startswith("mnist")]
    rows = [row for one in done for row in one.result["rows"]]
    rows = [row for row in rows if row.get("active") and row["epsilon"] in LINES]
    panels = sorted({(row["clip"], row["steps"]) for row in rows})
    figure = Figure(figsize=(3.6 * len(panels), 3.0), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row in rows:
            if (row["clip"], row["steps"]) == panel:
                label, line = LINES[row["epsilon"]]
                axes.plot(range(1, len(row["active"]) + 1), row["active"], line, label=label)
        axes.set_title(f"clip norm {panel[0]:g}, noise for {panel[1]} steps", fontsize=9)
        axes.set_xlabel("step")
        axes.grid(color="#e6e6e6")
    figure.axes[0].set_ylabel("active records")
    figure.axes[0].legend(fontsize=8, loc="lower left")
    return {"boenisch_2023_fig3": figure}


def kaiser_2026_table1() -> dict[str, Figure]:
    """Signed score, which has no floor, against the share of the strict group; by strategy."""
    found: dict[str, Figure] = {}
    rows = [one.result for one in stored("kaiser-2026-table1")]
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        means = {
            f"{group}, {row['strategy']}": group_row["signed_mean"]
            for row in own
            for group, group_row in row["groups"].items()
        }
        found[f"kaiser_2026_table1_{name}"] = share_figure(
            own[0]["shares"], means, floor=0.0, score="signed privacy score"
        )
    return found


def kaiser_2026_fig6() -> dict[str, Figure]:
    """The spaghetti plots, and theory against measurement."""
    (result,) = (one.result for one in stored("kaiser-2026-fig6"))
    found: dict[str, Figure] = {}
    bounds, measured = {}, {}
    for kind in ("sample", "contract"):
        if kind not in result:
            continue
        scores = result[kind]["privacy_scores"]
        budgets = [float(others) for others in scores]
        values = np.array(list(scores.values())).T
        found[f"kaiser_2026_fig6_{kind}"] = spaghetti_figure(budgets, values)
        for others, advantage in result[kind]["advantage"].items():
            label = f"others {float(others):g}" + ("" if kind == "sample" else "\ncontract")
            if kind == "contract" and float(others) == result["target_epsilon"]:
                continue
            bounds[label] = advantage
            measured[label] = result[kind]["measured_advantage"][others]
    found["kaiser_2026_theory"] = theory_figure(bounds, measured)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in {
        **boenisch_2023_fig2(),
        **boenisch_2023_fig3(),
        **kaiser_2026_table1(),
        **kaiser_2026_fig6(),
    }.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
