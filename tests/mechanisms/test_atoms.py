"""Atoms are the exact pair of two worlds, also behind a coin."""

import functools
import math

import mpmath as mp
import numpy as np
import pytest

from apiece.mechanisms import DiscreteGaussian, DiscreteLaplace, Finite
from apiece.mechanisms.atoms import Atoms, behind_coin


def hockey_stick(atoms: Atoms, epsilon: float) -> float:
    """Return δ(ε) in the remove direction, from the atoms."""
    gain = atoms.mass * (np.exp(atoms.log_ratio) - math.exp(epsilon))
    return atoms.only_p + float(gain[gain > 0].sum())


def exact(with_record: list[mp.mpf], without: list[mp.mpf], epsilon: float) -> mp.mpf:
    pairs = zip(with_record, without, strict=True)
    return mp.fsum(max(p - mp.exp(epsilon) * q, 0) for p, q in pairs)


def laplace(scale: float, x: int) -> mp.mpf:
    a = mp.exp(-1 / mp.mpf(scale))
    return (1 - a) / (1 + a) * a ** abs(x)


def gaussian(scale: float, x: int) -> mp.mpf:
    return mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(scale) ** 2)) / _total(scale)


@functools.cache
def _total(scale: float) -> mp.mpf:
    reach = int(25 * scale) + 2
    return mp.fsum(mp.exp(-(k**2) / (2 * mp.mpf(scale) ** 2)) for k in range(-reach, reach + 1))


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.5])
@pytest.mark.parametrize("shift", [1, 4])
@pytest.mark.parametrize("law", [laplace, gaussian])
def test_atoms_are_the_exact_pair(scale: float, shift: int, law) -> None:
    kind = DiscreteLaplace if law is laplace else DiscreteGaussian
    atoms = kind(scale, shift).atoms()
    reach = int(60 * scale) + 10 if law is laplace else int(20 * scale) + 10
    with mp.workdps(40):
        law_at = {x: law(scale, x) for x in range(-reach - shift, reach + shift + 1)}
        places = range(-reach, reach + shift + 1)
        p, q = [law_at[x - shift] for x in places], [law_at[x] for x in places]
        for epsilon in (0.0, 0.3, 0.9 * shift / scale):
            found, true = hockey_stick(atoms, epsilon), exact(p, q, epsilon)
            assert abs(found - true) <= 1e-12 * true + 1e-25


@pytest.mark.parametrize("probability", [1e-6, 0.3, 0.999])
def test_a_coin_in_front(probability: float) -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.5, 0.0, 0.3])
    atoms = behind_coin(Finite(p, q).atoms(), probability)
    mixed = (1 - probability) * q + probability * p
    for epsilon in (0.0, 0.1, 1.0):
        gain = mixed - math.exp(epsilon) * q
        assert hockey_stick(atoms, epsilon) == pytest.approx(gain[gain > 0].sum(), rel=1e-9)
    assert atoms.only_q == 0.0
