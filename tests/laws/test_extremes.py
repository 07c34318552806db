"""Extreme arguments: ordered bounds inside their range or a typed, one-line error, never else."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from apiece.accounting import (
    Bounds,
    PrivacyCurve,
    epsilons,
    noise_multipliers,
    privacy_curve,
    sampling_probabilities,
)
from apiece.accounting.choose import METHODS
from apiece.errors import ApieceError, InputError, RangeError
from apiece.mechanisms import (
    Composed,
    Gaussian,
    Laplace,
    Mechanism,
    Repeated,
    Sampled,
    from_json,
)

STEP = Sampled(Gaussian(1.0), 0.01)
MECHANISMS: dict[str, Mechanism] = {
    "nothing": Composed(),
    "much noise": Gaussian(1e300),
    "little noise": Gaussian(1e-300),
    "noises of all sizes": Composed(Gaussian(1e200), Gaussian(1e-200), Gaussian(1.0)),
    "sampled, much noise": Sampled(Gaussian(1e300), 0.1),
    "sampled, little noise": Sampled(Gaussian(1e-300), 0.1),
    "rarely": Sampled(Gaussian(1.0), 5e-324),
    "repeated, much noise": Repeated(Sampled(Gaussian(1e300), 0.1), 10),
    "repeated, little noise": Repeated(Sampled(Gaussian(1e-3), 0.1), 10),
    "repeated, rarely": Repeated(Sampled(Gaussian(1.0), 5e-324), 5),
    "laplace, much noise": Laplace(1e300),
    "laplace, little noise": Repeated(Laplace(1e-300), 5),
    "sampled laplace, rarely": Repeated(Sampled(Laplace(1.0), 1e-300), 5),
    "coins that underflow": Sampled(Repeated(Sampled(Gaussian(1.0), 1e-200), 1), 1e-200),
    "coin before rare coins": Sampled(Composed(Sampled(Gaussian(1.0), 1e-200), Laplace(1.0)), 0.1),
    "gaussians for ever": Repeated(Gaussian(1.0), 10**15),
    "steps for ever": Repeated(STEP, 10**12),
    "quiet steps for ever": Repeated(Sampled(Gaussian(1e5), 0.01), 10**15),
    "laplace for ever": Repeated(Laplace(1e6), 10**15),
    "past all counts": Repeated(STEP, 10**400),
    "laplace next to nothing": Sampled(Composed(Laplace(1e300), Gaussian(1.0)), 0.5),
    "one of each": Composed(STEP, Laplace(1.0)),
}
QUICK = ("much noise", "little noise", "rarely", "coins that underflow", "steps for ever")
EMPTY = (np.zeros(0), np.zeros((0, 3)))
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "epsilon": (1e-5, 5e-324, 1e-300, 1 - 1e-16, math.nan, 0.0, *EMPTY),
    "delta": (0.0, math.inf, -math.inf, 1e300, -1e300, 5e-324, 1e6, -1.0, math.nan, *EMPTY),
    "bayes_error": (0.5, 5e-324, 1 - 1e-16, 0.0, math.nan, *EMPTY),
    "success": (0.5, 5e-324, *EMPTY),
    "true_positive_rate": (0.0, 1.0, 0.5, 5e-324, 1.5, math.nan, *EMPTY),
    "tradeoff": (0.0, 1.0, 0.5, 5e-324, -math.inf, *EMPTY),
}


def attempt(question: Callable[[], Any]) -> Any:
    """The answer, or None for a typed error of one line."""
    try:
        return question()
    except ApieceError as error:
        return one_line(error)


def one_line(error: ApieceError) -> None:
    assert "\n" not in str(error)


def answers(curve: PrivacyCurve) -> Iterator[tuple[str, Any, Any]]:
    for name, arguments in ARGUMENTS.items():
        for argument in arguments:
            ask = getattr(curve, name)
            yield name, argument, attempt(lambda: ask(argument))  # noqa: B023


def sound(name: str, argument: Any, answer: Any) -> bool:
    """Whether an answer has the shape of its argument and is ordered and in range."""
    ends = answer if isinstance(answer, Bounds) else (answer,)
    top = math.inf if name == "epsilon" else 1.0
    return (
        all(np.shape(end) == np.shape(argument) for end in ends)
        and all(((np.asarray(end) >= 0) & (np.asarray(end) <= top)).all() for end in ends)
        and all((np.asarray(low) <= np.asarray(high)).all() for low, high in pairwise(ends))
    )


# "best" asks what "pld" asks, and more.
LONG = {("steps for ever", "best"), ("steps for ever", "pld")}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(
            *case, marks=[] if case[0] in QUICK and case not in LONG else [pytest.mark.slow]
        )
        for case in product(MECHANISMS, METHODS)
    ],
)
def test_extreme_arguments(name: str, method: str) -> None:
    curve = attempt(lambda: privacy_curve(MECHANISMS[name], method=method))
    if curve is None:
        return
    for question, argument, answer in answers(curve):
        assert answer is None or sound(question, argument, answer), (question, argument, answer)


USUAL = {
    "noise_multiplier": 1.0,
    "sampling_probability": 0.1,
    "steps": 20,
    "delta": 1e-5,
    "epsilon": 1.0,
}
ODD: dict[str, tuple[Any, ...]] = {
    "noise_multiplier": (1e-300, 1e300, 0.0, math.nan, math.inf, [], 1 + 0j, "x", None),
    "sampling_probability": (5e-324, 1e-300, 0.0, 1 - 1e-16, 1.0, 2.0, math.nan, []),
    "steps": (1, 1e14, 10**400, 0, 1.5, math.nan, []),
    "delta": (5e-324, 1e-300, 1 - 1e-16, 0.0, math.nan, []),
    "epsilon": (5e-324, 1e300, math.inf, math.nan, []),
}
SOLVERS = {"noise_multiplier": noise_multipliers, "sampling_probability": sampling_probabilities}


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize("name", [n for n in ODD if n != "epsilon"])
def test_extreme_arrays(name: str, method: str) -> None:
    for value in ODD[name]:
        given = {**USUAL, name: value}
        del given["epsilon"]
        answer = attempt(lambda: epsilons(**given, method=method))  # noqa: B023
        assert answer is None or sound("epsilon", value, answer), (name, value, answer)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize("sought", SOLVERS)
def test_extreme_calibrations_of_arrays(sought: str, method: str) -> None:
    for name in ODD:
        for value in ODD[name] if name != sought else ():
            given = {**USUAL, name: value}
            del given[sought]
            answer = attempt(lambda: SOLVERS[sought](**given, method=method))  # noqa: B023
            if answer is not None:
                assert np.shape(answer) == np.shape(value), (name, value)
                assert (np.asarray(answer) >= 0).all(), (name, value)


def test_what_must_be_answered_is() -> None:
    """Typed errors everywhere would pass the fuzzing: here there is an answer."""
    curve = privacy_curve(Gaussian(1.0))
    assert curve.delta(math.inf).upper < 1e-250
    assert curve.delta(1e300).upper < 1e-250
    assert curve.delta(-math.inf) == Bounds(pytest.approx(1.0), 1.0)
    assert curve.bayes_error(5e-324).upper <= 5e-324
    assert curve.true_positive_rate(np.zeros((2, 0))).shape == (2, 0)
    assert privacy_curve(Gaussian(1e300)).epsilon(1e-5).upper == 0.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"repeated": {"mechanism": ' * 5000, "deep|recursion"),
        ("[" * 100_000, "deep|recursion"),
        ('{"gaussian": {"noise_multiplier": 1, "noise_multiplier": 9}}', "twice"),
        ('{"gaussian": {"noise_multiplier": 1}, "gaussian": {"noise_multiplier": 9}}', "twice"),
        ('{"gaussian": {"noise_multiplier": 1e400}}', "1e400"),
    ],
)
def test_hostile_json(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as raised:
        from_json(text)
    assert "\n" not in str(raised.value)


def test_a_tree_too_deep() -> None:
    mechanism: Mechanism = Gaussian(1.0)
    for _ in range(5000):
        mechanism = Composed(mechanism)
    with pytest.raises(InputError, match="deep"):
        privacy_curve(mechanism)


def test_too_many_steps() -> None:
    with pytest.raises(RangeError, match="steps"):
        privacy_curve(Repeated(Repeated(STEP, 10**9), 10**9))
