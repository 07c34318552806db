"""Upper bounds on many mechanisms, some equal, at many δ's: never below the truth."""

import numpy as np
import pytest

from apiece.accounting import epsilons
from apiece.accounting.upper import upper_epsilons
from apiece.errors import RangeError

Z = np.geomspace(0.8, 1.6, 12)
Q = np.geomspace(0.002, 0.05, 12)
DELTA = np.geomspace(1e-4, 1e-9, 12)
STEPS = np.full(12, 300)
SETTINGS = {"noise_multiplier": Z, "sampling_probability": Q, "steps": STEPS, "delta": DELTA}


@pytest.fixture(scope="module")
def truth() -> tuple[np.ndarray, np.ndarray]:
    return epsilons(**SETTINGS)  # type: ignore[arg-type]


def test_by_losses_they_are_those_of_epsilons(truth: tuple[np.ndarray, ...]) -> None:
    assert np.array_equal(upper_epsilons(**SETTINGS), truth[1])  # type: ignore[arg-type]


def test_renyi_is_as_by_all_orders(truth: tuple[np.ndarray, ...]) -> None:
    every = epsilons(**SETTINGS, method="rdp").upper  # type: ignore[arg-type]
    found = upper_epsilons(**SETTINGS, method="rdp")  # type: ignore[arg-type]
    assert (found >= truth[0]).all()
    assert (found <= every * 1.001).all()  # by finer orders, so at times below


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_equal_mechanisms_in_any_order(method: str) -> None:
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(12), 3))
    columns = {name: values[order] for name, values in SETTINGS.items()}
    some = upper_epsilons(**columns, method=method)  # type: ignore[arg-type]
    every = upper_epsilons(**SETTINGS, method=method)  # type: ignore[arg-type]
    assert some == pytest.approx(every[order], rel=1e-12)


def test_past_the_numerical_range_is_said() -> None:
    columns = {**SETTINGS, "noise_multiplier": np.append(Z[:-1], 0.01)}
    with pytest.raises(RangeError, match=r"noise_multiplier = 0\.01"):
        upper_epsilons(**columns)  # type: ignore[arg-type]
