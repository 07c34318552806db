"""Exact answers: formulas for one step and for plain Gaussians, sums over few atoms."""
