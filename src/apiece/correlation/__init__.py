"""Noise that is correlated between steps: training without sampling, by matrix factorisation.

A training releases C x + z, with x_t the sum of clipped gradients at step t, z independent Gaussian
noise and C lower triangular. The optimizer is fed C⁻¹ of it: x_t plus noise whose running sums grow
slowly. A person's pair is one Gaussian for the whole training, whatever the order of the data.
"""
