"""Mechanisms by two finite distributions."""

import math

import numpy as np
import pytest

from apiece.errors import InputError
from apiece.mechanisms import Finite, from_json
from apiece.mechanisms.algebra import to_json


def test_finite_with_outcomes_of_one_world_only() -> None:
    atoms = Finite([0.5, 0.3, 0.2, 0.0], [0.2, 0.5, 0.0, 0.3]).atoms()
    assert (atoms.only_p, atoms.only_q) == (0.2, 0.3)
    gain = atoms.mass * (np.exp(atoms.log_ratio) - 1)
    assert atoms.only_p + gain[gain > 0].sum() == pytest.approx(0.5)


def test_randomized_response_costs_its_epsilon() -> None:
    atoms = Finite.randomized_response(0.7, 5).atoms()
    assert np.abs(atoms.log_ratio).max() == pytest.approx(0.7)


@pytest.mark.parametrize("answers", [2, 3, 7])
def test_randomized_response_tells_two_answers_and_the_rest_apart(answers: int) -> None:
    found = Finite.randomized_response(0.7, answers)
    truth, lie, *rest = found.with_record
    assert found.without_record == (lie, truth, *rest)
    assert truth == pytest.approx(math.exp(0.7) * lie)
    assert truth + (answers - 1) * lie == pytest.approx(1)
    assert rest == ([] if answers == 2 else [pytest.approx((answers - 2) * lie)])


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
