"""From a mechanism to its privacy curve, and back from a promise to parameters."""

from apiece.accounting.batch import epsilons, noise_multipliers, sampling_probabilities
from apiece.accounting.bounds import Bounds
from apiece.accounting.curve import PrivacyCurve, privacy_curve

__all__ = [
    "Bounds",
    "PrivacyCurve",
    "epsilons",
    "noise_multipliers",
    "privacy_curve",
    "sampling_probabilities",
]
