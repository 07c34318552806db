"""From budgets to plans: one file a strategy; `front` is the door."""

from apiece.assignment.allocate import Allocate
from apiece.assignment.correlated import Epochs
from apiece.assignment.front import assign, assign_levels, compare
from apiece.assignment.hybrid import Hybrid
from apiece.assignment.jorgensen import JorgensenSampling
from apiece.assignment.owners import assign_owned
from apiece.assignment.request import Correlated, Strategy
from apiece.assignment.rounds import AdaPDP, Rounds
from apiece.assignment.sample import Sample
from apiece.assignment.scale import Scale
from apiece.assignment.scheduled import schedule_noise
from apiece.assignment.sequential import Sequential
from apiece.assignment.threshold import Threshold
from apiece.assignment.uniform import Uniform

__all__ = [
    "assign", "Uniform", "Scale", "Sample", "Allocate", "Hybrid", "Threshold", "Sequential",
    "Rounds", "AdaPDP", "JorgensenSampling", "Epochs", "Correlated", "Strategy", "assign_levels",
    "assign_owned", "schedule_noise", "compare",
]  # fmt: skip
