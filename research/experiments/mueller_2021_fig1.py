"""Mueller et al. 2021, Figure 1: how two attributes contribute to the sensitivity of a query.

The query of its §5.1, f = a² + exp(2b − a), over a in [1, 2] and b in [.5, 3]. The published figure
is a surface; here are the partial sensitivities at points of it, and the constant that bounds the
gradient norm, which the paper takes from an optimiser and we prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apiece.reporting import save
from apiece.reporting.plots import partial_sensitivity_surface
from apiece.sensitivity import Expression, partial_sensitivity
from research.experiment import Experiment, Folders, Outcome, Table, Unit

QUERY = "a**2 + exp(2*b - a)"
RANGES = {"a": (1.0, 2.0), "b": (0.5, 3.0)}


def on_grid(query: Expression, points: int) -> tuple[Any, Any, Any]:
    """Both axes of an even grid, and what is found on it, a slowest."""
    a, b = (np.linspace(*RANGES[name], points) for name in ("a", "b"))
    records = {"a": np.repeat(a, points), "b": np.tile(b, points)}
    return a, b, partial_sensitivity(query, records)


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Evaluate nine points, bound the norm, and draw the surface into the work folder."""
    query = Expression(QUERY, RANGES)
    place.work.mkdir(parents=True, exist_ok=True)
    save(partial_sensitivity_surface(*on_grid(query, 60)), place.work / "mueller_2021_fig1.png")
    a, b, found = on_grid(query, 3)
    largest = query.lipschitz_constant()
    return {
        "points": [
            {"a": float(p), "b": float(q), "norm": float(n), "raw": raw, "fractions": part}
            for p, q, n, raw, part in zip(
                np.repeat(a, len(b)), np.tile(b, len(a)), found.norms, found.raw.tolist(),
                found.fractions.tolist(), strict=True)
        ],
        "lower": largest.bounds.lower, "upper": largest.bounds.upper, "at": largest.location,
    }  # fmt: skip


def tables(done: Sequence[Outcome]) -> list[Table]:
    rows = [
        [f"{one['a']:g}", f"{one['b']:g}", f"{one['norm']:.3f}",
         *(f"{value:.3f}" for value in one["raw"]), *(f"{100 * f:.1f}" for f in one["fractions"])]
        for each in done for one in each.result["points"]
    ]  # fmt: skip
    head = [
        "a",
        "b",
        "gradient norm",
        "partial sensitivity to a",
        "to b",
        "share of a in %",
        "of b",
    ]
    return [Table(head, rows, f"f = {QUERY.replace('*', '·').replace('··', '^')}")]


def notes(done: Sequence[Outcome]) -> str:
    found = done[-1].result
    at = ", ".join(f"{name} = {value:g}" for name, value in found["at"].items())
    return (
        f"Largest gradient norm: between {found['lower']:.6f} and {found['upper']:.6f}, proven, at "
        f"{at}. The [surface](../figures/sensitivity_surface.png) is drawn by `apiece sensitivity`."
    )


EXPERIMENT = Experiment(
    name="mueller-2021-fig1",
    paper="Mueller et al. 2021",
    shows="Figure 1: what two attributes contribute to a query's sensitivity",
    cost="seconds",
    units=lambda seeds, scale: [{"query": QUERY}],
    run=run,
    tables=tables,
    notes=notes,
    seeds=1,
)
