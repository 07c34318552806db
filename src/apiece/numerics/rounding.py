"""The unit in which rounding errors are counted, and the range in which they are."""

from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats

UNIT: Final = 2.0**-53
"""The relative error of one floating-point operation, at most."""
LARGEST_LOG_RATIO: Final = 600.0
"""Of two probabilities: beyond it their ratio comes near the end of floating-point numbers."""


# Beyond it all but the largest term is below any rounding.
_FAR: Final = 1e300


def after_coin(log_ratio: npt.ArrayLike, probability: npt.ArrayLike) -> Floats:
    """Return log(1 − q + q·e^ρ): a log-ratio ρ of P₁ to Q, as one of (1 − q)Q + qP₁ to Q."""
    rho = np.asarray(log_ratio, np.float64)
    probability = np.asarray(probability, np.float64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # Where e^ρ is past the range its root is not, and q times that may be within.
        root = np.exp(rho / 2)
        excess = np.where(rho < 700, probability * np.expm1(rho), probability * root * root)
        # Where little is left of 1, by positive terms alone: 1 − q is exact there.
        joined = probability * np.exp(np.minimum(rho, 0.0))
        small_ratio = np.log((1 - probability) + joined)
        near = np.where(excess < -0.5, small_ratio, np.log1p(excess))
        result = np.where(excess > _FAR, rho + np.log(probability), near)
        return np.where(probability == 1, rho, result)
