"""Mechanisms: what is done to one record, as small frozen values that accountants read."""

from apiece.mechanisms.algebra import (
    Composed,
    Mechanism,
    Repeated,
    Sampled,
    Selected,
    from_json,
)
from apiece.mechanisms.allocated import Allocated
from apiece.mechanisms.atoms import Finite
from apiece.mechanisms.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from apiece.mechanisms.runs import Runs
from apiece.mechanisms.stated import Concentrated, Stated

__all__ = [
    "Gaussian", "Laplace", "DiscreteGaussian", "DiscreteLaplace", "Sampled", "Repeated",
    "Composed", "Selected", "Runs", "Allocated", "Finite", "Concentrated", "Stated",
    "Mechanism", "from_json",
]  # fmt: skip
