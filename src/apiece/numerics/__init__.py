"""Roots with a safe end, the Gaussian's δ(ε, μ) with both bounds, and what a coin does."""
