"""From the accuracies of every seed to means, spreads and paired tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats


def summary(about: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table: each row with its mean, its spread and its difference to private GD."""
    table = []
    for row in rows:
        values = np.array(row["accuracies"])
        entry = {**row, "accuracy": round(float(values.mean()), 3)}
        if values.size > 1:
            entry["stddev"] = round(float(values.std(ddof=1)), 3)
        base = _row(rows, row["epsilon"], row["filter"], "private GD")
        if row is not base:
            entry["against_private_gd"] = paired(values, np.array(base["accuracies"]))
        alike = _row(rows, "0.3", row["filter"], row["method"])
        if row["epsilon"] == "0.30/0.31" and alike is not None:
            entry["against_0.3"] = paired(values, np.array(alike["accuracies"]))
        table.append(entry)
    return {**about, "seeds": len(rows[0]["accuracies"]), "rows": table}


def paired(values: Any, base: Any) -> dict[str, float | None]:
    """Return the mean difference seed by seed, its standard error, and a two-sided t-test's p.

    p is None where every difference is the same, and nothing can be tested.
    """
    difference = values - base
    found: dict[str, float | None] = {"difference": round(float(difference.mean()), 3)}
    if difference.size > 1 and difference.std() > 0:
        error = difference.std(ddof=1) / np.sqrt(difference.size)
        found["standard_error"] = round(float(error), 3)
        found["p"] = float(f"{stats.ttest_rel(values, base).pvalue:.2g}")
    else:
        found["standard_error"] = found["p"] = None
    return found


def _row(rows: list[dict[str, Any]], epsilon: str, kind: str, method: str) -> Any:
    same = (epsilon, kind, method)
    return next((r for r in rows if (r["epsilon"], r["filter"], r["method"]) == same), None)
