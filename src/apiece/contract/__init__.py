"""The contract (ε_i, δ_i, Δ̄_i): what a record was promised, and that nobody else can break it."""

from apiece.contract.check import Clause, Verdict, check
from apiece.contract.coalition import Coalition, budget_manipulation, worst_coalition
from apiece.contract.enforce import enforce
from apiece.contract.risk import RiskTable, risk_table

__all__ = [
    "Clause",
    "Coalition",
    "RiskTable",
    "Verdict",
    "budget_manipulation",
    "check",
    "enforce",
    "risk_table",
    "worst_coalition",
]
