"""The table of evaluators: who is asked for what, on every route, and how a curve says so."""

import math

import numpy as np
import pytest

from apiece import accounting
from apiece.accounting import PrivacyCurve, choose, privacy_curve
from apiece.accounting.batch import upper_epsilons
from apiece.accounting.choose import METHODS
from apiece.accounting.exact import GaussianProfile
from apiece.errors import BudgetError, InputError, RangeError, UnsupportedError
from apiece.mechanisms import (
    Composed,
    Finite,
    Gaussian,
    Laplace,
    Mechanism,
    Repeated,
    Sampled,
)
from refusals import refused

STEP = Sampled(Gaussian(1.0), 0.02)
FIRST: dict[str, tuple[Mechanism, str]] = {
    "nothing": (Composed(), "nothing released"),
    "a coin that never shows": (Sampled(Gaussian(1.0), 0.0), "nothing released"),
    "one plain Gaussian": (Gaussian(2.0), "Gaussian formula"),
    "several plain Gaussians": (
        Composed(Gaussian(2.0), Repeated(Gaussian(5.0), 9)),
        "Gaussian formula",
    ),
    "one sampled Gaussian": (STEP, "one-step formula"),
    "one Laplace": (Laplace(1.0), "one-step formula"),
    "randomized response": (Repeated(Finite([0.6, 0.4], [0.4, 0.6]), 20), "enumeration"),
    "a thousand sampled Gaussians": (Repeated(STEP, 1000), "contour integral"),
    "few sampled Gaussians": (Repeated(STEP, 2), "contour integral"),
    "a mix with Laplace": (Composed(Repeated(STEP, 20), Laplace(3.0)), "loss lattice"),
}


@pytest.mark.parametrize("name", FIRST)
def test_who_is_asked_first(name: str) -> None:
    mechanism, evaluator = FIRST[name]
    curve = privacy_curve(mechanism)
    asked = [answer.evaluator for answer in curve.profile.answers]  # type: ignore[attr-defined]
    assert asked[0] == evaluator or asked[:2] == ["pure ε", evaluator]


def test_every_row_is_asked_by_some_method_and_has_a_name_of_its_own() -> None:
    names = [row.evaluator for row in choose.TABLE]
    assert len(set(names)) == len(names)
    assert {method for row in choose.TABLE for method in row.methods} == set(METHODS)


def test_explain_names_who_gave_each_end() -> None:
    told = privacy_curve(Repeated(STEP, 1000)).explain(1e-5)
    assert "contour integral" in told
    assert "\n" not in told
    both = privacy_curve(Composed(Repeated(STEP, 20), Laplace(3.0)), method="best").explain(1e-5)
    assert "loss lattice" in both
    upper_only = privacy_curve(Repeated(STEP, 1000), method="rdp").explain(1e-5)
    assert "Rényi" in upper_only


@pytest.mark.parametrize("name", FIRST)
def test_explain_rounds_outward(name: str) -> None:
    curve = privacy_curve(FIRST[name][0])
    bounds, told = curve.epsilon(1e-5), curve.explain(1e-5)
    shown = [float(word) for word in told.replace("≤ ε ≤", "").split(" at ")[0].split()]
    assert shown[0] <= bounds.lower
    assert shown[1] >= bounds.upper
    assert shown[1] - shown[0] <= bounds.upper - bounds.lower + 2e-5 * bounds.upper


def test_explain_of_a_curve_with_a_profile_of_its_own() -> None:
    assert "GaussianProfile" in PrivacyCurve(GaussianProfile(1.0)).explain(1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1, float("nan"), "x"])
def test_explain_refuses_other_values(delta: float) -> None:
    with pytest.raises((InputError, BudgetError), match="delta"):
        privacy_curve(Gaussian(1.0)).explain(delta)


def test_all_routes_agree() -> None:
    """One curve, an array, a plan's records and calibration: the same bounds."""
    z, q, steps = np.array([0.8, 1.5]), np.array([0.01, 0.05]), np.array([300, 50])
    columns = {"noise_multiplier": z, "sampling_probability": q, "steps": steps}
    together = accounting.epsilons(**columns, delta=1e-6)  # type: ignore[arg-type]
    records = upper_epsilons(**columns, delta=1e-6)  # type: ignore[arg-type]
    for k in range(2):
        mechanism = Repeated(Sampled(Gaussian(z[k]), q[k]), int(steps[k]))
        alone = privacy_curve(mechanism).epsilon(1e-6)
        assert alone == (together.lower[k], together.upper[k])
        assert records[k] == alone.upper
        budget = accounting.EpsilonBudget(float(alone.upper), 1e-6)
        assert budget.spent(privacy_curve(mechanism)) == alone.upper


def test_what_no_evaluator_of_a_method_knows_is_named() -> None:
    with refused(UnsupportedError, "Laplace", "Gaussian"):
        privacy_curve(Composed(Gaussian(1.0), Laplace(2.0)), method="gdp")


OUT_OF_RANGE: dict[str, Mechanism] = {
    "little noise": Repeated(Sampled(Gaussian(0.01), 0.5), 10),
    "laplace, hardly any": Composed(Repeated(Sampled(Laplace(1e-3), 0.5), 3), Gaussian(1.0)),
    "one finite loss past it": Composed(Finite([0.5, 0.5], [1.0, 1e-310]), Gaussian(1.0)),
    "rare beyond the lattice": Repeated(Sampled(Gaussian(1.0), 1e-260), 5),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_where_nobody_else_knows_some_upper_bound_is_left(name: str) -> None:
    """Past the range of the lattice and the contour there is an upper bound all the same."""
    mechanism, deltas = OUT_OF_RANGE[name], np.array([1e-2, 1e-5])
    curve = privacy_curve(mechanism)
    lower, upper = curve.epsilon(deltas)
    assert (lower <= upper).all()
    assert np.isfinite(upper).all()
    assert (upper <= privacy_curve(mechanism, method="rdp").epsilon(deltas).upper).all()
    assert any(name in curve.explain(1e-5) for name in ("Rényi", "pure", "chance to take part"))


def test_renyi_is_not_asked_where_others_answer() -> None:
    mechanism = Composed(Repeated(STEP, 20), Laplace(3.0))
    curve = privacy_curve(mechanism)
    assert "Rényi" not in curve.explain(1e-5)
    assert curve.profile.spare.cache_info().misses == 0  # type: ignore[attr-defined]


def test_past_every_range_it_says_so() -> None:
    with pytest.raises(RangeError, match="past the numerical range"):
        privacy_curve(Sampled(Composed(Gaussian(1e-160), STEP), 0.5)).epsilon(1e-5)


def test_a_coin_before_losses_past_the_lattice_is_amplified() -> None:
    inner = privacy_curve(Composed(Gaussian(0.02), STEP)).epsilon(2e-5).upper
    curve = privacy_curve(Sampled(Composed(Gaussian(0.02), STEP), 0.5))
    upper = curve.epsilon(1e-5).upper
    assert math.isclose(upper, inner - math.log(2), rel_tol=1e-9)
    assert curve.delta(upper).upper <= 1e-5 * (1 + 1e-6)


PURE: dict[str, tuple[Mechanism, float]] = {
    "one laplace": (Laplace(2.0), 0.5),
    "laplace": (Repeated(Laplace(3.0), 7), 7 / 3),
    "sampled laplace": (
        Composed(Repeated(Sampled(Laplace(1.0), 0.2), 4), Laplace(2.0)),
        4 * math.log1p(0.2 * math.expm1(1)) + 0.5,
    ),
    "a coin before laplace": (
        Sampled(Repeated(Laplace(2.0), 20), 1e-3),
        math.log1p(1e-3 * math.expm1(10)),
    ),
    "randomized response": (Repeated(Finite.randomized_response(0.1, 3), 3000), 300.0),
    "a coin and what Q alone shows": (
        Repeated(Sampled(Finite([1.0, 0.0], [0.9, 0.1]), 0.25), 6),
        -6 * math.log(0.75),
    ),
}


@pytest.mark.parametrize("name", PURE)
def test_nothing_is_left_of_delta_beyond_pure_epsilon(name: str) -> None:
    """δ(ε) is 0 from the largest loss on, not below; ε(δ) is never above it."""
    mechanism, most = PURE[name]
    curve = privacy_curve(mechanism)
    assert curve.delta(most * (1 + 1e-12)).upper == 0.0
    assert curve.delta(2 * most).upper == 0.0
    below = curve.delta(most * 0.9)
    assert below.upper > 0
    assert curve.epsilon(1e-15).upper <= most * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), STEP, Finite([0.9, 0.1], [1.0, 0.0])])
def test_unbounded_losses_have_no_pure_epsilon(mechanism: Mechanism) -> None:
    asked = privacy_curve(Composed(mechanism, Laplace(3.0))).profile.answers  # type: ignore[attr-defined]
    assert "pure ε" not in [answer.evaluator for answer in asked]
