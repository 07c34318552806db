"""The page's figures, as SVG that takes the page's colours, light, dark or on paper."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from apiece._text import figure_text, plain, rounded_up
from apiece.jobs.results import choose_shown

if TYPE_CHECKING:
    from apiece.audit.membership import Roc
    from apiece.jobs import Run
    from apiece.jobs.trained import Promise
    from apiece.plan import Group, Plan

# Each has a contrast of 3 or more on white and on the page's dark ground.
COLOURS = ["#2C7FC9", "#CF6215", "#16886B", "#9566C9", "#C84B87", "#77838F"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
# Stand for colours of the page, which change with its ground.
_INK, _GRID = "#010203", "#010204"
_TAKEN = {_INK: "currentColor", _GRID: "var(--line)"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "apiece",
    "font.family": "sans-serif",
    "font.size": 10.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.grid": True,
    "grid.color": _GRID,
    "axes.axisbelow": True,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}
_WIDTH = 5.2  # inches: narrow, so that texts can be read on a phone
_LEAST_DELTA = 1e-12


@rc_context(_STYLE)
def accuracy(run: Run) -> Markup | None:
    """Return a figure of test accuracy, one dot a seed and a bar at the mean; None of one dot."""
    strategies = [each for each in run.strategies if each.test_accuracy]
    if sum(len(each.test_accuracy) for each in strategies) < 2:
        return None
    figure, axes = _axes(0.9 + 0.5 * len(strategies))
    for row, strategy in enumerate(strategies):
        colour = COLOURS[row % len(COLOURS)]
        values = [100 * v for v in strategy.test_accuracy]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.6, markersize=7)
        mean = 100 * (strategy.test_accuracy_mean or 0.0)
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
    _rows(axes, [s.strategy for s in strategies])
    axes.margins(x=0.12)
    axes.set_xlabel("test accuracy, %: a dot for each seed, a bar at the mean")
    return _svg(figure, "Test accuracy of each strategy, on held-out people.")


@rc_context(_STYLE)
def budgets(by_strategy: Mapping[str, Sequence[Promise]]) -> Markup | None:
    """Return a figure of each group's ε, asked (a line) and spent (marks); None of one mark."""
    groups = next(iter(by_strategy.values()))
    if len(groups) * len(by_strategy) == 1:
        return None
    shown = choose_shown(len(groups))
    figure, axes = _axes(1.3 + 0.42 * len(shown))
    for row, g in enumerate(shown):
        asked = groups[g].epsilon
        axes.plot([asked, asked], [row - 0.36, row + 0.36], color=_INK, linewidth=2)
    offsets = [0.22 * (i - (len(by_strategy) - 1) / 2) for i in range(len(by_strategy))]
    for i, (name, promises) in enumerate(by_strategy.items()):
        axes.plot(
            [promises[g].epsilon_spent for g in shown],
            [row + offsets[i] for row in range(len(shown))],
            MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            label=figure_text(name),
            markersize=6.5,
        )
    axes.plot([], [], color=_INK, linewidth=2, label="asked")
    _rows(axes, [groups[g].name for g in shown])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.25, high * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.set_xlabel("ε spent, on a logarithmic scale; the line is what was asked")
    figure.legend(loc="outside upper left", ncols=min(len(by_strategy) + 1, 4), frameon=False)
    return _svg(figure, "For each group the ε it asked for and the ε that each strategy spends.")


@rc_context(_STYLE)
def profile(
    plan: Plan, chosen: Sequence[int]
) -> tuple[Markup, list[tuple[Group, list[tuple[float, str]]]]]:
    """Return a figure of δ at each ε of some groups, and (δ, ε) at some δ around that asked."""
    figure, axes = _axes(3.2)
    points = []
    for i, g in enumerate(chosen):
        group, curve, colour = plan.groups[g], plan.curve(g), COLOURS[i % len(COLOURS)]
        at = min(100 * group.delta, 1.0), group.delta, group.delta / 100
        # ε at each δ takes far less than δ at each ε; where ε is 0 the profile has its largest δ.
        whole = float(curve.delta(0.0).upper)
        delta = np.geomspace(max(whole, _LEAST_DELTA), _LEAST_DELTA, 24)
        epsilon = curve.epsilon(np.concatenate([delta[1:], at])).upper
        axes.plot([0.0, *epsilon[:-3]], delta, color=colour, label=figure_text(group.name))
        axes.plot([group.epsilon], [group.delta], MARKERS[i % len(MARKERS)], color=colour)
        points.append((group, list(zip(at, map(rounded_up, epsilon[-3:].tolist()), strict=True))))
    axes.set(yscale="log", xlabel="ε, upper bound", ylabel="δ")
    axes.set_ylim(_LEAST_DELTA, 1.5)
    axes.minorticks_off()
    axes.set_xlim(left=0)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    said = (
        "The privacy profile: for each ε the δ that the released model keeps; marks are promises."
    )
    return _svg(figure, said), points


@rc_context(_STYLE)
def influence(rows: Sequence[tuple[Group, float, float, float]]) -> Markup | None:
    """Return a figure of each group's share of the people and of the pull; None of one group."""
    if len(rows) == 1:
        return None
    shown = [rows[i] for i in choose_shown(len(rows))]
    figure, axes = _axes(1.1 + 0.5 * len(shown))
    places = np.arange(len(shown))
    for i, (column, label) in enumerate(((1, "of the people"), (3, "of the greatest pull"))):
        values = [100 * float(row[column]) for row in shown]  # type: ignore[arg-type]
        axes.barh(places + 0.36 * i - 0.18, values, 0.34, color=COLOURS[-1 - 5 * i], label=label)
    _rows(axes, [row[0].name for row in shown])
    axes.set_xlabel("share of the group, %")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return _svg(figure, "Each group's share of the people and of the greatest pull on a step.")


@rc_context(_STYLE)
def learning_curve(points: Sequence[tuple[int, float]], *, error: bool) -> Markup | None:
    """Return a figure of held-out accuracy, or of the error, by step; None of fewer than two."""
    if len(points) < 2:
        return None
    figure, axes = _axes(2.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    scale = 1.0 if error else 100.0
    axes.plot([s for s, _ in points], [scale * v for _, v in points], "o-", color=COLOURS[0],
              markersize=4)  # fmt: skip
    name = "mean absolute error" if error else "accuracy, %"
    axes.set(xlabel="step", ylabel=name)
    return _svg(figure, f"The learning curve: {name} on held-out people after some of the steps.")


@rc_context(_STYLE)
def rocs(curves: Mapping[str, Roc]) -> Markup | None:
    """Return a figure of true against false positive rate by group; None without any."""
    if not curves:
        return None
    shown = list(curves.items())[: len(COLOURS)]
    figure, axes = _axes(3.6)
    least = min(1 / curve.others for _, curve in shown)
    for colour, (name, curve) in zip(COLOURS, shown, strict=False):
        axes.step(curve.fpr, curve.tpr, where="post", color=colour, label=figure_text(name))
    axes.plot([least, 1], [least, 1], ":", color=_INK, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    axes.minorticks_off()
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    return _svg(figure, "How well members are told from others: true against false positives.")


def _axes(height: float) -> tuple[Any, Any]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _rows(axes: Any, names: Sequence[str]) -> None:
    """Give each row of a figure its name, the first one on top; long ones make it wider."""
    shown = [figure_text(name) for name in names]
    spare = max(map(len, shown)) - 20
    if spare > 0:
        axes.figure.set_figwidth(_WIDTH + 0.09 * spare)
    axes.set_yticks(range(len(names)), shown)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _svg(figure: Any, title: str) -> Markup:
    """Return a figure as SVG with a title for who cannot see it, in the page's own colours."""
    # matplotlib escapes the texts that `figure_text` let through.
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Its groups are named "axes_1" in every figure, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for token, colour in _TAKEN.items():
        text = re.sub(f'(fill|stroke): {token}(?=[;"])', rf"\1: {colour}", text)
    said = html.escape(plain(title))
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1))
