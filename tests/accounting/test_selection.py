"""The best of a random number of runs: bounds against enumeration of small runs, order by order."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

from apiece import Gaussian, Repeated, Sampled, privacy_curve
from apiece.accounting import selection
from apiece.accounting.renyi import delta_at, divergence
from apiece.errors import InputError
from apiece.mechanisms import Composed, Finite, Runs, Selected, from_json
from apiece.mechanisms.algebra import to_json

LAWS = [Runs(5), Runs(5, 0), Runs(8, -0.5), Runs(4, None), Runs(40), Runs(40, 2.5)]
GRID = np.linspace(0.0, 6.0, 61)


def generating(runs, most=5000):
    """f(t) = E[t^K], summed run number by run number."""
    law = runs.law(most)
    law, number = law[law > 0], np.arange(1, most + 1)[law > 0]
    return lambda t: np.asarray(t)[..., None] ** number @ law


def best_of(masses, f):
    """The law of the best output, where a later output is better: f(F(y)) − f(F(y−))."""
    reached = np.concatenate(([0.0], np.minimum(np.cumsum(masses), 1.0)))
    return np.diff(f(reached))


def deltas(p, q, epsilon=GRID):
    """δ(ε) of two laws on the same outputs, the larger of both directions."""
    e = np.exp(epsilon)[:, None]
    return np.maximum(np.maximum(p - e * q, 0).sum(1), np.maximum(q - e * p, 0).sum(1))


def worst(p, q, f, orders):
    """δ(ε) of the best of K runs, the largest over some orders of the outputs."""
    found = [deltas(best_of(p[list(o)], f), best_of(q[list(o)], f)) for o in orders]
    return np.max(found, axis=0)


def ladder(mu, cells=60):
    """N(0, 1) and N(μ, 1) in cells, whose order is the order of likelihood ratios."""
    edges = np.concatenate(([-np.inf], np.linspace(-4, 4 + mu, cells), [np.inf]))
    return np.diff(norm.cdf(edges - mu)), np.diff(norm.cdf(edges))


@pytest.mark.parametrize("runs", LAWS, ids=repr)
def test_law_is_a_law_with_its_mean_and_its_generating_function(runs):
    law = runs.law(40_000)
    assert law.sum() == pytest.approx(1, abs=1e-9)
    assert law @ np.arange(1, law.size + 1) == pytest.approx(runs.mean, rel=1e-6)
    f = generating(runs)
    for share in (0.05, 0.5):
        assert runs.chance_of_top(share) == pytest.approx(1 - f([1 - share])[0], abs=1e-6)
    u = np.array([1e-3, 0.1, 0.7])
    slope = (f(1 - u + 1e-6) - f(1 - u - 1e-6)) / 2e-6
    assert np.log(runs.mean / slope) == pytest.approx(runs.decay(u), abs=1e-5)


def test_draws_follow_the_law():
    uniform = np.random.default_rng(5).random
    runs = Runs(3)
    drawn = np.bincount([runs.draw(uniform) for _ in range(4000)], minlength=9)[1:5]
    expected = 4000 * runs.law(4)
    assert (np.abs(drawn - expected) < 4.5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("runs", LAWS, ids=repr)
def test_no_order_of_outputs_exceeds_the_bound(runs):
    generator = np.random.default_rng(11)
    f = generating(runs, 3000)
    for _ in range(3):
        p, q = generator.dirichlet(np.ones(4), size=2) * 0.9 + 0.025  # randomised responses
        tuned = Selected((Finite(p, q),), runs)
        exact = worst(p, q, f, itertools.permutations(range(4)))
        assert (exact <= privacy_curve(tuned).delta(GRID).upper).all()
    renyi = privacy_curve(tuned, method="rdp").delta(GRID[::20]).upper
    assert (exact[::20] <= renyi).all()


@pytest.mark.parametrize("runs", LAWS, ids=repr)
@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_gaussian_score_is_within_the_bound_and_near_it(runs, mu):
    p, q = ladder(mu)
    f, cells = generating(runs, 3000), range(p.size)
    exact = worst(p, q, f, [cells, cells[::-1]])
    curve = privacy_curve(Selected((Gaussian(1 / mu),), runs))
    assert (exact <= curve.delta(GRID).upper).all()
    reached = GRID[exact > 1e-6].max()  # what the bound leaves above one particular order
    if runs.shape is not None:
        assert curve.epsilon(1e-6).upper < 2 * reached + 0.3


RUNS, P, Q = (
    Runs(40),
    np.array([0.6, 0.4]),
    np.array([0.4, 0.6]),
)  # a coin that says the truth more often
WRONG = {
    "one run": lambda base: base.delta(GRID).upper,
    "a law with another shape": lambda base: selected(Runs(40, -0.9)),
    "E[K]·δ(ε), no shift": lambda base: np.minimum(40 * base.delta(GRID).upper, 1),
    "Rényi of one run": lambda base: np.min(
        [
            delta_at(divergence(Finite(P, Q), [a]), np.array([a]), GRID)
            for a in (1.5, 3.0, 9.0, 81.0)
        ],
        axis=0,
    ),
}


def selected(runs):
    return privacy_curve(Selected((Finite(P, Q),), runs)).delta(GRID).upper


@pytest.mark.parametrize("name", WRONG)
def test_wrong_claims_are_caught(name):
    claim = WRONG[name](privacy_curve(Finite(P, Q)))
    exact = worst(P, Q, generating(RUNS, 3000), [[0, 1], [1, 0]])
    assert (exact > claim * (1 + 1e-6) + 1e-9).any()
    assert (exact <= selected(RUNS)).all()


def test_always_as_many_runs_are_caught():
    p, q = ladder(0.5, cells=120)
    claim = privacy_curve(Selected((Gaussian(2.0),), RUNS)).delta(GRID).upper
    orders = [range(p.size), range(p.size)[::-1]]
    assert (worst(p, q, lambda t: t**40.0, orders) > claim * (1 + 1e-6)).any()


def test_log_of_the_mean_number_is_needed():
    p, q = np.array([0.98, 0.02]), np.array([0.99, 0.01])
    f, orders = generating(RUNS, 3000), np.array([1.5, 2.0])
    a, b = best_of(p, f), best_of(q, f)
    exact = np.log((a ** orders[:, None] * b ** (1 - orders[:, None])).sum(1)) / (orders - 1)
    sound = divergence(Selected((Finite(p, q),), RUNS), orders)
    assert (exact <= sound).all()
    assert (exact > sound - math.log(40) / (orders - 1)).all()


def test_a_score_outside_the_mechanism_is_caught():
    # The output alone is dull, and the best is chosen by an exact score that tells everything.
    p = q = np.full(2, 0.5)
    claim = privacy_curve(Selected((Finite(p, q),), Runs(5))).delta(GRID).upper
    f = generating(Runs(5), 3000)
    exact = deltas(best_of(p, f), best_of(q[::-1], f)[::-1])  # each world prefers another output
    assert (exact > claim + 0.1).any()


def test_several_mechanisms_cost_as_much_as_their_largest_profile():
    some = (Gaussian(2.0), Repeated(Sampled(Gaussian(1.0), 0.05), 200))
    both = privacy_curve(Selected(some, Runs(10))).delta(GRID).upper
    for one in some:
        assert (privacy_curve(Selected((one,), Runs(10))).delta(GRID).upper <= both + 1e-15).all()
    # A run of the mixture says which it was; each is taken half of the time.
    f = generating(Runs(10), 3000)
    p, q = (np.concatenate(pair) / 2 for pair in zip(ladder(0.5), ladder(1.0), strict=True))
    mixed = privacy_curve(Selected((Gaussian(2.0), Gaussian(1.0)), Runs(10))).delta(GRID).upper
    orders = [np.argsort(p / q), np.argsort(q / p), range(p.size)]
    assert (worst(p, q, f, orders) <= mixed).all()


def test_never_above_the_published_renyi_bound():
    # Papernot and Steinke 2022, Theorem 2, for a Gaussian: every pair of orders.
    runs, orders = Runs(20, 0), 1 + np.geomspace(0.1, 100, 120)
    one = divergence(Gaussian(2.0), orders)
    inner = ((1 - 1 / orders) * one - math.log1p(-1 / (1 + 1 / runs.rate)) / orders).min()
    published = one + (runs.shape + 1) * inner + math.log(runs.mean) / (orders - 1)
    ours = divergence(Selected((Gaussian(2.0),), runs), orders)
    assert (ours <= published * (1 + 1e-6)).all()


def test_selections_compose_by_renyi_and_are_written_and_read():
    tuned = Selected((Gaussian(6.0), Gaussian(7.0)), Runs(10, None))
    assert from_json(to_json(tuned)) == tuned
    alone = privacy_curve(tuned).epsilon(1e-5).upper
    together = privacy_curve(Composed(tuned, Gaussian(3.0))).epsilon(1e-5).upper
    assert alone < together < 3 * (alone + privacy_curve(Gaussian(3.0)).epsilon(1e-5).upper)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Runs(1),
        lambda: Runs(5, -1),
        lambda: Runs(math.nan),
        lambda: Runs(2e4),
        lambda: Selected((), Runs(5)),
        lambda: Selected((Gaussian(1.0),), 5),
        lambda: Selected(("gaussian",), Runs(5)),
    ],
)
def test_bad_values_are_refused(make):
    with pytest.raises(InputError):
        make()


def exact_generating(runs):
    """f(t) = E[t^K] in closed form, at the digits of mpmath."""
    rate = mp.mpf(runs.rate)
    if runs.shape is None:
        return lambda t: mp.expm1(rate * t) / mp.expm1(rate)
    gamma, eta = 1 / (1 + rate), mp.mpf(runs.shape)
    if eta == 0:
        return lambda t: mp.log(1 - (1 - gamma) * t) / mp.log(gamma)
    most = mp.power(gamma, -eta) - 1
    return lambda t: (mp.power(1 - (1 - gamma) * t, -eta) - 1) / most


def exact_best_of(masses, f):
    """The law of the best output in arbitrary precision, where a later output is better."""
    reached = [f(sum(masses[:count], mp.mpf(0))) for count in range(len(masses))] + [mp.mpf(1)]
    return [after - before for before, after in itertools.pairwise(reached)]


def exact_worst(step, runs):
    """The laws of the best output in both worlds, for each order of the outputs."""
    f = exact_generating(runs)
    worlds = [[mp.mpf(x) for x in law] for law in (step.with_record, step.without_record)]
    p, q = ([x / sum(law) for x in law] for law in worlds)
    return [
        (exact_best_of([p[i] for i in order], f), exact_best_of([q[i] for i in order], f))
        for order in itertools.permutations(range(len(p)))
    ]


def exact_delta(laws, epsilon):
    """δ(ε) of the worst order, the larger of both directions."""
    t = mp.exp(mp.mpf(epsilon))
    return max(
        sum(max(x - t * y, 0) for x, y in zip(*pair, strict=True))
        for one, other in laws
        for pair in ((one, other), (other, one))
    )


def rare_outcomes(random):
    """Two to four outcomes of chances down to 1e-9, up to e^12 times likelier in one world."""
    p = 10.0 ** random.uniform(-9, 0, int(random.integers(2, 5)))
    apart = random.uniform(-12, 12, p.size)
    if random.random() < 0.5:
        apart[1:] /= 12
    q = p * np.exp(apart)
    return Finite(p / p.sum(), q / q.sum())


def broken_of(count, seed):
    """How many of so many random mechanisms have a δ above the bound, somewhere."""
    random, broken = np.random.default_rng(seed), 0
    laws = [*LAWS, Runs(200, 0), Runs(1000, -0.9)]
    for _ in range(count):
        step, runs = rare_outcomes(random), laws[random.integers(len(laws))]
        with mp.workdps(50):
            exact = exact_worst(step, runs)
            most = max(abs(mp.log(x / y)) for pair in exact for x, y in zip(*pair, strict=True))
            shares = np.append(random.random(2), 1 - 10 ** random.uniform(-3, -0.5, 4))
            at = float(most) * shares
            upper = privacy_curve(Selected((step,), runs)).delta(at).upper
            broken += any(exact_delta(exact, e) > u for e, u in zip(at, upper, strict=True))
    return broken


def test_no_rare_outcome_exceeds_the_bound():
    assert broken_of(40, 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_no_rare_outcome_of_many_exceeds_the_bound(seed):
    assert broken_of(150, seed) == 0


def test_chords_in_epsilon_are_caught(monkeypatch):
    monkeypatch.setattr(selection, "on_chords", lambda nodes, base, at: np.interp(at, nodes, base))
    assert broken_of(40, 1) >= 2


@pytest.mark.parametrize(
    ("chance", "loss", "runs", "epsilon", "golden"),
    [
        (1e-6, 10.0, Runs(40), 9.7985, 7.2983e-6),
        (1e-6, 10.0, Runs(4, None), None, None),
        (1e-8, 7.0, Runs(200, 0), None, None),
        (1e-3, 12.0, Runs(8, -0.5), None, None),
    ],
)
def test_one_rare_event_is_within_the_bound_and_near_it(chance, loss, runs, epsilon, golden):
    rare = chance * math.exp(-loss)
    step = Finite([chance, 1 - chance], [rare, 1 - rare])
    with mp.workdps(50):
        exact = exact_worst(step, runs)
        grid = np.linspace(0.5 * loss, 0.999 * loss, 40) if epsilon is None else [epsilon]
        delta = np.array([float(exact_delta(exact, e)) for e in grid])
    upper = privacy_curve(Selected((step,), runs)).delta(np.array(grid)).upper
    assert (delta <= upper).all()
    assert golden is None or delta[0] == pytest.approx(golden, rel=1e-5)
    assert (upper[:20] <= 1.05 * delta[:20]).all()


def test_chords_cost_little(monkeypatch):
    some = (
        Gaussian(4.0),
        Finite([0.3, 0.7], [0.2, 0.8]),
        Repeated(Sampled(Gaussian(1.0), 0.05), 9),
    )
    near = [privacy_curve(Selected((one,), RUNS)).epsilon(1e-6).upper for one in some]
    nodes = selection._NODES
    between = np.concatenate([nodes[:-1] + np.diff(nodes) * share for share in np.arange(8) / 8])
    monkeypatch.setattr(selection, "_NODES", np.sort(np.append(between, nodes[-1])))
    for one, upper in zip(some, near, strict=True):
        closer = privacy_curve(Selected((one,), RUNS)).epsilon(1e-6).upper
        assert closer <= upper * (1 + 1e-12) <= 1.01 * closer
