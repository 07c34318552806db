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

# Every colour has a contrast of 3 or more on white and on the page's dark ground.
COLOURS = ["#2C7FC9", "#CF6215", "#16886B", "#9566C9", "#C84B87", "#77838F"]
# Beside the colours, for whoever cannot tell these apart.
MARKERS = ["o", "s", "^", "D", "v", "P"]
# Colours of a figure that stand for colours of the page, which change with its ground.
_INK = "#010203"
_GRID = "#010204"
# What takes their place in the SVG.
_PAGE_COLOURS = {_INK: "currentColor", _GRID: "var(--line)"}
# Texts stay texts, ids are the same in every process, and the grounds are the page's.
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
# Inches: narrow, so that texts can be read on a phone.
_WIDTH = 5.2
# The δ down to which a privacy profile is drawn.
_LEAST_DELTA = 1e-12


@rc_context(_STYLE)
def accuracy(run: Run) -> Markup | None:
    """Return a figure of test accuracy, one dot a seed and a bar at the mean; None of one dot."""
    strategies = [strategy for strategy in run.strategies if strategy.test_accuracy]
    if sum(len(strategy.test_accuracy) for strategy in strategies) < 2:
        return None
    figure, axes = _make_axes(0.9 + 0.5 * len(strategies))
    for row, strategy in enumerate(strategies):
        colour = COLOURS[row % len(COLOURS)]
        values = [100 * value for value in strategy.test_accuracy]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.6, markersize=7)
        mean = 100 * (strategy.test_accuracy_mean or 0.0)
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
    _label_rows(axes, [strategy.strategy for strategy in strategies])
    axes.margins(x=0.12)
    axes.set_xlabel("test accuracy, %: a dot for each seed, a bar at the mean")
    return _write_svg(figure, "Test accuracy of each strategy, on held-out people.")


@rc_context(_STYLE)
def budgets(by_strategy: Mapping[str, Sequence[Promise]]) -> Markup | None:
    """Return a figure of each group's ε, asked (a line) and spent (marks); None of one mark."""
    groups = next(iter(by_strategy.values()))
    if len(groups) * len(by_strategy) == 1:
        return None
    positions = choose_shown(len(groups))
    figure, axes = _make_axes(1.3 + 0.42 * len(positions))
    for row, position in enumerate(positions):
        epsilon = groups[position].epsilon
        axes.plot([epsilon, epsilon], [row - 0.36, row + 0.36], color=_INK, linewidth=2)
    for number, (name, promises) in enumerate(by_strategy.items()):
        # The marks of a group lie around its row, one strategy below the other.
        offset = 0.22 * (number - (len(by_strategy) - 1) / 2)
        axes.plot(
            [promises[position].epsilon_spent for position in positions],
            [row + offset for row in range(len(positions))],
            MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=figure_text(name),
            markersize=6.5,
        )
    axes.plot([], [], color=_INK, linewidth=2, label="asked")
    _label_rows(axes, [groups[position].name for position in positions])
    axes.set_xscale("log")
    # Room at both ends, in proportion, as the scale is logarithmic.
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.25, high * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.set_xlabel("ε spent, on a logarithmic scale; the line is what was asked")
    figure.legend(loc="outside upper left", ncols=min(len(by_strategy) + 1, 4), frameon=False)
    title = "For each group the ε it asked for and the ε that each strategy spends."
    return _write_svg(figure, title)


@rc_context(_STYLE)
def profile(
    plan: Plan, chosen: Sequence[int]
) -> tuple[Markup, list[tuple[Group, list[tuple[float, str]]]]]:
    """Return a figure of δ at each ε of some groups, and (δ, ε) at some δ around that asked."""
    figure, axes = _make_axes(3.2)
    points = []
    for number, position in enumerate(chosen):
        group = plan.groups[position]
        curve = plan.curve(position)
        colour = COLOURS[number % len(COLOURS)]
        table_deltas = (min(100 * group.delta, 1.0), group.delta, group.delta / 100)
        # ε at each δ takes far less than δ at each ε; where ε is 0 the profile has its largest δ.
        largest = float(curve.delta(0.0).upper)
        delta = np.geomspace(max(largest, _LEAST_DELTA), _LEAST_DELTA, 24)
        # One call for the curve, but for its first point, and for the table.
        epsilon = curve.epsilon(np.concatenate([delta[1:], table_deltas])).upper
        axes.plot([0.0, *epsilon[:-3]], delta, color=colour, label=figure_text(group.name))
        marker = MARKERS[number % len(MARKERS)]
        axes.plot([group.epsilon], [group.delta], marker, color=colour)
        table_epsilons = [rounded_up(value) for value in epsilon[-3:].tolist()]
        points.append((group, list(zip(table_deltas, table_epsilons, strict=True))))
    axes.set(yscale="log", xlabel="ε, upper bound", ylabel="δ")
    axes.set_ylim(_LEAST_DELTA, 1.5)
    axes.minorticks_off()
    axes.set_xlim(left=0)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    title = (
        "The privacy profile: for each ε the δ that the released model keeps; marks are promises."
    )
    return _write_svg(figure, title), points


@rc_context(_STYLE)
def influence(rows: Sequence[tuple[Group, float, float, float]]) -> Markup | None:
    """Return a figure of each group's share of the people and of the pull; None of one group."""
    if len(rows) == 1:
        return None
    shown = [rows[position] for position in choose_shown(len(rows))]
    figure, axes = _make_axes(1.1 + 0.5 * len(shown))
    positions = np.arange(len(shown))
    people = [100 * share for _, share, _, _ in shown]
    pull = [100 * share for _, _, _, share in shown]
    axes.barh(positions - 0.18, people, 0.34, color=COLOURS[-1], label="of the people")
    # 0.36 first: the sum is rounded in this order.
    axes.barh(positions + 0.36 - 0.18, pull, 0.34, color=COLOURS[0], label="of the greatest pull")
    _label_rows(axes, [group.name for group, _, _, _ in shown])
    axes.set_xlabel("share of the group, %")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    title = "Each group's share of the people and of the greatest pull on a step."
    return _write_svg(figure, title)


@rc_context(_STYLE)
def learning_curve(points: Sequence[tuple[int, float]], *, error: bool) -> Markup | None:
    """Return a figure of held-out accuracy, or of the error, by step; None of fewer than two."""
    if len(points) < 2:
        return None
    figure, axes = _make_axes(2.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # An accuracy is shown in per cent.
    scale = 1.0 if error else 100.0
    steps = [step for step, _ in points]
    values = [scale * value for _, value in points]
    axes.plot(steps, values, "o-", color=COLOURS[0], markersize=4)
    name = "mean absolute error" if error else "accuracy, %"
    axes.set(xlabel="step", ylabel=name)
    return _write_svg(
        figure, f"The learning curve: {name} on held-out people after some of the steps."
    )


@rc_context(_STYLE)
def rocs(curves: Mapping[str, Roc]) -> Markup | None:
    """Return a figure of true against false positive rate by group; None without any."""
    if not curves:
        return None
    shown = list(curves.items())[: len(COLOURS)]
    figure, axes = _make_axes(3.6)
    # The smallest false-positive rate above 0.
    smallest = min(1 / curve.others for _, curve in shown)
    for colour, (name, curve) in zip(COLOURS, shown, strict=False):
        axes.step(curve.fpr, curve.tpr, where="post", color=colour, label=figure_text(name))
    axes.plot([smallest, 1], [smallest, 1], ":", color=_INK, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(smallest, 1), ylim=(smallest, 1.1))
    axes.minorticks_off()
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    title = "How well members are told from others: true against false positives."
    return _write_svg(figure, title)


def _make_axes(height: float) -> tuple[Any, Any]:
    """Return a figure of this height, in inches, and its axes."""
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


@rc_context(_STYLE)
def estimates(rows: Sequence[Mapping[str, Any]], statistic: str) -> Markup:
    """Return a chart of an answer's numbers with their intervals, the first on top.

    Args:
        rows: As `Answer.frame` has them.
        statistic: Its name, "" of an answer with one.
    """
    numbers = ("statistic", "estimate", "low", "high")
    names = [
        ", ".join(str(value) for name, value in row.items() if name not in numbers) for row in rows
    ]
    figure = Figure(figsize=(_WIDTH, 0.6 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    heights = np.arange(len(rows))
    lows = np.array([row["low"] for row in rows], dtype=np.float64)
    highs = np.array([row["high"] for row in rows], dtype=np.float64)
    # Some numbers have no interval, as those of ranks.
    known = np.isfinite(lows) & np.isfinite(highs)
    axes.hlines(heights[known], lows[known], highs[known], color=COLOURS[0], linewidth=2)
    axes.plot([row["estimate"] for row in rows], heights, MARKERS[0], color=COLOURS[1], ms=4)
    _label_rows(axes, names)
    label = statistic or "estimate"
    axes.set_xlabel(figure_text(label))
    return _write_svg(figure, f"{label} of each group, with intervals of the noise")


def _label_rows(axes: Any, names: Sequence[str]) -> None:
    """Give each row of a figure its name, the first one on top; long ones make it wider."""
    labels = [figure_text(name) for name in names]
    # A name of twenty characters fits the width; each one more needs about .09 inches.
    excess_characters = max(map(len, labels)) - 20
    if excess_characters > 0:
        axes.figure.set_figwidth(_WIDTH + 0.09 * excess_characters)
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _write_svg(figure: Any, title: str) -> Markup:
    """Return a figure as SVG with a title for readers who cannot see it, in the page's colours."""
    # matplotlib escapes the texts that `figure_text` let through.
    buffer = io.StringIO()
    # Without date and creator, the same figure is the same bytes.
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Its groups are named "axes_1" in every figure, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for token, colour in _PAGE_COLOURS.items():
        # matplotlib knows no colours of a page: stand-ins of no use elsewhere are replaced in its
        # SVG.
        text = re.sub(f'(fill|stroke): {token}(?=[;"])', rf"\1: {colour}", text)
    label = html.escape(plain(title))
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))
