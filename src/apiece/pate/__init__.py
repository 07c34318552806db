"""Individualized PATE: teachers on people's rows, a student on what they answer with noise.

What needs torch is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from apiece.pate.planning import Noise, Phase, VotePlan, plan_votes
from apiece.pate.strategies import VOTERS, Seats, Strictest, Upsample, Voters, Weight

if TYPE_CHECKING:
    from apiece.pate.lessons import Lessons
    from apiece.pate.teaching import Taught, teach

__all__ = [
    "VOTERS",
    "Lessons",
    "Noise",
    "Phase",
    "Seats",
    "Strictest",
    "Taught",
    "Upsample",
    "VotePlan",
    "Voters",
    "Weight",
    "plan_votes",
    "teach",
]
_MODULE_OF = {"Lessons": "lessons", "Taught": "teaching", "teach": "teaching"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'apiece.pate' has no attribute {name!r}")
    return getattr(importlib.import_module(f"apiece.pate.{_MODULE_OF[name]}"), name)
