"""A released number of rows a person: one person is one count, and the noise is what it says."""

import math
from collections import Counter

import numpy as np
import pytest

from apiece.budgets import release as module
from apiece.budgets import release_rows_per_person
from apiece.errors import BudgetError, InfeasibleError, InputError

LEVELS = [1, 2, 5, 10]


def test_a_person_moves_one_count_by_one_whatever_they_have() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        rows = draw.integers(1, 500, draw.integers(2, 30))
        whole = module._count_persons(rows, np.array(LEVELS))
        assert whole.sum() == rows.size
        for person in range(rows.size):
            less = module._count_persons(np.delete(rows, person), np.array(LEVELS))
            assert sorted(np.abs(whole - less)) == [0, 0, 0, 1]


@pytest.mark.parametrize(("share", "level"), [(0.2, 1), (0.5, 2), (0.8, 5), (0.97, 10)])
def test_with_many_people_it_is_the_quantile(share: float, level: int) -> None:
    rows = np.repeat([1, 2, 4, 30], [3000, 3000, 3000, 1000])
    for seed in range(5):
        found = release_rows_per_person(rows, LEVELS, epsilon=0.5, share=share, seed=seed)
        assert found == level


def worst_ratio(runs: int) -> float:
    """Estimate the largest probability ratio of an output, between a person there and not."""
    seen = []
    for rows in ([1, 1, 7], [1, 1]):
        outputs: Counter[int] = Counter()
        for seed in range(runs):
            try:
                outputs[release_rows_per_person(rows, [1, 5, 10], epsilon=1.0, seed=seed)] += 1
            except InfeasibleError:
                outputs[0] += 1
        seen.append(outputs)
    return max(
        (one[level] - 4 * math.sqrt(one[level])) / (other[level] + 4 * math.sqrt(other[level] + 1))
        for one, other in (seen, seen[::-1])
        for level in (0, 1, 5, 10)
    )


def test_no_output_tells_more_than_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with a fifth of the noise the same look finds more."""
    assert worst_ratio(1500) <= math.e
    right = module.laplace_scale
    monkeypatch.setattr(module, "laplace_scale", lambda epsilon: right(epsilon) / 5)
    assert worst_ratio(1500) > math.e


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": 0.0}, BudgetError, "epsilon"),
        ({"epsilon": 1e-12}, BudgetError, "too small"),
        ({"share": 1.0}, InputError, "share"),
        ({"levels": [2, 1]}, InputError, "increase"),
        ({"levels": [1, 1]}, InputError, "increase"),
        ({"levels": [0, 1]}, InputError, "levels"),
        ({"levels": [1.5]}, InputError, "levels"),
        ({"rows": [0, 3]}, InputError, "rows"),
        ({"rows": []}, InputError, "rows"),
    ],
)
def test_bad_input(change: dict[str, object], error: type, message: str) -> None:
    given = {"rows": [1, 2], "levels": LEVELS, "epsilon": 1.0, **change}
    with pytest.raises(error, match=message):
        release_rows_per_person(given.pop("rows"), given.pop("levels"), **given)  # type: ignore[arg-type]
