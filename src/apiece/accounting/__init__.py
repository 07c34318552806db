"""From a mechanism to its privacy curve, and back from a promise to parameters."""

from apiece._types import Bounds
from apiece.accounting.batch import epsilons, noise_multipliers, sampling_probabilities
from apiece.accounting.calibration import (
    AdvantageBudget,
    Calibration,
    EpsilonBudget,
    ExcessBudget,
    MuBudget,
    PowerBudget,
    calibrate,
)
from apiece.accounting.choose import privacy_curve
from apiece.accounting.concentrated import concentrated_rho
from apiece.accounting.curve import PrivacyCurve
from apiece.accounting.divergence import Excess, excess

__all__ = [
    "privacy_curve", "PrivacyCurve", "Bounds", "calibrate", "Calibration", "EpsilonBudget",
    "MuBudget", "AdvantageBudget", "PowerBudget", "ExcessBudget", "epsilons", "noise_multipliers",
    "sampling_probabilities", "excess", "Excess", "concentrated_rho",
]  # fmt: skip
