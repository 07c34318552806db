"""What a promise means, against other formulas, simulation, and a search for attackers."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from apiece.accounting import privacy_curve
from apiece.contract import explain
from apiece.contract.explain import count_cases, count_up, promised_curve
from apiece.mechanisms import Finite, Gaussian

BUDGETS = [
    *itertools.product((0.1, 1.0, 3.0, 8.0), (0.0, 1e-9, 1e-5)),
    (0.01, 1e-5), (1.0, 0.04), (20.0, 1e-6),
]  # fmt: skip
# One row an inequality of the region: T ≤ e^ε·α + δ and its mirror, of rates (α, T).


def most(epsilon: float, delta: float, weight: tuple[float, float], share: float | None) -> float:
    """The largest weighted sum of (α, T) in the region of (ε, δ), by a linear program."""
    grow = math.exp(epsilon)
    rows, bounds = [[-grow, 1.0], [-1.0, grow]], [delta, grow - 1 + delta]
    equal = {} if share is None else {"A_eq": [[1 - share, share]], "b_eq": [share]}
    found = linprog(np.negative(weight), A_ub=rows, b_ub=bounds, bounds=(0, 1), **equal)
    assert found.success
    return -float(found.fun)


def count(chance: float, of: int) -> range:
    """The counts that a chance may be rounded to, with what the solver of the test loses."""
    return range(math.ceil(chance * of - 1e-6), math.ceil(chance * of + 1e-4) + 1)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_counts_are_those_of_the_region(epsilon: float, delta: float) -> None:
    n = explain(epsilon, delta).frequencies
    grow = math.exp(epsilon)
    assert n.right in count(0.5 + most(epsilon, delta, (-0.5, 0.5), None), 1000)
    for alpha, of, found in ((0.01, 1000, n.found), (0.001, 100_000, n.harmed)):
        assert found in count(min(grow * alpha + delta, 1 - (1 - delta - alpha) / grow), of)
    assert n.picked in count(most(epsilon, delta, (0.0, 1.0), 0.001), 1000)
    odds = grow / (1 - 0.1) if delta else grow
    assert n.belief in count(odds / (1 + odds), 1000)
    assert n.rare_belief in count(odds / (999 + odds), 1000)
    assert n.surprise == (round(0.1 / delta) if delta else None)


def guesses(epsilon: float, delta: float, people: int, seed: int) -> float:
    """Of 1,000, how many are guessed right under the mechanism that the promise is worst for."""
    generator = np.random.default_rng(seed)
    told = generator.random(people) < delta
    honest = generator.random(people) < math.exp(epsilon) / (1 + math.exp(epsilon))
    return 1000 * float(np.mean(told | honest))  # whoever took part, by symmetry


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.3, 0.01), (2.5, 1e-3)])
def test_randomized_response_attains_the_count_and_no_more(epsilon: float, delta: float) -> None:
    people = 2_000_000
    right = explain(epsilon, delta).frequencies.right
    noise = 1000 * 4.5 * 0.5 / math.sqrt(people)
    reached = guesses(epsilon, delta, people, seed=7)
    assert right - 1 - noise < reached < right + noise
    assert guesses(epsilon + 0.05, delta, people, seed=7) > right + noise  # breaks the promise


def rates_of(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return (α, T) of every deterministic test of a mechanism with few outcomes."""
    chosen = np.array(list(itertools.product((0.0, 1.0), repeat=p.size)))
    return np.stack([chosen @ q, chosen @ p], axis=1)


def reached(p: np.ndarray, q: np.ndarray) -> dict[str, float]:
    """What attackers reach on this very mechanism, computed from its outcomes."""
    rates = rates_of(p, q)
    order = np.argsort(-p / np.maximum(q, 1e-300))
    alpha = np.concatenate([[0], np.cumsum(q[order])])
    power = np.concatenate([[0], np.cumsum(p[order])])
    named = 0.001 * power + 0.999 * alpha
    return {
        "right": 1000 * float((1 + (rates[:, 1] - rates[:, 0]).max()) / 2),
        "found": 1000 * float(np.interp(0.01, alpha, power)),
        "harmed": 100_000 * float(np.interp(0.001, alpha, power)),
        "picked": 1000 * float(np.interp(0.001, named, power)),
    }


def kept(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The δ that a mechanism keeps with ε, in both directions."""
    grow = math.exp(epsilon)
    return max(float(np.maximum(p - grow * q, 0).sum()), float(np.maximum(q - grow * p, 0).sum()))


@pytest.mark.parametrize("seed", range(40))
def test_no_attacker_on_any_mechanism_does_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 7))
    q = generator.dirichlet(np.ones(size) * generator.uniform(0.1, 2))
    p = q * np.exp(generator.normal(0, generator.uniform(0.1, 4), size))
    p /= p.sum()
    epsilon = float(generator.uniform(0.05, 3))
    delta = kept(p, q, epsilon)
    said = explain(epsilon, delta).frequencies
    found = reached(p, q)
    for name, value in found.items():
        assert value <= getattr(said, name) + 1e-6, name
    for prior, belief in ((0.5, said.belief), (0.001, said.rare_belief)):
        after = prior * p / (prior * p + (1 - prior) * q)
        worse = float(p[after > belief / 1000 + 1e-12].sum())
        assert worse <= 1 / (said.surprise or math.inf) * (1 + 1e-9)
    # Of the mechanism itself the counts are what its attackers reach, to the next person.
    exact = explain(epsilon, max(delta, 1e-12), curve=privacy_curve(Finite(p, q))).frequencies
    assert exact.right in count(found["right"] / 1000, 1000)
    assert exact.found <= said.found


def test_a_promise_that_is_broken_is_seen() -> None:
    """The control of the search: a mechanism of 2ε reaches more than ε is said to allow."""
    lie = 1 / (1 + math.exp(2.0))
    p, q = np.array([1 - lie, lie]), np.array([lie, 1 - lie])
    said = explain(1.0, 1e-5).frequencies
    assert all(value > getattr(said, name) for name, value in reached(p, q).items())


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
def test_counts_of_a_gaussian_by_its_own_formulas(mu: float) -> None:
    curve = privacy_curve(Gaussian(1 / mu))
    epsilon = curve.epsilon(1e-5).upper
    n = explain(epsilon, 1e-5, curve=curve).frequencies
    promised = explain(epsilon, 1e-5).frequencies
    assert n.right in count(norm.cdf(mu / 2), 1000)
    assert n.found in count(norm.cdf(norm.ppf(0.01) + mu), 1000)
    assert n.harmed in count(norm.cdf(norm.ppf(0.001) + mu), 100_000)
    for prior, belief in ((0.5, n.belief), (0.001, n.rare_belief)):
        odds = math.log(belief / (1000.001 - belief)) - math.log(prior / (1 - prior))
        assert norm.sf(odds / mu - mu / 2) <= 1e-4  # the loss is N(μ²/2, μ²) with the record
    assert all(getattr(n, f) <= getattr(promised, f) for f in n.to_dict() if f != "surprise")


def test_counts_grow_with_the_budget() -> None:
    found = [explain(e, 1e-5).frequencies for e in (0.1, 0.5, 1.0, 2.0, 4.0)]
    for name in ("right", "found", "harmed", "picked", "belief", "rare_belief"):
        values = [getattr(n, name) for n in found]
        assert values == sorted(values)
        assert values[0] < values[-1]


def test_the_promised_curve_is_the_region() -> None:
    curve, x = promised_curve(1.0, 1e-4), np.linspace(0, 1.5, 31)
    exact = 1e-4 + (1 - 1e-4) * np.maximum(math.e - np.exp(x), 0) / (1 + math.e)
    lower, upper = curve.delta(x)
    assert (lower <= exact * (1 + 1e-9)).all()
    np.testing.assert_allclose(upper, exact, rtol=1e-9)


@pytest.mark.parametrize("cases", [1, 10, 73, 999, 1000])
def test_a_whole_number_stays_what_it_is_whatever_rounding_did(cases: int) -> None:
    for factor in (1 - 2**-52, 1.0, 1 + 2**-52):
        assert count_up(cases / 1000 * factor, 1000) == cases == count_cases(cases * factor)
    if cases < 1000:
        assert count_up((cases + 1e-6) / 1000, 1000) == cases + 1
    assert count_cases(cases - 1e-6) == cases - 1
