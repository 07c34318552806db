"""Figures of audits, from findings and result records; no model is needed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apiece._files import FIGURE, writing
from apiece._text import figure_text, shown
from apiece._types import Floats
from apiece.accounting import PrivacyCurve
from apiece.audit import Roc
from apiece.contract import Explanation
from apiece.contract.exposure import RiskTable
from apiece.errors import DataError, InputError, RangeError
from apiece.sensitivity import PartialSensitivity

# Distinguishable with any colour vision (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def roc_figure(rocs: Mapping[str, Roc]) -> Figure:
    """Return the ROC of every group on logarithmic axes, from one false positive upwards.

    Raises `InputError` for none, or more than seven.
    """
    _at_most_seven("ROC curves", len(rocs))
    figure = Figure(figsize=(5, 4.3), layout="constrained")
    axes = figure.subplots()
    least = min(1 / curve.others for curve in rocs.values())
    for colour, (name, curve) in zip(COLOURS, rocs.items(), strict=False):
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
    axes.bar(places, list(bounds.values()), 0.6, color=COLOURS[4], label="bound, from the plan")
    if measured is not None:
        axes.plot(places, list(measured.values()), "D", color=COLOURS[1], label="measured")
    axes.set_xticks(places, list(map(figure_text, bounds)), rotation=20, ha="right")
    least = min([0.0, *(measured or {}).values()])
    axes.set(ylabel="advantage (TPR − FPR)", ylim=(3 * least, 1.15))
    axes.legend(frameon=False, ncols=2, loc="upper center")
    return figure


def _at_most_seven(what: str, count: int) -> None:
    if not 0 < count <= len(COLOURS):
        raise InputError(f"{what}: {count}; draw 1 to {len(COLOURS)} in one figure")


_LEAST_DELTA = 1e-12
MOST_CURVES = len(COLOURS)


def privacy_curves(curves: Mapping[str, PrivacyCurve]) -> Figure:
    """Return one figure of up to seven labelled curves: profile left, trade-off right.

    Left: δ at each ε, down to 1e-12, with the band to the lower bound shaded where the method has
    one. Right: the true-positive rate of any membership test against its false-positive rate, both
    from 1e-6 on logarithmic axes; blind guessing is the dotted diagonal.

    Args:
        curves: By label.

    Raises:
        InputError: For none or more than seven curves.

    Guarantee:
        Both lines are upper bounds.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> len(privacy_curves({"z = 1": privacy_curve(Gaussian(1.0))}).axes)
        2
    """
    if not 0 < len(curves) <= MOST_CURVES:
        raise InputError(f"plot: {len(curves)} curves; draw 1 to {MOST_CURVES} in one figure")
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    reach = max(_reach(curve) for curve in curves.values())
    for colour, (label, curve) in zip(COLOURS, curves.items(), strict=False):
        _profile(left, curve, reach, label, colour)
        _power(right, curve, label, colour)
    _dress(left, right, reach)
    if len(curves) > 1:
        left.legend(frameon=False, loc="upper right")
    return figure


def png(figure: Figure) -> bytes:
    """Return `figure` as the bytes of a PNG file.

    Args:
        figure: Of matplotlib.

    Example:
        >>> from matplotlib.figure import Figure
        >>> png(Figure())[1:4]
        b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _reach(curve: PrivacyCurve) -> float:
    """Return the ε up to which the profile is drawn."""
    for delta in (_LEAST_DELTA, 1e-9, 1e-6, 1e-3):
        try:
            return max(float(curve.epsilon(delta).upper), 1e-3)
        except RangeError:
            continue
    return 10.0


def _profile(ax: Axes, curve: PrivacyCurve, reach: float, label: str, colour: str) -> None:
    epsilon = np.linspace(0.0, reach, 120)
    lower, upper = curve.delta(epsilon)
    shown = upper >= _LEAST_DELTA / 10
    ax.plot(epsilon[shown], upper[shown], color=colour, label=figure_text(label))
    two_sided = shown & (lower > 0)
    ax.fill_between(
        epsilon[two_sided],
        lower[two_sided],
        upper[two_sided],
        color=colour,
        alpha=0.25,
        linewidth=0,
    )


def _power(ax: Axes, curve: PrivacyCurve, label: str, colour: str) -> None:
    alpha = np.geomspace(1e-6, 1.0, 100)
    ax.plot(alpha, curve.true_positive_rate(alpha), color=colour, label=figure_text(label))


def _dress(left: Axes, right: Axes, reach: float) -> None:
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
    for ax in (left, right):
        ax.grid(visible=True, which="major", color="0.9", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)


def risk_map(table: RiskTable) -> Figure:
    """Return two maps of one table: the victim's advantage, and its forward Δ.

    Rows are shares of the others, columns the ε that they ask; every cell carries its number.

    Args:
        table: Of `contract.risk_table`.

    Guarantee:
        Numbers are rounded up, since they are upper bounds.

    Example:
        >>> import numpy as np
        >>> from apiece.contract.exposure import RiskTable
        >>> one = np.ones((1, 1))
        >>> table = RiskTable(2.0, 1e-5, "sample", one[0], one[0], 0.3 * one, 0 * one, 0 * one, 0.2)
        >>> [text.get_text() for text in risk_map(table).axes[0].texts]
        ['0.300']
    """
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    title = f"Advantage on a record with ε = {table.victim_epsilon:g}"
    _map(figure, left, table, table.advantage, f"{title} (all alike: {table.baseline:.3f})")
    _map(figure, right, table, table.forward, "Forward excess Δ over what was promised")
    return figure


def _map(figure: Figure, axes: Axes, table: RiskTable, values: Floats, title: str) -> None:
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="cividis", vmin=0.0)
    figure.colorbar(image, ax=axes)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("ε that the others ask")
    axes.set_ylabel("share of the others")
    axes.set_xticks(range(table.epsilons.size), [f"{e:g}" for e in table.epsilons])
    axes.set_yticks(range(table.shares.size), [f"{s:g}" for s in table.shares])
    middle = float(values.max()) / 2
    for i in range(table.shares.size):
        for j in range(table.epsilons.size):
            value = float(values[i, j])
            shown = f"{-(-value * 1000 // 1) / 1000:.3f}"
            colour = "white" if value < middle else "black"
            axes.text(j, i, shown, ha="center", va="center", color=colour, fontsize=8)


_WIDE, _PEOPLE = 50, 1_000
_RIGHT, _MORE, _WRONG = "#4C5B6B", "#C2571A", "#D5DADF"


def promise(explanation: Explanation) -> Figure:
    """Return two fields of 1,000 people: about whom an attacker is right, without and with.

    Half of them took part. Dark are those about whom a blind guess is right, orange those about
    whom the result gives more away, at most.

    Args:
        explanation: Of `contract.explain`.

    Guarantee:
        The count is that of the explanation, rounded up.

    Example:
        >>> from apiece.contract import explain
        >>> [axes.get_title() for axes in promise(explain(1.0, 1e-5)).axes]
        ['without the result: 500 of 1,000', 'with it: at most 732 of 1,000']
    """
    right = explanation.frequencies.right
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    left, other = figure.subplots(1, 2)
    _field(left, _PEOPLE // 2, f"without the result: {_PEOPLE // 2} of {_PEOPLE:,}")
    _field(other, right, f"with it: at most {right:,} of {_PEOPLE:,}")
    figure.suptitle(
        "About how many people an attacker is right: "
        f"ε = {shown(explanation.epsilon)}, δ = {shown(explanation.delta)}"
    )
    return figure


def _field(axes: Axes, right: int, title: str) -> None:
    numbers = np.arange(_PEOPLE)
    blind = _PEOPLE // 2
    colours = np.where(numbers < blind, _RIGHT, np.where(numbers < right, _MORE, _WRONG))
    axes.scatter(numbers % _WIDE, -(numbers // _WIDE), c=colours.tolist(), s=13, linewidths=0)
    axes.set_title(title, fontsize=11)
    axes.set_aspect("equal")
    axes.set_axis_off()


_SIGNED = "RdBu_r"  # blue: more of it costs less privacy; red: more


def partial_sensitivity_surface(a: Floats, b: Floats, partial: PartialSensitivity) -> Figure:
    """Return surface and contour of both partial sensitivities of a query of two attributes.

    One column an attribute, on one scale, so that they can be compared.

    Args:
        a: The first attribute's values, an axis of the grid.
        b: The second attribute's.
        partial: At the len(a)·len(b) records of the grid, `a` slowest.

    Raises:
        DataError: For another number of attributes or of records.

    References:
        Mueller et al. 2021, Fig. 1.

    Example:
        >>> from apiece.sensitivity import Query, partial_sensitivity
        >>> query = Query("a**2 + b", {"a": (0, 1), "b": (0, 1)})
        >>> axis = np.linspace(0, 1, 3)
        >>> a, b = (grid.ravel() for grid in np.meshgrid(axis, axis, indexing="ij"))
        >>> partial = partial_sensitivity(query, {"a": a, "b": b})
        >>> partial_sensitivity_surface(axis, axis, partial).axes[0].get_title()
        '∂‖∇f‖/∂a'
    """
    if partial.attributes is None or len(partial.attributes) != 2:
        raise DataError(f"partial: attributes {partial.attributes}; a surface needs two")
    if partial.raw.shape != (len(a) * len(b), 2):
        raise DataError(f"partial: shape {partial.raw.shape}; give one record a grid point")
    names = [figure_text(name) for name in partial.attributes]
    surfaces = partial.raw.T.reshape(2, len(a), len(b))
    top = float(np.abs(surfaces).max()) or 1.0
    grid_a, grid_b = np.meshgrid(a, b, indexing="ij")
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    for j, (name, values) in enumerate(zip(names, surfaces, strict=True)):
        space: Any = figure.add_subplot(2, 2, 1 + j, projection="3d")
        style = {"cmap": _SIGNED, "vmin": -top, "vmax": top, "edgecolor": "0.5", "linewidth": 0.2}
        space.plot_surface(grid_a, grid_b, values, rcount=25, ccount=25, **style)
        space.view_init(elev=25, azim=-150)
        space.set(xlabel=names[0], ylabel=names[1])
        space.set_title(f"∂‖∇f‖/∂{name}")
        plane = figure.add_subplot(2, 2, 3 + j)
        filled = plane.contourf(grid_a, grid_b, values, 21, cmap=_SIGNED, vmin=-top, vmax=top)
        lines = plane.contour(grid_a, grid_b, values, 7, colors="black", linewidths=0.5)
        plane.clabel(lines, fontsize=7, fmt="%.3g")
        plane.set(xlabel=names[0], ylabel=names[1])
        figure.colorbar(filled, ax=plane, label="gradient norm per unit")
    return figure


def partial_sensitivity_maps(maps: Mapping[str, Mapping[str, Floats]]) -> Figure:
    """Return images of partial sensitivities, rows and columns named: {row: {column: (h, w)}}.

    Signed, one scale a row: a row is one model, whose scale differs from another's. Mueller et al.
    2021, Fig. 2A.
    """
    rows, columns = list(maps), list(next(iter(maps.values())))
    figure = Figure(figsize=(2.9 * len(columns) + 0.8, 2.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        top = max(float(np.abs(maps[row][c]).max()) for c in columns) or 1.0
        for column, ax in zip(columns, line, strict=True):
            image = ax.imshow(maps[row][column], cmap=_SIGNED, vmin=-top, vmax=top)
            ax.set_xticks([])
            ax.set_yticks([])
            if row == rows[0]:
                ax.set_title(figure_text(column))
        line[0].set_ylabel(figure_text(row))
        figure.colorbar(image, ax=list(line), label="gradient norm per unit")
    return figure


def partial_sensitivity_histograms(
    edges: Floats, counts: Mapping[str, npt.NDArray[np.int64]]
) -> Figure:
    """Return each entry's histogram over records, one colour a run. Mueller et al. 2021, Fig. 2B.

    edges: (bins + 1,), one axis for all, so that spreads compare; the outer bins hold what lies
    beyond. counts: run → (h, w, bins).
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all.

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
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Figure(), Path(folder) / "empty.svg")
    """
    with writing(path, FIGURE) as file:
        form = path.suffix.lower().removeprefix(".")
        mark = {"Software" if form == "png" else "Creator": "apiece figure"}
        figure.savefig(file, format=form, dpi=150, metadata=mark)
