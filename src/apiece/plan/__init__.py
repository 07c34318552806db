"""Plan: the one object that the engine runs and the accountant reads."""

from apiece.plan.model import BoundPlan, Plan
from apiece.plan.parts import Group, Reference, Schedule, Stage
from apiece.plan.verification import Verification

__all__ = [
    "BoundPlan",
    "Group",
    "Plan",
    "Reference",
    "Schedule",
    "Stage",
    "Verification",
]
