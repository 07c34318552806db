"""The end that is returned was seen to hold, whatever the condition does."""

import numpy as np
import pytest

from apiece.numerics.roots import bisect, geometric, last_true


def test_both_directions_and_many_at_once() -> None:
    roots = np.array([0.1, 1.0, 7.5])
    inside, outside = bisect(lambda x: np.asarray(x <= roots), 0.0, np.full(3, 10.0), rounds=60)
    assert (inside <= roots).all()
    assert (outside > roots).all()
    assert (np.nextafter(inside, 11) == outside).all()
    inside, outside = bisect(lambda x: np.asarray(x > roots), np.full(3, 10.0), 0.0, rounds=60)
    assert (inside > roots).all()
    assert (outside <= roots).all()


def test_what_holds_nowhere_leaves_the_ends_given() -> None:
    inside, outside = bisect(lambda x: np.asarray(x * np.nan <= x), 1.0, 2.0, rounds=9)
    assert inside == 1.0
    assert outside == 1 + 2.0**-9


@pytest.mark.parametrize("seed", range(5))
def test_safe_where_the_condition_is_not_monotone(seed: int) -> None:
    phase = np.random.default_rng(seed).uniform(0, 9, 50)
    seen: list[np.ndarray] = []

    def holds(x: np.ndarray) -> np.ndarray:
        seen.append(x)
        return np.asarray(np.sin(40 * x + phase) > 0)

    inside, outside = bisect(holds, np.zeros(50), np.ones(50), rounds=30)
    good = holds(inside)
    assert (good | (inside == 0)).all()
    assert (~holds(outside) | (outside == 1)).all()


def test_it_stops_where_no_float_is_left() -> None:
    calls = []

    def holds(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return np.asarray(x * x <= 2)

    inside, _ = bisect(holds, 1.0, 2.0, rounds=1000)
    assert float(inside) ** 2 <= 2
    assert len(calls) < 60
    wide, _ = bisect(holds, 1e-100, 1e100, rounds=70, middle=geometric)
    assert float(wide) == pytest.approx(2**0.5, rel=1e-14)
    assert float(geometric(np.float64(1e200), np.float64(1e300))) == pytest.approx(1e250)


def test_the_last_true() -> None:
    assert last_true(lambda x: x <= 5.3, most=64, rounds=40) == pytest.approx(5.3, abs=1e-10)
    assert last_true(lambda x: x <= 5.3, most=64, rounds=40) <= 5.3
    assert last_true(lambda x: False, most=64, rounds=40) == 0
    assert last_true(lambda x: x == 0, most=64, rounds=10) == 0
    assert last_true(lambda x: True, most=64, rounds=20) == pytest.approx(64, rel=1e-5)


def test_the_last_true_never_goes_back() -> None:
    kept = [0.0]

    def holds(x: float) -> bool:
        assert x >= kept[-1]
        if x <= 3.7:
            kept.append(x)
        return x <= 3.7

    assert last_true(holds, most=64, rounds=20) == kept[-1]
