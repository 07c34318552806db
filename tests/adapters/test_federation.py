"""What a federation promises, beside the exact loss of one round and beside a product of coins."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from apiece import Gaussian, Repeated, Sampled, privacy_curve
from apiece.adapters.federation import Federation, charge, plan_federation
from apiece.errors import AnalysisError, InfeasibleError, InputError
from apiece.ledger import Ledger


def federation(rounds: int, p: float, rates: tuple[float, ...], **more: float) -> Federation:
    return Federation(rounds, p, 1.0, more.pop("noise", 1.0), rates, 10.0, **more)


def exact(epsilon: float, p: float, q: float, others: float) -> float:
    """δ(ε) of one round for a record whose client's other records add `others`, noise 1."""

    def density(x: float, here: bool) -> float:
        own = norm.pdf(x, others)
        if here:
            own = (1 - q) * own + q * norm.pdf(x, others + 1)
        return float((1 - p) * norm.pdf(x) + p * own)

    def above(one: bool) -> float:
        edges = np.linspace(-12, others + 13, 400)
        parts = [
            quad(
                lambda x: max(density(x, one) - math.exp(epsilon) * density(x, not one), 0.0), a, b
            )
            for a, b in pairwise(edges)
        ]
        return sum(value for value, _ in parts)

    return max(above(True), above(False))


@pytest.mark.slow
@pytest.mark.parametrize("others", [0.0, 2.0, 12.0])
def test_the_promise_bounds_one_round_whatever_the_other_records_add(others: float) -> None:
    p, q = 0.3, 0.4
    for delta in (1e-3, 1e-2):
        epsilon = federation(1, p, (q,)).record_epsilon(0, delta)
        assert exact(epsilon, p, q, others) <= delta * (1 + 1e-6)


@pytest.mark.slow
def test_one_coin_of_the_product_would_promise_too_much() -> None:
    """The client's other records show how its coin fell: the product's ε is not kept."""
    p, q, delta = 0.3, 0.4, 1e-3
    product = privacy_curve(Sampled(Gaussian(1.0), p * q)).epsilon(delta).upper
    assert exact(product, p, q, 0.0) <= delta * (1 + 1e-4)
    assert exact(product, p, q, 12.0) > 1.5 * delta


def test_known_coins_are_counted_exactly() -> None:
    """Where the client always joins it is its records' coin; the bound is near the mixture."""
    always = federation(5, 1.0, (0.2,)).record_epsilon(0, 1e-5)
    curve = privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.2), 5)).epsilon(1e-5)
    assert curve.lower <= always <= curve.upper * 1.01 + 1e-3
    found = federation(4, 0.5, (0.2,)).record_epsilon(0, 1e-3)
    mean = sum(
        math.comb(4, k)
        / 16
        * privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.2), k)).delta(found).upper
        for k in range(1, 5)
    )
    assert 0.9e-3 <= mean <= 1e-3


@pytest.mark.parametrize(
    ("noise", "rate", "rounds"),
    [(2.0, 0.1, 20), (2.0, 0.01, 20), (1.0, 0.5, 7), (4.0, 0.3, 60), (0.8, 0.02, 3)],
)
def test_silos_that_always_take_part_get_the_epsilon_of_their_records_coin(
    noise: float, rate: float, rounds: int
) -> None:
    """Two roundings of one curve differ by more than a millionth, which is no reason for inf."""
    found = federation(rounds, 1.0, (rate,), noise=noise).record_epsilon(0, 1e-5)
    curve = privacy_curve(Repeated(Sampled(Gaussian(noise), rate), rounds))
    exact = curve.epsilon(1e-5)
    assert exact.lower <= found <= curve.epsilon(1e-5 / (1 + 1e-5)).upper


def test_a_plan_of_silos_spends_what_was_asked() -> None:
    asked = [0.5, 2.0]
    plan = plan_federation(
        asked, 1e-5, [300, 100], rounds=10, client_probability=1.0, noise_multiplier=2.0
    )
    for level, epsilon in enumerate(asked):
        assert 0.9 * epsilon < plan.record_epsilon(level, 1e-5) <= epsilon


def test_a_client_has_one_coin() -> None:
    found = federation(6, 0.1, (0.2,), client_clip=2.0, noise=3.0)
    one = Repeated(Sampled(Gaussian(1.5), 0.1), 6)
    assert found.client_epsilon(1e-5) == privacy_curve(one).epsilon(1e-5).upper
    with pytest.raises(InputError, match="client_clip"):
        federation(6, 0.1, (0.2,)).client_epsilon(1e-5)


@pytest.mark.slow
def test_the_plan_keeps_what_was_asked() -> None:
    asked = [0.5, 2.0]
    plan = plan_federation(
        asked, 1e-4, [300, 100], rounds=4, client_probability=0.3, noise_multiplier=1.5
    )
    assert plan.rates[0] < plan.rates[1]
    for level, epsilon in enumerate(asked):
        assert 0.5 * epsilon < plan.record_epsilon(level, 1e-4) <= epsilon or (
            plan.rates[level] == 1 and plan.record_epsilon(level, 1e-4) <= epsilon
        )
    assert plan.expected_batch_size == pytest.approx(
        0.3 * (300 * plan.rates[0] + 100 * plan.rates[1])
    )
    with pytest.raises(InfeasibleError, match="more noise"):
        plan_federation([1e-3], 1e-9, [10], rounds=50, client_probability=1.0, noise_multiplier=0.3)


def test_one_person_in_two_silos_pays_in_both(tmp_path: Path) -> None:
    plan = federation(3, 0.5, (0.1, 0.3), noise=3.0)
    ids = ["ann", "bob"]
    ledger = Ledger.make(str(tmp_path / "p.db"), ids, 8.0, 1e-5)
    one = plan.costs(1e-5).epsilon(1e-5)
    assert one[0] < one[1]

    def pay(run: str, what: Federation = plan) -> list[str]:
        return charge(ledger, run, ids, [0, 1], what, delta=1e-5).tolist()

    many = 0
    while "bob" in pay(f"run/{many}"):
        many += 1
    assert 2 < many < 100
    assert pay(f"run/{many}") == ["ann"]
    left = ledger.remaining(ids).tolist()
    # Started over it charges nobody again; another federation of the same cost is another run.
    assert pay(f"run/{many}") == ["ann"]
    assert ledger.remaining(ids).tolist() == left
    other = replace(plan, expected_batch_size=11.0)
    with pytest.raises(AnalysisError, match="other terms"):
        pay(f"run/{many}", other)


def test_a_federation_costs_at_least_what_a_record_is_told() -> None:
    """The account that just pays promises no less ε than the record's own bound."""
    plan = federation(40, 0.5, (0.01, 0.1, 0.0), noise=2.0)
    for delta in (1e-5, 1e-8):
        needs = plan.costs(delta).epsilon(delta)
        for level in (0, 1):
            asked = plan.record_epsilon(level, delta)
            assert asked <= needs[level] <= 1.3 * asked
        assert needs[2] == 0


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"client_probability": 0.0}, {"noise_stddev": math.nan}]
)
def test_values_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    good = {
        "rounds": 3,
        "client_probability": 0.5,
        "clip_norm": 1.0,
        "noise_stddev": 1.0,
        "rates": (0.5,),
        "expected_batch_size": 4.0,
    }
    with pytest.raises(InputError):
        Federation(**{**good, **wrong})  # type: ignore[arg-type]
