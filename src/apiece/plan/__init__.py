"""Plan: the one object that the engine runs and the accountant reads."""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.plan.parts import Group, Schedule

if TYPE_CHECKING:
    from apiece.plan.model import BoundPlan, Plan

__all__ = ["Plan", "BoundPlan", "Group", "Schedule"]
__getattr__ = _lazy.names_of(__name__, {"model": ("BoundPlan", "Plan")})
