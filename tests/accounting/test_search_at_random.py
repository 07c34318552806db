"""Random questions to the whole algebra: an answer or a typed error, in seconds, that agree.

What is looked for: errors that no reader could act on, methods that point at one another, bounds
that contradict one another, and answers that take long. The seeds are kept; `hunt` runs as many as
are wanted.
"""

import json
import time
import warnings

import numpy as np
import pytest

from apiece import accounting, privacy_curve
from apiece.accounting.divergence import excess
from apiece.accounting.slack import gaussian_with_slack
from apiece.errors import ApieceError, RangeError, UnsupportedError
from apiece.mechanisms import (
    Allocated,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Finite,
    Gaussian,
    Laplace,
    Repeated,
    Runs,
    Sampled,
    Selected,
    from_json,
)
from apiece.mechanisms.algebra import to_json
from apiece.mechanisms.mixture import MixtureOfGaussians

SECONDS = 10.0
"""Of processor time, that an answer may take."""


def noise(random):
    return float(10 ** random.uniform(*((-1, 2) if random.random() < 0.8 else (-7, 13))))


def coin(random):
    kind = random.random()
    if kind < 0.1:
        return float(random.choice([0.0, 1.0, 5e-324, 1 - 2.0**-53]))
    if kind < 0.3:
        return float(1 - 10 ** random.uniform(-15, -1))
    return float(10 ** random.uniform(-12 if kind < 0.6 else -3, 0))


def times(random):
    return int(10 ** random.uniform(0, 1 if random.random() < 0.5 else 7))


def primitive(random):
    z = noise(random)
    match int(random.integers(7)):
        case 0:
            return Gaussian(z)
        case 1:
            return Laplace(z)
        case 2:
            return DiscreteGaussian(min(z, 1e4), int(random.integers(1, 4)))
        case 3:
            return DiscreteLaplace(z, int(random.integers(1, 4)))
        case 4:
            return Allocated(z, int(10 ** random.uniform(0, 3)))
        case 5:
            size = int(random.integers(1, 5))
            chances = random.dirichlet(np.ones(size)) * 10 ** random.uniform(-9, 0)
            return MixtureOfGaussians(z, 10 ** random.uniform(-3, 2, size), chances)
        case _:
            p, q = random.dirichlet(np.full(int(random.integers(2, 6)), 0.3), size=2)
            zero = int(random.integers(p.size))
            p[zero] *= random.random() < 0.7
            return Finite(p / p.sum(), q / q.sum())


def runs(random):
    shape = random.choice([None, 0.0, 1.0, -0.9, 5.0])
    return Runs(float(1 + 10 ** random.uniform(-2, 3)), shape)


def mechanism(random, depth=3):
    kind = random.random() if depth else 0.0
    if kind < 0.3:
        return primitive(random)
    if kind < 0.5:
        inner = mechanism(random, depth - 1)
        inner = Repeated(inner, 1) if isinstance(inner, Sampled) else inner
        return Sampled(inner, coin(random))
    if kind < 0.75:
        return Repeated(mechanism(random, depth - 1), times(random))
    if kind < 0.92:
        parts = (mechanism(random, depth - 1) for _ in range(random.integers(0, 4)))
        return Composed(*parts)
    parts = tuple(
        mechanism(random, depth - 2 if depth > 1 else 0) for _ in range(random.integers(1, 3))
    )
    return Selected(parts, runs(random))


def value_of(random):
    """A δ: usual, tiny, or near 1."""
    kind = random.random()
    if kind < 0.15:
        return float(1 - 10 ** random.uniform(-12, -0.5))
    return float(10 ** random.uniform(-300 if kind < 0.25 else -12, -1e-3))


def one_curve(random):
    step, method = mechanism(random), str(random.choice(["pld", "rdp", "best"]))
    assert from_json(to_json(step)) == step
    curve = privacy_curve(step, method=method)
    delta = value_of(random)
    answers = [curve.epsilon(delta), curve.delta(float(10 ** random.uniform(-6, 3)))]
    if random.random() < 0.3:
        answers += [curve.advantage(), curve.bayes_error(0.3)]
        assert 0.1 <= curve.true_positive_rate(0.1) <= 1
    for lower, upper in answers:
        assert 0 <= lower <= upper * (1 + 1e-9) + 1e-12
    return answers


def methods_agree(random):
    step, delta = mechanism(random, 2), value_of(random)
    found, refused = [], []
    for method in ("pld", "rdp"):
        try:
            found.append(privacy_curve(step, method=method).epsilon(delta))
        except UnsupportedError as error:
            refused.append(str(error))
        except RangeError:
            pass
    assert len(refused) < 2, refused
    if len(found) == 2:
        assert found[0].lower <= found[1].upper * (1 + 1e-9) + 1e-12
        assert found[1].lower <= found[0].upper
    return found


def two_curves(random):
    one, other = mechanism(random, 1), mechanism(random, 1)
    found = excess(privacy_curve(one), privacy_curve(other))
    assert 0 <= found.forward.lower <= found.forward.upper <= 1
    return found


def charge(random):
    curve = privacy_curve(mechanism(random, 2))
    found = gaussian_with_slack(curve, float(random.choice([0.0, 10 ** random.uniform(-12, -3)])))
    assert 0 <= found.lower <= found.upper
    return found


def noise_for(random):
    settings = {
        "epsilon": float(10 ** random.uniform(-3, 2)),
        "delta": value_of(random),
        "sampling_probability": max(coin(random), 1e-12),
        "steps": times(random),
        "method": str(random.choice(["pld", "rdp"])),
    }
    z = float(accounting.noise_multipliers(**settings))
    epsilon = settings.pop("epsilon")
    again = accounting.epsilons(noise_multiplier=z, **settings).upper
    assert again <= epsilon * (1 + 1e-12)
    return z


def rate_for(random):
    settings = {
        "epsilon": float(10 ** random.uniform(-3, 2)),
        "delta": value_of(random),
        "noise_multiplier": float(10 ** random.uniform(-1, 3)),
        "steps": times(random),
    }
    return float(accounting.sampling_probabilities(**settings))


QUESTIONS = {
    "curve": one_curve,
    "methods": methods_agree,
    "excess": two_curves,
    "charge": charge,
    "noise": noise_for,
    "rate": rate_for,
}


def hunt(seeds, kinds=tuple(QUESTIONS), seconds=SECONDS):
    """What was wrong, as (kind, seed, what): with seeds of random questions of each kind."""
    wrong = []
    for kind in kinds:
        for seed in seeds:
            begin = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    QUESTIONS[kind](np.random.default_rng([seed, len(kind)]))
            except ApieceError as error:
                if "report it" in str(error) or "\n" in str(error):
                    wrong.append((kind, seed, str(error)))
            except Exception as error:
                wrong.append((kind, seed, f"{type(error).__name__}: {error}"))
            took = time.process_time() - begin
            if took > seconds:
                wrong.append((kind, seed, f"{took:.1f} s"))
    return wrong


@pytest.mark.parametrize("kind", QUESTIONS)
def test_some_random_questions(kind):
    assert hunt(range(6), [kind]) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 1100, 100))
@pytest.mark.parametrize("kind", QUESTIONS)
def test_many_random_questions(kind, start):
    assert hunt(range(start, start + 100), [kind]) == []


def test_what_is_wrong_is_found(monkeypatch):
    def raw(random):
        return 1 / 0

    def circular(random):
        raise UnsupportedError("method 'pld': use method 'rdp'; please report it")

    def slow(random):
        begin = time.process_time()
        while time.process_time() - begin < 0.2:
            json.dumps(1)

    for fault in (raw, circular, slow):
        monkeypatch.setitem(QUESTIONS, "planted", fault)
        assert len(hunt(range(2), ["planted"], seconds=0.1)) == 2
