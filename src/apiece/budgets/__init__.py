"""Budgets and consents: ε_i, δ_i and, where given, a bound Δ̄_i on the excess risk."""

from apiece.budgets.consent_files import read_consents
from apiece.budgets.consents import ConsentMapping, ConsentRecords, Standing
from apiece.budgets.groups import BudgetGroups, BudgetLevels
from apiece.budgets.levels import Levels
from apiece.budgets.records import Budgets
from apiece.budgets.release import BudgetHistogram, release_histogram, release_rows_per_person
from apiece.budgets.units import Ownership, Units

__all__ = [
    "BudgetGroups", "BudgetHistogram", "BudgetLevels", "Budgets", "ConsentMapping",
    "ConsentRecords", "Levels", "Ownership", "Standing", "Units", "read_consents",
    "release_histogram", "release_rows_per_person",
]  # fmt: skip
