"""Figures of partial sensitivities: surfaces over two attributes, image maps, histograms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from apiece._files import FIGURE, writing
from apiece._text import figure_text
from apiece._types import Floats
from apiece.errors import DataError
from apiece.sensitivity import PartialSensitivity

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
