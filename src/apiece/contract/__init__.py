"""The contract (ε_i, δ_i, Δ̄_i): what a record was promised, and that nobody else can break it."""

from apiece.contract.attacks import budget_manipulation, collusion
from apiece.contract.check import Clause, Verdict, check
from apiece.contract.enforce import enforce
from apiece.contract.explain import Explanation, explain
from apiece.contract.exposure import Exposure, exposure, worst
from apiece.contract.frequencies import Frequencies, frequencies, promised_curve
from apiece.contract.risk import RiskTable, risk_table

__all__ = [
    "Clause",
    "Explanation",
    "Exposure",
    "Frequencies",
    "RiskTable",
    "Verdict",
    "budget_manipulation",
    "check",
    "collusion",
    "enforce",
    "explain",
    "exposure",
    "frequencies",
    "promised_curve",
    "risk_table",
    "worst",
]
