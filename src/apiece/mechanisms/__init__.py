"""What is done to one record: small frozen values that accountants, planners and reports read."""

from apiece.mechanisms.algebra import (
    Composed,
    Mechanism,
    Primitive,
    Repeated,
    Sampled,
    require_mechanism,
)
from apiece.mechanisms.atoms import Atoms, Discrete, behind_coin
from apiece.mechanisms.discrete_gaussian import DiscreteGaussian
from apiece.mechanisms.discrete_laplace import DiscreteLaplace
from apiece.mechanisms.finite import Finite
from apiece.mechanisms.gaussian import Gaussian
from apiece.mechanisms.laplace import Laplace
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.mechanisms.normal_form import NormalForm, atoms_of, flatten
from apiece.mechanisms.serial import from_dict, from_json, to_dict, to_json

__all__ = [
    "Atoms",
    "Composed",
    "Discrete",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Finite",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "MixtureOfGaussians",
    "NormalForm",
    "Primitive",
    "Repeated",
    "Sampled",
    "atoms_of",
    "behind_coin",
    "flatten",
    "from_dict",
    "from_json",
    "require_mechanism",
    "to_dict",
    "to_json",
]
