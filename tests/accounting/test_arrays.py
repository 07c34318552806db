"""Columns of settings: checked by name, brought to one shape, find_runs of equal ones found."""

import numpy as np
import pytest

from apiece.accounting.batch import broadcast, distinct
from apiece.accounting.bounds import find_runs
from apiece.errors import BudgetError, InputError


def test_broadcast_gives_flat_columns_of_one_shape() -> None:
    shape, (steps, delta) = broadcast(steps=[[1], [2]], delta=[1e-5, 1e-6, 1e-7])
    assert shape == (2, 3)
    assert steps.tolist() == [1, 1, 1, 2, 2, 2]
    assert delta.tolist() == [1e-5, 1e-6, 1e-7] * 2


@pytest.mark.parametrize(
    ("column", "error", "says"),
    [
        ({"delta": [0.5, 1.0]}, BudgetError, r"delta\[1\] = 1.0: must be in \(0, 1\)"),
        ({"steps": 1.5}, InputError, "steps = 1.5"),
        ({"noise_multiplier": float("nan")}, InputError, "noise_multiplier = nan"),
        ({"epsilon": "much"}, InputError, "epsilon: not numbers"),
        ({"steps": [1, 2], "delta": [0.1] * 3}, InputError, "do not broadcast"),
    ],
)
def test_what_is_wrong_is_named(column: dict, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        broadcast(**column)


def test_runs_and_distinct_columns() -> None:
    columns = np.array([[2.0, 2.0, 1.0, 2.0], [5.0, 5.0, 5.0, 4.0]])
    starts, sizes = find_runs(columns)
    assert (starts.tolist(), sizes.tolist()) == ([0, 2, 3], [2, 1, 1])
    found, member = distinct(columns)
    assert found.T.tolist() == [[1, 5], [2, 4], [2, 5]]
    assert (found[:, member] == columns).all()


def test_no_columns() -> None:
    none = np.zeros((3, 0))
    assert [part.size for part in find_runs(none)] == [0, 0]
    found, member = distinct(none)
    assert (found.shape, member.size) == ((3, 0), 0)
