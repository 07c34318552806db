"""The page of a synthetic table: one edition for the steward, one for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from apiece._types import Json
from apiece.reporting.pages import Report, environment
from apiece.synthesis.charges import Charges

# For the steward with real errors, and for everybody without.
EDITIONS: Final = ("internal", "public")
# Distinct budgets that a page lists one by one, at most.
_LISTED: Final = 20
# Worst pairs that a page lists, by noise and, for the steward, against real rows.
_WORST: Final = 10


def make_report(
    *,
    edition: str,
    charges: Charges,
    columns: Sequence[Json],
    pairs: Sequence[Json],
    check: Json | None,
    rules: Sequence[str],
    warnings: Sequence[str],
    measurements: int,
    rows: int,
) -> Report:
    """Return the page of a synthesis.

    Without `check` it is a function of what was public before and of what was released.

    Args:
        edition: "internal" or "public".
        charges: What each budget spent.
        columns: Errors that were promised.
        pairs: All of them, those with the most noise first.
        check: Real errors and how far levels of consent differ, for the steward; else None.
        rules: What no row can be.
        warnings: What whoever uses the rows has to know.
        measurements: How many marginals were released.
        rows: Of the real table, by estimate.
    """
    # The strictest budget first.
    order = charges.epsilon.argsort()
    budgets = [
        {
            "name": str(charges.name[k]),
            "epsilon": float(charges.epsilon[k]),
            "delta": float(charges.delta[k]),
            "weight": float(charges.weight[k]),
            "spent": float(charges.spent[k] / charges.limit[k]),
        }
        for k in order
    ]
    # Of the steward's edition alone: by column, the real error.
    errors = {} if check is None else {e["column"]: e["error"] for e in check["columns"]}
    template = environment().get_template("synthesis.html.j2")
    html = template.render(
        edition=edition,
        # Many budgets would fill the page, and single out people: then only the ends are shown.
        budgets=budgets if len(budgets) <= _LISTED else [],
        smallest=budgets[0],
        largest=budgets[-1],
        number_of_budgets=len(budgets),
        columns=[{**entry, "error": errors.get(entry["column"])} for entry in columns],
        pairs=pairs[:_WORST],
        # None stands for pairs that were not measured together.
        measured_pairs=sum(pair["by_noise"] is not None for pair in pairs),
        number_of_pairs=len(pairs),
        worst=[] if check is None else check["pairs"][:_WORST],
        gaps={} if check is None else check["gaps"],
        rules=rules,
        warnings=warnings,
        measurements=measurements,
        rows=rows,
    )
    return Report(html)
