"""Clipping: each record's gradient held to its own bound, and summed.

`front` is the door. `capture` makes one graph of a model and its loss; `proof` shows by the rules
of `table` and `layers` that no record can meet another in it; `rewrite` makes a program of it that
gives norms and clipped sums, out of `contributions`; `engine` runs it. `alone` runs one record at
a time where nothing is proved. The rest of the library takes what is named here.
"""

from apiece.training.clipping import guards, records
from apiece.training.clipping.ambient import model_randomness
from apiece.training.clipping.clipped import ClippedSum, clip_factors, slack
from apiece.training.clipping.engine import Proof, proof_of
from apiece.training.clipping.front import clip_and_sum, empty_sum
from apiece.training.clipping.records import LossFunction
from apiece.training.clipping.smooth import smooth_squares

__all__ = [
    "ClippedSum",
    "LossFunction",
    "Proof",
    "clip_and_sum",
    "clip_factors",
    "empty_sum",
    "guards",
    "model_randomness",
    "proof_of",
    "records",
    "slack",
    "smooth_squares",
]
