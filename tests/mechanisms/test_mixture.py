"""Mixtures of Gaussians against closed forms, quadrature, another library, other vectors."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from apiece.accounting import privacy_curve
from apiece.errors import InputError, RangeError
from apiece.mechanisms import Composed, Gaussian, Laplace, Repeated, Sampled, from_json
from apiece.mechanisms.algebra import to_json
from apiece.mechanisms.mixture import MixtureOfGaussians


def exact(step: MixtureOfGaussians, epsilon: float) -> float:
    """δ(ε) of one step, the larger of both directions, to 30 digits."""
    z = mp.mpf(step.noise_multiplier)
    terms = [(mp.mpf(s) / z, mp.mpf(c)) for s, c in zip(step.shifts, step.chances, strict=True)]
    terms.append((mp.mpf(0), 1 - mp.fsum(c for _, c in terms)))

    def turn(loss: float) -> mp.mpf | None:
        """Where P = e^loss·Q; None where nowhere."""
        with mp.workdps(30):
            low, high = mp.mpf(-200), mp.mpf(200)

            def gap(x: mp.mpf) -> mp.mpf:
                return mp.log(mp.fsum(c * mp.exp(s * x - s**2 / 2) for s, c in terms)) - loss

            if gap(low) >= 0:
                return None
            for _ in range(90):
                middle = (low + high) / 2
                low, high = (low, middle) if gap(middle) > 0 else (middle, high)
            return low

    with mp.workdps(30):
        grow = mp.exp(epsilon)
        x = turn(epsilon)
        p = mp.fsum(c * mp.ncdf(s - x) for s, c in terms)
        remove = p - grow * mp.ncdf(-x)
        x = turn(-epsilon)
        if x is None:
            return float(remove)
        p = mp.fsum(c * mp.ncdf(x - s) for s, c in terms)
        return float(max(remove, mp.ncdf(x) - grow * p))


def some_steps(seed: int, size: int) -> list[MixtureOfGaussians]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        many = int(random.integers(1, 6))
        chances = random.dirichlet(np.ones(many)) * random.choice(
            [1.0, 0.3, 10 ** random.uniform(-5, 0)]
        )
        shifts = random.uniform(0.05, 3, many)
        found.append(
            MixtureOfGaussians(10 ** random.uniform(-0.4, 1.5), shifts, chances * (1 - 1e-15))
        )
    return found


@pytest.mark.parametrize("step", some_steps(0, 5))
def test_one_step_is_bounded_exactly(step: MixtureOfGaussians) -> None:
    curve = privacy_curve(step)
    for epsilon in (0.0, 0.7, 2.0):
        true = exact(step, epsilon)
        found = curve.delta(epsilon)
        assert found.lower <= true * (1 + 1e-9) + 1e-16
        assert true <= found.upper * (1 + 1e-12)


def test_one_shift_is_a_sampled_gaussian() -> None:
    for z, q, steps in [(1.0, 0.01, 500), (3.0, 1.0, 20), (0.7, 0.2, 3)]:
        mixture = privacy_curve(Repeated(MixtureOfGaussians(2 * z, [2.0], [q]), steps))
        same = privacy_curve(Repeated(Sampled(Gaussian(z), q), steps))
        for delta in (1e-3, 1e-6):
            one, other = mixture.epsilon(delta), same.epsilon(delta)
            assert max(one.lower, other.lower) <= min(one.upper, other.upper)
            assert one.upper <= 1.002 * other.upper


@pytest.mark.parametrize(("z", "rows", "q", "steps"), [(1.0, 2, 0.01, 400), (2.0, 4, 0.02, 200)])
def test_binomial_shifts_agree_with_dp_accounting(z, rows: int, q, steps: int) -> None:
    law = binom.pmf(range(rows + 1), rows, q).tolist()
    theirs = pld.from_mixture_gaussian_mechanism(
        z, list(range(rows + 1)), law, value_discretization_interval=1e-3
    ).self_compose(steps)
    step = MixtureOfGaussians.of_rows(z, [1.0] * rows, [q] * rows)
    ours = privacy_curve(Repeated(step, steps)).epsilon(1e-5)
    above = theirs.get_epsilon_for_delta(1e-5)  # pessimistic
    assert ours.lower <= above
    assert 0.98 * above <= ours.upper <= 1.001 * above
    apart = Repeated(Sampled(Gaussian(z / math.sqrt(rows)), q), rows * steps)
    assert ours.upper < 0.9 * privacy_curve(apart).epsilon(1e-5).lower


@pytest.mark.parametrize("angle", [0.0, 1.0, 2.0, 3.1])
def test_vectors_in_any_direction_are_dominated(angle: float) -> None:
    """Two rows of norms 1 and 0.7 at an angle, by quadrature over the plane."""
    z, q = 1.0, (0.3, 0.6)
    place = np.linspace(-9, 10.5, 900)
    x, y = np.meshgrid(place, place)
    cell = (place[1] - place[0]) ** 2
    ends = [(0.0, 0.0), (1.0, 0.0), (0.7 * math.cos(angle), 0.7 * math.sin(angle))]
    ends.append((ends[1][0] + ends[2][0], ends[1][1] + ends[2][1]))
    chances = [(1 - q[0]) * (1 - q[1]), q[0] * (1 - q[1]), (1 - q[0]) * q[1], q[0] * q[1]]
    parts = [
        c * norm.pdf(x, a, z) * norm.pdf(y, b, z) for (a, b), c in zip(ends, chances, strict=True)
    ]
    p, without = sum(parts) * cell, norm.pdf(x, 0, z) * norm.pdf(y, 0, z) * cell
    bound = privacy_curve(MixtureOfGaussians.of_rows(z, [1.0, 0.7], q))
    for epsilon in (0.0, 0.5, 1.5):
        remove = np.maximum(p - math.exp(epsilon) * without, 0).sum()
        add = np.maximum(without - math.exp(epsilon) * p, 0).sum()
        assert max(remove, add) <= bound.delta(epsilon).upper * (1 + 2e-4)  # of the grid
        if angle == 0.0:
            assert max(remove, add) >= bound.delta(epsilon).lower * (1 - 1e-5)


def test_sums_of_clip_norms() -> None:
    step = MixtureOfGaussians.of_rows(1.0, [1.0, 2.0], [0.5, 0.1])
    assert step.shifts == (1.0, 2.0, 3.0)
    assert step.chances == pytest.approx((0.45, 0.05, 0.05))
    assert MixtureOfGaussians.of_rows(1.0, [1.0], [0.0]) is None
    norms = np.linspace(1, 2, 14)
    many = MixtureOfGaussians.of_rows(20.0, norms, [0.1] * 14)
    assert len(many.shifts) <= 256
    assert sum(many.chances) == pytest.approx(1 - 0.9**14)
    mean = np.dot(many.shifts, many.chances)
    assert 0.1 * norms.sum() <= mean <= 1.1 * 0.1 * norms.sum()  # rounded up


@pytest.mark.parametrize("rows", [14, 60, 200, 255])
def test_many_rows_of_different_norms_are_rounded_up(rows: int) -> None:
    norms = np.random.default_rng(rows).lognormal(size=rows)
    step = MixtureOfGaussians.of_rows(20.0, norms, [0.1] * rows)
    assert len(step.shifts) <= 256
    assert max(step.shifts) >= norms.sum() * (1 - 1e-12)
    assert math.fsum(step.chances) == pytest.approx(1 - 0.9**rows)
    sums = (np.random.default_rng(1).random((4000, rows)) < 0.1) @ norms
    for upto in np.linspace(0.02, 0.3, 8) * norms.sum():
        above = math.fsum(c for s, c in zip(step.shifts, step.chances, strict=True) if s > upto)
        assert above >= (sums > upto).mean() - 4 * 0.5 / math.sqrt(4000)  # four standard errors


def test_more_rows_than_sums_are_refused_unless_they_are_alike() -> None:
    assert len(MixtureOfGaussians.of_rows(20.0, [1.0] * 256, [0.5] * 256).shifts) == 256
    with pytest.raises(InputError, match="256 rows"):
        MixtureOfGaussians.of_rows(20.0, np.linspace(1, 2, 256), [0.5] * 256)


def test_two_rows_together_cost_less_than_two_records() -> None:
    """The figures of docs/mathematics.md."""
    together = MixtureOfGaussians.of_rows(1.0, [1.0, 1.0], [0.01, 0.01])
    apart = Repeated(Sampled(Gaussian(1 / math.sqrt(2)), 0.01), 1000)
    assert privacy_curve(Repeated(together, 500)).epsilon(1e-5).upper == pytest.approx(
        2.86, abs=0.005
    )
    assert privacy_curve(apart).epsilon(1e-5).upper == pytest.approx(4.48, abs=0.005)


def test_coins_compositions_and_json() -> None:
    step = MixtureOfGaussians(2.0, [1.0, 2.0], [0.2, 0.1])
    assert from_json(to_json(step)) == step
    behind = privacy_curve(Repeated(Sampled(step, 0.5), 10)).epsilon(1e-5)
    halved = privacy_curve(Repeated(MixtureOfGaussians(2.0, [1.0, 2.0], [0.1, 0.05]), 10)).epsilon(
        1e-5
    )
    assert behind == pytest.approx(halved)
    both = privacy_curve(Composed(Repeated(step, 5), Laplace(10.0))).epsilon(1e-5)
    assert both.lower > privacy_curve(Repeated(step, 5)).epsilon(1e-5).upper
    exact, renyi = (privacy_curve(step, method=m).epsilon(1e-5).upper for m in ("pld", "rdp"))
    assert exact < renyi < 3 * exact


@pytest.mark.parametrize(
    ("noise", "shifts", "chances"),
    [
        (0.0, [1.0], [0.5]),
        (1.0, [0.0], [0.5]),
        (1.0, [1.0], [0.0]),
        (1.0, [1.0, 2.0], [0.5]),
        (1.0, [], []),
        (1.0, [1.0, 2.0], [0.5, 0.6]),
        (1.0, [math.nan], [0.5]),
        (1.0, np.arange(1.0, 300.0), np.full(299, 1e-3)),
    ],
)
def test_bad_values_are_refused(noise, shifts, chances) -> None:
    with pytest.raises(InputError):
        MixtureOfGaussians(noise, shifts, chances)


def test_past_the_numerical_range() -> None:
    lower, upper = privacy_curve(MixtureOfGaussians(1e-3, [1.0], [0.5])).epsilon(1e-5)
    plain = privacy_curve(Gaussian(1e-3)).epsilon(1e-5)
    assert lower == 0  # Rényi divergences alone still tell something
    assert plain.lower * 0.999 < upper < plain.upper * 1.01
    with pytest.raises(RangeError):
        privacy_curve(MixtureOfGaussians(1e-160, [1.0], [0.5])).epsilon(1e-5)
