"""Plan: the one object that the engine runs and the accountant reads."""

from apiece.plan.model import COMBINE, RELATION, Group, Plan
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage
from apiece.plan.verification import Measures, Verification, excess_of

__all__ = [
    "COMBINE",
    "RELATION",
    "Group",
    "Measures",
    "Plan",
    "Reference",
    "Schedule",
    "Stage",
    "Verification",
    "excess_of",
]
