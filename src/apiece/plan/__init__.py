"""Plan: the one object that the engine runs and the accountant reads."""

from apiece.plan.model import COMBINE, RELATION, Group, Plan
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage
from apiece.plan.verification import Measures, Verification

__all__ = ["COMBINE", "RELATION", "Group", "Measures", "Plan", "Schedule", "Stage", "Verification"]
