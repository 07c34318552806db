"""What an audit says holds without an assumption that nobody checked, at the joint confidence."""

import math

import numpy as np
import pytest
from scipy import special, stats

from apiece.audit import Findings, LowerBound, lower_bound, one_run
from apiece.numerics.gaussian import gaussian_delta
from apiece.reporting.closing import findings_text, largest_bound


def randomised_response(size: int, epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores 1 and 0 of a mechanism that is exactly (ε, 0)-DP, in both worlds."""
    generator = np.random.default_rng(seed)
    share = special.expit(epsilon)
    return (generator.random(size) < share) * 1.0, (generator.random(size) >= share) * 1.0


def both(ins: np.ndarray, outs: np.ndarray, delta: float) -> tuple[LowerBound, ...]:
    methods = ("clopper-pearson", "gdp")
    return tuple(lower_bound(ins, outs, delta=delta, method=method) for method in methods)


def test_the_headline_does_not_assume_a_gaussian() -> None:
    ins, outs = randomised_response(200_000, 1.0, 0)
    bounds = both(ins, outs, 1e-5)
    sure, assumed = bounds
    assert sure.assumption is None
    assert assumed.assumption is not None
    assert sure.epsilon < 1.0 < assumed.epsilon  # the mechanism is (1, 0)-DP, and no Gaussian
    text = findings_text(Findings(audit="two worlds", bounds=bounds))
    headline = text.split("Verdict: ")[1]
    assert f"at least {sure.epsilon:.4g}" in headline.splitlines()[0]
    assert "Gaussian" in headline
    assert headline.index("Gaussian") < headline.index(f"{assumed.epsilon:.4g}")
    assert sure.to_dict()["assumption"] is None
    assert assumed.to_dict()["assumption"] == assumed.assumption


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_the_confidence_of_the_largest_bound_is_that_of_all(groups: int) -> None:
    bounds = [
        (str(group), LowerBound(float(group), 0.0, 0.99, "one-run dp", 1, None, None, 5, 5))
        for group in range(groups)
    ]
    largest = largest_bound(bounds)
    assert largest is not None
    assert largest.epsilon == groups - 1
    assert largest.confidence == pytest.approx(1 - 0.01 * groups)


def test_tied_scores_are_said() -> None:
    coins = np.random.default_rng(0).random(400) < 0.5
    tied = findings_text(Findings(audit="x", bounds=(one_run(coins * 1.0, coins, delta=0.0),)))
    assert "2 of 400 scores are distinct" in tied
    spread = np.random.default_rng(1).normal(size=400) + 3 * coins
    text = findings_text(Findings(audit="x", bounds=(one_run(spread, coins, delta=0.0),)))
    assert "distinct" not in text


def test_delta_is_not_the_chance_that_the_loss_exceeds_epsilon() -> None:
    # The Gaussian that keeps exactly (1, 1e-5): what the guide says of it.
    low, high = 0.01, 1.0
    for _ in range(80):
        mu = (low + high) / 2
        if float(gaussian_delta(mu, 1.0).upper) > 1e-5:
            high = mu
        else:
            low = mu
    # the loss is N(μ²/2, μ²)
    chance = stats.norm.sf((1 - low**2 / 2) / low)
    assert chance == pytest.approx(1.6e-4, rel=0.05)
    assert chance > 10 * 1e-5
    assert math.isclose(float(gaussian_delta(low, 1.0).upper), 1e-5, rel_tol=1e-6)
