"""Roots with a safe end, the Gaussian's δ(ε, μ) with both bounds, and what a coin does."""

from apiece.numerics.coins import after_coin
from apiece.numerics.gaussian import (
    gaussian_delta,
    gaussian_epsilon_above,
    gaussian_epsilon_below,
    gaussian_mu_below,
    gaussian_profile,
)
from apiece.numerics.monotone import Places, log_room, safe_end, safe_ends
from apiece.numerics.roots import geometric, last_true, narrowed
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

__all__ = [
    "LARGEST_LOG_RATIO",
    "UNIT",
    "Places",
    "after_coin",
    "gaussian_delta",
    "gaussian_epsilon_above",
    "gaussian_epsilon_below",
    "gaussian_mu_below",
    "gaussian_profile",
    "geometric",
    "last_true",
    "log_room",
    "narrowed",
    "safe_end",
    "safe_ends",
]
