"""Clipping: each record's gradient held to its own bound, and summed.

`front` is the door. `capture` makes one graph of a model and its loss; `proof` shows by the rules
of `table` and `layers` that no record can meet another in it; `rewrite` makes a program of it that
gives norms and clipped sums, out of `contributions`; `engine` runs it. Where nothing is proved,
`alone` runs one record at a time.
"""

from apiece.training.clipping.engine import Proof
from apiece.training.clipping.front import clip_and_sum
from apiece.training.clipping.records import ClippedSum

__all__ = ["ClippedSum", "Proof", "clip_and_sum"]
