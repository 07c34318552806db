"""Whole arrays at once: shapes, bad values, agreement with single curves."""

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import accounting
from apiece._types import Floats
from apiece.accounting import batch, privacy_curve
from apiece.accounting.batch import upper_epsilons
from apiece.accounting.bounds import DEFAULT
from apiece.accounting.exact import build_rare_profile
from apiece.errors import BudgetError, InputError, OptionError
from apiece.mechanisms import Gaussian, Repeated, Sampled
from refusals import refused


def test_broadcasts_and_equals_single_curves() -> None:
    z, delta = np.array([1.0, 2.0]), np.array([[1e-5], [1e-7], [1e-12]])
    bounds = accounting.epsilons(
        noise_multiplier=z, sampling_probability=0.01, steps=300, delta=delta
    )
    assert bounds.upper.shape == (3, 2)
    for column, one in enumerate(z):
        curve = privacy_curve(Repeated(Sampled(Gaussian(one), 0.01), 300))
        for row, d in enumerate(delta[:, 0]):
            assert bounds.upper[row, column] == curve.epsilon(d).upper


def test_many_curves_are_computed_side_by_side() -> None:
    z = np.linspace(1, 2, 12)
    upper = accounting.epsilons(
        noise_multiplier=z, sampling_probability=0.01, steps=100, delta=1e-5
    ).upper
    assert (np.diff(upper) < 0).all()


def test_nobody_sampled_spends_nothing() -> None:
    bounds = accounting.epsilons(
        noise_multiplier=1.0, sampling_probability=[0.0, 0.1], steps=10, delta=1e-5
    )
    assert bounds.upper[0] == 0
    assert bounds.upper[1] > 0


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("noise_multiplier", 0.0, InputError),
        ("noise_multiplier", float("nan"), InputError),
        ("sampling_probability", [0.1, 1.5], InputError),
        ("steps", 2.5, InputError),
        ("steps", 0, InputError),
        ("delta", 1.0, BudgetError),
    ],
)
def test_bad_values_are_named(name: str, value: object, error: type[Exception]) -> None:
    good = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(error, match=name):
        accounting.epsilons(**{**good, name: value})  # type: ignore[arg-type]


def test_unknown_method_and_shapes() -> None:
    with refused(OptionError, "pld"):
        accounting.epsilons(
            noise_multiplier=1, sampling_probability=0.1, steps=1, delta=1e-5, method="pdl"
        )
    with refused(InputError, "broadcast"):
        accounting.epsilons(
            noise_multiplier=[1, 2], sampling_probability=[0.1] * 3, steps=1, delta=1e-5
        )


def agree_with_their_own(z: Floats, q: Floats, steps: Floats, delta: Floats) -> None:
    """Check every entry of an array against the same entry asked alone, in two orders."""
    columns = np.broadcast_arrays(z, q, steps, delta)
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    found = upper_epsilons(**dict(zip(names, columns, strict=True)))
    backwards = [column[::-1] for column in columns]
    again = upper_epsilons(**dict(zip(names, backwards, strict=True)))
    np.testing.assert_allclose(again[::-1], found, rtol=1e-9, atol=0)
    for entry, upper in zip(zip(*columns, strict=True), found, strict=True):
        alone = accounting.epsilons(**dict(zip(names, entry, strict=True)))
        assert alone.lower * (1 - 1e-12) <= upper
        close = float(DEFAULT.wanted(np.asarray(alone.upper)))  # floor/50 where ε is next to none
        assert upper <= alone.upper + 1.4 * close


MIXED = [
    # two mechanisms whose ε lie far apart, and one that has two δ
    ([5.4586, 5.8564, 4.5384, 4.5384], [0.074737, 0.00013035, 0.0096466, 0.0096466], 475),
    ([5.4586, 5.8564, 5.8564, 5.8564], [0.074737, 0.00013035, 0.00013035, 0.00013035], 475),
    ([1.0, 1.0, 40.0, 40.0], [0.01, 0.01, 1e-6, 1e-6], [10**5, 10**5, 20, 20]),
    ([0.6, 0.6, 0.6, 3.0], [1e-4, 1e-4, 1e-4, 0.9], 1000),
    ([10.0] * 4, [1e-5] * 4, 3),  # who is hardly ever asked, and pays next to nothing
]


@pytest.mark.parametrize(("z", "q", "steps"), MIXED)
def test_an_arrays_answer_is_each_entrys_own(z: Floats, q: Floats, steps: Floats) -> None:
    delta = np.array([0.00045881, 0.0093862, 3.225e-5, 1.3171e-7])
    agree_with_their_own(np.array(z), np.array(q), np.array(steps), delta)


ENTRY = st.tuples(st.floats(-0.4, 1.5), st.floats(-6, -0.05), st.integers(2, 10**5))


@given(st.lists(ENTRY, min_size=1, max_size=3), st.data())
@settings(max_examples=12, deadline=None)
def test_arrays_of_any_mechanisms(
    mechanisms: list[tuple[float, float, int]], data: st.DataObject
) -> None:
    """Some of them many times, with δ near one another and far apart."""
    times = [data.draw(st.integers(1, 5)) for _ in mechanisms]
    z, q, steps = (np.repeat(column, times) for column in zip(*mechanisms, strict=True))
    exponent = [data.draw(st.floats(-14, -2)) for _ in range(sum(times))]
    agree_with_their_own(10**z, 10**q, steps, 10 ** np.array(exponent))


def test_many_budgets_of_one_mechanism_share_a_curve() -> None:
    """Never below any of a thousand answers, and at most 0.1 % above."""
    delta = np.geomspace(1e-13, 0.3, 1000)
    steps = {"noise_multiplier": 1.1, "sampling_probability": 0.02, "steps": 500}
    found = upper_epsilons(**steps, delta=delta)
    lower, upper = accounting.epsilons(**steps, delta=delta[::40])
    assert (lower <= found[::40]).all()
    assert (found[::40] <= upper + 1e-3 * np.maximum(upper, 0.01)).all()
    assert (np.diff(found) <= 0).all()


SLOW_ONCE = [
    {"delta": 0.9, "sampling_probability": 0.01, "steps": 10},
    {"delta": 1e-5, "sampling_probability": 1e-8, "steps": 10},
    {"delta": 0.5, "sampling_probability": 1e-6, "steps": 10**5},
    {"delta": 1e-3, "sampling_probability": 1e-12, "steps": 10**8},
]


@pytest.mark.parametrize("of", SLOW_ONCE)
def test_who_hardly_ever_takes_part_needs_no_noise(of, monkeypatch):
    """A chance of at most δ to take part at all is covered by δ, and one look is enough."""
    looks = []
    upper = batch._upper
    monkeypatch.setattr(batch, "_upper", lambda *columns: looks.append(1) or upper(*columns))
    z = accounting.noise_multipliers(epsilon=[0.1, 3.0], **of)
    assert z.tolist() == pytest.approx([0.05, 0.05])
    assert len(looks) == 1
    assert accounting.epsilons(noise_multiplier=0.05, **of).upper == 0


def test_the_chance_to_take_part_is_not_rounded_down():
    for q, steps in ((0.01, 10), (1e-9, 3), (0.3, 2), (1 - 1e-9, 2)):
        joins = 1 - (1 - Fraction(q)) ** steps
        profile = build_rare_profile(((Sampled(Gaussian(1.0), q), steps),))
        assert joins <= Fraction(profile.chance) <= joins * (1 + Fraction(1, 10**11))
        at = np.array([float(joins) * (1 - 1e-6), min(float(joins) * (1 + 1e-6), 1.0)])
        assert profile.epsilon(at).upper.tolist() == [np.inf, 0.0]
    assert build_rare_profile(((Gaussian(1.0), 1), (Sampled(Gaussian(1.0), 0.1), 1))) is None


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.9, 0.99, 0.999])
def test_deltas_near_one_of_millions_of_steps_take_seconds(delta):
    begin = time.process_time()
    of = {"delta": delta, "sampling_probability": 0.01, "steps": 10**7}
    z = accounting.noise_multipliers(epsilon=1.0, **of)
    assert time.process_time() - begin < 20
    assert accounting.epsilons(noise_multiplier=z, **of).upper <= 1.0
    assert accounting.epsilons(noise_multiplier=z * 0.98, **of).upper > 1.0
