"""Discrete mechanisms: their atoms are the exact pair, and bad values are refused."""

import functools
import math

import mpmath as mp
import numpy as np
import pytest

from apiece.errors import InputError, RangeError
from apiece.mechanisms import (
    Atoms,
    DiscreteGaussian,
    DiscreteLaplace,
    Finite,
    behind_coin,
    from_json,
    to_json,
)


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


def test_discrete_laplace_is_pure() -> None:
    atoms = DiscreteLaplace(2.0, 3).atoms()
    assert atoms.log_ratio[[0, -1]].tolist() == [-1.5, 1.5]
    assert hockey_stick(atoms, 1.5) == 0.0


def test_finite_with_outcomes_of_one_world_only() -> None:
    atoms = Finite([0.5, 0.3, 0.2, 0.0], [0.2, 0.5, 0.0, 0.3]).atoms()
    assert (atoms.only_p, atoms.only_q) == (0.2, 0.3)
    assert hockey_stick(atoms, 0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("probability", [1e-6, 0.3, 0.999])
def test_a_coin_in_front(probability: float) -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.5, 0.0, 0.3])
    atoms = behind_coin(Finite(p, q).atoms(), probability)
    mixed = (1 - probability) * q + probability * p
    for epsilon in (0.0, 0.1, 1.0):
        gain = mixed - math.exp(epsilon) * q
        assert hockey_stick(atoms, epsilon) == pytest.approx(gain[gain > 0].sum(), rel=1e-9)
    assert atoms.only_q == 0.0


def test_randomized_response_costs_its_epsilon() -> None:
    atoms = Finite.randomized_response(0.7, 5).atoms()
    assert np.abs(atoms.log_ratio).max() == pytest.approx(0.7)


@pytest.mark.parametrize(
    "values", [[0.1] * 10, [1 / 3] * 3, np.random.default_rng(0).dirichlet([1] * 50)]
)
def test_json_keeps_every_chance(values) -> None:
    mechanism = Finite(values, values[::-1])
    assert from_json(to_json(mechanism)) == mechanism
    assert from_json(to_json(from_json(to_json(mechanism)))) == mechanism


@pytest.mark.parametrize(
    ("with_record", "without", "message"),
    [
        ([0.5, 0.4], [0.5, 0.5], "sums to 0.9"),
        ([1.5, -0.5], [0.5, 0.5], "in [0, 1]"),
        ([math.nan, 1.0], [0.5, 0.5], "in [0, 1]"),
        ([1.0], [0.5, 0.5], "1 and 2 outcomes"),
        ([], [], "one chance an outcome"),
        ([["a"]], [1.0], "not numbers"),
        ([[0.5, 0.5]], [1.0], "one chance an outcome"),
    ],
)
def test_bad_chances(with_record, without, message: str) -> None:
    with pytest.raises(InputError) as error:
        Finite(with_record, without)
    assert message in str(error.value)


@pytest.mark.parametrize("kind", [DiscreteGaussian, DiscreteLaplace])
def test_bad_noise(kind) -> None:
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="scale"):
            kind(scale)
    for sensitivity in (0, 1.5, -1):
        with pytest.raises(InputError, match="sensitivity"):
            kind(1.0, sensitivity)
    with pytest.raises(RangeError, match="past the numerical range"):
        kind(1e-4)
    with pytest.raises(RangeError, match="past the numerical range"):
        kind(1e7, 10**7)
