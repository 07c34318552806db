"""Plan: the one object that the engine runs and the accountant reads."""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.plan.parts import Group, Reference, Schedule, Selection, Stage

if TYPE_CHECKING:
    from apiece.plan.model import BoundPlan, Plan
    from apiece.plan.verification import Verification

__all__ = [
    "BoundPlan", "Group", "Plan", "Reference", "Schedule", "Selection", "Stage", "Verification",
]  # fmt: skip
__getattr__ = _lazy.names_of(
    __name__, {"model": ("BoundPlan", "Plan"), "verification": ("Verification",)}
)
