"""Masses of intervals of the likelihood ratio, against 40-digit arithmetic."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

from apiece._types import Bounds
from apiece.accounting.lattice.discretise import discretise
from apiece.accounting.lattice.pairs import (
    AtomsPair,
    GaussianPair,
    LaplacePair,
    bound_certainty,
    discrete_pair,
    normal_masses,
)
from apiece.errors import RangeError
from apiece.mechanisms.atoms import Atoms
from refusals import refused


def mass(z: float, low: mp.mpf, high: mp.mpf, shift: mp.mpf) -> mp.mpf:
    """The normal mass between two log-ratios."""
    ends = [rho * z + 1 / (2 * mp.mpf(z)) - shift for rho in (low, high)]
    return mp.ncdf(ends[1]) - mp.ncdf(ends[0])


@pytest.mark.parametrize("z", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("cells", [5, 4000])
def test_gaussian_masses(z: float, cells: int) -> None:
    pair = GaussianPair(z)
    window = pair.window(1e-14)
    edges = np.linspace(window.low, window.high, cells + 1)
    p, q = pair.masses(edges)
    bound = pair.rounding(window)
    off = mp.mpf(bound)  # by which the ends, as ρ, may be off
    with mp.workdps(40):
        for k in (0, cells // 3, cells - 1):
            for found, shift in ((q[k], 0), (p[k], 1 / mp.mpf(z))):
                least, most = (mass(z, edges[k] + s, edges[k + 1] - s, shift) for s in (off, -off))
                assert least * (1 - bound) <= found <= most * (1 + bound)


@pytest.mark.parametrize("b", [0.2, 3.0])
def test_laplace_masses_and_atoms_are_all_there_is(b: float) -> None:
    pair = LaplacePair(b)
    window = pair.window(0.0)
    p, q = pair.masses(np.linspace(window.low, window.high, 50))
    slack = pair.rounding(window)
    assert math.fsum(p) + sum(atom.p for atom in pair.atoms) == pytest.approx(1, rel=slack)
    assert math.fsum(q) + sum(atom.q for atom in pair.atoms) == pytest.approx(1, rel=slack)
    with mp.workdps(40):
        edge = np.linspace(window.low, window.high, 50)[10:12]
        x = [(mp.mpf(float(e)) * b + 1) / 2 for e in edge]
        exact = (mp.exp(-x[0] / b) - mp.exp(-x[1] / b)) / 2
        assert abs(q[10] / exact - 1) <= slack


@pytest.mark.parametrize("z", [0.5, 2.0])
@pytest.mark.parametrize("tail", [1e-6, 1e-20])
def test_no_more_lies_outside_a_window_than_it_says(z: float, tail: float) -> None:
    window = GaussianPair(z).window(tail)
    low, high = (end * z + 0.5 / z for end in (window.low, window.high))
    for shift, outside in ((0.0, window.outside_q), (1 / z, window.outside_p)):
        lost = norm.cdf(low - shift) + norm.sf(high - shift)
        assert lost <= outside
    assert window.outside_q <= 3 * tail


def test_atoms_fall_into_half_open_cells() -> None:
    pair = AtomsPair(np.array([-1.0, 0.0, 1.0]), np.array([0.5, 0.3, 0.2]), (0.0, 0.0), 0.0)
    p, q = pair.masses(np.array([-1.0, 0.0, 1.0]))
    assert q.tolist() == [0.8, 0.2]
    assert p == pytest.approx([0.5 * math.exp(-1) + 0.3, 0.2 * math.e])
    window = pair.window(0.25)
    assert (window.low, window.high) == (-1.0, 0.0) or window.outside_q <= 0.5


def test_a_single_atom_is_on_the_lattice_from_both_sides() -> None:
    """It stays one atom, of all its mass, whatever the step."""
    pair = discrete_pair(Atoms(np.array([math.log(2)]), np.array([0.5]), only_q=0.5))
    for lattice in discretise(pair, pair.window(1e-12), 3e-3):
        assert lattice.mass[0] == pytest.approx(0.5, abs=1e-15)
        assert lattice.mass[1:].sum() < 1e-200
        assert lattice.offset == pytest.approx(math.log(2), abs=1e-15)


def test_narrow_and_wide_cells_agree() -> None:
    wide = normal_masses(np.array([-3.0, 0.5, 4.0]))
    fine = normal_masses(np.linspace(-3.0, 0.5, 2001))
    assert fine.sum() == pytest.approx(wide[0], rel=1e-13)
    assert wide[1] == pytest.approx(norm.cdf(4.0) - norm.cdf(0.5), rel=1e-13)


def test_told_apart_is_the_chance_of_any_step() -> None:
    pairs = [
        (
            AtomsPair(
                np.zeros(1), np.ones(1), (0.0, 0.0), 0.0, certain=(Bounds(p, p), Bounds(0.0, 0.0))
            ),
            times,
        )
        for p, times in ((0.1, 3), (0.02, 5))
    ]
    exact = 1 - 0.9**3 * 0.98**5
    found = bound_certainty(pairs, reverse=False)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 1e-13
    assert bound_certainty(pairs, reverse=True) == (0.0, 0.0)


def test_past_the_range_is_said() -> None:
    for pair, parameter, value in (
        (GaussianPair(1e-7), "noise_multiplier", 1e-7),
        (GaussianPair(0.02), "noise_multiplier", 0.02),
        (LaplacePair(1e-3), "scale", 1e-3),
    ):
        with refused(RangeError, parameter, value):
            pair.window(1e-12)
