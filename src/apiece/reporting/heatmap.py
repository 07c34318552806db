"""Heat map of how a victim's risk moves with the others' share and budget."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apiece._types import Floats
from apiece.contract import RiskTable


def risk_map(table: RiskTable) -> Figure:
    """Return two maps of one table: the victim's advantage, and its forward Δ.

    Rows are shares of the others, columns the ε that they ask; every cell carries its number.

    Args:
        table: Of `contract.risk_table`.

    Guarantee:
        Numbers are rounded up, since they are upper bounds.

    Example:
        >>> import numpy as np
        >>> from apiece.contract import RiskTable
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
