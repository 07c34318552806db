"""The contract (ε_i, δ_i, Δ̄_i): what a record was promised, and that nobody else can break it."""

from apiece.contract.attacks import budget_manipulation, collusion
from apiece.contract.check import Clause, Verdict, check
from apiece.contract.choices import Choices, Outcome, choices
from apiece.contract.enforce import enforce
from apiece.contract.explain import Explanation, explain
from apiece.contract.exposure import Exposure, exposure, worst
from apiece.contract.frequencies import Frequencies, frequencies, promised_curve
from apiece.contract.risk import RiskTable, risk_table

__all__ = [
    "Choices",
    "Clause",
    "Explanation",
    "Exposure",
    "Frequencies",
    "Outcome",
    "RiskTable",
    "Verdict",
    "budget_manipulation",
    "check",
    "choices",
    "collusion",
    "enforce",
    "explain",
    "exposure",
    "frequencies",
    "promised_curve",
    "risk_table",
    "worst",
]
