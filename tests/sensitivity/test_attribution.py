"""Losses of individuals, their division among attributes, and who runs out first."""

import math

import numpy as np
import pytest

from apiece.errors import DataError, InputError, OptionError
from apiece.filters import GaussianFilter
from apiece.sensitivity import (
    Expression,
    exhaustion,
    individual_rdp,
    loss_shares,
    partial_sensitivity,
)
from apiece.sensitivity.partial import UNLIMITED, PartialSensitivity
from refusals import refused


def partial(raw, norms, attributes=None):
    raw, norms = np.array(raw, float), np.array(norms, float)
    return PartialSensitivity(raw, norms, norms == 0, "add_remove", attributes)


def test_individual_rdp_is_the_gaussian_one_rounded_up():
    s = np.array([0.0, 0.3, 2.0])
    found = individual_rdp(s, order=8, noise_stddev=1.7)
    exact = 8 * s**2 / (2 * 1.7**2)
    assert (found >= exact).all()
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert individual_rdp(0.0, order=2, noise_stddev=1) == 0


def test_individual_rdp_matches_the_divergence_by_quadrature():
    s, noise, order = 0.7, 1.3, 3.0
    grid = np.linspace(-20, 20, 200_001)
    p, q = (
        np.exp(-((grid - m) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
        for m in (s, 0)
    )
    renyi = math.log(np.trapezoid(p**order * q ** (1 - order), grid)) / (order - 1)
    assert individual_rdp(s, order=order, noise_stddev=noise) == pytest.approx(renyi, rel=1e-9)


@pytest.mark.parametrize(
    ("s", "order", "noise"), [(-1, 2, 1), (math.nan, 2, 1), (1, 1, 1), (1, math.nan, 1), (1, 2, 0)]
)
def test_individual_rdp_refuses_what_is_no_loss(s, order, noise):
    with pytest.raises(InputError):
        individual_rdp(s, order=order, noise_stddev=noise)


def test_worst_individual_loss_is_the_global_one():
    query = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)}).mean_of(5)
    norms = partial_sensitivity(query, query.design(5000)).norms
    bound = query.lipschitz_constant().bounds.upper
    own = individual_rdp(norms, order=4, noise_stddev=10)
    assert own.max() <= individual_rdp(bound, order=4, noise_stddev=10)
    assert np.median(own) < 0.1 * individual_rdp(bound, order=4, noise_stddev=10)


def test_shares_weigh_records_by_their_loss():
    found = loss_shares(partial([[1, 0], [1, 1]], [1, 3], ("age", "income")))
    # losses 1 and 9: age bears 1 + 4.5, income 4.5.
    assert found.ranking("all") == [("age", pytest.approx(0.55)), ("income", pytest.approx(0.45))]


def test_shares_by_group_and_groups_without_loss():
    found = loss_shares(partial([[1, 3], [5, 0], [0, 0]], [1, 1, 0]), ["x", "y", "z"])
    assert found.groups == ("x", "y", "z")
    np.testing.assert_allclose(found.shares, [[0.25, 0.75], [1, 0], [0, 0]])
    with refused(OptionError, "group"):
        found.ranking("w")
    with pytest.raises(DataError, match="one label"):
        loss_shares(partial([[1.0]], [1.0]), ["x", "y"])


def test_shares_of_images_are_named_by_place():
    found = loss_shares(partial([[[0, 1], [3, 0]]], [2]))
    assert found.ranking("all")[0] == ((1, 0), pytest.approx(0.75))


def test_who_runs_out_first_and_why():
    found = exhaustion(
        partial([[1, 0], [0, -2], [0, 0], [3, 1]], [1, 2, 0, 2], ("age", "income")),
        epsilon=[1, 1, 1, 4],
        delta=1e-5,
        noise_stddev=20,
        ids=["ann", "bob", "cid", "dan"],
    )
    assert found.ids.tolist() == ["bob", "ann", "dan", "cid"]
    assert found.attributes == ("income", "age", "age", None)
    assert found.answers[-1] == UNLIMITED
    assert found.answers[0] == pytest.approx(found.answers[1] / 4, abs=1)


def test_answers_are_those_that_the_filter_admits():
    norms = np.array([0.7, 1.0, 3.0, 8.0])
    budgets = {"epsilon": [1.0, 2.0, 4.0, 1.0], "delta": 1e-5}
    found = exhaustion(partial(np.ones((4, 1)), norms), **budgets, noise_stddev=40.0)
    people = GaussianFilter(**budgets)
    admitted = np.zeros(4, dtype=int)
    for _ in range(int(found.answers.max()) + 2):
        admitted += people.admit(norms, 40.0)
    predicted = found.answers[np.argsort(found.ids)]
    assert (predicted <= admitted).all()
    assert (admitted - predicted <= 1).all()
    assert predicted.min() > 0


def test_clipping_prolongs_participation():
    free = exhaustion(partial([[1.0]], [4.0]), epsilon=1, delta=1e-5, noise_stddev=20)
    clipped = exhaustion(
        partial([[1.0]], [4.0]), epsilon=1, delta=1e-5, noise_stddev=20, clip_norm=1.0
    )
    assert clipped.answers[0] >= 15 * free.answers[0]
    with refused(DataError, "ids"):
        exhaustion(partial([[1.0]], [1.0]), epsilon=1, delta=1e-5, noise_stddev=1, ids=[1, 2])


def test_exhaustion_does_not_print_people():
    found = exhaustion(partial([[1.0]], [4.0]), epsilon=1, delta=1e-5, noise_stddev=20, ids=["zoe"])
    assert "zoe" not in repr(found)
