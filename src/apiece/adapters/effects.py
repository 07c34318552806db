"""What each column adds to a prediction of an additive model, with the noise that is in it.

A model without hidden layers adds up one function for each column: a straight line, a curve through
knots, or a number a category. These functions are all that it has learned. Reading, drawing and
changing them is post-processing, which costs nobody anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from apiece._types import Floats
from apiece.datasets import Categorical, Numeric
from apiece.datasets.encode import label_knots, locate_knots, name_features
from apiece.datasets.schema import Feature
from apiece.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Label of a cell without a value.
MISSING: Final = "(missing)"
# Points at which a straight line on a logarithmic scale is given.
_LOG_POINTS: Final = 17
# Categories whose names are written in letters of full size, at most.
_MANY_LABELS: Final = 18
# Figures a row, and the side of one in inches.
_COLUMNS: Final = 3
_SIDE: Final = 3.2


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """The function of one column in an additive model.

    Attributes:
        column: Its name.
        labels: The values at which it is known, as texts; the last one "(missing)" where cells may
            be empty. Between two knots of a curve it is a straight line.
        positions: The knots of a curve or the ends of a line, as numbers, of dates in days since
            1970; None of categories.
        values: (labels, outputs) What is added to each output. The mean over the labels but
            "(missing)" is 0: a constant that the model adds holds the rest.
        noise: Standard deviation of the training's noise in a value: what it would be if no later
            step corrected it.
        is_log: Whether the column is on a logarithmic scale.
    """

    column: str
    labels: tuple[str, ...]
    positions: Floats | None
    values: Floats
    noise: float
    is_log: bool = False

    def __repr__(self) -> str:
        return f"Effect(column={self.column!r}, labels={len(self.labels)}, noise={self.noise!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Contrast:
    """How the outputs of a network are shown as effects.

    Attributes:
        outputs: Names of the numbers that are shown.
        title: What the numbers are.
        matrix: (network's outputs, shown numbers) What the outputs are multiplied by.
        spread: (network's outputs,) What is added to each output for one more in the first number.
        gain: A shown number's standard deviation for one of 1 in each output.
    """

    outputs: tuple[str, ...]
    title: str
    matrix: Floats
    spread: Floats
    gain: float


def contrast_of_classes(classes: tuple[str, ...]) -> Contrast:
    """Return the log odds of the second of two classes; of more, scores less their mean."""
    count = len(classes)
    if count == 2:
        name = f"log odds of {classes[1]}"
        matrix = np.array([[-1.0], [1.0]])
        return Contrast((name,), name, matrix, np.array([-0.5, 0.5]), math.sqrt(2))
    centring = np.eye(count) - 1 / count
    return Contrast(classes, "score", centring, centring[:, 0], math.sqrt(1 - 1 / count))


def contrast_of_amount(width: float) -> Contrast:
    """Return the number that is predicted; its range of this width is [-1, 1] to the network."""
    half = width / 2
    matrix = np.array([[half]])
    return Contrast(("effect",), "effect", matrix, np.array([1 / half]), half)


def locate_features(columns: Mapping[str, Feature]) -> dict[str, slice]:
    """Return where the features of each column lie among all."""
    places: dict[str, slice] = {}
    start = 0
    for name, kind in columns.items():
        stop = start + len(name_features({name: kind}))
        places[name] = slice(start, stop)
        start = stop
    return places


def read_effect(name: str, kind: Feature, weights: Floats, noise: float) -> Effect:
    """Return a column's function, from the weights (features, outputs) of its features."""
    has_missing = bool(kind.missing)
    main = weights[: len(weights) - has_missing]
    positions: Floats | None = None
    is_log = isinstance(kind, Numeric) and kind.scale == "log"
    if isinstance(kind, Categorical):
        labels = kind.labels
    elif kind.knots:
        labels = label_knots(kind)
        positions = locate_knots(kind)
    else:
        # A straight line over the scaled range [-1, 1] is known by its ends, if it stays straight.
        points = replace(kind, knots=_LOG_POINTS if is_log else 2)
        labels = label_knots(points)
        positions = locate_knots(points)
        main = np.linspace(-1, 1, points.knots)[:, None] * main
    values = main - main.mean(axis=0)
    if has_missing:
        values = np.concatenate([values, weights[-1:] - main.mean(axis=0)])
        labels = (*labels, MISSING)
    return Effect(name, labels, positions, values, noise, is_log)


def frame_of(effects: Sequence[Effect], outputs: Sequence[str]) -> pd.DataFrame:
    """Return effects as a table: column, value, noise, and one column for each output."""
    import pandas as pd

    rows = []
    for effect in effects:
        for label, values in zip(effect.labels, effect.values, strict=True):
            row: dict[str, object] = {"column": effect.column, "value": label}
            row |= dict(zip(outputs, values.tolist(), strict=True))
            row["noise"] = effect.noise
            rows.append(row)
    return pd.DataFrame(rows)


def draw(effects: Sequence[Effect], outputs: Sequence[str], title: str) -> Figure:
    """Return a figure of effects, each with a band of two standard deviations of its noise."""
    from apiece._lazy import require

    require("reports")
    from matplotlib.figure import Figure

    if not effects:
        raise InputError("columns: none; name at least one column of the model")
    across = min(_COLUMNS, len(effects))
    down = -(-len(effects) // across)
    figure = Figure(figsize=(_SIDE * across, _SIDE * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, effect in zip(panels, effects, strict=False):
        for output, name in enumerate(outputs):
            _draw_one(panel, effect, effect.values[:, output], name)
        panel.set_title(effect.column, fontsize=9)
        panel.axhline(0, color="grey", linewidth=0.5)
        panel.tick_params(axis="y", labelsize=7)
    for panel in panels[len(effects) :]:
        panel.set_axis_off()
    figure.supylabel(title, fontsize=9)
    if len(outputs) > 1:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_one(panel: Axes, effect: Effect, values: Floats, name: str) -> None:
    """Draw one output of an effect: a line with its band, or points with bars."""
    band = 2 * effect.noise
    if effect.positions is None:
        places = np.arange(len(values))
        panel.errorbar(places, values, yerr=band, fmt="o", markersize=3, capsize=2, label=name)
        size = 7 if len(values) <= _MANY_LABELS else 4
        panel.set_xticks(places, effect.labels, rotation=90, fontsize=size)
        return
    positions = effect.positions
    line = values[: len(positions)]
    panel.plot(positions, line, label=name)
    panel.tick_params(axis="x", labelsize=7)
    panel.fill_between(positions, line - band, line + band, alpha=0.25)
    if effect.is_log:
        lower = positions[0]
        forward = lambda x: np.log1p(np.maximum(x - lower, 0))  # noqa: E731
        panel.set_xscale("function", functions=(forward, lambda x: lower + np.expm1(x)))
        shown = positions[:: max(1, len(positions) // 5)]
        panel.set_xticks(shown, [f"{position:.3g}" for position in shown])
