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
        if row["method"] == "filtering":
            base = _like(rows, row, method="private GD")
            entry["against_private_gd"] = paired(values, base)
        if row["epsilon"] == "0.30/0.31":
            base = _like(rows, row, epsilon="0.3")
            entry["against_0.3"] = None if base is None else paired(values, base)
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


def _like(rows: list[dict[str, Any]], row: dict[str, Any], **but: str) -> Any:
    """Return the accuracies of the row that differs from `row` in `but`, None if there is none."""
    wanted = {key: row[key] for key in ("epsilon", "filter", "method", "steps")} | but
    found = (r for r in rows if all(r[key] == value for key, value in wanted.items()))
    return next((np.array(r["accuracies"]) for r in found), None)
