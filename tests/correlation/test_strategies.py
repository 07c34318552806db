"""Strategy matrices: what they hold, refuse and write."""

import numpy as np
import pytest
from scipy.special import binom

from apiece.correlation.strategies import Banded, Buffered, strategy_from_json
from apiece.errors import InputError


def test_the_square_root_squared_sums() -> None:
    root = np.tril(
        np.array([np.roll(Banded.square_root(6).first_column(6), i) for i in range(6)]).T
    )
    np.testing.assert_allclose(root @ root, np.tril(np.ones((6, 6))))
    lags = np.arange(6)
    np.testing.assert_allclose(Banded.square_root(6).coefficients, binom(2 * lags, lags) / 4**lags)


@pytest.mark.parametrize("strategy", [Banded([1.0, 0.25]), Buffered([0.5, 0.9], [0.25, 0.5])])
def test_json_comes_back(strategy: Banded | Buffered) -> None:
    again = strategy_from_json(strategy.to_json())
    assert again == strategy
    assert hash(again) == hash(strategy)


@pytest.mark.parametrize(
    ("strategy", "other"),
    [
        (Banded([1.0, 0.0]), Banded([1.0, -0.0])),
        (Buffered([0.0], [0.5]), Buffered([-0.0], [0.5])),
        (Buffered([0.5], [0.0]), Buffered([0.5], [-0.0])),
    ],
)
def test_what_is_equal_has_one_hash(strategy: object, other: object) -> None:
    assert strategy == other
    assert hash(strategy) == hash(other)
    assert len({strategy, other}) == 1


@pytest.mark.parametrize(
    "document",
    [{}, {"bandit": {}}, {"banded": {"rows": [1.0]}}, {"banded": {}, "buffered": {}}],
)
def test_other_documents_are_refused(document: object) -> None:
    with pytest.raises(InputError):
        strategy_from_json(document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Banded([]),
        lambda: Banded([0.5, 1.0]),
        lambda: Banded([[1.0]]),
        lambda: Banded([1.0, np.nan]),
        lambda: Buffered([], []),
        lambda: Buffered([1.0], [0.5]),
        lambda: Buffered([0.5], [-0.1]),
        lambda: Buffered([0.5, 0.5], [0.9, 0.2]),
        lambda: Buffered([0.5], [0.1, 0.2]),
    ],
)
def test_what_is_no_strategy_is_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]


def test_buffers_are_sums_of_fading_exponentials() -> None:
    column = Buffered([0.5, 0.9], [0.25, 0.5]).first_column(5)
    expected = [1.0, *(0.25 * 0.5**lag + 0.5 * 0.9**lag for lag in range(4))]
    np.testing.assert_allclose(column, expected)
    assert Buffered([0.5], [0.5]).first_column(1).tolist() == [1.0]
