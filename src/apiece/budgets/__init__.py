"""Budgets and consents: ε_i, δ_i and, where given, a bound Δ̄_i on the excess risk."""

from apiece.budgets.consent_files import read_consents
from apiece.budgets.consents import ConsentMapping
from apiece.budgets.groups import BudgetGroups, BudgetLevels
from apiece.budgets.records import Budgets
from apiece.budgets.release import release_histogram, release_rows_per_person
from apiece.budgets.units import Ownership, Units

__all__ = [
    "Budgets", "BudgetGroups", "BudgetLevels", "read_consents", "ConsentMapping", "Units",
    "Ownership", "release_histogram", "release_rows_per_person",
]  # fmt: skip
