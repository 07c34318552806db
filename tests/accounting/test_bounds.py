"""Bounds inverted, and the gate through which every evaluator's numbers go."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import Bounds, PrivacyCurve, choose, epsilons, privacy_curve
from apiece.accounting import exact as closed
from apiece.accounting.bounds import Evaluated, Evaluations, invert
from apiece.accounting.contour.profile import SampledGaussians
from apiece.accounting.exact import DiscreteProfile, GaussianProfile, OneStep, PureProfile
from apiece.accounting.lattice.profile import Composition
from apiece.accounting.renyi import RenyiProfile
from apiece.errors import RangeError
from apiece.mechanisms import Finite, Gaussian, Laplace, Mechanism, Repeated, Sampled


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9, 1e-15, 1e-100])
def test_inversion_is_one_sided_and_close(delta: float) -> None:
    z = np.array([0.1, 1.0, 50.0])
    for one in z:

        def at(epsilon: Floats, one: float = one) -> Bounds:
            return closed.gaussian(one, epsilon)

        lower, upper = invert(at, np.array([delta]))
        assert at(upper).upper <= delta
        assert lower[0] == 0 or at(lower).lower > delta
        assert upper[0] - lower[0] <= 1e-8 * upper[0] + 1e-14


def test_inversion_past_the_range_is_infinite() -> None:
    def never(epsilon: Floats) -> Bounds:
        return Bounds(np.full(epsilon.shape, 0.5), np.full(epsilon.shape, 0.5))

    assert invert(never, np.array([0.1, 0.9])).upper.tolist() == [np.inf, 0.0]


def test_inversion_passes_on_what_is_not_a_number() -> None:
    """NaN anywhere on the way is NaN in the end, for those δ that met it alone."""

    def at(epsilon: Floats) -> Bounds:
        value = np.exp(-epsilon)
        return Bounds(value, np.where((epsilon > 2) & (epsilon < 3), np.nan, value))

    found = invert(at, np.array([0.9, math.exp(-2.5)]))
    assert found.upper[0] == pytest.approx(-math.log(0.9))
    assert np.isnan(found.upper[1])


@dataclass(frozen=True)
class Says:
    """A profile that says the same of every value below 1e-3, and something right above."""

    wrong: tuple[float, float]
    right: tuple[float, float] = (1.0, 2.0)

    def _bounds(self, values: Floats, scale: float) -> Bounds:
        low, high = (
            np.where(values < 1e-3, w, r * scale) for w, r in zip(*self._ends, strict=True)
        )
        return Bounds(low, high)

    @property
    def _ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return self.wrong, self.right

    def delta(self, epsilon: Floats) -> Bounds:
        return self._bounds(epsilon, 0.1)

    def epsilon(self, delta: Floats) -> Bounds:
        return self._bounds(delta, 1.0)


@dataclass(frozen=True)
class Past:
    """A profile that is past its range below 1e-3."""

    error: Callable[[], Exception] = lambda: RangeError("too far")

    def delta(self, epsilon: Floats) -> Bounds:
        return self.epsilon(epsilon)

    def epsilon(self, delta: Floats) -> Bounds:
        if (delta < 1e-3).any():
            raise self.error()
        return Bounds(np.full(delta.shape, 0.1), np.full(delta.shape, 0.2))


NAN, INF = math.nan, math.inf
BROKEN = {
    "nan above": (0.0, NAN),
    "nan below": (NAN, 1.0),
    "both nan": (NAN, NAN),
    "crossed": (0.7, 0.3),
    "negative": (-0.1, 0.5),
}
ASK = np.array([0.5, 1e-4, 0.7])


def together(*profiles: object, spare: object = None) -> Evaluations:
    each = [Evaluated(f"number {k}", "why", p) for k, p in enumerate(profiles)]  # type: ignore[arg-type]
    last = () if spare is None else (Evaluated("spare", "why", spare),)  # type: ignore[arg-type]
    return Evaluations(tuple(each), spare=lambda: last)


@pytest.mark.parametrize("question", ["epsilon", "delta"])
@pytest.mark.parametrize("name", [*BROKEN, "above one"])
def test_what_are_no_bounds_is_an_error_where_nobody_else_knows(name: str, question: str) -> None:
    wrong = (0.5, 1.1) if name == "above one" else BROKEN[name]
    alone = together(Says(wrong))
    if name == "above one" and question == "epsilon":
        assert getattr(alone, question)(ASK).upper[1] == 1.1
        return
    with pytest.raises(RangeError, match=rf"number 0.*at 0\.0001 are no bounds on {question}"):
        getattr(alone, question)(ASK)
    with pytest.raises(RangeError, match="no bounds"):
        getattr(PrivacyCurve(Says(wrong)), question)(1e-4)
    assert np.isfinite(getattr(alone, question)(ASK[::2]).upper).all()


@pytest.mark.parametrize("question", ["epsilon", "delta"])
@pytest.mark.parametrize("name", BROKEN)
def test_the_next_one_is_asked_instead(name: str, question: str) -> None:
    """For the values that are wrong, and for them alone; in any order, and as a spare too."""
    good, bad = Says((0.2, 0.3), (1.1, 1.9)), Says(BROKEN[name])
    for answers in (together(bad, good), together(good, bad)):
        lower, upper = getattr(answers, question)(ASK)
        assert (lower[1], upper[1]) == (0.2, 0.3)
        assert lower[[0, 2]] == pytest.approx(1.1 if question == "epsilon" else 0.11)
    lower, upper = getattr(together(bad, spare=good), question)(ASK)
    assert (lower[1], upper[1]) == (0.2, 0.3)
    assert lower[[0, 2]] == pytest.approx(1.0 if question == "epsilon" else 0.1)


@pytest.mark.parametrize("error", [lambda: RangeError("too far"), lambda: OverflowError("big")])
def test_a_value_past_the_range_spoils_no_other(error: Callable[[], Exception]) -> None:
    lower, upper = together(Past(error), Says((0.5, 0.6), (0.05, 0.3))).epsilon(ASK)
    assert lower.tolist() == [0.1, 0.5, 0.1]
    assert upper.tolist() == [0.2, 0.6, 0.2]
    with pytest.raises(RangeError):
        together(Past(error)).epsilon(ASK)
    assert together(Past(error), spare=Says((0.5, 0.6))).delta(ASK).upper.tolist() == [
        0.2,
        0.6,
        0.2,
    ]


def test_explain_says_whose_answer_was_not_used() -> None:
    told = together(Says(BROKEN["both nan"]), Says((0.2, 0.3))).explain(1e-4)
    assert "by number 1" in told
    assert "not used: number 0" in told


def nothing(self: object, values: Floats) -> Bounds:
    return Bounds(np.zeros(values.shape), np.full(values.shape, np.nan))


def answer_or_error(curve: PrivacyCurve, question: str) -> Bounds | None:
    """What a curve says at .1, or None where it says that an evaluator gave no bounds."""
    try:
        return getattr(curve, question)(0.1)  # type: ignore[no-any-return]
    except RangeError as error:
        if "no bounds" not in str(error):
            raise
        return None


EVALUATORS: dict[type, Mechanism] = {
    DiscreteProfile: Repeated(Finite.randomized_response(1.0), 5),
    GaussianProfile: Gaussian(1.0),
    OneStep: Sampled(Laplace(1.0), 0.1),
    Composition: Repeated(Laplace(3.0), 4),
    PureProfile: Laplace(1.0),
    SampledGaussians: Repeated(Sampled(Gaussian(1.0), 0.1), 50),
    RenyiProfile: Repeated(Gaussian(1.0), 5),
}


@pytest.mark.parametrize("question", ["epsilon", "delta"])
@pytest.mark.parametrize("kind", EVALUATORS)
def test_every_evaluator_goes_through_the_gate(
    kind: type, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made to say NaN it is noticed: others answer, or there is an error; never 0, 1 or ∞."""
    mechanism = EVALUATORS[kind]
    method = "rdp" if kind is RenyiProfile else "pld"
    exact = getattr(privacy_curve(mechanism), question)(0.1)
    monkeypatch.setattr(kind, question, nothing)
    curve = privacy_curve(mechanism, method=method)
    if question == "epsilon":
        with suppress(RangeError):
            assert "not used" in curve.explain(0.1) or kind is PureProfile
    found = answer_or_error(curve, question)
    if found is not None:
        assert found.lower <= exact.upper
        assert exact.lower <= found.upper < (1.0 if question == "delta" else math.inf)


def test_arrays_go_through_the_gate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN by the contour for one entry of an array: the lattice is asked for that one."""
    given = {"noise_multiplier": [1.0, 2.0], "sampling_probability": 0.01, "steps": 100}
    right = epsilons(**given, delta=1e-5)
    contour = choose.epsilon_bounds

    def broken(columns: Floats) -> Bounds:
        lower, upper = contour(columns)
        return Bounds(lower, np.where(columns[0] == 1.0, np.nan, upper))

    monkeypatch.setattr(choose, "epsilon_bounds", broken)
    found = epsilons(**given, delta=1e-5)
    assert found.upper[1] == right.upper[1]
    assert found.upper[0] == pytest.approx(right.upper[0], rel=2e-3)
    assert privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.01), 100)).epsilon(1e-5).upper > 0
