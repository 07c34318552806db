"""Error terms made large: each bound holds with coarse settings, and fails without its term.

Usually a truncated tail or a wrapped mass is 1e-5 to 1e-20 of δ, and a bound without it would pass
any comparison. Here the settings are such that each is a tenth of δ or so. Then every term is taken
out of the source, one at a time, and what checks the bound must notice.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from apiece._types import Floats
from apiece.accounting import Bounds, truncation
from apiece.accounting import exact as closed
from apiece.accounting.bounds import Precision, Profile
from apiece.accounting.contour import integral, moments
from apiece.accounting.contour.integral import Aim
from apiece.accounting.contour.moments import Steps
from apiece.accounting.exact import DiscreteProfile, GaussianProfile, OneStep, Outcomes
from apiece.accounting.lattice import convolution, discretise, profile
from apiece.accounting.lattice.convolution import Attempt
from apiece.accounting.lattice.discretise import Jump, Lattice
from apiece.accounting.lattice.pairs import AtomsPair, GaussianPair, discrete_pair
from apiece.accounting.lattice.profile import Composition
from apiece.accounting.lattice.settings import Leaves
from apiece.accounting.truncation import Jumps
from apiece.errors import RangeError
from apiece.mechanisms.atoms import Atoms, behind_coin
from apiece.numerics.rounding import UNIT
from tests.planted import plant

COARSE = Precision(gap=1e-3, truncation=0.1, wrap=0.1, points=2**14)
"""Fine steps, so that nothing but the term in question is large."""
ROUGH = Precision(gap=0.1, floor=0.1, truncation=0.1, wrap=0.1, points=2**12)
EPSILON = np.array([0.0, 0.3, 1.0, 2.0, 3.0, 4.5])
DELTA = np.array([0.3, 0.05, 1e-2, 1e-3, 1e-5])
CLOSE = 1 + 1e-9

Verdict = Iterator[bool]


def between(found: Profile, exact: Profile) -> Verdict:
    """Whether bounds on δ(ε) and on ε(δ) contain those of an exact profile."""
    for question, values in (("delta", EPSILON), ("epsilon", DELTA)):
        lower, upper = getattr(found, question)(values)
        low, high = getattr(exact, question)(values)
        yield bool((lower <= high * CLOSE + 1e-15).all())
        yield bool((low <= upper * CLOSE + 1e-15).all())


def lattice_of_gaussians() -> Verdict:
    """Plain steps, and one behind a coin, on a lattice: both have a closed form."""
    for z, times in ((3.0, 9), (1.0, 4)):
        leaves: Leaves = ((GaussianPair(z), times),)
        yield from between(Composition(leaves, COARSE), GaussianProfile(z / math.sqrt(times)))
    for z, q in ((1.0, 0.3), (0.6, 0.02), (2.0, 0.9)):
        yield from between(Composition(((GaussianPair(z, q), 1),), COARSE), OneStep(z, q))


Q = np.array([0.1, 0.15, 0.3, 0.3, 0.1, 0.04, 0.01])
P = np.array([0.08, 0.12, 0.28, 0.28, 0.1, 0.06, 0.08])


def cut_atoms(*, swapped: bool) -> tuple[Atoms, Floats, Floats]:
    """Seven outcomes, the rarest of which is only said to lie outside; and all of them."""
    p, q = (Q, P) if swapped else (P, Q)
    return atoms_of_pair(p[:-1], q[:-1])._replace(outside_p=p[-1], outside_q=q[-1]), p, q


def of_outcomes(p: Floats, q: Floats, times: int) -> Floats:
    """δ at `EPSILON` of outcomes, each step's `times` over, the larger direction."""
    one, other = np.ones(1), np.ones(1)
    for _ in range(times):
        one, other = np.outer(one, p).ravel(), np.outer(other, q).ravel()
    t = np.exp(EPSILON)[:, None]
    ends = (np.maximum(a - t * b, 0.0).sum(axis=1) for a, b in ((one, other), (other, one)))
    return np.asarray(np.maximum(*ends))


def atoms_of_pair(p: Floats, q: Floats) -> Atoms:
    order = np.argsort(p / q)
    return Atoms(np.log(p / q)[order], q[order])


def holds(bounds: Bounds, exact: Floats) -> Verdict:
    yield bool((bounds.lower <= exact * CLOSE + 1e-14).all())
    yield bool((exact <= bounds.upper * CLOSE + 1e-14).all())


STRONG = np.array([0.5, 0.5]), np.array([1e-4, 0.9999])
"""A step that shows half of P: beside it a mass counts, whatever its own loss is."""


def beside(p: Floats, q: Floats, *more: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    for one, other in more:
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    return p, q


def discrete_steps() -> Verdict:
    """Masses outside the atoms that are known: added up, on a lattice, and behind a coin."""
    strong = atoms_of_pair(*STRONG)
    for swapped in (False, True):
        cut, p, q = cut_atoms(swapped=swapped)
        for coin in (1.0, 0.1):
            atoms, mixed = behind_coin(cut, coin), (1 - coin) * q + coin * p
            for others in ((), (STRONG,)):
                exact = of_outcomes(*beside(mixed, q, (mixed, q), *others), 1)
                found = closed.power(Outcomes.of(atoms), 2, closed._multiply)
                leaves: Leaves = ((discrete_pair(atoms), 2),)
                if others:
                    found = closed._multiply(found, Outcomes.of(strong))
                    leaves = (*leaves, (discrete_pair(strong), 1))
                yield from holds(DiscreteProfile(found).delta(EPSILON), exact)
                yield from holds(Composition(leaves, ROUGH).delta(EPSILON[1::2]), exact[1::2])
        found = closed._multiply(Outcomes.of(cut).behind(0.1), Outcomes.of(strong))
        exact = of_outcomes(*beside(0.9 * q + 0.1 * p, q, STRONG), 1)
        yield from holds(DiscreteProfile(found).delta(EPSILON), exact)


def faint_outcomes() -> Verdict:
    """Masses that are left out of an enumeration for being small, which here is .003."""
    for p, q in ((P, Q), (Q, P)):
        power = closed.power(Outcomes.of(atoms_of_pair(p, q)), 3, closed._multiply)
        yield from holds(DiscreteProfile(power).delta(EPSILON), of_outcomes(p, q, 3))


def both_directions() -> Verdict:
    """A pair whose add direction is the larger one, and the same the other way round, on lattices.

    The lattice is asked for ε too, where only upper bounds of both directions make one.
    """
    rare = np.array([0.5, 0.4999, 1e-4]), np.array([0.5, 0.4, 0.1])
    for p, q in (rare, rare[::-1], ([0.6, 0.4], [0.95, 0.05]), ([0.95, 0.05], [0.6, 0.4])):
        atoms = atoms_of_pair(np.array(p), np.array(q))
        for times in (1, 4):
            power = closed.power(Outcomes.of(atoms), times, closed._multiply)
            found = Composition(((discrete_pair(atoms), times),), ROUGH)
            yield from between(found, DiscreteProfile(power))


def pair_of(p: Floats, q: Floats, coin: float) -> AtomsPair:
    atoms = atoms_of_pair(p, q)
    return AtomsPair(atoms.log_ratio, atoms.mass, (0.0, 0.0), 0.0, coin)


def window_of_atoms() -> Verdict:
    """What a window leaves of atoms on either side, as P behind a coin and as Q."""
    for (p, q), coin in itertools.product(((P, Q), (Q, P)), (1.0, 0.4, 0.01)):
        pair = pair_of(p, q, coin)
        for tail in (0.1, 0.15):
            window = pair.window(tail)
            left = (pair.log_ratio < window.low) | (pair.log_ratio > window.high)
            yield bool(left.any())
            yield math.fsum(pair.mass[left]) <= window.outside_q * CLOSE
            mixed = pair.mass * (1 - coin + coin * np.exp(pair.log_ratio))
            yield math.fsum(mixed[left]) <= window.outside_p * CLOSE


def jumps_of_pairs() -> Verdict:
    """The mass above a cut: exactly what is above it, the coin's share of Q with it."""
    for coin in (1.0, 0.3, 1e-3):
        pair = pair_of(P, Q, coin)
        window = pair.window(0.0)._replace(high=float(pair.log_ratio[4]))
        found, above = discretise.measure_jump(pair, window), pair.log_ratio > window.high
        mixed = pair.mass * (1 - coin + coin * np.exp(pair.log_ratio))
        yield found.q == pytest.approx(math.fsum(pair.mass[above]), rel=1e-12)
        yield found.p == pytest.approx(math.fsum(mixed[above]), rel=1e-12)


def run_behind_a_coin() -> Verdict:
    """Gaussian steps, and cut ones, behind one coin, as atoms of a lower and an upper pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "_LEAST_DELTA", 0.5)
        for z, coin in ((1.0, 0.3), (2.0, 0.8)):
            pair = profile.build_run_pair(((GaussianPair(3 * z), 9),), coin, COARSE)
            for add, form in ((False, closed.sampled_remove), (True, closed.sampled_add)):
                exact = form(lambda e: closed.gaussian(z, e), coin, EPSILON)  # noqa: B023
                low, high = (of_pair(each, add=add) for each in (pair.below, pair))
                yield bool((low <= exact.upper * CLOSE).all())
                yield bool((exact.lower <= high * CLOSE).all())
    for swapped in (False, True):
        atoms, p, q = cut_atoms(swapped=swapped)
        pair = profile.build_run_pair(((discrete_pair(atoms), 2),), 0.1, COARSE)
        one, other = beside(p, q, (p, q))
        exact_mixed = 0.9 * other + 0.1 * one, other
        for others in ((), (STRONG,)):
            exact = of_outcomes(*beside(*exact_mixed, *others), 1)
            low, high = (
                np.maximum(*(of_pair(each, *others, add=add) for add in (False, True)))
                for each in (pair.below, pair)
            )
            yield from holds(Bounds(low, high), exact)


def run_with_a_short_transform() -> Verdict:
    """What a transform is said to have lost lies outside the pair, in both worlds."""
    masses = profile._compute_masses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "_compute_masses", lambda *a, **k: (*masses(*a, **k)[:3], 0.1))
        for coin in (0.9, 0.1):
            pair = profile.build_run_pair(((GaussianPair(3.0), 9),), coin, COARSE)
            yield pair.outside[0] >= 0.1
            yield pair.outside[1] >= 0.1


def coarse_masses() -> Verdict:
    """Masses of a run, off by wrapping or by rounding, against plain convolution."""
    part = convolution.take_direction(LATTICE, STEPS, reverse=False)
    for wrap in (0.02, 1e-20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(profile, "_WRAP", wrap)
            for tilts, sign in itertools.product(([0.0, 1.0], [-1.0, 0.0, 0.5, 1.0, 2.0]), (-1, 1)):
                found = profile._compute_masses([part], STEP, np.array(tilts), upper=sign > 0)
                loss, mass, relative, lost = found
                place = np.round((loss - STEPS * OFFSET) / STEP).astype(int)
                yield bool((sign * (mass - convolved()[place]) >= -relative * mass).all())
                if sign > 0:
                    for measure in (convolved(), convolved() * np.exp(LOSSES)):
                        yield math.fsum(np.delete(measure, place)) <= lost * CLOSE


def of_pair(pair: AtomsPair | None, *others: tuple[Floats, Floats], add: bool) -> Floats:
    """δ at `EPSILON` of one direction of atoms behind a coin, all that is outside added."""
    assert pair is not None
    mixed = 1 - pair.probability + pair.probability * np.exp(pair.log_ratio)
    p, q = beside(pair.mass * mixed, pair.mass, *others)
    t = np.exp(EPSILON)[:, None]
    inside = np.maximum(q - t * p if add else p - t * q, 0.0).sum(axis=1)
    return np.asarray(inside + pair.outside[add] + pair.certain[add].upper)


STEP, STEPS = 0.3, 40
MASS = np.array([0.3, 0.45, 0.2, 0.05])
OFFSET = -math.log(float(MASS @ np.exp(STEP * np.arange(4))))
LOSSES = STEPS * OFFSET + STEP * np.arange(3 * STEPS + 1)
LATTICE = Lattice(STEP, OFFSET, MASS, 0.0, 0.0, UNIT, Jump(0.0, 0.0, math.inf))


@cache
def convolved() -> Floats:
    """Q-masses of `STEPS` steps, by plain convolution of positive numbers."""
    out = np.ones(1)
    for _ in range(STEPS):
        out = np.convolve(out, MASS)
    return out


def wrapped_tails() -> Verdict:
    """A transform that is too short by a tenth of the tilted mass on either side."""
    p, q = convolved() * np.exp(LOSSES), convolved()
    for reverse, tilt, wrap in itertools.product((False, True), (1.5, 3.0, 8.0), (0.1, 0.01)):
        part = convolution.take_direction(LATTICE, STEPS, reverse=reverse)
        found = convolution.tail([part], STEP, tilt, wrap, 2**12)
        t = np.exp(found.start + found.step * np.arange(found.value.size))[:, None]
        exact = np.maximum(q - t * p if reverse else p - t * q, 0.0).sum(axis=1)
        yield bool((np.abs(found.value - exact) <= found.error + 1e-12).all())


def jumps_of_heavy_tails() -> Verdict:
    """One step and many of rare large losses: one has a closed form, many its convolution."""
    for z, q in ((0.5, 1e-3), (0.4, 0.01)):
        leaves: Leaves = ((GaussianPair(z, q), 1),)
        yield from between(Composition(leaves, COARSE), OneStep(z, q))


Z, RATE, TIMES = 3.0, 0.1, 400


@cache
def fine(delta: float) -> tuple[Floats, Bounds]:
    """Some ε around ε(δ), and close bounds on δ there by the lattice, found with nothing coarse."""
    leaves: Leaves = ((GaussianPair(Z, RATE), TIMES),)
    found = Composition(leaves, Precision(gap=1e-4))
    at = float(found.epsilon(np.array([delta])).upper[0]) * np.array([0.7, 0.85, 1.0, 1.2, 1.4])
    return at, found.delta(at)


def contours(target: Any, old: str, new: str) -> Verdict:
    """Contours that are coarse in one thing, which is put into their source."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, target, old, new)
        for delta in (1e-2, 1e-5):
            at, exact = fine(delta)
            columns = np.array([Z, RATE, float(TIMES), delta, 8.0])[:, None, None]
            steps, rest, share = moments.discretise_windows(columns, 448)
            for reverse in (False, True):
                some = steps.reverse() if reverse else steps
                part = np.ones_like(share) if reverse else share
                found, _ = integral.build_contour(
                    some, columns[2], columns[3], rest, part, Aim(400)
                )
                bounds = [found.delta(np.array([[e]])) for e in at]
                lower, upper = (np.array([b[end][0, 0] for b in bounds]) for end in (0, 1))
                yield bool((lower <= exact.upper).all())
                yield reverse or bool((exact.lower <= upper).all())


def short_periods() -> Verdict:
    """Aliases of a tenth of δ."""
    clipped = "period = np.maximum(period, 4 * spread)"
    yield from contours(integral._choose_period, clipped, "period = 4 * spread")


def early_ends() -> Verdict:
    """A contour that ends where the rest of it is a fifth of δ."""
    yield from contours(
        integral._choose_end, "aim.log_error + log_value", "math.log(0.2) + log_value"
    )


def smoothed_contours() -> Verdict:
    """Little noise, one rare loss most of δ: smoothed by a twentieth of it, and ended early."""
    for z, q, times, delta, error in (
        (0.6, 2e-3, 60, 1e-5, 1e-5),
        (0.5, 1e-4, 300, 1e-7, 1e-5),
        (0.6, 2e-3, 60, 1e-5, 0.02),
    ):
        leaves: Leaves = ((GaussianPair(z, q), times),)
        columns = np.array([z, q, float(times), delta, 8.0])[:, None, None]
        steps, rest, share = moments.discretise_cut_windows(columns, 1792)
        aim = Aim(900, math.log(error), Precision(gap=0.05))
        found, guess = integral.build_contour(steps, columns[2], columns[3], rest, share, aim)
        epsilon = guess[0] * np.array([0.75, 0.85, 0.95, 1.0])
        exact, (lower, upper) = known(leaves, tuple(epsilon)), each_delta(found, epsilon)
        yield bool((lower <= exact.upper).all())
        yield bool((exact.lower <= upper).all())
        yield bool((upper - lower <= 0.3 * upper).all())


def each_delta(one: integral.Contour, epsilon: Floats) -> Bounds:
    """Return what one integral says of several ε."""
    found = one.rows(np.zeros(epsilon.size, dtype=np.intp)).delta(epsilon[:, None])
    return Bounds(found.lower[:, 0], found.upper[:, 0])


@cache
def known(leaves: Leaves, epsilon: tuple[float, ...]) -> Bounds:
    """Close bounds on δ by the lattice, found with nothing coarse."""
    return Composition(leaves, Precision(gap=1e-4)).delta(np.array(epsilon))


def largest_losses() -> Verdict:
    """One step in the add direction, up to where its losses end."""
    for z, q in ((1.0, 0.3), (0.7, 0.05)):
        columns = np.array([z, q, 1.0, 1e-3 * q, 9.0])[:, None, None]
        steps, rest, share = moments.discretise_windows(columns, 640)
        found, _ = integral.build_contour(
            steps.reverse(), columns[2], columns[3], rest, np.ones_like(share), Aim(900)
        )
        end = -math.log1p(-q)
        epsilon = end * np.array([0.3, 0.6, 0.8, 1.1])
        inner = partial(closed.gaussian, z)
        known = closed.sampled_add(inner, q, epsilon)
        upper = each_delta(found, epsilon).upper
        yield bool((known.lower[:3] <= upper[:3]).all())
        yield bool(upper[3] == 0)
        yield float(found.epsilon(np.array([[1e-300]]), np.array([[end]])).upper[0, 0]) >= 0.8 * end


def windows_of_steps() -> Verdict:
    """What no window holds, when that is a twentieth: all of 1 but what is inside, in both worlds.

    Of what is below, Q's share is an upper bound on P's.
    """
    for z, q in ((1.0, 0.3), (3.0, 0.9), (0.5, 0.01)):
        columns = np.array([z, q, 1.0, 0.02, 2.0])[:, None, None]
        steps, rest, _ = moments.discretise_windows(columns, 640)
        below = float(ndtr(-2.0)), float(ndtr(-2.0 - 1 / z))
        yield float(rest.outside[0, 0]) >= below[0]
        for order, above, under in (
            (1.0, rest.p[1], (1 - q) * below[0] + q * below[1]),
            (0.0, rest.q[1], below[0]),
        ):
            inside = np.exp(steps.weights(np.array([[order]])).log_total)
            yield float((inside + above)[0, 0]) + under == pytest.approx(1.0, abs=1e-9)


def remainders() -> Verdict:
    """Jumps, and what is told apart outright, added to what is neither: all outcomes together."""
    p, q = np.array([0.06, 0.42, 0.37, 0.1, 0.05]), np.array([0.01, 0.47, 0.42, 0.09, 0.01])
    for one, other in ((p, q), (q[::-1], p[::-1])):
        loss, times = np.log(one / other), 3
        body = float(np.log((other[1:4] * np.exp(-2 * loss[1:4])).sum()))
        jumps = Jumps(float(one[4]), float(other[4]), float(loss[4]), times, body)
        told = times * float(max(one[0], other[0]))
        inside = max(1 - told, 0.0), max(1 - told, 0.0)
        rest = truncation.bound_remainder([jumps], 2.0, 1e-12, inside=inside, outside=told)
        a, b = beside(one[1:4], other[1:4], *[(one[1:4], other[1:4])] * 2)
        whole, t = beside(one, other, *[(one, other)] * 2), np.exp(EPSILON)[:, None]
        for reverse in (False, True):
            some = np.maximum(b - t * a if reverse else a - t * b, 0.0).sum(axis=1)
            full = np.maximum(whole[reverse] - t * whole[not reverse], 0.0).sum(axis=1)
            added = rest.bounds(EPSILON, reverse=reverse)
            yield from holds(Bounds(some + added.lower, some + added.upper), full)


CHECKS: dict[str, Callable[[], Verdict]] = {
    check.__name__: check
    for check in (
        lattice_of_gaussians,
        discrete_steps,
        faint_outcomes,
        both_directions,
        window_of_atoms,
        jumps_of_pairs,
        run_behind_a_coin,
        wrapped_tails,
        jumps_of_heavy_tails,
        run_with_a_short_transform,
        coarse_masses,
        short_periods,
        early_ends,
        smoothed_contours,
        largest_losses,
        windows_of_steps,
        remainders,
    )
}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings that are constants, made coarse too; the oracles come first."""
    for delta in (1e-2, 1e-5):
        fine(delta)
    monkeypatch.setattr(closed, "_LEAST_MASS", 0.003)
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", CHECKS)
def test_coarse_bounds_hold(name: str) -> None:
    verdicts = list(CHECKS[name]())
    assert len(verdicts) >= 4
    assert all(verdicts)


Plant = tuple[str, Any, str, str, str]  # the term, where, what is there, what is not, who sees it
PLANTS: list[Plant] = [
    (
        "lattice: truncated mass",
        profile._compose,
        "above_line(tail(upper, **options._asdict()), outside,",
        "above_line(tail(upper, **options._asdict()), certain.upper,",
        "lattice_of_gaussians",
    ),
    (
        "lattice: truncated mass of a discrete step",
        discrete_pair,
        "outside = (atoms.outside_p, atoms.outside_q)",
        "outside = (0.0, 0.0)",
        "discrete_steps",
    ),
    (
        "lattice: one world's truncated mass for the other's",
        profile._compose,
        "high.outside_q if reverse else high.outside_p",
        "high.outside_q",
        "discrete_steps",
    ),
    (
        "lattice: the add direction from above",
        Attempt.epsilon,
        "for line in self.above",
        "for line in self.above[:1]",
        "both_directions",
    ),
    (
        "lattice: the add direction of delta from above",
        Attempt.delta,
        "for line in self.above",
        "for line in self.above[:1]",
        "both_directions",
    ),
    (
        "lattice: the remove direction from above",
        Attempt.epsilon,
        "for line in self.above",
        "for line in self.above[1:]",
        "both_directions",
    ),
    (
        "transform: wrapped mass",
        convolution.tail,
        "lost = wrap * ((low > 0) + (high < highest))",
        "lost = 0.0",
        "wrapped_tails",
    ),
    (
        "transform: wrapped mass in the error",
        convolution._bound_error,
        "+ largest * lost",
        "",
        "wrapped_tails",
    ),
    (
        "window: mass left of it",
        AtomsPair.window,
        "outer[start:end] = False",
        "outer[:end] = False",
        "window_of_atoms",
    ),
    (
        "window: mass right of it",
        AtomsPair.window,
        "outer[start:end] = False",
        "outer[start:] = False",
        "window_of_atoms",
    ),
    (
        "window: the coin's (1 - q)Q",
        AtomsPair.window,
        "p_out = (1 - q) * q_out + q * p1_out",
        "p_out = q * p1_out",
        "window_of_atoms",
    ),
    (
        "jump: the coin's (1 - q)Q",
        discretise.measure_jump,
        "(1 - q) * q_mass + q * p_mass",
        "q * p_mass",
        "jumps_of_pairs",
    ),
    (
        "a coin before a run: its (1 - q)Q",
        profile.build_run_pair,
        "(1 - probability) * q_out + probability * p1_out",
        "probability * p1_out",
        "run_behind_a_coin",
    ),
    (
        "a coin before a run: what no transform holds",
        profile.build_run_pair,
        "end * (lost + sum",
        "end * (sum",
        "run_with_a_short_transform",
    ),
    (
        "a coin before a run: what no window holds",
        profile.build_run_pair,
        "count * lattice.",
        "0.0 * lattice.",
        "run_behind_a_coin",
    ),
    (
        "a coin before a run: errors of masses, from above",
        profile._compute_masses,
        "mass + error if upper",
        "mass if upper",
        "coarse_masses",
    ),
    (
        "a coin before a run: errors of masses, from below",
        profile._compute_masses,
        "else mass - error",
        "else mass",
        "coarse_masses",
    ),
    (
        "a coin before a run: mass beyond its losses",
        profile._compute_masses,
        "lost += min(",
        "lost += 0 * min(",
        "coarse_masses",
    ),
    (
        "atoms behind a coin: its (1 - q)Q",
        behind_coin,
        "outside_p = (1 - probability) * atoms.outside_q + probability * atoms.outside_p",
        "outside_p = probability * atoms.outside_p",
        "discrete_steps",
    ),
    (
        "outcomes behind a coin: its (1 - q)Q",
        Outcomes.behind,
        "outside_p = (1 - coin) * self.outside_q + coin * self.outside_p",
        "outside_p = coin * self.outside_p",
        "discrete_steps",
    ),
    (
        "enumeration: what lies outside, of P",
        DiscreteProfile.delta,
        "remove.upper + outside_p",
        "remove.upper",
        "discrete_steps",
    ),
    (
        "enumeration: what lies outside, of Q",
        DiscreteProfile.delta,
        "add.upper + outside_q",
        "add.upper",
        "discrete_steps",
    ),
    (
        "enumeration: outside of either step",
        closed._multiply,
        "one.outside_p + other.outside_p",
        "one.outside_p",
        "discrete_steps",
    ),
    (
        "enumeration: faint masses",
        closed._merge_losses,
        "lost = _LEAST_MASS * int(faint.sum())",
        "lost = 0.0",
        "faint_outcomes",
    ),
    (
        "contour: aliases",
        integral.Contour._bound_delta,
        " - alias * (1 + 1e-9)",
        "",
        "short_periods",
    ),
    (
        "contour: aliases from above",
        integral.Contour._bound_delta,
        "alias = upper_alias + lower_alias",
        "alias = lower_alias",
        "short_periods",
    ),
    (
        "contour: aliases from below",
        integral.Contour._bound_delta,
        "alias = upper_alias + lower_alias",
        "alias = upper_alias",
        "short_periods",
    ),
    (
        "contour: what follows its end",
        integral.build_contour,
        "error=sums.error + missing,",
        "error=sums.error,",
        "early_ends",
    ),
    (
        "contour: what smoothing adds",
        integral._make_sums,
        "(term * (1 - wide), term)",
        "(term, term)",
        "smoothed_contours",
    ),
    (
        "contour: the losses smoothed",
        integral._make_sums,
        "np.exp(log_psi + damping)",
        "np.exp(log_psi)",
        "smoothed_contours",
    ),
    (
        "contour: the largest loss in the add direction",
        Steps.largest_loss,
        "-times *",
        "-0.5 * times *",
        "largest_losses",
    ),
    (
        "contour: mass above the window",
        moments.discretise_windows,
        "Remainder(outside, (zero, p_jump), (zero, q_jump)",
        "Remainder(outside, (zero, zero), (zero, zero)",
        "windows_of_steps",
    ),
    (
        "jumps: what is told apart outright",
        truncation.Remainder.bounds,
        "high + self.outside",
        "high",
        "remainders",
    ),
    (
        "contour: the coin's (1 - q)Q above the window",
        moments._upper_tails,
        "(1 - steps.q) * q_mass + ",
        "",
        "windows_of_steps",
    ),
    (
        "rare losses: their chance in P",
        truncation.Remainder.bounds,
        "high = p_high -",
        "high = p_low * 0 -",
        "remainders",
    ),
    (
        "a coin, remove: the loss it leaves",
        closed._before_coin,
        "/ probability",
        "",
        "jumps_of_heavy_tails",
    ),
]


@pytest.mark.parametrize("number", range(len(PLANTS)), ids=lambda k: PLANTS[k][0])
def test_without_the_term_it_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, target, old, new, check = PLANTS[number]
    plant(monkeypatch, target, old, new)
    try:
        noticed = not all(CHECKS[check]())
    except RangeError:  # as bounds that contradict one another
        noticed = True
    assert noticed
