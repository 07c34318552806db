"""What each record asked for: ε_i, δ_i and, where given, a bound Δ̄_i on the excess risk."""

from apiece.budgets.doubts import (
    LARGE,
    SMALL_GROUP,
    cap_note,
    doubts,
    doubts_of_values,
    refuse_absurd,
)
from apiece.budgets.frames import budget_column, capped, ids_column, person_column
from apiece.budgets.groups import BudgetGroups
from apiece.budgets.levels import BudgetLevels
from apiece.budgets.records import Budgets, Consents
from apiece.budgets.release import BudgetHistogram, release_histogram
from apiece.budgets.row_limit import release_rows_per_person
from apiece.budgets.units import Ownership, Persons, Units

__all__ = [
    "LARGE",
    "SMALL_GROUP",
    "BudgetGroups",
    "BudgetHistogram",
    "BudgetLevels",
    "Budgets",
    "Consents",
    "Ownership",
    "Persons",
    "Units",
    "budget_column",
    "cap_note",
    "capped",
    "doubts",
    "doubts_of_values",
    "ids_column",
    "person_column",
    "refuse_absurd",
    "release_histogram",
    "release_rows_per_person",
]
