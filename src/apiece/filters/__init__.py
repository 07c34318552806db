"""Filters and odometers: each person stays in for exactly as long as their own budget lasts.

An analysis adds N(0, S²) to a sum in which person i's contribution has ℓ2 norm s_i. Chosen
adaptively, such analyses compose by adding up μ_i² = s_i²/S². Any other analysis costs a pair, μ²
and a slack, which add up likewise. Charges are rounded up and budgets down, so no sum of round-offs
admits an over-spend.

Spent budgets and active masks are data about people: keep them out of logs and releases.
"""

from apiece.filters.costs import Costs, costs_of
from apiece.filters.filter import GaussianFilter, Odometer, RenyiFilter

__all__ = ["GaussianFilter", "RenyiFilter", "Odometer", "Costs", "costs_of"]
