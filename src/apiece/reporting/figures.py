"""The report's figures, as SVG text to put into the page."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from apiece._text import figure_text

if TYPE_CHECKING:
    from apiece.jobs import Run

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = ["#4C5B6B", "#0B7A75", "#C2571A", "#7A4EAB", "#A8324A"]
MARKERS = ["o", "s", "^", "D", "v"]
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "apiece",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
}
_MOST = 12  # groups drawn; with more, the strictest, the loosest and some between


def _styled(draw: Callable[P, R]) -> Callable[P, R]:
    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inside


@_styled
def accuracy(run: Run) -> str | None:
    """Return a figure of test accuracy, one dot a seed and a bar at the mean; None if untested."""
    strategies = [found for found in run.strategies if found.test_accuracy]
    if not strategies:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 0.9 + 0.5 * len(strategies)), layout="constrained")
    axes = figure.subplots()
    for row, strategy in enumerate(strategies):
        colour = COLOURS[row % len(COLOURS)]
        values = [100 * v for v in strategy.test_accuracy]
        axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.45, markersize=7)
        mean = 100 * (strategy.test_accuracy_mean or 0.0)
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
    axes.set_yticks(range(len(strategies)), [figure_text(s.strategy) for s in strategies])
    axes.set_ylim(len(strategies) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy, %: a dot for each seed, a bar at the mean")
    return _svg(figure)


@_styled
def budgets(run: Run) -> str:
    """Return a figure of ε asked (a line) and ε spent (a mark a strategy) for each group."""
    from matplotlib.figure import Figure

    strategies = run.strategies
    groups = strategies[0].promises
    shown = _some(len(groups))
    figure = Figure(figsize=(7.2, 1.3 + 0.42 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for row, g in enumerate(shown):
        asked = groups[g].epsilon
        axes.plot([asked, asked], [row - 0.36, row + 0.36], color="#111", linewidth=2)
    offsets = [0.22 * (i - (len(strategies) - 1) / 2) for i in range(len(strategies))]
    for i, strategy in enumerate(strategies):
        spent = [strategy.promises[g].epsilon_spent for g in shown]
        axes.plot(
            spent,
            [row + offsets[i] for row in range(len(shown))],
            MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            label=figure_text(strategy.strategy),
            markersize=6.5,
        )
    axes.plot([], [], color="#111", linewidth=2, label="asked")
    axes.set_yticks(range(len(shown)), [figure_text(groups[g].name) for g in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    _epsilon_axis(axes)
    axes.set_xlabel("ε spent, on a logarithmic scale; the black line is what was asked")
    figure.legend(loc="outside upper left", ncols=len(strategies) + 1, frameon=False)
    return _svg(figure)


def _epsilon_axis(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.25, high * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _some(count: int) -> list[int]:
    if count <= _MOST:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_MOST - 1)) for i in range(_MOST)})


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
