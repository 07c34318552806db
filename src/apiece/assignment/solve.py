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

# The number of budgets from which on some are solved first, to guess the others by.
SEVERAL = 64
# Of several budgets, one in so many is solved first.
STRIDE = 8
# The largest number of distinct budgets that are planned for curve by curve.
MANY = 500
# A factor that outweighs the rounding of a product or quotient.
ROUND = 1 - 1e-12
# The relative excess over `high` up to which `find_crossing` looks.
HIGH_MARGIN = 0.005


def solve_noise(
    request: Request,
    epsilon: Floats,
    delta: Floats,
    probability: npt.ArrayLike,
    *,
    steps: npt.ArrayLike | None = None,
) -> Floats:
    """Return the smallest safe noise multiplier for each (ε, δ), rate and number of steps."""
    return _solve_columns(
        partial(accounting.noise_multipliers, method=request.method),
        epsilon=epsilon,
        delta=delta,
        sampling_probability=probability,
        steps=request.steps if steps is None else steps,
    )


def solve_rates(
    request: Request,
    epsilon: Floats,
    delta: Floats,
    multiplier: npt.ArrayLike,
    guess: npt.ArrayLike = math.nan,
    precision: npt.ArrayLike = 0.0,
) -> Floats:
    """Return the largest safe sampling probability for each (ε, δ) at a noise multiplier, or 0.

    Args:
        request: Gives the steps and the accounting.
        epsilon: One a budget.
        delta: One a budget.
        multiplier: The noise multiplier, one for all or one a budget.
        guess: About what the probabilities are, NaN where unknown.
        precision: The share of each probability that may be missing of it.
    """
    return _solve_columns(
        partial(accounting.sampling_probabilities, method=request.method),
        guess,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=multiplier,
        steps=request.steps,
        precision=precision,
    )


def _solve_columns(
    solver: Callable[..., Floats], guess: npt.ArrayLike = math.nan, **settings: npt.ArrayLike
) -> Floats:
    """Return the solver's parameter for each budget.

    Args:
        solver: Takes the settings, as columns, and guesses of what it will return.
        guess: About what the parameters are, NaN where unknown.
        settings: One value for all budgets, or one a budget.
    """
    columns = dict(zip(settings, np.broadcast_arrays(*settings.values()), strict=True))
    epsilon = columns["epsilon"]
    delta = columns["delta"]

    def solve_rows(rows: Integers | slice, guess: npt.ArrayLike = math.nan) -> Floats:
        return solver(**{name: column[rows] for name, column in columns.items()}, guess=guess)

    everyone = slice(None)
    if not np.isnan(guess).all() or epsilon.size < SEVERAL or (delta != delta[0]).any():
        return solve_rows(everyone, guess)
    # Of many budgets that differ by ε alone some are solved first, and the others' guesses lie
    # between those: every eighth and the last, each ε once, since an interpolation needs points
    # that rise.
    order = np.argsort(epsilon, kind="stable")
    ranks = np.unique(np.append(np.arange(0, order.size, STRIDE), order.size - 1))
    sample = order[ranks]
    sample = sample[np.append(True, np.diff(epsilon[sample]) > 0)]
    solved = solve_rows(sample)
    # Logarithms need parameters above 0, and a curve needs three points.
    if sample.size < 3 or not (solved > 0).all():
        return solve_rows(everyone)
    # Guesses alone are interpolated: what is returned is solved for and safe.
    from scipy.interpolate import PchipInterpolator

    curve = PchipInterpolator(np.log(epsilon[sample]), np.log(solved))
    return solve_rows(everyone, np.exp(curve(np.log(epsilon))))


def require_rates(request: Request, rate: Floats, multiplier: float) -> None:
    """Raise `InfeasibleError` where a group has no rate, with the ε that would allow one."""
    if (rate > 0).all():
        return
    groups = request.groups
    g = int(np.flatnonzero(~(rate > 0))[0])
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


def find_strictest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is below in both ε and δ: they decide a uniform noise.

    >>> find_strictest(np.array([1.0, 2.0, 3.0]), np.array([1e-5, 1e-6, 1e-6])).tolist()
    [0, 1]
    """
    # In the order of ε a budget is on the front if its δ is below all before it.
    order = np.lexsort((delta, epsilon))
    sorted_delta = delta[order]
    running_minimum = np.minimum.accumulate(sorted_delta)
    on_front = np.ones(order.size, dtype=bool)
    on_front[1:] = sorted_delta[1:] < running_minimum[:-1]
    return np.asarray(order[on_front])


def find_loosest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is above in both ε and δ."""
    return find_strictest(-epsilon, -delta)


def find_uniform_noise(
    request: Request, epsilon: Floats, delta: Floats, probability: float, of: str = "strictest"
) -> float:
    """Return the least noise multiplier that keeps all of these budgets, or (loosest) one."""
    # ε and δ fall with the noise: the budgets that ask less of both decide, and one curve for each
    # of these is enough.
    if of == "strictest":
        front = find_strictest(epsilon, delta)
        return float(solve_noise(request, epsilon[front], delta[front], probability).max())
    front = find_loosest(epsilon, delta)
    return float(solve_noise(request, epsilon[front], delta[front], probability).min())


def find_level_noise(request: Request, level: str | float, epsilon: Floats) -> float:
    """Return the noise of the strictest or loosest budget at q̄, or of an ε at the smallest δ."""
    q = request.mean_probability
    delta = request.groups.delta
    if isinstance(level, str):
        return find_uniform_noise(request, epsilon, delta, q, level)
    (z,) = solve_noise(request, np.array([level]), delta.min(keepdims=True), q)
    return float(z)


def find_harmonic_noise(request: Request) -> float:
    """Return about the harmonic mean of the groups' own noise multipliers, to start a search."""
    # 1/z is nearly a line in ε: five groups are enough to interpolate the others from.
    groups = request.groups
    sample = np.unique(np.linspace(0, len(groups) - 1, 5).astype(int))
    target = request.target[sample]
    z = solve_noise(request, target, groups.delta[sample], request.mean_probability)
    order = np.argsort(target, kind="stable")
    inverse = np.interp(request.target, target[order], 1 / z[order])
    return 1 / float(request.share @ inverse)


def find_crossing(
    room: Callable[[float], float],
    guess: float,
    low: float,
    high: float,
    *,
    tolerance: float = 4e-4,
    slope: float = 2.0,
) -> float:
    """Return x, one of those evaluated, with 0 ≤ room(x) ≤ tolerance where there is one.

    Where the room is at least 0 at `low`, it returns `low`; where the room jumps past the
    tolerance, the end of the jump; where noise makes it negative at `high`, up to half a percent
    more.

    Args:
        room: Grows on [low, high], up to a noise below the tolerance.
        guess: About where it is 0.
        low: Above 0.
        high: The largest x.
        tolerance: On the room.
        slope: About the growth of the room in log x.
    """
    log_low = math.log(low)
    log_high = math.log(high * (1 + HIGH_MARGIN))
    log_guess = min(max(math.log(guess), log_low), log_high)
    end = safe_end(
        lambda log_x: room(math.exp(log_x)),
        log_guess,
        log_high,
        log_low,
        slope=slope,
        tolerance=tolerance,
    )
    return math.exp(log_high if math.isnan(end) else end)


def require_few(what: str, number: int, most: int = MANY, *, of: str = "distinct budgets") -> None:
    """Raise `UnsupportedError` where there are too many budgets to compute a curve for each."""
    if number > most:
        raise UnsupportedError(
            f"{what}: {number} {of}, at most {most}; round the budgets down first, with "
            "Budgets.rounded_down"
        )


# The share of the mean rate by which one rate's part in it may be too low.
MISSING = 3e-5
# The least share of a rate that may be missing of it.
FINE = 5e-4
# The largest share of a rate that may be missing of it.
COARSE = 0.05
# The rate above which a guess is of no use: the largest rate is tried anyway.
SURE = 0.98
# The noise multiplier below which the slope of rates is taken to be what it is there.
MIN_SLOPE_NOISE = 0.15


class RateCurve:
    """The largest safe rates of some budgets as a function of the common noise multiplier.

    It remembers what it solved, because between neighbouring multipliers log q is nearly linear in
    log z. Rates are as safe as those of `solve_rates`; only the time depends on earlier calls.
    """

    def __init__(self, request: Request, epsilon: Floats, delta: Floats, share: Floats) -> None:
        self._request = request
        self._epsilon = epsilon
        self._delta = delta
        self._share = share
        # Rates by noise multiplier.
        self._solved: dict[float, Floats] = {}

    def at(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as matters to their mean."""
        if z not in self._solved:
            guess = self._guess_rates(z)
            # A rate may be off the more, the less it adds to the mean.
            part = self._share * guess
            with np.errstate(invalid="ignore", divide="ignore"):
                precision = np.clip(MISSING * np.nansum(part) / part, FINE, COARSE)
            precision = np.where(np.isnan(part), FINE, precision)
            self._solved[z] = solve_rates(
                self._request, self._epsilon, self._delta, z, guess, precision
            )
        return self._solved[z]

    def closely(self, z: float) -> Floats:
        """Return the rates at noise multiplier z, as closely as can be."""
        return solve_rates(self._request, self._epsilon, self._delta, z, self.at(z))

    def _guess_rates(self, z: float) -> Floats:
        """Return about what the rates are, NaN where nothing is known."""
        neighbours = sorted(self._solved, key=lambda solved: abs(np.log(solved / z)))[:2]
        if not neighbours:
            return np.full(self._epsilon.shape, np.nan)
        # From the nearest multiplier that was solved, along a slope in the logarithms.
        near_z = neighbours[0]
        near = self._solved[near_z]
        # The slope of 1/sqrt(exp(1/z²) − 1), which rates follow where they are small.
        square = 1 / max(near_z, MIN_SLOPE_NOISE) ** 2
        slope = np.full(near.shape, square / -np.expm1(-square))
        if len(neighbours) > 1:
            far_z = neighbours[1]
            far = self._solved[far_z]
            # Rates near 1 bend away from any line.
            usable = (near > 0) & (far > 0) & (near < SURE) & (far < SURE)
            ratio = np.where(usable, near, 1.0) / np.where(usable, far, 1.0)
            secant = np.log(ratio) / np.log(near_z / far_z)
            slope = np.where(usable & (secant > 0), secant, slope)
        guess = near * np.exp(np.clip(slope * np.log(z / near_z), -50, 50))
        return np.where((near > 0) & (guess < SURE), guess, np.nan)
