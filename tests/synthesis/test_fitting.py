"""The final model is mbi's: at least as near as the draft that it starts from."""

import itertools

import numpy as np
import pytest

from apiece.synthesis.fitting import Model, fit_draft, fit_model, measure_loss
from apiece.synthesis.marginals import Measurement

pytest.importorskip("mbi", reason="needs the extra synthesis")

SIZES = (2, 3, 4, 2)


def measure(noise, seed=0, zeros=None):
    generator = np.random.default_rng(seed)
    cliques = [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (0, 2)]
    truth = Model(
        SIZES,
        {c: generator.normal(0, 1, int(np.prod([SIZES[k] for k in c]))) for c in cliques[4:]},
        1.0,
        zeros or {},
    )
    values = [(c, 1000 * truth.probabilities(c)) for c in cliques]
    return truth, [Measurement(c, v + generator.normal(0, noise, v.size), noise) for c, v in values]


def test_mbi_and_a_long_draft_agree() -> None:
    _, measured = measure(15.0)
    long = fit_draft(SIZES, measured, {}, None, steps=2000)
    final = fit_model(fit_draft(SIZES, measured, {}, None), measured)
    assert measure_loss(final, measured) <= measure_loss(long, measured) * 1.02
    for pair in itertools.combinations(range(4), 2):
        np.testing.assert_allclose(final.probabilities(pair), long.probabilities(pair), atol=4e-3)


def test_mbi_keeps_what_is_ruled_out() -> None:
    mask = np.zeros((3, 2))
    mask[0, 1] = -np.inf
    zeros = {(1, 3): mask.ravel()}
    _, measured = measure(15.0, zeros=zeros)
    final = fit_model(fit_draft(SIZES, measured, zeros, None), measured)
    assert final.probabilities((1, 3))[1] == 0
    assert measure_loss(final, measured) < 40


def test_jax_keeps_the_settings_of_its_user() -> None:
    import jax

    _, measured = measure(15.0)
    fit_model(fit_draft(SIZES, measured, {}, None), measured, steps=50)
    assert not jax.config.jax_enable_x64
