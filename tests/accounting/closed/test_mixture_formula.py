"""One step of a mixture of Gaussians in closed form, against 60 digits, however rare its parts."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from apiece import Gaussian, Sampled, privacy_curve
from apiece.accounting import mixture
from apiece.accounting.lattice.profile import composition
from apiece.accounting.mixture import MixtureProfile
from apiece.errors import RangeError
from apiece.mechanisms.algebra import flatten
from apiece.mechanisms.mixture import MixtureOfGaussians


def end_of(constants: list[mp.mpf], shifts: list[mp.mpf], log_target: mp.mpf) -> mp.mpf:
    """x with log Σ exp(constant + shift·x) = target, by Newton's method from above."""
    x = min((log_target - a) / s for a, s in zip(constants, shifts, strict=True))
    for _ in range(400):
        terms = [mp.exp(a + s * x) for a, s in zip(constants, shifts, strict=True)]
        total = sum(terms)
        slope = sum(t * s for t, s in zip(terms, shifts, strict=True)) / total
        step = (mp.log(total) - log_target) / slope
        x -= step
        if abs(step) < mp.mpf(10) ** -50 * (1 + abs(x)):
            break
    return x


def exact(step: MixtureOfGaussians, coin: float, epsilon: float) -> mp.mpf:
    """δ(ε), the larger of both directions."""
    z = mp.mpf(step.noise_multiplier)
    shifts = [mp.mpf(s) / z for s in step.shifts]
    chances = [mp.mpf(c) * mp.mpf(coin) for c in step.chances]
    left, t = 1 - sum(chances), mp.exp(mp.mpf(epsilon))
    constants = [mp.log(c) - s * s / 2 for c, s in zip(chances, shifts, strict=True)]
    parts = list(zip(chances, shifts, strict=True))
    a = end_of(constants, shifts, mp.log(t - left))
    above = [sum(c * mp.ncdf(s - a) for c, s in parts) + left * mp.ncdf(-a) - t * mp.ncdf(-a)]
    if 1 / t - left > 0:
        b = end_of(constants, shifts, mp.log(1 / t - left))
        below = sum(c * mp.ncdf(b - s) for c, s in parts) + left * mp.ncdf(b)
        above.append(mp.ncdf(b) - t * below)
    return max(above)


def some(random: np.random.Generator) -> tuple[MixtureOfGaussians, float]:
    """A mixture and a coin: rare parts, parts that hardly leave anything, tiny and large shifts."""
    size = int(random.integers(1, 5))
    shifts = 10 ** random.uniform(-2.5, 1, size)
    chances = 10.0 ** random.uniform(-14, 0, size)
    chances /= max(chances.sum(), 1.0) * (1 + 1e-15)
    if random.random() < 0.3:
        chances *= (1 - 10 ** random.uniform(-12, -1)) / chances.sum()
    coin = float(random.choice([1.0, random.random(), 10 ** random.uniform(-8, 0)]))
    return MixtureOfGaussians(float(10 ** random.uniform(-0.2, 1)), shifts, chances), coin


def asked(random: np.random.Generator, step: MixtureOfGaussians, coin: float) -> list[float]:
    """ε of all sizes; some where hardly anything is left of the add direction."""
    left = 1 - sum(map(Fraction, step.chances)) * Fraction(coin)
    far = -math.log(left) * random.random() if left > 0 else 1.0
    return [0.0, far, float(10 ** random.uniform(-12, 1.2))]


def broken_of(count: int, seed: int) -> tuple[int, float]:
    """How many bounds do not hold, and the largest relative gap where δ is above 1e-250."""
    random, broken, gap = np.random.default_rng(seed), 0, 0.0
    with mp.workdps(60):
        for _ in range(count):
            step, coin = some(random)
            profile = MixtureProfile.of(step, coin)
            for epsilon in asked(random, step, coin):
                (lower,), (upper,) = profile.delta(np.array([epsilon]))
                truth = exact(step, coin, epsilon)
                broken += not (lower <= max(truth, 0) and truth <= upper)
                if truth > 1e-250:
                    gap = max(gap, float((upper - lower) / truth))
    return broken, gap


def test_exact_values_lie_between_close_bounds() -> None:
    broken, gap = broken_of(120, 1)
    assert broken == 0
    assert gap < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_exact_values_lie_between_close_bounds_of_many(seed: int) -> None:
    assert broken_of(500, seed)[0] == 0


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_bounds_hold_wherever_the_search_for_the_end_stops(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(mixture, "_TURNS", turns)
    broken, gap = broken_of(60, 1)
    assert broken == 0
    assert gap > 1e-3


def test_a_gain_that_is_missed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MixtureProfile._end

    def early(self: MixtureProfile, *target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, off = place(self, *target)
        return x, np.minimum(off, 1e-13)

    monkeypatch.setattr(mixture, "_TURNS", 2)
    monkeypatch.setattr(MixtureProfile, "_end", early)
    assert broken_of(60, 1)[0] > 10


def test_chances_that_are_off_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    of = MixtureProfile.of.__func__  # type: ignore[attr-defined]

    def off(cls: type, step: MixtureOfGaussians, coin: float = 1.0) -> MixtureProfile:
        right = of(cls, step, coin)
        return MixtureProfile(right.shifts, right.chances * (1 - 1e-8), right.left)

    monkeypatch.setattr(MixtureProfile, "of", classmethod(off))
    assert broken_of(60, 1)[0] > 10


@pytest.mark.parametrize(
    ("step", "epsilon", "least"),
    [
        (MixtureOfGaussians(2.0, [1.0, 2.0], [1e-9, 1e-12]), 1e-6, 1.4e-47),
        (MixtureOfGaussians(1.0, [1.0, 8.0], [1e-6, 1e-12]), 0.1, 7.57e-13),
        (MixtureOfGaussians(2.0, [1.0], [1e-9]), 1e-6, 1.09e-52),
        (MixtureOfGaussians(1.0, [0.5, 3.0], [1e-4, 1e-15]), 1.0, 2.7e-40),
    ],
)
def test_rare_parts_are_answered_closely(
    step: MixtureOfGaussians, epsilon: float, least: float
) -> None:
    lower, upper = privacy_curve(step).delta(epsilon)
    with mp.workdps(60):
        assert lower <= exact(step, 1.0, epsilon) <= upper
    assert least < lower < upper < lower * (1 + 1e-8)


def test_one_shift_is_a_sampled_gaussian_and_many_agree_with_the_lattice() -> None:
    at = np.array([0.0, 1e-3, 0.3, 2.0])
    one = MixtureProfile.of(MixtureOfGaussians(3.0, [2.0], [0.2]), 0.5).delta(at)
    same = privacy_curve(Sampled(Gaussian(1.5), 0.1)).delta(at)
    np.testing.assert_allclose(one.upper, same.upper, rtol=1e-9)
    step = MixtureOfGaussians(2.0, np.linspace(0.1, 3, 40), np.full(40, 0.02))
    wide = composition(flatten(step)).delta(at)
    lower, upper = MixtureProfile.of(step).delta(at)
    assert (lower <= wide.upper).all()
    assert (wide.lower <= upper).all()


def test_far_values_and_losses_past_the_range() -> None:
    profile = MixtureProfile.of(MixtureOfGaussians(1.0, [1.0, 20.0], [0.5, 0.5]))
    lower, upper = profile.delta(np.array([650.0, 720.0, 1e4, 1e6]))
    assert (lower <= upper).all()
    assert (upper <= 1e-12).all()
    with pytest.raises(RangeError, match="past the numerical range"):
        MixtureProfile.of(MixtureOfGaussians(1e-3, [1.0], [0.5]))
