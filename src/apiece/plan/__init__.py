"""Plan: the one object that the engine runs and the accountant reads."""

from apiece.plan.group import Group, GroupStage
from apiece.plan.model import COMBINE, RELATION, BoundPlan, Plan
from apiece.plan.numbers import PUBLIC, UNSPENT
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage
from apiece.plan.verification import Measures, Verification, excess_of

__all__ = [
    "COMBINE",
    "PUBLIC",
    "RELATION",
    "UNSPENT",
    "BoundPlan",
    "Group",
    "GroupStage",
    "Measures",
    "Plan",
    "Reference",
    "Schedule",
    "Stage",
    "Verification",
    "excess_of",
]
