"""Solvers that strategies share: safe parameters for many budgets at once, or for all of them."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from apiece import accounting
from apiece._types import Floats, Integers
from apiece.assignment.request import Request
from apiece.errors import InfeasibleError, UnsupportedError
from apiece.numerics.roots import safe_end

SEVERAL, EVERY = 64, 8  # budgets from which on every eighth is solved first
MANY = 500  # more distinct budgets than this are not planned for curve by curve
ROUND = 1 - 1e-12  # a factor that outweighs the rounding of a product or quotient


def noise(
    request: Request,
    epsilon: Floats,
    delta: Floats,
    probability: npt.ArrayLike,
    *,
    steps: npt.ArrayLike | None = None,
) -> Floats:
    """Return the smallest safe noise multiplier for each (ε, δ), rate and number of steps."""
    return _solved(
        partial(accounting.noise_multipliers, method=request.method),
        epsilon=epsilon,
        delta=delta,
        sampling_probability=probability,
        steps=request.steps if steps is None else steps,
    )


def rates(
    request: Request,
    epsilon: Floats,
    delta: Floats,
    multiplier: npt.ArrayLike,
    guess: npt.ArrayLike = math.nan,
    precision: npt.ArrayLike = 0.0,
) -> Floats:
    """Return the largest safe sampling probability for each (ε, δ) at a noise multiplier, or 0."""
    # guess: about what they are, NaN where unknown. precision: what may be missing of each.
    return _solved(
        partial(accounting.sampling_probabilities, method=request.method),
        guess,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=multiplier,
        steps=request.steps,
        precision=precision,
    )


def _solved(
    solver: Callable[..., Floats], known: npt.ArrayLike = math.nan, **settings: npt.ArrayLike
) -> Floats:
    """Return the solver's parameter for each budget; known: about what it is, NaN for unknown."""
    columns = dict(zip(settings, np.broadcast_arrays(*settings.values()), strict=True))
    epsilon, delta = columns["epsilon"], columns["delta"]

    def solve(some: Integers | slice, guess: npt.ArrayLike = math.nan) -> Floats:
        return solver(**{name: column[some] for name, column in columns.items()}, guess=guess)

    # Of many budgets that differ by ε alone some are solved first, and the others' guesses lie
    # between those.
    order, everyone = np.argsort(epsilon, kind="stable"), slice(None)
    if not np.isnan(known).all() or order.size < SEVERAL or (delta != delta[0]).any():
        return solve(everyone, known)
    # Every eighth and the last, each ε once: an interpolation needs points that rise.
    some = order[np.unique(np.append(np.arange(0, order.size, EVERY), order.size - 1))]
    some = some[np.append(True, np.diff(epsilon[some]) > 0)]
    solved = solve(some)
    if some.size < 3 or not (solved > 0).all():
        return solve(everyone)
    # Guesses alone are interpolated: what is returned is solved for and safe.
    from scipy.interpolate import PchipInterpolator

    curve = PchipInterpolator(np.log(epsilon[some]), np.log(solved))
    return solve(everyone, np.exp(curve(np.log(epsilon))))


def require_rates(request: Request, rate: Floats, multiplier: float) -> None:
    """Raise `InfeasibleError` where a group has none, with the ε that would allow one."""
    if (rate > 0).all():
        return
    groups, g = request.groups, int(np.flatnonzero(~(rate > 0))[0])
    # The ε at a rate of next to nothing: what even the rarest of steps spends at this noise.
    least = accounting.epsilons(
        noise_multiplier=multiplier,
        sampling_probability=1e-12,
        steps=request.steps,
        delta=groups.delta[g],
        method=request.method,
    ).upper
    raise InfeasibleError(
        f"group {groups.name[g]}: epsilon = {groups.epsilon[g]:g} at delta = "
        f"{groups.delta[g]:g} allows no sampling probability at noise multiplier "
        f"{multiplier:.4g} and {request.steps} steps; ask for at least epsilon = "
        f"{float(least) * 1.01:.4g}, or use a strategy that gives this group more noise"
    )


def strictest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is below in both ε and δ: they decide a uniform noise.

    >>> strictest(np.array([1.0, 2.0, 3.0]), np.array([1e-5, 1e-6, 1e-6])).tolist()
    [0, 1]
    """
    # In the order of ε a budget is on the front if its δ is below all before it.
    order = np.lexsort((delta, epsilon))
    least = np.minimum.accumulate(delta[order])
    first = np.ones(order.size, dtype=bool)
    first[1:] = delta[order][1:] < least[:-1]
    return np.asarray(order[first])


def loosest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is above in both ε and δ."""
    return strictest(-epsilon, -delta)


def uniform_noise(
    request: Request, epsilon: Floats, delta: Floats, probability: float, of: str = "strictest"
) -> float:
    """Return the least noise multiplier that keeps all of these budgets, or (loosest) one."""
    # ε and δ fall with the noise: who asks less of both decides, and one curve a corner is enough.
    front = (strictest if of == "strictest" else loosest)(epsilon, delta)
    needed = noise(request, epsilon[front], delta[front], probability)
    return float(needed.max() if of == "strictest" else needed.min())


def level_noise(request: Request, level: str | float, epsilon: Floats) -> float:
    """Return the noise of the strictest or loosest budget at q̄, or of an ε at the smallest δ."""
    q, delta = request.mean_probability, request.groups.delta
    if isinstance(level, str):
        return uniform_noise(request, epsilon, delta, q, level)
    return float(noise(request, np.array([level]), delta.min(keepdims=True), q)[0])


def harmonic_noise(request: Request) -> float:
    """Return the harmonic mean of the groups' own noise multipliers, from a few of them."""
    groups, q = request.groups, request.mean_probability
    # 1/z is nearly a line in ε: five groups tell the others', well enough to start a search from.
    some = np.unique(np.linspace(0, len(groups) - 1, 5).astype(int))
    z = noise(request, request.target[some], groups.delta[some], q)
    order = np.argsort(request.target[some], kind="stable")
    inverse = np.interp(request.target, request.target[some][order], 1 / z[order])
    return 1 / float(request.share @ inverse)


def crossing(
    room: Callable[[float], float],
    guess: float,
    low: float,
    high: float,
    *,
    tolerance: float = 4e-4,
    slope: float = 2.0,
) -> float:
    """Return x, one of those evaluated, with 0 ≤ room(x) ≤ tolerance where there is one."""
    # room grows on [low, high], by about `slope` in log x, up to a noise below the tolerance. Where
    # it is at least 0 at `low`, returns `low`; where it jumps past the tolerance, the end of the
    # jump; where noise makes it negative at `high`, up to half a percent more.
    least, most = math.log(low), math.log(high * 1.005)
    first = min(max(math.log(guess), least), most)
    end = safe_end(
        lambda log_x: room(math.exp(log_x)), first, most, least, slope=slope, tolerance=tolerance
    )
    return math.exp(most if math.isnan(end) else end)


def require_few(what: str, number: int, most: int = MANY, *, of: str = "distinct budgets") -> None:
    """Raise `UnsupportedError` where there are too many budgets to compute a curve for each."""
    if number > most:
        raise UnsupportedError(
            f"{what}: {number} {of}, at most {most}; round the budgets down first, with "
            "Budgets.rounded_down"
        )


MISSING = 3e-5  # of the mean, by what a rate may be too low
FINE, COARSE = 5e-4, 0.05  # of a rate, that may be missing of it
SURE = 0.98  # a guess above this is of no use: the largest rate is tried anyway


class Follow:
    """The largest safe rates of some budgets as a function of the common noise multiplier."""

    # Remembers what it found: between neighbouring multipliers log q is nearly linear in log z.
    # What is returned is as safe as `rates`; only the time depends on what was asked before.

    def __init__(self, request: Request, epsilon: Floats, delta: Floats, share: Floats) -> None:
        self._request, self._epsilon, self._delta = request, epsilon, delta
        self._share = share
        self._seen: dict[float, Floats] = {}

    def at(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as matters to their mean."""
        if z not in self._seen:
            some, guess = (self._request, self._epsilon, self._delta), self._guess(z)
            # A rate may be off the more, the less it adds to the mean.
            part = self._share * guess
            with np.errstate(invalid="ignore", divide="ignore"):
                precision = np.clip(MISSING * np.nansum(part) / part, FINE, COARSE)
            self._seen[z] = rates(*some, z, guess, np.where(np.isnan(part), FINE, precision))
        return self._seen[z]

    def closely(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as can be."""
        return rates(self._request, self._epsilon, self._delta, z, self.at(z))

    def _guess(self, z: float) -> Floats:
        """Return about what the rates are, NaN where nothing is known."""
        near = sorted(self._seen, key=lambda other: abs(np.log(other / z)))[:2]
        if not near:
            return np.full(self._epsilon.shape, np.nan)
        first = self._seen[near[0]]
        # The slope of 1/sqrt(exp(1/z²) − 1), which rates follow where they are small
        square = 1 / max(near[0], 0.15) ** 2
        slope = np.full(first.shape, square / -np.expm1(-square))
        if len(near) > 1:
            other = self._seen[near[1]]
            usable = (first > 0) & (other > 0) & (first < SURE) & (other < SURE)
            ratio = np.where(usable, first, 1.0) / np.where(usable, other, 1.0)
            measured = np.log(ratio) / np.log(near[0] / near[1])
            slope = np.where(usable & (measured > 0), measured, slope)
        guess = first * np.exp(np.clip(slope * np.log(z / near[0]), -50, 50))
        return np.where((first > 0) & (guess < SURE), guess, np.nan)
