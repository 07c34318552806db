"""The picture of the README: what individual budgets gain over the strictest budget for all.

    python experiments/gain_picture.py

It draws the table "What individual budgets gain" of docs/results/papers.md, which
`apiece reproduce recipes` measured.
"""

import re
from pathlib import Path

from matplotlib.figure import Figure

from apiece.reporting import save

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| \+([\d.]+) ± ([\d.]+) \(5\) \| \+", re.MULTILINE)


def drawn() -> Figure:
    """Return gains by task, with 95 % intervals."""
    page = (DOCS / "results" / "papers.md").read_text(encoding="utf-8")
    table = page.split("**What individual budgets gain", 1)[1].split("\n**", 1)[0]
    rows = sorted((float(gain), float(width), task) for task, gain, width in ROW.findall(table))
    figure = Figure(figsize=(8, 2.4), layout="constrained", facecolor="white")
    axes = figure.subplots()
    tasks = [task for _, _, task in rows]
    gains, widths = [gain for gain, _, _ in rows], [width for _, width, _ in rows]
    axes.barh(tasks, gains, xerr=widths, color="#0072B2", height=0.55, ecolor="0.3", capsize=3)
    for place, (gain, width, _) in enumerate(rows):
        axes.annotate(f"+{gain:.2f}", (gain + width + 0.05, place), va="center", fontsize="small")
    axes.set(xlabel="points of test accuracy gained over the strictest budget for all")
    axes.set_xlim(0, 2.9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    save(drawn(), DOCS / "figures" / "gain.png")
