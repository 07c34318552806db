"""Junction trees against the whole joint distribution."""

import itertools

import numpy as np
import pytest

from apiece.synthesis.fitting import Model, fit_draft, measure_loss
from apiece.synthesis.marginals import Measurement
from apiece.synthesis.trees import model_megabytes, triangulate

SIZES = (2, 3, 2, 4, 2)
GRAPHS = [
    [(0, 1), (1, 2), (2, 3), (3, 4)],
    [(0, 1), (1, 2), (2, 3), (0, 3)],
    [(0, 1), (2, 3)],
    [(0, 1, 2), (2, 3), (1, 4)],
    [],
]


def joint_of(potentials):
    total = np.zeros(SIZES)
    for clique, potential in potentials.items():
        shape = [SIZES[c] if c in clique else 1 for c in range(len(SIZES))]
        total = total + potential.reshape(shape)
    weights = np.exp(total)
    return weights / weights.sum()


@pytest.mark.parametrize("cliques", GRAPHS)
def test_every_marginal_is_that_of_the_joint_distribution(cliques) -> None:
    generator = np.random.default_rng(0)
    potentials = {
        clique: generator.normal(0, 2, int(np.prod([SIZES[c] for c in clique])))
        for clique in cliques
    }
    model = Model(SIZES, potentials, 1.0)
    joint = joint_of(potentials)
    for size in (1, 2, 3, 4):
        for clique in itertools.combinations(range(5), size):
            others = tuple(c for c in range(5) if c not in clique)
            expected = joint.sum(axis=others).ravel()
            np.testing.assert_allclose(model.probabilities(clique), expected, atol=1e-12)


@pytest.mark.parametrize("cliques", GRAPHS)
def test_rows_have_the_counts_of_the_model(cliques) -> None:
    generator = np.random.default_rng(1)
    potentials = {
        clique: generator.normal(0, 1, int(np.prod([SIZES[c] for c in clique])))
        for clique in cliques
    }
    model = Model(SIZES, potentials, 1.0)
    codes = model.draw(40_000, generator)
    for clique in [(0,), (1, 2), (2, 3), (0, 3), (3, 4)]:
        shape = [SIZES[c] for c in clique]
        cells = np.ravel_multi_index(codes[:, list(clique)].T, shape)
        counts = np.bincount(cells, minlength=int(np.prod(shape)))
        assert np.abs(counts / len(codes) - model.probabilities(clique)).sum() < 0.03


def test_what_is_ruled_out_is_never_drawn() -> None:
    zeros = np.zeros((2, 3))
    zeros[1, 2] = -np.inf
    zeros[0, 0] = -np.inf
    potentials = {(0,): np.zeros(2), (1,): np.zeros(3), (1, 2): np.arange(6.0)}
    model = Model(SIZES, potentials, 1.0, {(0, 1): zeros.ravel()})
    assert model.probabilities((0, 1))[[0, 5]].tolist() == [0.0, 0.0]
    codes = model.draw(5000, np.random.default_rng(0))
    assert not ((codes[:, 0] == 1) & (codes[:, 1] == 2)).any()
    assert not ((codes[:, 0] == 0) & (codes[:, 1] == 0)).any()


def test_a_group_with_no_rows_and_a_drawn_table_of_one_row() -> None:
    model = Model((2, 2), {(0, 1): np.array([0.0, -800.0, -800.0, 0.0])}, 1.0)
    codes = model.draw(1, np.random.default_rng(0))
    assert codes[0, 0] == codes[0, 1]


def test_triangulation_of_a_cycle_has_a_chord() -> None:
    cliques = triangulate((2, 2, 2, 2), [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert sorted(map(len, cliques)) == [3, 3]
    assert model_megabytes((2, 2, 2, 2), [(0, 1), (1, 2), (2, 3), (0, 3)]) == 16 * 8 / 2**20


def test_a_draft_fits_what_was_measured() -> None:
    generator = np.random.default_rng(3)
    truth = Model(SIZES, {(0, 1): generator.normal(0, 1, 6), (1, 3): generator.normal(0, 1, 12)}, 1)
    measurements = [
        Measurement(clique, 5000 * truth.probabilities(clique), 10.0)
        for clique in [(0,), (1,), (2,), (3,), (4,), (0, 1), (1, 3)]
    ]
    fitted = fit_draft(SIZES, measurements, {}, None, steps=500)
    assert measure_loss(fitted, measurements) < 0.05
    for clique in itertools.combinations(range(5), 2):
        np.testing.assert_allclose(
            fitted.probabilities(clique), truth.probabilities(clique), atol=2e-3
        )
