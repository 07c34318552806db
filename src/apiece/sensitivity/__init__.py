"""Attribution of a record's privacy loss to its attributes (Mueller et al. 2021).

`partial_sensitivity(function, ...)` is the one verb; the function of a record is an `Expression`
over named attributes (needs sympy) or a `ModelLoss` (a torch model and its loss).
"""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.sensitivity.noise import HeterogeneousNoise
from apiece.sensitivity.partial import (
    PartialSensitivity,
    exhaustion,
    individual_rdp,
    loss_shares,
    partial_sensitivity,
)

if TYPE_CHECKING:
    from apiece.sensitivity.neural import ModelLoss
    from apiece.sensitivity.symbolic import Expression

__all__ = [
    "partial_sensitivity", "PartialSensitivity", "Expression", "ModelLoss", "loss_shares",
    "exhaustion", "individual_rdp", "HeterogeneousNoise",
]  # fmt: skip
# Imported on first use: sympy and torch are optional and slow to start.
__getattr__ = _lazy.names_of(__name__, {"neural": ("ModelLoss",), "symbolic": ("Expression",)})
