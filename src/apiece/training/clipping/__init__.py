"""Clipping: each record's gradient held to its own bound, and summed.

`front` is the door, and `selection` chooses a path for a model. `paths` holds book-keeping (one
forward, one backward), torch.func and the plain loop; `rules` what each layer's parameters give
each record; `independence` the checks that records do not meet. The rest of the library takes what
is named here. `capture`, `proof`, `table` and `rewrite` prove of one graph that records do not
meet, and clip by that graph; `alone` runs one record at a time.
"""

from apiece.training.clipping import guards, records, selection
from apiece.training.clipping.ambient import model_randomness
from apiece.training.clipping.clipped import ClippedSum, clip_factors, slack
from apiece.training.clipping.engine import Proof, proof_of
from apiece.training.clipping.front import clip_and_sum, empty_sum
from apiece.training.clipping.independence.state import State
from apiece.training.clipping.records import LossFunction
from apiece.training.clipping.rules import Contribution, LayerUse, rule_for
from apiece.training.clipping.told import PartPath

__all__ = [
    "ClippedSum",
    "Contribution",
    "LayerUse",
    "LossFunction",
    "PartPath",
    "Proof",
    "State",
    "clip_and_sum",
    "clip_factors",
    "empty_sum",
    "guards",
    "model_randomness",
    "proof_of",
    "records",
    "rule_for",
    "selection",
    "slack",
]
