"""What each column adds to a prediction of an additive model, with the noise that is in it.

A model without hidden layers adds up one function for each column: a straight line, a curve through
knots, or a number a category; and a surface for each pair of columns. These functions are all that
it has learned. Reading, drawing and changing them is post-processing, which costs nobody anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from apiece._types import Floats
from apiece.datasets import Categorical, Numeric
from apiece.datasets.encode import label_knots, locate_knots
from apiece.datasets.pairs import Pair
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
# Knots or categories that are named along a side of a surface, about.
_SIDE_LABELS: Final = 6
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
class Surface:
    """The joint effect of two columns in an additive model, beside the function of each.

    Attributes:
        columns: Their names.
        labels: Of each column, the values at which the surface is known, as of `Effect`. Between
            knots it is bilinear.
        values: (first labels, second labels, outputs) What is added to each output. The mean over
            all cells but those of "(missing)" is 0.
        noise: As of `Effect`.
    """

    columns: Pair
    labels: tuple[tuple[str, ...], tuple[str, ...]]
    values: Floats
    noise: float

    def __repr__(self) -> str:
        shape = " x ".join(str(len(labels)) for labels in self.labels)
        return f"Surface(columns={self.columns!r}, labels={shape}, noise={self.noise!r})"

    @property
    def title(self) -> str:
        """Both names."""
        return " × ".join(self.columns)


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
        # One more is shared by both outputs, −½ and ½: their difference grows by one.
        matrix = np.array([[-1.0], [1.0]])
        return Contrast((name,), name, matrix, np.array([-0.5, 0.5]), math.sqrt(2))
    # Less the mean of all scores: a constant in all of them changes no probability.
    centring = np.eye(count) - 1 / count
    return Contrast(classes, "score", centring, centring[:, 0], math.sqrt(1 - 1 / count))


def contrast_of_amount(width: float) -> Contrast:
    """Return the number that is predicted; its range of this width is [-1, 1] to the network."""
    half = width / 2
    matrix = np.array([[half]])
    return Contrast(("effect",), "effect", matrix, np.array([1 / half]), half)


def read_effect(name: str, kind: Feature, weights: Floats, noise: float) -> Effect:
    """Return a column's function, from the weights (features, outputs) of its features."""
    has_missing = bool(kind.missing)
    # Features without the last one, which is the indicator of missing cells.
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
        # On a linear scale two points are enough; on a logarithmic one more show the curve.
        points = replace(kind, knots=_LOG_POINTS if is_log else 2)
        labels = label_knots(points)
        positions = locate_knots(points)
        main = np.linspace(-1, 1, points.knots)[:, None] * main
    # Centred: the model's constant holds the mean.
    values = main - main.mean(axis=0)
    if has_missing:
        values = np.concatenate([values, weights[-1:] - main.mean(axis=0)])
        labels = (*labels, MISSING)
    return Effect(name, labels, positions, values, noise, is_log)


def read_surface(
    pair: Pair, columns: Mapping[str, Feature], weights: Floats, noise: float
) -> Surface:
    """Return a pair's joint effect, from the weights (features, outputs) of its products."""
    first, second = (columns[name] for name in pair)
    labels = (_label_bins(first), _label_bins(second))
    # Products lie with the second column changing faster (`append_pairs`).
    grid = weights.reshape(len(labels[0]), len(labels[1]), weights.shape[1])
    # The mean is over cells with both values, as of a curve; "(missing)" lies beside.
    rows = len(labels[0]) - bool(first.missing)
    cells = len(labels[1]) - bool(second.missing)
    values = grid - grid[:rows, :cells].mean(axis=(0, 1))
    return Surface(pair, labels, values, noise)


def _label_bins(kind: Feature) -> tuple[str, ...]:
    """Return the categories or knots of a column as texts, and a last one of missing cells."""
    labels = kind.labels if isinstance(kind, Categorical) else label_knots(kind)
    return (*labels, MISSING) if kind.missing else labels


def frame_of(effects: Sequence[Effect | Surface], outputs: Sequence[str]) -> pd.DataFrame:
    """Return effects as a table: column, value, noise, and one column for each output.

    Where there is a surface, `second_value` is the value of its second column, "" of curves.
    """
    import pandas as pd

    has_surface = any(isinstance(effect, Surface) for effect in effects)
    rows = []
    for effect in effects:
        title, cells = _list_cells(effect)
        for first, second, values in cells:
            row: dict[str, object] = {"column": title, "value": first}
            if has_surface:
                row["second_value"] = second
            row |= dict(zip(outputs, values.tolist(), strict=True))
            row["noise"] = effect.noise
            rows.append(row)
    return pd.DataFrame(rows)


def _list_cells(effect: Effect | Surface) -> tuple[str, list[tuple[str, str, Floats]]]:
    """Return the name of an effect, and its values with the labels of one or two columns."""
    if isinstance(effect, Effect):
        labelled = zip(effect.labels, effect.values, strict=True)
        return effect.column, [(label, "", values) for label, values in labelled]
    cells = []
    for first, row in zip(effect.labels[0], effect.values, strict=True):
        for second, values in zip(effect.labels[1], row, strict=True):
            cells.append((first, second, values))
    return effect.title, cells


def draw(effects: Sequence[Effect | Surface], outputs: Sequence[str], title: str) -> Figure:
    """Return a figure of effects, each with a band of two standard deviations of its noise.

    A surface has a panel for each output, whose title says the band.
    """
    from apiece._lazy import require

    require("reports")
    from matplotlib.figure import Figure

    if not effects:
        raise InputError("columns: none; name at least one column of the model")
    # A curve's panel has all outputs.
    parts: list[tuple[Effect | Surface, int]] = []
    for effect in effects:
        shown = range(len(outputs)) if isinstance(effect, Surface) else (0,)
        parts += [(effect, output) for output in shown]
    across = min(_COLUMNS, len(parts))
    down = -(-len(parts) // across)
    figure = Figure(figsize=(_SIDE * across, _SIDE * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    # Panels may be more than parts, in the last row.
    for panel, (effect, shown_output) in zip(panels, parts, strict=False):
        if isinstance(effect, Surface):
            name = outputs[shown_output] if len(outputs) > 1 else ""
            _draw_surface(panel, effect, effect.values[:, :, shown_output], name)
            continue
        for output, name in enumerate(outputs):
            _draw_one(panel, effect, effect.values[:, output], name)
        panel.set_title(effect.column, fontsize=9)
        panel.axhline(0, color="grey", linewidth=0.5)
        panel.tick_params(axis="y", labelsize=7)
    for panel in panels[len(parts) :]:
        panel.set_axis_off()
    figure.supylabel(title, fontsize=9)
    # Surfaces have no lines that a legend could name.
    curves = [index for index, (effect, _) in enumerate(parts) if isinstance(effect, Effect)]
    if len(outputs) > 1 and curves:
        handles, names = panels[curves[0]].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_one(panel: Axes, effect: Effect, values: Floats, name: str) -> None:
    """Draw one output of an effect: a line with its band, or points with bars."""
    # Two standard deviations either way.
    band = 2 * effect.noise
    if effect.positions is None:
        places = np.arange(len(values))
        panel.errorbar(places, values, yerr=band, fmt="o", markersize=3, capsize=2, label=name)
        size = 7 if len(values) <= _MANY_LABELS else 4
        panel.set_xticks(places, effect.labels, rotation=90, fontsize=size)
        return
    positions = effect.positions
    # "(missing)" has no place on the line.
    line = values[: len(positions)]
    panel.plot(positions, line, label=name)
    panel.tick_params(axis="x", labelsize=7)
    panel.fill_between(positions, line - band, line + band, alpha=0.25)
    if effect.is_log:
        lower = positions[0]
        # The distance from the lower end, and 1, as features are scaled in training.
        forward = lambda x: np.log1p(np.maximum(x - lower, 0))  # noqa: E731
        panel.set_xscale("function", functions=(forward, lambda x: lower + np.expm1(x)))
        # About five ticks, spread over the knots.
        shown = positions[:: max(1, len(positions) // 5)]
        panel.set_xticks(shown, [f"{position:.3g}" for position in shown])


def _draw_surface(panel: Axes, surface: Surface, values: Floats, name: str) -> None:
    """Draw one output of a surface in colours; knots lie evenly, on the scale of their column."""
    # The same limits for both signs, so that white is zero; noise alone stays pale.
    largest = max(float(np.abs(values).max()), 2 * surface.noise)
    mesh = panel.pcolormesh(
        np.arange(values.shape[0]),
        np.arange(values.shape[1]),
        # The first column runs along x, and pcolormesh takes rows for y.
        values.T,
        shading="nearest",
        cmap="RdBu_r",
        vmin=-largest,
        vmax=largest,
    )
    for axis, labels in zip((panel.xaxis, panel.yaxis), surface.labels, strict=True):
        # About so many labels a side, from the first one on.
        shown = range(0, len(labels), max(1, len(labels) // _SIDE_LABELS))
        axis.set_ticks(list(shown), [_shorten(labels[position]) for position in shown])
    panel.tick_params(axis="x", labelsize=6, rotation=90)
    panel.tick_params(axis="y", labelsize=6)
    panel.set_xlabel(surface.columns[0], fontsize=7)
    panel.set_ylabel(surface.columns[1], fontsize=7)
    title = f"{surface.title}, ±{2 * surface.noise:.2g}"
    panel.set_title(f"{title}\n{name}" if name else title, fontsize=9)
    figure = panel.get_figure()
    assert figure is not None
    figure.colorbar(mesh, ax=panel).ax.tick_params(labelsize=6)


def _shorten(label: str) -> str:
    """Return a number with few figures, and any other label as it is."""
    try:
        return f"{float(label):.3g}"
    except ValueError:
        return label
