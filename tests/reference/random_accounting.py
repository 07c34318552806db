"""Random mechanisms with their exact δ(ε), by means that share nothing with the accountant.

Closed forms and sums over all outcomes in arbitrary precision, quadrature, and dp-accounting. An
oracle returns numbers between which δ(ε) lies, the larger of both directions of add/remove.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import mpmath as mp
import numpy as np

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
from apiece.mechanisms.algebra import flatten
from tests.laws.test_accountants import few_steps
from tests.mechanisms.test_mixture import exact as exact_mixture
from tests.mechanisms.test_mixture import some_steps
from tests.reference.sampled_laplace import SampledLaplace

Random = np.random.Generator
Law = tuple[list[mp.mpf], list[mp.mpf]]
"""The chances of each outcome in the two worlds."""
Ends = tuple[mp.mpf, mp.mpf]
DIGITS = 60
_BEYOND = mp.mpf(1e-30)  # what the quadrature of a few Gaussian steps leaves out


class Case(NamedTuple):
    """A mechanism; δ(ε) lies between both numbers of `exact`, times 1 ∓ slack, ∓ 1e-300.

    close: by how much of δ the bounds on δ(ε) may be apart, and by how much in all; None where
    that is not known. coin: what is behind one has a δ of its size, so that some are asked about.
    """

    kind: str
    mechanism: Mechanism
    exact: Callable[[float], Ends]
    slack: float
    close: tuple[float, float] | None
    coin: float = 1.0


def _coin(random: Random) -> float:
    """From 1e-18 to 1, often 1; some just below 1."""
    which = random.random()
    if which < 0.15:
        return 1.0
    if which < 0.25:
        return float(1 - 10 ** random.uniform(-15, -1))
    return float(10 ** random.uniform(*((-18, 0) if which < 0.7 else (-3, 0))))


def _sampled(mechanism: Mechanism, coin: float) -> Mechanism:
    return mechanism if coin == 1 else Sampled(mechanism, coin)


def _normal(z: mp.mpf, at: mp.mpf) -> mp.mpf:
    half, centre = 1 / (2 * z), at * z
    return mp.ncdf(half - centre) - mp.exp(at) * mp.ncdf(-half - centre)


def _exponential(b: mp.mpf, at: mp.mpf) -> mp.mpf:
    if at >= 1 / b:
        return mp.mpf(0)
    return 1 - mp.exp(at) if at <= -1 / b else -mp.expm1((at - 1 / b) / 2)


def _behind(
    remove: Callable[[mp.mpf], mp.mpf], add: Callable[[mp.mpf], mp.mpf], coin: float, epsilon: float
) -> Ends:
    """The larger direction behind a coin, from both directions without one; twice the digits."""
    with mp.workdps(80):
        t, q = mp.exp(mp.mpf(epsilon)), mp.mpf(coin)
        share = 1 - (1 - q) * t
        ends = [q * remove(mp.log(1 + (t - 1) / q))]
        if share > 0:
            ends.append(share * add(mp.log(q * t / share)))
        return max(ends), max(ends)


def one_gaussian(random: Random) -> Case:
    """One Gaussian step, or plain ones that compose to one, behind a coin."""
    z, coin = 10 ** random.uniform(-1, 1.5), _coin(random)
    times = int(random.choice([1, 1, 4, 10**4]))  # whose roots are whole
    step: Mechanism = Gaussian(z)
    mechanism = _sampled(
        step if times == 1 else Repeated(Gaussian(z * math.sqrt(times)), times), coin
    )
    real = mp.mpf(z if times == 1 else z * math.sqrt(times)) / mp.sqrt(times)

    def exact(epsilon: float) -> Ends:
        def plain(at: mp.mpf) -> mp.mpf:
            return _normal(real, at)

        return _behind(plain, plain, coin, epsilon)

    close = (1e-6, 1e-15) if times == 1 else None
    return Case("one gaussian", mechanism, exact, 1e-11, close, coin)


def one_laplace(random: Random) -> Case:
    b, coin = 10 ** random.uniform(-2.5, 1), _coin(random)

    def exact(epsilon: float) -> Ends:
        def plain(at: mp.mpf) -> mp.mpf:
            return _exponential(mp.mpf(b), at)

        return _behind(plain, plain, coin, epsilon)

    return Case("one laplace", _sampled(Laplace(b), coin), exact, 1e-11, (1e-6, 1e-14), coin)


def _finite(random: Random) -> tuple[Finite, Law]:
    """Two to four outcomes, of chances of all sizes; often one that one world alone can show."""
    size = int(random.integers(2, 5))
    both = []
    for which in (0, 1):
        chances = random.dirichlet(np.ones(size) * random.choice([0.1, 1.0]))
        chances = np.maximum(chances, 10.0 ** random.integers(-30, -3))
        chances[which] *= random.random() < 0.6
        both.append(chances / chances.sum())
    if random.random() < 0.2:  # rare outcomes of one world
        both = [np.array([1 - 1e-4, 1e-4]), np.array([1.0, 0.0])][:: int(random.choice([1, -1]))]
    step = Finite(*both)
    return step, _law(step.with_record, step.without_record)


def _law(p: object, q: object) -> Law:
    return [mp.mpf(x) for x in p], [mp.mpf(x) for x in q]  # type: ignore[attr-defined]


def _response(random: Random) -> tuple[Mechanism, Law]:
    step = Finite.randomized_response(
        float(10 ** random.uniform(-2, 1)), int(random.integers(2, 5))
    )
    return step, _law(step.with_record, step.without_record)


def _discrete_laplace(random: Random) -> tuple[Mechanism, Law]:
    """Its two sides are one outcome each, beyond which the ratio is the same."""
    scale, shift = float(random.uniform(0.3, 3)), int(random.integers(1, 4))
    a = mp.exp(-1 / mp.mpf(scale))
    base = (1 - a) / (1 + a)
    q = [1 / (1 + a), *(base * a**k for k in range(1, shift)), a**shift / (1 + a)]
    return DiscreteLaplace(scale, shift), (q[::-1], q)


def _product(one: Law, other: Law) -> Law:
    p, q = ([a * b for a in mine for b in its] for mine, its in zip(one, other, strict=True))
    return p, q


def _with_coin(law: Law, coin: float) -> Law:
    q = mp.mpf(coin)
    return [(1 - q) * b + q * a for a, b in zip(*law, strict=True)], law[1]


def _outcomes(law: Law, epsilon: float) -> Ends:
    with mp.workdps(DIGITS):
        t = mp.exp(mp.mpf(epsilon))
        ends = (
            mp.fsum(max(a - t * b, 0) for a, b in zip(*way, strict=True))
            for way in (law, law[::-1])
        )
        exact = max(ends)
        return exact, exact


def discrete(random: Random) -> Case:
    """Discrete steps, coins before each and before several: all outcomes."""
    with mp.workdps(DIGITS):
        law: Law = [mp.mpf(1)], [mp.mpf(1)]
        parts: list[Mechanism] = []
        for _ in range(int(random.integers(1, 3))):
            inner: Law = [mp.mpf(1)], [mp.mpf(1)]
            inside: list[Mechanism] = []
            for _ in range(int(random.integers(1, 3))):
                make = [_finite, _finite, _response, _discrete_laplace][int(random.integers(4))]
                step, its = make(random)
                coin, times = _coin(random), int(random.integers(1, 3))
                for _ in range(times):
                    inner = _product(inner, _with_coin(its, coin))
                inside.append(Repeated(_sampled(step, coin), times))
            coin = _coin(random)
            law = _product(law, _with_coin(inner, coin))
            parts.append(_sampled(Composed(*inside), coin) if coin < 1 else Composed(*inside))
    single = len(law[0]) <= 4096
    mechanism = Composed(*parts)
    if not single or _two_coins(mechanism):
        return discrete(random)
    return Case("discrete", mechanism, lambda e: _outcomes(law, e), 1e-11, (1e-4, 1e-10))


def _two_coins(mechanism: Mechanism) -> bool:
    """Whether somewhere a coin is directly before a coin's step, which is one of their product."""
    match mechanism:
        case Sampled(Composed(parts), _):
            return len(parts) == 1 and isinstance(parts[0], Sampled)
        case Composed(parts):
            return any(_two_coins(part) for part in parts)
    return False


def binomial(random: Random) -> Case:
    """Two outcomes, up to hundreds of times: by how often the first one comes."""
    if random.random() < 0.5:
        step = Finite.randomized_response(float(10 ** random.uniform(-1, 1)))
    else:
        p, q = 10.0 ** random.uniform(-6, 0, 2)
        step = Finite([p, 1 - p], [q, 1 - q])
    times = int(10 ** random.uniform(0.5, 2.7))
    with mp.workdps(DIGITS):
        world = [[mp.mpf(x) for x in w] for w in (step.with_record, step.without_record)]
        ways = [mp.mpf(1)]
        for k in range(times):
            ways.append(ways[-1] * (times - k) / (k + 1))
        p, q = (
            [ways[k] * w[0] ** k * w[1] ** (times - k) for k in range(times + 1)] for w in world
        )
    law: Law = (p, q)
    return Case("binomial", Repeated(step, times), lambda e: _outcomes(law, e), 1e-9, (1e-4, 1e-12))


def beside_a_gaussian(random: Random) -> Case:
    """A finite step and a Gaussian one, and one coin before both."""
    step, law = _finite(random)
    z, coin = float(10 ** random.uniform(-0.3, 1.5)), _coin(random)
    if min(min(x for x in w if x > 0) for w in law) < 1e-8:
        return beside_a_gaussian(random)
    mechanism = _sampled(Composed(step, Gaussian(z)), coin)

    def inner(at: mp.mpf, first: list[mp.mpf], second: list[mp.mpf]) -> mp.mpf:
        alone = mp.fsum(a for a, b in zip(first, second, strict=True) if b == 0)
        both = [(a, b) for a, b in zip(first, second, strict=True) if a > 0 and b > 0]
        return alone + mp.fsum(a * _normal(mp.mpf(z), at - mp.log(a / b)) for a, b in both)

    def exact(epsilon: float) -> Ends:
        p, q = law
        return _behind(lambda at: inner(at, p, q), lambda at: inner(at, q, p), coin, epsilon)

    return Case("beside a gaussian", mechanism, exact, 1e-9, None)


def few_gaussians(random: Random) -> Case:
    """Two or three sampled Gaussian steps: quadrature of the closed form of one."""
    z, q = float(10 ** random.uniform(-0.5, 1)), float(10 ** random.uniform(-6, -0.05))
    times = int(random.choice([2, 2, 2, 3]))

    def exact(epsilon: float) -> Ends:
        ends = (few_steps(z, q, times, np.array([epsilon]), add=add)[0] for add in (False, True))
        found = mp.mpf(float(max(ends)))
        return found, found + _BEYOND

    return Case("few gaussians", Repeated(Sampled(Gaussian(z), q), times), exact, 1e-7, None)


def few_laplace(random: Random) -> Case:
    """Two sampled Laplace steps: quadrature in 80-bit numbers."""
    b, q = float(10 ** random.uniform(-0.7, 1)), float(10 ** random.uniform(-4, 0))
    oracle = SampledLaplace(b, q)

    def exact(epsilon: float) -> Ends:
        found = mp.mpf(float(oracle.larger(np.array([epsilon]), 2)[0]))
        return found, found + mp.mpf(1e-17)

    return Case("few laplace", Repeated(_sampled(Laplace(b), q), 2), exact, 1e-8, None)


def mixture(random: Random) -> Case:
    """One step of an owner of several rows: where the ratio crosses, by bisection."""
    (step,) = some_steps(int(random.integers(2**31)), 1)
    return Case("mixture", step, lambda e: (mp.mpf(exact_mixture(step, e)),) * 2, 1e-9, None)


def discrete_gaussian(random: Random) -> Case:
    scale, shift, coin = float(random.uniform(0.5, 6)), int(random.integers(1, 4)), _coin(random)
    with mp.workdps(DIGITS):
        reach = int(20 * scale) + shift + 2
        weight = [
            mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(scale) ** 2)) for x in range(-reach, reach + 1)
        ]
        total = mp.fsum(weight)
        chances = [w / total for w in weight]
        none = [mp.mpf(0)] * shift
        law = _with_coin(([*none, *chances], [*chances, *none]), coin)
    mechanism = _sampled(DiscreteGaussian(scale, shift), coin)
    return Case("discrete gaussian", mechanism, lambda e: _outcomes(law, e), 1e-10, (1e-4, 1e-10))


def many_gaussians(random: Random) -> Case:
    """Many sampled Gaussian steps: dp-accounting's bounds from below and from above."""
    z, q = float(10 ** random.uniform(-0.2, 1)), float(10 ** random.uniform(-3.5, -0.3))
    times = int(10 ** random.uniform(1, 3.5))
    if q * math.sqrt(times) / z > 5:
        return many_gaussians(random)

    def exact(epsilon: float) -> Ends:
        low, high = (_theirs(z, q, times, pessimistic=p) for p in (False, True))
        ends = (float(d.get_delta_for_epsilon(epsilon)) for d in (low, high))  # type: ignore[attr-defined]
        lower, upper = (mp.mpf(d) for d in ends)
        return max(lower - mp.mpf(1e-11), mp.mpf(0)), upper + mp.mpf(1e-11)

    return Case("many gaussians", Repeated(Sampled(Gaussian(z), q), times), exact, 1e-6, None)


@lru_cache(maxsize=4)
def _theirs(z: float, q: float, times: int, *, pessimistic: bool) -> object:
    from dp_accounting.pld import privacy_loss_distribution as pld

    scale = max(q * math.sqrt(times) / z, 1e-2)
    return pld.from_gaussian_mechanism(
        z,
        value_discretization_interval=2e-3 * min(scale, 1.0),
        sampling_prob=q,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    ).self_compose(times)


KINDS: dict[str, tuple[float, Callable[[Random], Case]]] = {
    "one gaussian": (0.2, one_gaussian),
    "one laplace": (0.2, one_laplace),
    "discrete": (0.22, discrete),
    "binomial": (0.08, binomial),
    "beside a gaussian": (0.12, beside_a_gaussian),
    "few gaussians": (0.05, few_gaussians),
    "few laplace": (0.03, few_laplace),
    "mixture": (0.03, mixture),
    "discrete gaussian": (0.05, discrete_gaussian),
    "many gaussians": (0.02, many_gaussians),
}
"""The share of each kind among the cases, and what makes one."""


class Entry(NamedTuple):
    """One record of an array: what `epsilons` is told, and the case that it is."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    delta: float
    case: Case


def _steps_case(z: float, q: float, times: int) -> Case:
    """Steps with a closed form: one, or plain ones; or hardly any coin before many, or two."""
    if times == 2:

        def exact(epsilon: float) -> Ends:
            ends = (few_steps(z, q, 2, np.array([epsilon]), add=add)[0] for add in (False, True))
            found = mp.mpf(float(max(ends)))
            return found, found + _BEYOND

        return Case("two steps", Repeated(Sampled(Gaussian(z), q), 2), exact, 1e-7, None)
    coin, whole = (q, mp.mpf(z)) if times == 1 else (1.0, mp.mpf(z) / mp.sqrt(times))
    rare = 2 * times * (1 - q) if times > 1 else 0.0  # steps that may be left out, in both worlds

    def closed(epsilon: float) -> Ends:
        def plain(at: mp.mpf) -> mp.mpf:
            return _normal(whole, at)

        exact = _behind(plain, plain, coin, epsilon)[0]
        return max(exact - rare, mp.mpf(0)), exact + rare

    return Case("steps", Repeated(_sampled(Gaussian(z), q), times), closed, 1e-9, None)


def array(random: Random) -> list[Entry]:
    """Records of a plan: different mechanisms, some shared by many δ, in any order."""
    entries: list[Entry] = []
    for _ in range(int(random.integers(2, 6))):
        z = float(10 ** random.uniform(-0.3, 1.5))
        times = int(random.choice([1, 2, 16, 100, 475, 2000]))
        q = float(10 ** random.uniform(-15, 0)) if times == 1 else 1.0
        if times == 2:
            q = float(10 ** random.uniform(-4, -0.1))
        elif times > 1:
            z *= math.sqrt(times)
            q = float(random.choice([1.0, 1 - 2.0**-50]))
        case = _steps_case(z, q, times)
        deltas = 10 ** -random.uniform(1, 8, int(random.choice([1, 1, 2, 6])))
        entries += [Entry(z, q, times, delta, case) for delta in deltas.tolist()]
    if random.random() < 0.1:
        case = many_gaussians(random)
        ((step, times),) = flatten(case.mechanism)
        assert isinstance(step, Sampled)
        assert isinstance(step.mechanism, Gaussian)
        z, q = step.mechanism.noise_multiplier, step.probability
        entries += [Entry(z, q, times, d, case) for d in (1e-3, 1e-5, 3e-6, 1e-6)]
    random.shuffle(entries)  # type: ignore[arg-type]
    return entries
