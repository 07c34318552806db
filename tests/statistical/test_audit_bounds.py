"""Audits of what leaks nothing report ε > 0 at most 5 % of the time; what leaks is found.

Of 1,000 runs at 95 %, up to 50 may report something by chance; a method that is exactly on the
border stays below 50 + 3·√(1000·.05·.95) ≈ 71 with probability .9987. The negative control picks
its threshold on the scores it certifies with, unpaid.
"""

import numpy as np
import pytest

from apiece import audit
from apiece.audit import bounds
from apiece.audit.findings import ModelScores, audit_scores

RUNS, SIZE, DELTA = 1000, 200, 1e-5
ALLOWED = 50 + 3 * (RUNS * 0.05 * 0.95) ** 0.5
TWO_WORLDS = [
    ("clopper-pearson", "bonferroni"),
    ("clopper-pearson", "split"),
    pytest.param("gdp", "bonferroni", marks=pytest.mark.slow),
    ("gdp", "split"),
    ("clopper-pearson", 0.3),
    ("gdp", 0.3),
]


def naive_rejects(ins: np.ndarray, outs: np.ndarray) -> bool:
    """The invalid audit: the best of all thresholds, each tested as if it were the only one."""
    every = bounds.Thresholds(
        threshold=(trial := np.r_[ins, outs]),
        true_positives=(ins[:, None] > trial).sum(axis=0),
        false_positives=(outs[:, None] > trial).sum(axis=0),
        in_count=ins.size,
        out_count=outs.size,
    )
    return bool(bounds.p_values(every, 0.0).min() <= 0.05)


@pytest.mark.parametrize(("method", "threshold"), TWO_WORLDS)
@pytest.mark.parametrize("rounding", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_null(method: str, threshold: str | float, rounding: int | None) -> None:
    generator = np.random.default_rng(11)
    false = 0
    for _ in range(RUNS):
        ins, outs = generator.normal(size=(2, SIZE))
        if rounding is not None:
            ins, outs = ins.round(rounding), outs.round(rounding)
        bound = audit.lower_bound(ins, outs, delta=DELTA, method=method, threshold=threshold)
        false += bound.epsilon > 0
    assert false <= ALLOWED


@pytest.mark.slow
def test_null_negative_control() -> None:
    generator = np.random.default_rng(11)
    false = sum(naive_rejects(*generator.normal(size=(2, 60))) for _ in range(200))
    assert false > 0.05 * 200 + 3 * (200 * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_run_null(method: str) -> None:
    generator = np.random.default_rng(12)
    false = 0
    for _ in range(RUNS):
        scores, coins = generator.normal(size=SIZE), generator.random(SIZE) < 0.5
        false += audit.one_run(scores, coins, delta=DELTA, method=method).epsilon > 0
    assert false <= ALLOWED


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_by_group_null(method: str) -> None:
    """That any of three groups of 40 canaries reports something, not each of them."""
    generator = np.random.default_rng(16)
    groups, false = np.arange(120) % 3, 0
    for _ in range(RUNS):
        scores, coins = generator.normal(size=120), generator.random(120) < 0.5
        bounds = audit.one_run_by_group(scores, coins, groups, delta=DELTA, method=method)
        false += any(bound.epsilon > 0 for bound in bounds.values())
    assert false <= ALLOWED


def test_model_null() -> None:
    """A model's confidences of members and others from one distribution, for each method."""
    generator = np.random.default_rng(17)
    false = np.zeros(2)
    for _ in range(RUNS):
        members, others = generator.normal(size=(2, 100))
        found = audit_scores(
            ModelScores.of(members), ModelScores.of(others), delta=DELTA, generator=generator
        )
        false += [bound.epsilon > 0 for bound in found.bounds]
    assert (false <= ALLOWED).all()


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_group_that_is_not_private_is_found(method: str) -> None:
    generator = np.random.default_rng(18)
    coins, groups = generator.random(200) < 0.5, np.arange(200) % 2
    scores = generator.normal(size=200) + 6.0 * (coins & (groups == 1))
    bounds = audit.one_run_by_group(scores, coins, groups, delta=DELTA, method=method)
    assert bounds["1"].epsilon > 1
    assert bounds["0"].epsilon == 0
    assert bounds["1"].confidence == pytest.approx(0.975)


@pytest.mark.parametrize(("method", "threshold"), TWO_WORLDS)
def test_bound_holds_for_a_gaussian_mechanism(method: str, threshold: str | float) -> None:
    mu, runs = 1.0, 50
    truth = bounds.epsilon_from_mu(mu, DELTA)
    generator = np.random.default_rng(13)
    wrong, largest = 0, 0.0
    for _ in range(runs):
        outs, ins = generator.normal(size=500), generator.normal(mu, size=500)
        epsilon = audit.lower_bound(
            ins, outs, delta=DELTA, method=method, threshold=threshold
        ).epsilon
        wrong += epsilon > truth
        largest = max(largest, epsilon)
    assert wrong <= runs * 0.05 + 3 * (runs * 0.05 * 0.95) ** 0.5
    assert largest > 0.2


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_run_holds_for_independent_gaussian_canaries(method: str) -> None:
    mu, runs = 1.0, 30
    truth = bounds.epsilon_from_mu(mu, DELTA)
    generator = np.random.default_rng(14)
    found = []
    for _ in range(runs):
        coins = generator.random(500) < 0.5
        scores = generator.normal(size=500) + mu * coins
        found.append(audit.one_run(scores, coins, delta=DELTA, method=method).epsilon)
    assert (np.array(found) > truth).mean() <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert np.median(found) > 0.2


@pytest.mark.parametrize(("method", "threshold"), TWO_WORLDS[:4])
def test_a_model_that_is_not_private_is_found(method: str, threshold: str | float) -> None:
    generator = np.random.default_rng(15)
    outs, ins = generator.normal(size=SIZE), generator.normal(6.0, size=SIZE)
    bound = audit.lower_bound(ins, outs, delta=DELTA, method=method, threshold=threshold)
    assert bound.epsilon > 1
