"""Errors of predicted numbers: by hand, and intervals that hold as often as they say."""

import numpy as np
import pytest

from apiece.jobs.trained import errors_of


def test_errors_by_hand() -> None:
    found = errors_of(np.array([1.0, 2.0, 4.0, 4.0]), np.array([1.0, 2.0, 3.0, 6.0]), np.arange(4))
    assert found is not None
    assert found.mean_absolute.value == 0.75
    assert found.r2.value == pytest.approx(1 - 5 / 14)
    for each in (found.mean_absolute, found.r2):
        assert each.lower < each.value < each.upper
    assert found.mean_absolute.lower >= 0
    assert found.r2.upper <= 1


@pytest.mark.parametrize(
    ("predicted", "truth", "unit"),
    [
        ([], [], []),
        ([1.0], [1.0], [0]),
        ([1.0, 2.0], [3.0, 3.0], [0, 1]),
        ([1.0, 2.0], [3.0, 4.0], [0, 0]),
        ([1.0, np.nan], [3.0, 4.0], [0, 1]),
        ([1.0, np.inf], [3.0, 4.0], [0, 1]),
    ],
)
def test_where_errors_say_nothing(
    predicted: list[float], truth: list[float], unit: list[int]
) -> None:
    assert errors_of(np.array(predicted), np.array(truth), np.array(unit)) is None


@pytest.mark.parametrize("rows_a_person", [1, 6])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(rows_a_person: int) -> None:
    """Rows of a person share an error; by rows alone the interval would be far too narrow."""
    generator, held, naive = np.random.default_rng(0), np.zeros(2), np.zeros(2)
    noise, trials, people = 2.0, 400, 150
    # the mean absolute value of a normal number, and 1 - its variance over that of the truth
    wanted = np.array([noise * np.sqrt(2 / np.pi), 1 - noise**2 / (9 + noise**2)])
    for _ in range(trials):
        who = np.repeat(np.arange(people), rows_a_person)
        predicted = np.repeat(generator.normal(0, 3, people), rows_a_person)
        truth = predicted + np.repeat(generator.normal(0, noise, people), rows_a_person)
        for found, count in (
            (errors_of(predicted, truth, who), held),
            (errors_of(predicted, truth, np.arange(truth.size)), naive),
        ):
            assert found is not None
            for i, each in enumerate((found.mean_absolute, found.r2)):
                count[i] += each.lower <= wanted[i] <= each.upper
    assert (held / trials > 0.91).all()
    assert (held / trials < 0.985).all()
    if rows_a_person > 1:
        assert (naive / trials < 0.75).all()
