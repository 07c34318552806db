"""The normal distribution's tails and their inverse, in numpy alone.

scipy has them too, and takes three times as long to be imported as numpy does. Mills' ratio is by
rational approximations (Cody 1969, as in his CALERF), good to a few units in the last place.
"""

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Floats

_ROOT_OF_TWO = math.sqrt(2)
# The density's value at 0.
_PEAK = 1 / math.sqrt(2 * math.pi)
# Arguments at which one approximation of erfc takes over from another.
_LOW = 0.46875
_HIGH = 4.0

# The numerator's and the denominator's coefficients, highest powers first.
_Quotient: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
# Cody's three quotients of polynomials: erf(x)/x in x², near 0.
_ERF_NEAR: Final[_Quotient] = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
# e^{x²}·erfc(x) in x, in the middle.
_SCALED_ERFC_MIDDLE: Final[_Quotient] = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
     6.61191906371416295e1, 2.98635138197400131e2, 8.81952221241769090e2,
     1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
     3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
# (1/√π − x·e^{x²}·erfc(x))·x² in 1/x², far out.
_REMAINDER_FAR: Final[_Quotient] = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346047, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip


def _evaluate_polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    """Return a polynomial's value, by Horner's scheme."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def _evaluate_quotient(quotient: _Quotient, x: Floats) -> Floats:
    """Return the value of a quotient of two polynomials."""
    numerator, denominator = quotient
    return np.asarray(_evaluate_polynomial(numerator, x) / _evaluate_polynomial(denominator, x))


def _scaled_erfc_near(y: Floats) -> Floats:
    """Return e^{y²}·erfc(y) for y up to `_LOW`."""
    return np.asarray(np.exp(y * y) * (1 - y * _evaluate_quotient(_ERF_NEAR, y * y)))


def _scaled_erfc_middle(y: Floats) -> Floats:
    """Return e^{y²}·erfc(y) for y between `_LOW` and `_HIGH`."""
    return _evaluate_quotient(_SCALED_ERFC_MIDDLE, y)


def _scaled_erfc_far(y: Floats) -> Floats:
    """Return e^{y²}·erfc(y) for y beyond `_HIGH`."""
    inverse = (1 / y) ** 2
    correction = inverse * _evaluate_quotient(_REMAINDER_FAR, inverse)
    return np.asarray((1 / math.sqrt(math.pi) - correction) / y)


def mills(x: npt.ArrayLike) -> Floats:
    """Return R(x) = Φ(−x)/φ(x) for x ≥ 0."""
    y = np.asarray(x, dtype=np.float64) / _ROOT_OF_TWO
    near = y <= _LOW
    far = y > _HIGH
    scaled = np.empty_like(y)
    for where, scaled_erfc in (
        (near, _scaled_erfc_near),
        (far, _scaled_erfc_far),
        (~(near | far), _scaled_erfc_middle),
    ):
        if where.any():
            scaled[where] = scaled_erfc(y[where])
    return scaled * math.sqrt(math.pi / 2)


def density(x: npt.ArrayLike) -> Floats:
    """Return φ(x), good to a few units however far out x lies."""
    # Beyond 39 it is 0 in float64; clipping keeps the squares finite.
    x = np.clip(np.asarray(x, dtype=np.float64), -50.0, 50.0)
    # x² rounded would cost e^{−x²/2} about x²/2 units. x rounded to sixteenths has an exact square,
    # and what x² exceeds it by is small, a product of an exact difference and a sum.
    rounded = np.trunc(x * 16) / 16
    correction = np.exp((rounded - x) * (rounded + x) / 2)
    return np.asarray(np.exp(-rounded * rounded / 2) * correction * _PEAK)


def tail(x: npt.ArrayLike) -> Floats:
    """Return Φ(−x)."""
    x = np.asarray(x, dtype=np.float64)
    beyond = density(x) * mills(np.abs(x))
    return np.asarray(np.where(x >= 0, beyond, 1 - beyond))


def log_tail(x: npt.ArrayLike) -> Floats:
    """Return log Φ(−x)."""
    x = np.asarray(x, dtype=np.float64)
    ratio = mills(np.abs(x))
    below = np.log1p(-density(x) * ratio)
    return np.asarray(np.where(x >= 0, _log_beyond(x, ratio), below))


def _log_beyond(x: Floats, ratio: Floats) -> Floats:
    """Return log Φ(−x), given Mills' ratio there."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.log(_PEAK * ratio) - x * x / 2)


def invert_log_tail(log_mass: npt.ArrayLike) -> Floats:
    """Return about x with log Φ(−x) = `log_mass`, which is at most 0."""
    y = np.asarray(log_mass, dtype=np.float64)
    with np.errstate(divide="ignore"):
        # Solved for the lesser of the two tails, and mirrored in the end.
        log_lesser = np.minimum(y, np.log(-np.expm1(y)))
    empty = np.isinf(log_lesser)
    log_target = np.where(empty, -1.0, log_lesser)
    # About right to .00045 (Abramowitz and Stegun 1964, 26.2.23), of which Newton's method leaves
    # nothing after three rounds.
    t = np.sqrt(-2 * log_target)
    numerator = (0.010328 * t + 0.802853) * t
    denominator = ((0.001308 * t + 0.189269) * t + 1.432788) * t
    x = np.maximum(t - (numerator + 2.515517) / (denominator + 1), 0.0)
    for _ in range(3):
        # log Φ(−x) has the derivative −1/R(x).
        ratio = mills(x)
        x = np.abs(x + (_log_beyond(x, ratio) - log_target) * ratio)
    x = np.where(empty, np.inf, x)
    return np.asarray(np.where(log_lesser < y, -x, x))


def quantile(mass: npt.ArrayLike) -> Floats:
    """Return about x with Φ(x) = `mass`."""
    with np.errstate(divide="ignore"):
        return -invert_log_tail(np.log(mass))
