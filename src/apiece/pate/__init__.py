"""Individualized PATE: teachers on people's rows, a student on what they answer with noise.

What needs torch is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from apiece import _lazy
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
__getattr__ = _lazy.names_of(__name__, {"lessons": ("Lessons",), "teaching": ("Taught", "teach")})
