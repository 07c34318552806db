"""Figures of curves, risks and sensitivities for files; no model is needed to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from apiece._files import FIGURE, writing
from apiece._text import figure_text, shown, thousandths
from apiece._types import Floats
from apiece.accounting import PrivacyCurve
from apiece.contract import Explanation
from apiece.errors import DataError, InputError, RangeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from apiece.contract.exposure import RiskTable
    from apiece.sensitivity import PartialSensitivity

# Distinguishable with any colour vision (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MOST_CURVES = len(COLOURS)
# The δ down to which a privacy profile is drawn.
_LEAST_DELTA = 1e-12
# Colours of a partial sensitivity: blue where more of the attribute costs less privacy, red where
# it costs more.
SIGNED = "RdBu_r"
# Numbers in a chart of an answer, at most.
_NUMBERS = 400
# People in a field of `promise`, and in a row of it.
_PEOPLE = 1_000
_ROW = 50
# Colours of people whom a blind guess gets right, whom the result adds, and of all others.
_RIGHT = "#4C5B6B"
_MORE = "#C2571A"
_WRONG = "#D5DADF"


def save(figure: Figure, path: Path) -> None:
    """Write a figure, complete or not at all.

    Args:
        figure: Of matplotlib.
        path: Its ending says the format: png, svg or pdf. Of what is there only a figure that
            apiece wrote is replaced.

    Raises:
        DataError: For another ending, and where it cannot be written, or would take the place of
            something else.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from matplotlib.figure import Figure
        >>> from apiece.reporting import save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Figure(), Path(folder) / "empty.svg")
    """
    with writing(path, FIGURE) as file:
        form = path.suffix.lower().removeprefix(".")
        # The mark by which `writing` knows a figure that it may replace.
        mark = {"Software" if form == "png" else "Creator": "apiece figure"}
        figure.savefig(file, format=form, dpi=150, metadata=mark)


def promise(explanation: Explanation) -> Figure:
    """Return two fields of 1,000 people: whom an attacker gets right without and with the result.

    Half of them took part. Dark marks those whom a blind guess gets right, orange those whom the
    result adds at most.

    Args:
        explanation: Of `contract.explain`.

    Guarantee:
        The count is that of the explanation, rounded up.

    Example:
        >>> from apiece.contract import explain
        >>> from apiece.reporting import promise
        >>> [axes.get_title() for axes in promise(explain(1.0, 1e-5)).axes]
        ['without the result: 500 of 1,000', 'with it: at most 732 of 1,000']
    """
    right = explanation.frequencies.right
    blind = _PEOPLE // 2
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    titles = (
        f"without the result: {blind} of {_PEOPLE:,}",
        f"with it: at most {right:,} of {_PEOPLE:,}",
    )
    person = np.arange(_PEOPLE)
    for axes, count, title in zip(figure.subplots(1, 2), (blind, right), titles, strict=True):
        # The people in one order: whom blind guesses get right, whom the result adds, all others.
        colours = np.where(person < blind, _RIGHT, np.where(person < count, _MORE, _WRONG))
        columns = person % _ROW
        rows = -(person // _ROW)
        axes.scatter(columns, rows, c=colours.tolist(), s=13, linewidths=0)
        axes.set_title(title, fontsize=11)
        axes.set_aspect("equal")
        axes.set_axis_off()
    figure.suptitle(
        "About how many people an attacker is right: "
        f"ε = {shown(explanation.epsilon)}, δ = {shown(explanation.delta)}"
    )
    return figure


def privacy_curves(curves: Mapping[str, PrivacyCurve]) -> Figure:
    """Return one figure of up to seven labelled curves, upper bounds: profile left, power right."""
    # Left: δ at each ε, with the band to the lower bound shaded where the method has one. Right:
    # the true-positive rate of any membership test against its false-positive rate.
    at_most_seven("curves", len(curves))
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    reach = max(_reach(curve) for curve in curves.values())
    alpha = np.geomspace(1e-6, 1.0, 100)
    epsilon = np.linspace(0.0, reach, 120)
    for colour, (label, curve) in zip(COLOURS, curves.items(), strict=False):
        lower, upper = curve.delta(epsilon)
        # Just below the axis, so that the line reaches it.
        visible = upper >= _LEAST_DELTA / 10
        # A logarithmic axis has no 0, and a method without lower bounds no band.
        band = visible & (lower > 0)
        left.plot(epsilon[visible], upper[visible], color=colour, label=figure_text(label))
        left.fill_between(
            epsilon[band], lower[band], upper[band], color=colour, alpha=0.25, linewidth=0
        )
        power = curve.true_positive_rate(alpha)
        right.plot(alpha, power, color=colour, label=figure_text(label))
    left.set(
        xlabel="ε", ylabel="δ(ε), upper bound", title="Privacy profile", yscale="log",
        xlim=(0, reach), ylim=(_LEAST_DELTA, 1.5),
    )  # fmt: skip
    right.plot([1e-6, 1], [1e-6, 1], color="0.5", linestyle=":", linewidth=1)
    right.annotate(
        "blind guessing", (1e-3, 1e-3), xytext=(4, -10), textcoords="offset points", color="0.4",
        fontsize="small",
    )  # fmt: skip
    right.set(
        xlabel="false-positive rate", ylabel="true-positive rate, upper bound",
        title="Trade-off of any membership test", xscale="log", yscale="log", xlim=(1e-6, 1),
        ylim=(1e-6, 1.5),
    )  # fmt: skip
    for axes in (left, right):
        axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        left.legend(frameon=False, loc="upper right")
    return figure


def intervals(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a chart of an answer: each number with its interval, a panel for each statistic.

    Args:
        rows: As `Answer.frame` has them: grouping columns, maybe "statistic" and "part", then
            "estimate", "low" and "high".

    Raises:
        InputError: For more than 400 numbers, which no page shows, and for rows without numbers.
    """
    if any("estimate" not in row for row in rows):
        raise InputError("figure: values that were found have no numbers; ask for their counts")
    if len(rows) > _NUMBERS:
        raise InputError(
            f"figure: {len(rows)} numbers; a page shows {_NUMBERS}: ask for fewer groups"
        )
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        panels.setdefault(str(row.get("statistic", "")), []).append(row)
    most = max(map(len, panels.values()), default=1)
    size = (4.5 * max(len(panels), 1) + 1.5, min(0.28 * most + 1.2, 40))
    figure = Figure(figsize=size, layout="constrained")
    for number, (statistic, numbers) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _draw_intervals(axes, numbers)
        axes.set_xlabel(figure_text(statistic or "estimate"))
    return figure


def _draw_intervals(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw numbers with their intervals, the first on top."""
    known = ("statistic", "estimate", "low", "high")
    heights = np.arange(len(rows))[::-1]
    estimates = np.array([row["estimate"] for row in rows], dtype=np.float64)
    lows = np.array([row["low"] for row in rows], dtype=np.float64)
    highs = np.array([row["high"] for row in rows], dtype=np.float64)
    has_interval = np.isfinite(lows) & np.isfinite(highs)
    axes.hlines(
        heights[has_interval], lows[has_interval], highs[has_interval], color=COLOURS[0], lw=2
    )
    axes.plot(estimates, heights, "o", color=COLOURS[1], ms=4)
    labels = []
    for row in rows:
        words = [f"{value}" for name, value in row.items() if name not in known]
        labels.append(figure_text(", ".join(words)))
    axes.set_yticks(heights, labels)
    axes.margins(y=0.5 / max(len(rows), 1))
    axes.grid(axis="x", color="#E5E5E5")
    axes.set_axisbelow(True)


def at_most_seven(subject: str, count: int) -> None:
    """Raise `InputError` where there are no curves, or more than there are colours."""
    if not 0 < count <= MOST_CURVES:
        raise InputError(f"{subject}: {count}; draw 1 to {MOST_CURVES} in one figure")


def _reach(curve: PrivacyCurve) -> float:
    """Return the ε up to which the profile is drawn."""
    # Not every curve answers at the smallest δ.
    for delta in (_LEAST_DELTA, 1e-9, 1e-6, 1e-3):
        try:
            return max(float(curve.epsilon(delta).upper), 1e-3)
        except RangeError:
            continue
    return 10.0


def risk_map(table: RiskTable) -> Figure:
    """Return two maps, the victim's advantage and its forward Δ, by the others' share and ε."""
    # Every cell carries its number, an upper bound, rounded up.
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    title = f"Advantage on a record with ε = {table.victim_epsilon:g}"
    _draw_map(left, table, table.advantage, f"{title} (all alike: {table.baseline:.3f})")
    _draw_map(right, table, table.forward, "Forward excess Δ over what was promised")
    return figure


def _draw_map(axes: Axes, table: RiskTable, values: Floats, title: str) -> None:
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="cividis", vmin=0.0)
    axes.figure.colorbar(image, ax=axes)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("ε that the others ask")
    axes.set_ylabel("share of the others")
    axes.set_xticks(range(table.epsilons.size), [f"{epsilon:g}" for epsilon in table.epsilons])
    axes.set_yticks(range(table.shares.size), [f"{share:g}" for share in table.shares])
    # Below the middle the ground is dark.
    middle = float(values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        text = thousandths(float(value))
        colour = "white" if value < middle else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)


def partial_sensitivity_surface(a: Floats, b: Floats, partial: PartialSensitivity) -> Figure:
    """Return surface and contour of both partial sensitivities of a query of two attributes."""
    # `partial` is of the len(a)·len(b) records of the grid, `a` slowest; one scale for both
    # columns. Source: Mueller et al. 2021, Fig. 1.
    if partial.attributes is None or len(partial.attributes) != 2:
        raise DataError(f"partial: attributes {partial.attributes}; a surface needs two")
    if partial.raw.shape != (len(a) * len(b), 2):
        raise DataError(f"partial: shape {partial.raw.shape}; give one record a grid point")
    names = [figure_text(name) for name in partial.attributes]
    # (grid points, 2) → a surface for each attribute.
    surfaces = partial.raw.T.reshape(2, len(a), len(b))
    # The scale is symmetric about 0; where all is 0, any will do.
    limit = float(np.abs(surfaces).max()) or 1.0
    scale: dict[str, Any] = {"cmap": SIGNED, "vmin": -limit, "vmax": limit}
    grid_a, grid_b = np.meshgrid(a, b, indexing="ij")
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    for column, (name, values) in enumerate(zip(names, surfaces, strict=True)):
        space: Any = figure.add_subplot(2, 2, 1 + column, projection="3d")
        space.plot_surface(
            grid_a, grid_b, values, rcount=25, ccount=25, edgecolor="0.5", linewidth=0.2, **scale
        )
        space.view_init(elev=25, azim=-150)
        space.set(xlabel=names[0], ylabel=names[1])
        space.set_title(f"∂‖∇f‖/∂{name}")
        plane = figure.add_subplot(2, 2, 3 + column)
        filled = plane.contourf(grid_a, grid_b, values, 21, **scale)
        lines = plane.contour(grid_a, grid_b, values, 7, colors="black", linewidths=0.5)
        plane.clabel(lines, fontsize=7, fmt="%.3g")
        plane.set(xlabel=names[0], ylabel=names[1])
        figure.colorbar(filled, ax=plane, label="gradient norm per unit")
    return figure
