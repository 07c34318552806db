"""Attribution of a record's privacy loss to its attributes (Mueller et al. 2021).

`partial_sensitivity(function, ...)` is the one verb; the function of a record is a `Query` (an
expression over named attributes, needs sympy) or a `ModelLoss` (a torch model and its loss).
"""

from typing import TYPE_CHECKING, Any

from apiece.errors import InputError
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
    "BoundedSum",
    "Exhaustion",
    "HeterogeneousNoise",
    "Maximum",
    "ModelLoss",
    "PartialSensitivity",
    "Query",
    "exhaustion",
    "individual_rdp",
    "loss_shares",
    "partial_sensitivity",
]

# Imported on first use: sympy and torch are optional and slow to start.
_LAZY = {
    "Maximum": ("bounds", "sensitivity"),
    "ModelLoss": ("neural", "train"),
    "Query": ("symbolic", "sensitivity"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: the module {error.name!r} is missing; pip install 'apiece[{extra}]'"
        ) from None
