"""What others state: ρ-zCDP and (ε, δ)."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from apiece import Composed, Gaussian, Repeated, Sampled, privacy_curve
from apiece.cli import run
from apiece.errors import InputError
from apiece.mechanisms import Concentrated, Finite, Stated

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 1e-5), (3.0, 0.1)])
def test_a_statement_has_the_profile_of_the_worst_mechanism(epsilon: float, delta: float) -> None:
    """δ + (1 − δ)·(e^ε − e^t)/(1 + e^ε) up to ε, and δ from there on: four outcomes, by hand."""
    curve = privacy_curve(Stated(epsilon, delta))
    found = curve.delta(EPSILONS)
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for at, lower, upper in zip(EPSILONS, found.lower, found.upper, strict=True):
        exact = delta + (1 - delta) * max(p - math.exp(at) * (1 - p), 0.0)
        # The exact value is off by a few roundings itself.
        assert lower - 1e-14 <= exact <= upper + 1e-14
        assert upper <= exact * (1 + 1e-6) + 1e-12
    assert curve.epsilon(max(delta, 1e-9)).upper <= epsilon * (1 + 1e-9)


def test_composed_statements_are_the_optimal_composition() -> None:
    """Two (ε, δ) mechanisms: the profile of the product of four outcomes each, enumerated."""
    epsilon, delta = 0.7, 1e-3
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    one = {1: (delta, 0.0), 2: ((1 - delta) * p, (1 - delta) * (1 - p)),
           3: ((1 - delta) * (1 - p), (1 - delta) * p), 4: (0.0, delta)}  # fmt: skip
    curve = privacy_curve(Repeated(Stated(epsilon, delta), 2)).delta(EPSILONS)
    for at, lower, upper in zip(EPSILONS, curve.lower, curve.upper, strict=True):
        exact = sum(
            max(a * c - math.exp(at) * b * d, 0.0) for a, b in one.values() for c, d in one.values()
        )
        assert lower * (1 - 1e-9) <= exact <= upper * (1 + 1e-9)
        assert upper <= exact * (1 + 1e-6)


def test_any_mechanism_with_that_statement_costs_no_more() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        p = rng.dirichlet(np.ones(4))
        q = rng.dirichlet(np.ones(4))
        curve = privacy_curve(Finite(p, q))
        delta = float(curve.delta(0.4).upper)
        if not 0 < delta < 0.5:
            continue
        twice = privacy_curve(Repeated(Finite(p, q), 3)).delta(EPSILONS).lower
        stated = privacy_curve(Repeated(Stated(0.4, delta), 3)).delta(EPSILONS).upper
        assert (twice <= stated * (1 + 1e-9)).all()


@pytest.mark.parametrize("rho", [1e-3, 0.07, 0.5, 2.56])
def test_concentrated_is_above_the_gaussian_and_below_the_simple_conversion(rho: float) -> None:
    for delta in (1e-5, 1e-10):
        epsilon = float(privacy_curve(Concentrated(rho)).epsilon(delta).upper)
        gaussian = float(privacy_curve(Gaussian(1 / math.sqrt(2 * rho))).epsilon(delta).lower)
        # Bun and Steinke 2016, Prop. 1.3.
        simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        assert gaussian < epsilon < simple


def test_concentrated_adds_up() -> None:
    several = privacy_curve(Composed(Repeated(Concentrated(0.1), 3), Concentrated(0.2)))
    one = privacy_curve(Concentrated(0.5))
    assert float(several.epsilon(1e-6).upper) == pytest.approx(float(one.epsilon(1e-6).upper))
    with_gaussian = privacy_curve(Composed(Concentrated(0.1), Gaussian(2.0)))
    together = privacy_curve(Concentrated(0.1 + 1 / 8))
    assert float(with_gaussian.epsilon(1e-6).upper) == pytest.approx(
        float(together.epsilon(1e-6).upper), rel=1e-3
    )


def test_one_can_be_sampled_and_composed_with_anything() -> None:
    for part in (Concentrated(0.3), Stated(0.5, 1e-8)):
        alone = float(privacy_curve(part).epsilon(1e-5).upper)
        coin = float(privacy_curve(Sampled(part, 0.1)).epsilon(1e-5).upper)
        more = float(privacy_curve(Composed(part, Gaussian(3.0))).epsilon(1e-5).upper)
        assert coin < alone < more < math.inf


@pytest.mark.parametrize(
    "make", [lambda: Concentrated(0.0), lambda: Concentrated(math.inf), lambda: Stated(-1.0),
             lambda: Stated(1.0, 1.0), lambda: Stated(math.nan)],
)  # fmt: skip
def test_bad_numbers_are_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]


def test_the_command_takes_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    text = '[{"concentrated": {"rho": 0.1}}, {"stated": {"epsilon": 1, "delta": 1e-9}}]'
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run(["account", "-", "--delta", "1e-6", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert first["epsilon"]["lower"] == 0 < first["epsilon"]["upper"]
    assert second["epsilon"]["upper"] == pytest.approx(1, abs=1e-3)
