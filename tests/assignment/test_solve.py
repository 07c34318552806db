"""What strategies share: who decides a uniform noise, and where a mean meets what was asked."""

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import Bounds, batch, epsilons
from apiece.assignment import Hybrid, assign
from apiece.assignment.request import Request
from apiece.assignment.solve import (
    MANY,
    find_crossing,
    find_harmonic_noise,
    find_loosest,
    find_strictest,
    find_uniform_noise,
    require_few,
    solve_noise,
    solve_rates,
)
from apiece.budgets import Budgets
from apiece.errors import UnsupportedError
from refusals import refused


@pytest.mark.parametrize("seed", range(20))
def test_those_that_no_other_is_below(seed: int) -> None:
    r = np.random.default_rng(seed)
    epsilon, delta = np.round(r.uniform(0.1, 3, 30), 1), np.round(r.uniform(0.1, 0.9, 30), 1)
    found = find_strictest(epsilon, delta)
    below = (epsilon[found][:, None] <= epsilon) & (delta[found][:, None] <= delta)
    assert below.any(axis=0).all()
    above = (epsilon[:, None] <= epsilon[found]) & (delta[:, None] <= delta[found])
    same = (epsilon[:, None] == epsilon[found]) & (delta[:, None] == delta[found])
    assert not (above & ~same).any()
    assert sorted(find_loosest(epsilon, delta)) == sorted(find_strictest(-epsilon, -delta))


def test_one_noise_for_all_is_that_of_the_strictest() -> None:
    request = Request(Budgets([0.5, 1.0, 2.0, 1.0], [1e-5, 1e-6, 1e-4, 1e-5]), 10, 1.0, 1.0)
    groups = request.groups
    each = solve_noise(request, groups.epsilon, groups.delta, 0.25)
    assert find_uniform_noise(request, groups.epsilon, groups.delta, 0.25) == each.max()
    assert each.min() < find_harmonic_noise(request) < each.max()


@pytest.mark.parametrize("guess", [0.01, 1.3, 80.0])
def test_the_crossing_is_met_from_above(guess: float) -> None:
    found = find_crossing(lambda x: float(np.log(x / 1.7)), guess, 0.5, 50.0, slope=1.0)
    assert 1.7 <= found <= 1.7 * np.exp(4e-4)


def test_the_crossing_at_an_end_or_past_a_jump() -> None:
    assert find_crossing(lambda x: x, 1.0, 0.5, 2.0) == pytest.approx(0.5)
    assert find_crossing(lambda x: 1.0 if x > 1.2 else -1.0, 1.0, 0.5, 2.0) == pytest.approx(
        1.2, rel=1e-4
    )
    # negative even at the upper end, by noise: a little beyond it
    assert find_crossing(lambda x: -1e-6, 1.0, 0.5, 2.0) == pytest.approx(2.01)


def test_too_many_groups_for_a_curve_each() -> None:
    epsilon = np.linspace(1, 2, MANY + 1)
    with refused(UnsupportedError, 501, "budgets", 500):
        assign(Budgets(epsilon, 1e-5), Hybrid(0.1), steps=1, expected_batch_size=1, clip_norm=1.0)
    require_few("some", MANY)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("delta", [1e-5, None])
def test_many_budgets_are_solved_from_some_of_them(delta: float | None, shuffled: bool) -> None:
    """As safe and as close as each alone; from fewer looks where δ is the same."""
    r = np.random.default_rng(0)
    epsilon = np.linspace(0.5, 8, 80) if not shuffled else r.uniform(0.5, 8, 80).round(1)
    deltas = np.full(80, delta) if delta else 10 ** r.uniform(-7, -5, 80)
    request = Request(Budgets(epsilon, deltas), 100, 4.0, 1.0)
    q = np.exp(r.uniform(-5, -2, 80))  # kinks, of which a guess knows nothing
    for z, rate in (
        (solve_noise(request, epsilon, deltas, q), q),
        (solve_noise(request, epsilon, deltas, 0.05), 0.05),
        (1.0, solve_rates(request, epsilon, deltas, 1.0)),
    ):
        spent = epsilons(noise_multiplier=z, sampling_probability=rate, steps=100, delta=deltas)
        assert (spent.upper <= epsilon).all()
        assert (spent.upper >= 0.998 * epsilon).all()


def test_good_guesses_save_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon, looks = np.linspace(0.5, 8, 80), []
    bounds = batch.bounds_of

    def counted(columns: Floats, method: str) -> Bounds:
        looks.append(columns.shape[1])
        return bounds(columns, method)

    monkeypatch.setattr(batch, "bounds_of", counted)
    request = Request(Budgets(epsilon, 1e-5), 100, 4.0, 1.0)
    solve_noise(request, epsilon, np.full(80, 1e-5), 0.05)
    few = sum(looks)
    looks.clear()
    batch.noise_multipliers(epsilon=epsilon, delta=1e-5, sampling_probability=0.05, steps=100)
    assert few < 0.7 * sum(looks)
