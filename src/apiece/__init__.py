"""apiece: individualized differential privacy, where every record has its own budget."""

import importlib
from typing import TYPE_CHECKING, Any

from apiece import _lazy
from apiece._version import __version__ as __version__

if TYPE_CHECKING:
    from apiece import accounting as accounting
    from apiece import audit as audit
    from apiece import contract as contract
    from apiece.accounting import Bounds as Bounds
    from apiece.accounting import Excess as Excess
    from apiece.accounting import PrivacyCurve as PrivacyCurve
    from apiece.accounting import calibrate as calibrate
    from apiece.accounting import excess as excess
    from apiece.accounting import privacy_curve as privacy_curve
    from apiece.assignment import AdaPDP as AdaPDP
    from apiece.assignment import Allocate as Allocate
    from apiece.assignment import Hybrid as Hybrid
    from apiece.assignment import JorgensenSampling as JorgensenSampling
    from apiece.assignment import Rounds as Rounds
    from apiece.assignment import Sample as Sample
    from apiece.assignment import Scale as Scale
    from apiece.assignment import Sequential as Sequential
    from apiece.assignment import Threshold as Threshold
    from apiece.assignment import Uniform as Uniform
    from apiece.assignment import assign as assign
    from apiece.budgets import Budgets as Budgets
    from apiece.budgets import release_histogram as release_histogram
    from apiece.filters import GaussianFilter as GaussianFilter
    from apiece.filters import Odometer as Odometer
    from apiece.filters import RenyiFilter as RenyiFilter
    from apiece.ledger import Ledger as Ledger
    from apiece.mechanisms import Composed as Composed
    from apiece.mechanisms import Gaussian as Gaussian
    from apiece.mechanisms import Laplace as Laplace
    from apiece.mechanisms import Repeated as Repeated
    from apiece.mechanisms import Sampled as Sampled
    from apiece.plan import Plan as Plan
    from apiece.reporting import report as report
    from apiece.sensitivity import Expression as Expression
    from apiece.sensitivity import ModelLoss as ModelLoss
    from apiece.sensitivity import partial_sensitivity as partial_sensitivity
    from apiece.synthesis import Synthetic as Synthetic
    from apiece.synthesis import synthesize as synthesize
    from apiece.training import Trainer as Trainer
    from apiece.training import add_noise as add_noise
    from apiece.training import clip_and_sum as clip_and_sum
    from apiece.training import make_private as make_private
    from apiece.training import poisson_batches as poisson_batches


# Loaded when first asked for, so that `import apiece` and the command line start at once.
_NAMES = {
    "accounting": ("Bounds", "Excess", "PrivacyCurve", "calibrate", "excess", "privacy_curve"),
    "assignment": ("AdaPDP", "Allocate", "Hybrid", "JorgensenSampling", "Rounds", "Sample", "Scale",
                   "Sequential", "Threshold", "Uniform", "assign"),
    "budgets": ("Budgets", "release_histogram"),
    "filters": ("GaussianFilter", "Odometer", "RenyiFilter"),
    "ledger": ("Ledger",),
    "mechanisms": ("Composed", "Gaussian", "Laplace", "Repeated", "Sampled"),
    "plan": ("Plan",),
    "reporting": ("report",),
    "sensitivity": ("ModelLoss", "Expression", "partial_sensitivity"),
    "synthesis": ("Synthetic", "synthesize"),
    "training": ("Trainer", "add_noise", "clip_and_sum", "make_private", "poisson_batches"),
}  # fmt: skip
_PACKAGES = ("accounting", "audit", "contract")
_value_of = _lazy.names_of("apiece", _NAMES)

__all__ = ["__version__", *_PACKAGES, *(name for names in _NAMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    value = importlib.import_module(f"apiece.{name}") if name in _PACKAGES else _value_of(name)
    # Found there from now on: this function is asked once for a name.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
