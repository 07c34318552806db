"""A lattice holds all the mass of its pair: no atom is lost or doubled, whatever the step."""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import exact as closed
from apiece.accounting.exact import log_ratio
from apiece.accounting.lattice.discretise import Lattice, align_step, cut_window, discretise
from apiece.accounting.lattice.pairs import (
    AtomsPair,
    GaussianPair,
    LaplacePair,
    Pair,
    Window,
    mixture_pair,
)
from apiece.accounting.lattice.profile import build_run_pair
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.rounding import UNIT

CELLS = (1, 1.5, 2, 3, 7, 10, 99.9, 1000, 1001.3)


def some_pairs(seed: int, size: int) -> Iterator[Pair]:
    """Laplace and Gaussian pairs with coins from 1e-9 to 1 − 1e-9, and runs behind a coin."""
    random = np.random.default_rng(seed)
    for _ in range(size):
        rare = 10 ** random.uniform(-9, 0)
        yield LaplacePair(10 ** random.uniform(-1.5, 6), random.choice([rare, 1 - rare, 1.0]))
        yield GaussianPair(10 ** random.uniform(-0.5, 3), random.choice([rare**0.7, 1.0]))
        shifts, chances = random.uniform(0.1, 2, 3), random.dirichlet(np.ones(3)) * (1 - 1e-15)
        mixture = MixtureOfGaussians(10 ** random.uniform(-0.3, 2), shifts, chances)
        yield mixture_pair(mixture, random.choice([rare**0.7, 1.0]))
    yield build_run_pair(((LaplacePair(1.5, 0.3), 20),), 0.2)
    yield build_run_pair(((GaussianPair(2.0, 0.1), 50),), 0.01)


def settings(pair: Pair, seed: int) -> Iterator[tuple[Window, float]]:
    """Windows, whole and cut, with steps that fit the pair's atoms and others that do not."""
    random, q = np.random.default_rng(seed), pair.probability
    whole = pair.window(10 ** random.uniform(-25, -6))
    start = log_ratio(whole.low, q)
    span = log_ratio(whole.high, q) - start
    for window in (whole, cut_window(pair, whole, start + span * random.uniform(0.3, 1))):
        for cells in CELLS:
            if span / cells <= 1:
                yield window, span / cells
                yield window, align_step(pair, window, span / cells)


def both_masses(lattice: Lattice) -> tuple[float, float]:
    """The P- and the Q-mass of a lattice, jumps included."""
    ratio = np.exp(lattice.offset + lattice.step * np.arange(lattice.mass.size))
    p, q = math.fsum(lattice.mass * ratio), math.fsum(lattice.mass)
    return p + lattice.jump.p, q + lattice.jump.q


def conserves(below: Lattice, above: Lattice) -> bool:
    """Whether all of 1 but what is outside is above, and no more than 1 is below."""
    slack = 2 * max(below.rounding, above.rounding) + 8 * UNIT
    outside = (above.outside_p, above.outside_q)
    return (
        all(
            1 - out - slack <= mass <= 1 + slack
            for mass, out in zip(both_masses(above), outside, strict=True)
        )
        and all(mass <= 1 + slack for mass in both_masses(below))
        and bool((above.mass >= 0).all() and (below.mass >= 0).all())
    )


def one_step(lattice: Lattice, epsilon: Floats, *, add: bool) -> Floats:
    """δ(ε) of what is on the lattice, told apart outright, and a jump."""
    ratio = np.exp(lattice.offset + lattice.step * np.arange(lattice.mass.size))
    level = np.exp(epsilon)[:, None]
    gain = np.maximum(1 - level * ratio if add else ratio - level, 0.0)
    inside = (lattice.mass * gain).sum(axis=1)
    if add:
        rare = np.maximum(lattice.jump.q - level[:, 0] * lattice.jump.p, 0.0)
        return np.asarray(inside + lattice.outside_q + rare)
    rare = np.maximum(lattice.jump.p - level[:, 0] * lattice.jump.q, 0.0)
    return np.asarray(inside + lattice.outside_p + rare)


def inner_is_whole(pair: Pair) -> Pair:
    """A run behind a coin as its dominating pair, whose masses are 1 but for what is outside."""
    return dataclasses.replace(pair, below=None) if isinstance(pair, AtomsPair) else pair


@pytest.mark.parametrize("size", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_mass_is_conserved(size: int) -> None:
    seen = 0
    for seed, pair in enumerate(map(inner_is_whole, some_pairs(size, size))):
        for window, step in settings(pair, seed):
            assert conserves(*discretise(pair, window, step)), (pair, window, step)
            seen += 1
    assert seen > 40 * size


@pytest.mark.parametrize("size", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_both_directions_are_dominated_and_dominating(size: int) -> None:
    """The profile of one step, in closed form, lies between those of its lattices at every ε."""
    seen = 0
    for seed, pair in enumerate(some_pairs(size + 1, size)):
        if not isinstance(pair, LaplacePair | GaussianPair):
            continue
        q, laplace = pair.probability, isinstance(pair, LaplacePair)
        plain = closed.laplace if laplace else closed.gaussian
        scale = pair.scale if isinstance(pair, LaplacePair) else pair.noise_multiplier
        for window, step in settings(pair, seed):
            below, above = discretise(pair, window, step)
            start, end = log_ratio(window.low, q), log_ratio(window.high, q)
            for add, form in ((False, closed.sampled_remove), (True, closed.sampled_add)):
                epsilon = (-1) ** add * np.linspace(start - step, end + step, 83)
                exact = form(partial(plain, scale), q, epsilon)
                slack = 4 * max(below.rounding, above.rounding) * (1 + np.exp(epsilon))
                less, more = (one_step(x, epsilon, add=add) for x in (below, above))
                assert (less <= exact.upper + slack).all(), (pair, window, step, add)
                whole = epsilon <= (-math.inf if add and above.jump.q else above.jump.loss)
                assert (exact.lower <= more + slack)[whole].all(), (pair, window, step, add)
                seen += int(whole.any())
    assert seen > 20 * size


def some_atoms(seed: int, size: int) -> Iterator[AtomsPair]:
    """A few to some hundred atoms, their masses of all sizes, behind a coin or not."""
    random = np.random.default_rng(seed)
    for _ in range(size):
        count = int(10 ** random.uniform(0.5, 2.5))
        ratio = np.sort(random.normal(size=count)) * 10 ** random.uniform(-2, 0.5)
        p = np.exp(random.normal(size=count) * random.choice([0.1, 1.0, 8.0]))
        q = p * np.exp(-ratio)
        ratio, p, q = ratio + math.log(q.sum() / p.sum()), p / p.sum(), q / q.sum()
        coin = random.choice([1.0, 10 ** random.uniform(-4, 0)])
        yield AtomsPair(ratio, q, (0.0, 0.0), 1e-13, coin)


@pytest.mark.parametrize("size", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_sparse_atoms_between_lattice_points(size: int) -> None:
    """Cells without any atom: both lattices hold both masses, and the profile between theirs."""
    seen = 0
    for pair in some_atoms(size, size):
        window = pair.window(0.0)
        ratio = np.log1p(pair.probability * np.expm1(pair.log_ratio))
        span = float(ratio[-1] - ratio[0])
        for cells in (7, 99.9, 1001.3):
            if span / cells > 1:
                continue
            below, above = discretise(pair, window, span / cells)
            assert conserves(below, above), (pair, cells)
            epsilon = np.linspace(ratio[0] - 0.1, ratio[-1] + 0.1, 57)
            for add in (False, True):
                at = -epsilon if add else epsilon
                loss, mass = (-ratio, pair.mass) if add else (ratio, pair.mass * np.exp(ratio))
                exact = (np.maximum(-np.expm1(at[:, None] - loss), 0.0) * mass).sum(axis=1)
                slack = 4 * max(below.rounding, above.rounding) * (1 + np.exp(at))
                less, more = (one_step(x, at, add=add) for x in (below, above))
                assert (less <= exact + slack).all(), (pair, cells, add)
                assert (exact <= more + slack).all(), (pair, cells, add)
                if pair.mass.max() < 0.3 and cells > 1000:  # no atom outweighs all the others
                    moved = span / cells * (1 + np.exp(at))  # by what a cell's width can do
                    assert (exact - less <= 2 * moved).all(), (pair, cells, add)
                    seen += 1
    assert seen >= size // 2


@pytest.mark.parametrize("scale", [0.5, 1.5, 1000.0])
@pytest.mark.parametrize("probability", [0.01, 0.6, 1.0])
@pytest.mark.parametrize("cells", [7, 999, 1001, 5003])
def test_nothing_is_lost_between_atoms_on_the_lattice(
    scale: float, probability: float, cells: int
) -> None:
    """The dominated pair too keeps both masses, which is what makes its bound close."""
    pair = LaplacePair(scale, probability)
    window = pair.window(0.0)
    span = log_ratio(window.high, probability) - log_ratio(window.low, probability)
    step = align_step(pair, window, span / cells)
    assert step <= 1
    for lattice in discretise(pair, window, step):
        assert both_masses(lattice) == pytest.approx((1.0, 1.0), abs=2e-13)


def test_a_lattice_without_its_topmost_atom_is_seen() -> None:
    """Negative controls: mass dropped above, mass doubled below."""
    pair = LaplacePair(1.5, 0.2)
    window = pair.window(0.0)
    below, above = discretise(pair, window, align_step(pair, window, 1e-3))
    assert conserves(below, above)
    atom = pair.atoms[-1].q
    for lattice, change in ((above, -atom), (below, atom)):
        mass = lattice.mass.copy()
        mass[-1] += change
        other = dataclasses.replace(lattice, mass=mass)
        assert not conserves(*((below, other) if lattice is above else (other, above)))
