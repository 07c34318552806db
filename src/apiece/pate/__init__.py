"""Individualized PATE: teachers on people's rows, a student on what they answer with noise.

What needs torch is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.pate.planning import Noise, plan_votes
from apiece.pate.strategies import Upsample

if TYPE_CHECKING:
    from apiece.pate.teaching import Lessons, teach

__all__ = ["plan_votes", "Noise", "Upsample", "teach", "Lessons"]
__getattr__ = _lazy.names_of(__name__, {"teaching": ("Lessons", "teach")})
