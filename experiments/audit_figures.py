"""The figures of the audits, from the stored results alone.

python experiments/audit_figures.py --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from apiece.audit.membership import Roc
from apiece.reporting.plots import png, roc_figure, share_figure, spaghetti_figure, theory_figure
from apiece.reproduce import Done, Store

RESULTS = Path(__file__).parent / "results"


def stored(name: str) -> list[Done]:
    return Store(RESULTS).load(name)


def boenisch_2023_fig2() -> dict[str, Figure]:
    """ROC by group, log–log, one figure a network."""
    return {
        f"boenisch_2023_fig2_roc_{network}": roc_figure(
            {
                name: Roc(np.array(c["fpr"]), np.array(c["tpr"]), c["members"], c["others"])
                for name, c in found["roc"].items()
            }
        )
        for network, found in (
            (one.unit["network"], one.result) for one in stored("boenisch-2023-fig2")
        )
    }


def kaiser_2026_table1() -> dict[str, Figure]:
    """Signed score, which has no floor, against the share of the strict group; by strategy."""
    found: dict[str, Figure] = {}
    rows = [one.result for one in stored("kaiser-2026-table1")]
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        means = {
            f"{group}, {row['strategy']}": group_row["signed_mean"]
            for row in own
            for group, group_row in row["groups"].items()
        }
        found[f"kaiser_2026_table1_{name}"] = share_figure(
            own[0]["shares"], means, floor=0.0, score="signed privacy score"
        )
    return found


def kaiser_2026_fig6() -> dict[str, Figure]:
    """The spaghetti plots, and theory against measurement."""
    (result,) = (one.result for one in stored("kaiser-2026-fig6"))
    found: dict[str, Figure] = {}
    bounds, measured = {}, {}
    for kind in ("sample", "contract"):
        if kind not in result:
            continue
        scores = result[kind]["privacy_scores"]
        budgets = [float(others) for others in scores]
        values = np.array(list(scores.values())).T
        found[f"kaiser_2026_fig6_{kind}"] = spaghetti_figure(budgets, values)
        for others, advantage in result[kind]["advantage"].items():
            label = f"others {float(others):g}" + ("" if kind == "sample" else "\ncontract")
            if kind == "contract" and float(others) == result["target_epsilon"]:
                continue
            bounds[label] = advantage
            measured[label] = result[kind]["measured_advantage"][others]
    found["kaiser_2026_theory"] = theory_figure(bounds, measured)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in {
        **boenisch_2023_fig2(),
        **kaiser_2026_table1(),
        **kaiser_2026_fig6(),
    }.items():
        (folder / f"{name}.png").write_bytes(png(figure))
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
