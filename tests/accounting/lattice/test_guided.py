"""One look at many mechanisms: never below the truth, wherever it was told to look."""

import numpy as np
import pytest

from apiece.accounting import epsilons, upper_epsilons

Z = np.geomspace(0.8, 1.6, 12)
Q = np.geomspace(0.002, 0.05, 12)
DELTA = np.geomspace(1e-4, 1e-9, 12)
STEPS = np.full(12, 300)
SETTINGS = {"noise_multiplier": Z, "sampling_probability": Q, "steps": STEPS, "delta": DELTA}


@pytest.fixture(scope="module")
def truth() -> tuple[np.ndarray, np.ndarray]:
    return epsilons(**SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [1.0, 1.2, 4.0, 0.2, np.nan])
def test_an_upper_bound_close_above_the_truth(told: float, truth: tuple[np.ndarray, ...]) -> None:
    lower, upper = truth
    found = upper_epsilons(**SETTINGS, expected=told * upper)  # type: ignore[arg-type]
    assert (found >= lower).all()
    assert (found <= upper * 1.002).all()


def test_similar_mechanisms_follow_the_first(truth: tuple[np.ndarray, ...]) -> None:
    """Many δ's a mechanism, in a wide range; expected for a run that shares its settings."""
    z = np.repeat(np.geomspace(1.0, 1.05, 16), 8)
    delta = np.tile(np.geomspace(1e-4, 1e-11, 8), 16)
    wanted = epsilons(noise_multiplier=z, sampling_probability=0.02, steps=300, delta=delta)
    found = upper_epsilons(
        noise_multiplier=z,
        sampling_probability=np.full(z.shape, 0.02),
        steps=np.full(z.shape, 300),
        delta=delta,
        expected=wanted.upper,
    )
    assert (found >= wanted.lower).all()
    assert (found <= wanted.upper * 1.002).all()


def test_renyi_is_as_by_all_orders(truth: tuple[np.ndarray, ...]) -> None:
    every = epsilons(**SETTINGS, method="rdp").upper  # type: ignore[arg-type]
    nothing = np.full(12, np.nan)
    found = upper_epsilons(**SETTINGS, expected=nothing, method="rdp")  # type: ignore[arg-type]
    assert (found >= truth[0]).all()
    assert (found <= every * 1.001).all()  # by finer orders, so at times below


def test_closed_forms_and_entries_that_share_a_mechanism() -> None:
    settings = {
        "noise_multiplier": np.array([30.0, 2.0, 30.0]),
        "sampling_probability": np.array([1.0, 0.1, 1.0]),
        "steps": np.array([100, 1, 100]),
        "delta": np.array([1e-5, 1e-5, 1e-6]),
    }
    wanted = epsilons(**settings)  # type: ignore[arg-type]
    found = upper_epsilons(**settings, expected=wanted.upper)  # type: ignore[arg-type]
    assert found == pytest.approx(wanted.upper, rel=1e-9)
