"""Attribution of a record's privacy loss to its attributes (Mueller et al. 2021).

`partial_sensitivity(function, ...)` is the one verb; the function of a record is a `Query` (an
expression over named attributes, needs sympy) or a `ModelLoss` (a torch model and its loss).
"""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.sensitivity.noise import BoundedSum, HeterogeneousNoise
from apiece.sensitivity.partial import (
    Exhaustion,
    PartialSensitivity,
    exhaustion,
    individual_rdp,
    loss_shares,
    partial_sensitivity,
)

if TYPE_CHECKING:
    from apiece.sensitivity.bounds import Maximum
    from apiece.sensitivity.neural import ModelLoss
    from apiece.sensitivity.symbolic import Query

__all__ = [
    "BoundedSum", "Exhaustion", "HeterogeneousNoise", "Maximum", "ModelLoss", "PartialSensitivity",
    "Query", "exhaustion", "individual_rdp", "loss_shares", "partial_sensitivity",
]  # fmt: skip
# Imported on first use: sympy and torch are optional and slow to start.
__getattr__ = _lazy.names_of(
    __name__, {"bounds": ("Maximum",), "neural": ("ModelLoss",), "symbolic": ("Query",)}
)
