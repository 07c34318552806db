"""A pair as one vector: both worlds' masses are in it, whole, and convolving composes them."""

import numpy as np
import pytest

from apiece.accounting.lattice.discretise import Lattice, discretise
from apiece.accounting.lattice.pairs import GaussianPair, LaplacePair, Pair


def p_masses(lattice: Lattice) -> np.ndarray:
    losses = lattice.offset + lattice.step * np.arange(lattice.mass.size)
    return np.asarray(np.exp(losses) * lattice.mass)


@pytest.mark.parametrize("pair", [GaussianPair(1.3), GaussianPair(0.8, 0.05), LaplacePair(2.0)])
def test_the_vector_the_jump_and_what_is_outside_are_all_of_both_worlds(pair: Pair) -> None:
    for lattice in discretise(pair, pair.window(1e-9), 0.05):
        jump = lattice.jump
        assert (lattice.mass >= 0).all()
        assert lattice.mass.sum() + jump.q == pytest.approx(1 - lattice.outside_q, abs=2e-9)
        assert p_masses(lattice).sum() + jump.p == pytest.approx(1 - lattice.outside_p, abs=2e-9)
        assert 0 < lattice.rounding < 1e-9


def test_convolving_the_one_vector_composes_both_worlds() -> None:
    first, second = (
        discretise(pair, pair.window(1e-9), 0.05)[1]
        for pair in (GaussianPair(1.3), LaplacePair(2.0))
    )
    both = np.convolve(first.mass, second.mass)
    losses = first.offset + second.offset + 0.05 * np.arange(both.size)
    np.testing.assert_allclose(
        np.exp(losses) * both, np.convolve(p_masses(first), p_masses(second)), rtol=1e-9
    )
