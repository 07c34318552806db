"""Lattice pairs of discrete steps against the steps themselves, composed outcome by outcome."""

import math

import numpy as np
import pytest

from apiece.accounting.lattice.discretise import Lattice, discretise
from apiece.accounting.lattice.pairs import AtomsPair

TIMES = 3
EPSILON = np.linspace(-2.5, 2.5, 41)

World = tuple[np.ndarray, np.ndarray]  # losses, Q-masses


def some_pair(seed: int, probability: float) -> AtomsPair:
    random = np.random.default_rng(seed)
    q = random.dirichlet(np.ones(7))
    p = q * np.exp(random.uniform(-1, 1, 7))
    ratio = np.log(p / p.sum() / q)
    order = np.argsort(ratio)
    return AtomsPair(ratio[order], q[order], (0.0, 0.0), 0.0, probability)


def law(pair: AtomsPair) -> World:
    return np.log1p(pair.probability * np.expm1(pair.log_ratio)), pair.mass


def on_lattice(lattice: Lattice) -> World:
    return lattice.offset + lattice.step * np.arange(lattice.mass.size), lattice.mass


def composed(world: World, times: int) -> World:
    loss, mass = world
    for _ in range(times - 1):
        loss = np.add.outer(loss, world[0]).ravel()
        mass = np.multiply.outer(mass, world[1]).ravel()
    return loss, mass


def profile(world: World, *, add: bool) -> np.ndarray:
    loss, q = world
    p, level = q * np.exp(loss), np.exp(EPSILON)[:, None]
    return np.asarray(np.maximum(q - level * p if add else p - level * q, 0.0).sum(axis=1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("probability", "step"), [(1.0, 0.11), (0.3, 0.05), (0.02, 0.004)])
def test_compositions_lie_between_those_of_the_lattices(
    seed: int, probability: float, step: float
) -> None:
    pair = some_pair(seed, probability)
    below, above = discretise(pair, pair.window(0.0), step)
    for times in (1, TIMES):
        exact = composed(law(pair), times)
        less, more = (composed(on_lattice(lattice), times) for lattice in (below, above))
        for add in (False, True):
            middle = profile(exact, add=add)
            assert (profile(less, add=add) <= middle + 1e-12).all()
            assert (middle <= profile(more, add=add) + 1e-12).all()


def test_neither_is_the_other() -> None:
    """Negative control: the order of the two is strict somewhere, and the gap shrinks as h²."""
    pair = some_pair(0, 1.0)
    gaps = []
    for step in (0.2, 0.02):
        below, above = (on_lattice(x) for x in discretise(pair, pair.window(0.0), step))
        gaps.append((profile(above, add=False) - profile(below, add=False)).max())
    assert gaps[0] > 1e-4
    assert gaps[1] < 0.1 * gaps[0]


def test_a_pair_that_is_only_bounded_has_two_lattices() -> None:
    """What is below a run behind a coin is put on a lattice of its own."""
    above = some_pair(3, 0.5)
    mass = above.mass * (1 - 1e-3)
    low = AtomsPair(above.log_ratio, mass, (0.0, 0.0), 0.0, 0.5)
    both = AtomsPair(above.log_ratio, above.mass, (0.0, 0.0), 0.0, 0.5, below=low)
    window = both.window(0.0)
    less, more = discretise(both, window, 0.05)
    assert math.fsum(more.mass) == pytest.approx(1.0)
    assert math.fsum(less.mass) == pytest.approx(1 - 1e-3)
    assert (less.mass == discretise(low, low.window(0.0), 0.05)[0].mass).all()
