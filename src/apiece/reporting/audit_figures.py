"""Figures of audits, from findings and result records; no model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from apiece._text import figure_text
from apiece.audit import Roc
from apiece.errors import InputError

# Distinguishable with any colour vision (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def roc_figure(rocs: Mapping[str, Roc]) -> Figure:
    """Return the ROC of every group on logarithmic axes, from one false positive upwards.

    Raises `InputError` for none, or more than seven.
    """
    _at_most_seven("ROC curves", len(rocs))
    figure = Figure(figsize=(5, 4.3), layout="constrained")
    axes = figure.subplots()
    least = min(1 / curve.others for curve in rocs.values())
    for colour, (name, curve) in zip(_COLOURS, rocs.items(), strict=False):
        label = f"{figure_text(name)}, AUC {curve.auc:.3f}"
        axes.step(curve.fpr, curve.tpr, where="post", color=colour, label=label)
    axes.plot([least, 1], [least, 1], ":", color="0.5")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(least, 1),
        ylim=(least, 1),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
    )
    axes.legend(frameon=False, loc="lower right")
    return figure


def share_figure(
    shares: Sequence[float],
    means: Mapping[str, Sequence[float]],
    *,
    floor: float | None = None,
    score: str = "privacy score",
) -> Figure:
    """Return the mean privacy score of each group against the share of the strict group.

    Kaiser et al. 2026 Table I as lines. floor: the score of a record that leaks nothing, drawn
    dotted. score: what the means are of. Raises `InputError` where a group has not one mean a
    share.
    """
    _at_most_seven("groups", len(means))
    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for colour, (name, column) in zip(_COLOURS, means.items(), strict=False):
        if len(column) != len(shares):
            raise InputError(f"means of {name}: {len(column)} for {len(shares)} shares")
        axes.plot(np.asarray(shares) * 100, column, "o-", color=colour, label=figure_text(name))
    if floor is not None:
        axes.axhline(floor, color="0.5", linestyle=":", label="no leak")
    axes.set(xlabel="share of the strict group (%)", ylabel=f"mean {figure_text(score)}")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def spaghetti_figure(budgets: Sequence[float], scores: npt.ArrayLike) -> Figure:
    """Return one line a target: its privacy score against what the others ask.

    As Kaiser et al. 2026, Fig. 6.

    budgets: what the others ask, (b,). scores: (targets, b). Lines that rise towards the small
    budgets are drawn in a warm colour, the others in a cool one; the bold line is the median.
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
    for colour, name, own in zip(_COLOURS[1::-1], words, (rising, ~rising), strict=True):
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
    """Return the greatest advantage that each plan allows, and the measured one beside it.

    bounds: from the plans (`contract.Exposure.advantage`), by what is compared. measured:
    under the same names; at most the bound, up to sampling error. Raises `InputError` for
    other names.
    """
    if not bounds or (measured is not None and list(measured) != list(bounds)):
        raise InputError(f"measured: not one for each of {list(bounds)}")
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(bounds))
    axes.bar(places, list(bounds.values()), 0.6, color=_COLOURS[4], label="bound, from the plan")
    if measured is not None:
        axes.plot(places, list(measured.values()), "D", color=_COLOURS[1], label="measured")
    axes.set_xticks(places, list(map(figure_text, bounds)), rotation=20, ha="right")
    least = min([0.0, *(measured or {}).values()])
    axes.set(ylabel="advantage (TPR − FPR)", ylim=(3 * least, 1.15))
    axes.legend(frameon=False, ncols=2, loc="upper center")
    return figure


def _at_most_seven(what: str, count: int) -> None:
    if not 0 < count <= len(_COLOURS):
        raise InputError(f"{what}: {count}; draw 1 to {len(_COLOURS)} in one figure")
