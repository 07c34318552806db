"""From a mechanism to its privacy curve, and back from a promise to parameters."""

from apiece.accounting.batch import epsilons, upper_epsilons
from apiece.accounting.bounds import Bounds
from apiece.accounting.calibration import Calibration, calibrate
from apiece.accounting.choose import BATCH_METHODS, METHODS, privacy_curve
from apiece.accounting.curve import RELATION, PrivacyCurve
from apiece.accounting.divergence import Excess, excess, excesses
from apiece.accounting.inverses import LEAST_NOISE, noise_multipliers, sampling_probabilities
from apiece.accounting.limits import (
    AdvantageBudget,
    EpsilonBudget,
    ExcessBudget,
    MuBudget,
    PowerBudget,
)
from apiece.accounting.renyi.profile import divergence as renyi_divergence
from apiece.accounting.slack import (
    GaussianSummary,
    gaussian_of_bounded_range,
    gaussian_of_laplace,
    gaussian_of_pure,
    gaussian_summary,
    gaussian_with_slack,
)

__all__ = [
    "BATCH_METHODS",
    "LEAST_NOISE",
    "METHODS",
    "RELATION",
    "AdvantageBudget",
    "Bounds",
    "Calibration",
    "EpsilonBudget",
    "Excess",
    "ExcessBudget",
    "GaussianSummary",
    "MuBudget",
    "PowerBudget",
    "PrivacyCurve",
    "calibrate",
    "epsilons",
    "excess",
    "excesses",
    "gaussian_of_bounded_range",
    "gaussian_of_laplace",
    "gaussian_of_pure",
    "gaussian_summary",
    "gaussian_with_slack",
    "noise_multipliers",
    "privacy_curve",
    "renyi_divergence",
    "sampling_probabilities",
    "upper_epsilons",
]
