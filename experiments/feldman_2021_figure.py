"""Boenisch et al. 2023's Figure 3 from stored results: how many records are active at each step.

python experiments/feldman_2021_figure.py --out docs/figures/boenisch_2023_fig3.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from apiece.reporting.plots import png
from apiece.reproduce import Store

LINES = {"0.3": ("ε = 0.30 for all", "-"), "0.30/0.31": ("ε = 0.30 and 0.31, half each", "--")}


def draw(documents: list[dict[str, Any]]) -> Figure:
    """Return one panel a clip norm and number of steps, one line a set of budgets."""
    rows = [r for d in documents for r in d["rows"] if r.get("active") and r["epsilon"] in LINES]
    panels = sorted({(row["clip"], row["steps"]) for row in rows})
    figure = Figure(figsize=(3.6 * len(panels), 3.0), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row in rows:
            if (row["clip"], row["steps"]) == panel:
                label, line = LINES[row["epsilon"]]
                axes.plot(range(1, len(row["active"]) + 1), row["active"], line, label=label)
        axes.set_title(f"clip norm {panel[0]:g}, noise for {panel[1]} steps", fontsize=9)
        axes.set_xlabel("step")
        axes.grid(color="#e6e6e6")
    figure.axes[0].set_ylabel("active records")
    figure.axes[0].legend(fontsize=8, loc="lower left")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = Store(Path(__file__).parent / "results").load("feldman-2021-table")
    results = [one.result for one in done if one.unit["data"].startswith("mnist")]
    options.out.write_bytes(png(draw(results)))


if __name__ == "__main__":
    main()
