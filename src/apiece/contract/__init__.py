"""The contract (ε_i, δ_i, Δ̄_i): what a record was promised, and that nobody else can break it."""

from apiece.contract.check import Verdict, check, enforce
from apiece.contract.choices import Choices, choices
from apiece.contract.explain import Explanation, explain, promised_curve
from apiece.contract.exposure import Exposure, budget_manipulation, collusion, worst

__all__ = [
    "Choices", "Explanation", "Exposure", "Verdict", "budget_manipulation", "check", "choices",
    "collusion", "enforce", "explain", "promised_curve", "worst",
]  # fmt: skip
