"""The contract (ε_i, δ_i, Δ̄_i): what a record was promised, and that nobody else can break it."""

from apiece.contract.check import Verdict, check, enforce
from apiece.contract.choices import Choices, choices
from apiece.contract.explain import Explanation, explain
from apiece.contract.exposure import budget_manipulation, collusion, worst

__all__ = [
    "check", "Verdict", "enforce", "explain", "Explanation", "choices", "Choices",
    "budget_manipulation", "collusion", "worst",
]  # fmt: skip
