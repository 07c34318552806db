"""Tools of others run on apiece, person by person: Google's dp-accounting, and OpenDP.

What one person can move a sum by, and how often they take part, is drawn anew for each. OpenDP is
the extra `oracles`, which `make test-extras` installs; without it its tests are skipped.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from itertools import starmap
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from apiece.accounting import privacy_curve
from apiece.accounting.renyi import divergence
from apiece.budgets import Budgets
from apiece.budgets.release import (
    discrete_gaussian,
    discrete_gaussian_delta,
    discrete_laplace,
    gaussian_variance,
)
from apiece.filters import GaussianFilter
from apiece.mechanisms import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Finite,
    Gaussian,
    Laplace,
    Mechanism,
    Repeated,
    Sampled,
)
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.queries.noise import BITS, draw_rounded_gaussians, draw_rounded_laplaces

TIGHT = 0.01  # how far above their bound from above ours may be, by their grid and ours
drawn = settings(max_examples=8, deadline=None, derandomize=True, database=None)
many = settings(drawn, max_examples=60)


def ten_to(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: float(10**power))


def between(ours: Any, low: float, high: float, about: object) -> None:
    """Our bounds on ε enclose theirs from below, and ours from above is close to theirs."""
    assert ours.lower <= high * (1 + 1e-6) + 1e-9, about
    assert low <= ours.upper * (1 + 1e-6) + 1e-9, about
    assert ours.upper <= high * (1 + TIGHT) + 1e-4, about


# ------------------------------------------------------------------ dp-accounting


def one_of_theirs(kind: str, noise: float, moved: Any, rate: float, how: dict[str, Any]) -> Any:
    """Return their loss distribution of one step that a person moves by so much."""
    if kind == "response":  # in their words: the chance to answer at random
        how = {name: value for name, value in how.items() if name != "use_connect_dots"}
        return pld.from_randomized_response(moved / (math.exp(1 / noise) + moved - 1), moved, **how)
    made = getattr(pld, f"from_{kind.replace(' ', '_')}_mechanism")
    return made(
        1 / noise if kind == "discrete laplace" else noise, moved, sampling_prob=rate, **how
    )


def by_dp_accounting(parts: list[tuple[str, float, Any, float, int]], delta: float) -> list[float]:
    """Return their ε from below and from above of (kind, noise, sensitivity, rate, times)."""
    spread = math.sqrt(sum(k * (q * s / b) ** 2 for _, b, s, q, k in parts))
    grid, found = 2e-3 * min(max(spread, 1e-2), 1.0), []
    for above in (False, True):
        how = {
            "value_discretization_interval": grid,
            "pessimistic_estimate": above,
            "use_connect_dots": above,
        }
        each = [one_of_theirs(*part[:4], how).self_compose(part[4]) for part in parts]
        found.append(float(reduce(lambda a, b: a.compose(b), each).get_epsilon_for_delta(delta)))
    return found


def by_apiece(kind: str, noise: float, moved: Any, rate: float, times: int) -> Mechanism:
    step: Mechanism = {
        "gaussian": lambda: Gaussian(noise / moved),
        "laplace": lambda: Laplace(noise / moved),
        "discrete gaussian": lambda: DiscreteGaussian(noise, moved),
        "discrete laplace": lambda: DiscreteLaplace(noise, moved),
        "response": lambda: Finite.randomized_response(1 / noise, moved),
    }[kind]()
    return Repeated(step if rate == 1 else Sampled(step, rate), times)


GROUP = st.tuples(ten_to(-0.7, 0.5), ten_to(-2.3, -0.2))  # clip norm, rate
PLANS = st.tuples(
    st.lists(GROUP, min_size=1, max_size=3), ten_to(-0.1, 0.8), st.integers(1, 200), ten_to(-8, -3)
)


def _plans(drawing: Any) -> None:
    groups, noise, steps, delta = drawing
    clips, rates = (np.array(side) for side in zip(*groups, strict=True))
    asked = Budgets.from_groups(
        [(f"g{i}", 1.0 + i, 1) for i in range(len(groups))], len(groups), delta
    )
    stage = Stage(steps, float(rates.sum()), noise, rates, clips)
    plan = Plan("drawn", float(clips.max()), asked.groups, (stage,))
    for i, (clip, rate) in enumerate(groups):
        low, high = by_dp_accounting([("gaussian", noise, clip, rate, steps)], delta)
        if low > 30:  # where their grid no longer holds what is left of δ
            continue
        between(plan.curve(f"g{i}").epsilon(delta), low, high, (clip, rate, drawing))


@drawn
@given(PLANS)
def test_a_plan_costs_each_group_what_dp_accounting_says(drawing: Any) -> None:
    _plans(drawing)


@pytest.mark.slow
@many
@given(PLANS)
def test_many_plans_cost_each_group_what_dp_accounting_says(drawing: Any) -> None:
    _plans(drawing)


RATE = st.one_of(st.just(1.0), ten_to(-2, -0.1))
NOISE, TIMES = ten_to(-0.1, 0.9), st.integers(1, 12)
KINDS = ("gaussian", "laplace", "discrete gaussian", "discrete laplace")
PART = st.one_of(
    st.tuples(st.sampled_from(KINDS[:2]), NOISE, ten_to(-0.5, 0.3), RATE, TIMES),
    st.tuples(st.sampled_from(KINDS[2:]), NOISE, st.integers(1, 3), RATE, TIMES),
    st.tuples(st.just("response"), NOISE, st.integers(2, 5), st.just(1.0), TIMES),
)
COMPOSITIONS = st.lists(PART, min_size=1, max_size=3), ten_to(-7, -3)


def _compositions(parts: list[Any], delta: float) -> None:
    ours = privacy_curve(Composed(*starmap(by_apiece, parts))).epsilon(delta)
    low, high = by_dp_accounting(parts, delta)
    between(ours, low, high, (parts, delta))


@drawn
@given(*COMPOSITIONS)
def test_one_persons_steps_of_any_kind_compose_to_what_dp_accounting_says(
    parts: list[Any], delta: float
) -> None:
    _compositions(parts, delta)


@pytest.mark.slow
@many
@given(*COMPOSITIONS)
def test_many_compositions_cost_what_dp_accounting_says(parts: list[Any], delta: float) -> None:
    _compositions(parts, delta)


ORDERS = [2.0, 3.0, 8.0, 32.0]  # at others theirs often does not converge


@drawn
@given(ten_to(-0.2, 0.8), ten_to(-0.7, 0.5), RATE, st.integers(1, 500))
def test_renyi_divergences_are_theirs_and_not_below(
    noise: float, clip: float, rate: float, times: int
) -> None:
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise / clip))
    theirs = RdpAccountant(ORDERS).compose(event, times)._rdp
    ours = divergence(by_apiece("gaussian", noise, clip, rate, times), ORDERS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-13)
    assert (ours >= np.asarray(theirs) * (1 - 1e-9) - 1e-13).all()


@pytest.mark.parametrize("wrong", ["noise", "sensitivity", "rate", "times"])
def test_a_group_with_anothers_numbers_is_told_apart(wrong: str) -> None:
    """Negative control: the noise, clip norm, rate or steps of somebody else, a tenth off."""
    part = {"noise": 1.3, "sensitivity": 0.8, "rate": 0.05, "times": 200}
    low, high = by_dp_accounting([("gaussian", *part.values())], 1e-5)  # type: ignore[list-item]
    factor = 1.1 if wrong == "noise" else 0.9
    off = part | {wrong: int(part[wrong] * 0.9) if wrong == "times" else part[wrong] * factor}
    ours = privacy_curve(by_apiece("gaussian", *off.values())).epsilon(1e-5)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        between(ours, low, high, wrong)


# ------------------------------------------------------------------ OpenDP


@pytest.fixture(scope="module")
def opendp() -> Any:
    found = pytest.importorskip("opendp.prelude", reason="OpenDP is not installed")
    found.enable_features("contrib", "honest-but-curious")
    return found


def space(opendp: Any, kind: type = int) -> tuple[Any, Any]:
    """Return a single number, and how far one person moves it."""
    domain = opendp.atom_domain(T=int) if kind is int else opendp.atom_domain(T=float, nan=False)
    return domain, opendp.absolute_distance(T=kind)


def theirs_many(opendp: Any, kind: str, scale: float, of: type = int) -> np.ndarray:
    """Return their noise, drawn for a vector of zeros."""
    laplace = kind == "laplace"
    metric = opendp.l1_distance(T=of) if laplace else opendp.l2_distance(T=float)
    make = opendp.m.make_laplace if laplace else opendp.m.make_gaussian
    domain = opendp.vector_domain(space(opendp, of)[0])
    return np.array(make(domain, metric, scale=scale)([of(0)] * SIZE))


def alike(one: np.ndarray, other: np.ndarray) -> float:
    """The p-value of a χ² test that two samples of integers have one law."""
    values, where = np.unique(np.concatenate([one, other]), return_inverse=True)
    table = np.array(
        [np.bincount(part, minlength=values.size) for part in np.split(where, [one.size])]
    )
    rare = table.sum(axis=0) < 20
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)


SIZE, CHANCE = 20_000, 1e-5


@pytest.mark.parametrize(("kind", "scale"), [("laplace", 2.5), ("laplace", 0.7), ("gaussian", 2.5)])
def test_whole_noise_has_the_law_of_theirs(opendp: Any, kind: str, scale: float) -> None:
    theirs = theirs_many(opendp, kind, scale)
    random = np.random.default_rng(7)

    def ours(size: Fraction) -> np.ndarray:
        draw = discrete_laplace if kind == "laplace" else discrete_gaussian
        given = size if kind == "laplace" else size * size
        return np.array([draw(given, lambda n: int(random.integers(n))) for _ in range(SIZE)])

    assert alike(ours(Fraction(scale)), theirs) > CHANCE
    assert alike(ours(Fraction(scale * 1.2)), theirs) < CHANCE  # the control: a fifth more noise


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_noise_on_a_grid_has_the_law_of_theirs(opendp: Any, kind: str) -> None:
    theirs = theirs_many(opendp, kind, 1.0, float)
    random = np.random.default_rng(8)

    def bits(k: int) -> int:
        return int.from_bytes(random.bytes(-(-k // 8)), "big") >> (-k % 8)

    drawing = draw_rounded_laplaces if kind == "laplace" else draw_rounded_gaussians
    ours = np.array(drawing(SIZE, bits)) / 2.0**BITS
    assert stats.ks_2samp(ours, theirs).pvalue > CHANCE
    assert stats.ks_2samp(ours * 1.25, theirs).pvalue < CHANCE


@drawn
@given(scale=ten_to(-0.5, 2), moved=st.integers(1, 9), answers=st.integers(2, 6))
def test_what_a_count_costs_each_person_is_what_opendp_says(
    opendp: Any, scale: float, moved: int, answers: int
) -> None:
    """Its privacy maps at the distance that one person can make."""
    pure = opendp.m.make_laplace(*space(opendp), scale=scale).map(moved)
    ours = privacy_curve(DiscreteLaplace(scale, moved)).epsilon(1e-300)
    assert ours.upper == pytest.approx(pure, rel=1e-9)
    squares = opendp.m.make_gaussian(*space(opendp), scale=scale)
    if moved < 12 * scale:
        theirs = opendp.c.make_zCDP_to_approxDP(squares).map(moved)
        curve = privacy_curve(DiscreteGaussian(scale, moved))
        for delta in (1e-3, 1e-6):  # they convert from zCDP, which is not tight
            least = curve.epsilon(delta)
            assert least.lower <= theirs.epsilon(delta)
            assert theirs.epsilon(delta) <= 1.7 * least.upper + 0.1
    right = 1 / (1 + (answers - 1) * math.exp(-1 / scale))
    loss = opendp.m.make_randomized_response(list(range(answers)), right).map(1)
    assert privacy_curve(Finite.randomized_response(1 / scale, answers)).epsilon(
        1e-300
    ).upper == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (2.0, 1e-4)])
def test_the_noise_of_a_histogram_is_less_than_opendp_asks_for(
    opendp: Any, epsilon: float, delta: float
) -> None:
    variance = gaussian_variance(epsilon, delta)

    def spent(scale: float) -> float:
        noise = opendp.m.make_gaussian(*space(opendp), scale=scale)
        return float(opendp.c.make_zCDP_to_approxDP(noise).map(1).epsilon(delta))

    assert discrete_gaussian_delta(variance, epsilon) <= delta
    assert epsilon <= spent(float(variance) ** 0.5) <= 1.5 * epsilon


@drawn
@given(
    releases=st.lists(st.tuples(st.integers(1, 5), ten_to(0.3, 1.3)), min_size=5, max_size=40),
    budgets=st.lists(ten_to(-1, 0.7), min_size=1, max_size=3),
)
def test_our_filter_admits_whom_theirs_admits(
    opendp: Any, releases: list[tuple[int, float]], budgets: list[float]
) -> None:
    """A filter of OpenDP for each person, in zCDP: ρ is half of our μ²."""
    ours = GaussianFilter(budgets, 1e-6)
    rho = ours.limit / 2
    for person, limit in enumerate(rho.tolist()):
        # their filter knows one distance: the noise is given in units of what the person moves
        odometer = opendp.c.make_fully_adaptive_composition(
            *space(opendp), opendp.zero_concentrated_divergence()
        )
        theirs = opendp.c.make_privacy_filter(odometer, d_in=1, d_out=limit)(0)
        alone, spent = GaussianFilter(budgets[person], 1e-6), 0.0
        for moved, noise in releases:
            cost = (moved / noise) ** 2 / 2
            if abs(spent + cost - limit) < 1e-9 * limit:  # where roundings decide
                break
            admitted = bool(alone.admit(float(moved), noise))
            try:
                theirs(opendp.m.make_gaussian(*space(opendp), scale=noise / moved))
                taken = True
            except opendp.OpenDPException:
                taken = False
            assert admitted == taken
            if not taken:  # theirs is closed from then on
                break
            spent += cost
        assert spent <= limit
