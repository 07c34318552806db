"""Answers for every mechanism: losses on a lattice, composed by FFT, from above and from below."""
