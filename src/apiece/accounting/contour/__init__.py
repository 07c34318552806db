"""Answers for sampled Gaussian steps of one kind, many compositions at once, by an integral."""
