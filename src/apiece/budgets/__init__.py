"""What each record asked for: ε_i, δ_i and, where given, a bound Δ̄_i on the excess risk."""

from apiece.budgets.frames import budget_column, capped, ids_column
from apiece.budgets.groups import BudgetGroups, Floats, Integers
from apiece.budgets.records import Budgets
from apiece.budgets.release import BudgetHistogram, release_histogram

__all__ = [
    "BudgetGroups",
    "BudgetHistogram",
    "Budgets",
    "Floats",
    "Integers",
    "budget_column",
    "capped",
    "ids_column",
    "release_histogram",
]
