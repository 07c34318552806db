"""From budgets to plans: one file a strategy; `front` is the door."""

from apiece.assignment.compare import COMPARED, Compared, compare, noise_over_signal
from apiece.assignment.front import STRATEGIES, assign, assign_levels, strategy_named, unspent_notes
from apiece.assignment.hybrid import Hybrid
from apiece.assignment.jorgensen import JorgensenSampling
from apiece.assignment.owners import OwnedPlan, assign_owned
from apiece.assignment.published import PublishedAdaPDP, PublishedRounds
from apiece.assignment.request import Request, Strategy
from apiece.assignment.rounds import AdaPDP, Rounds
from apiece.assignment.sample import Sample
from apiece.assignment.scale import Scale
from apiece.assignment.scheduled import schedule_noise
from apiece.assignment.sequential import Sequential
from apiece.assignment.threshold import Threshold
from apiece.assignment.uniform import Uniform

__all__ = [
    "COMPARED",
    "STRATEGIES",
    "AdaPDP",
    "Compared",
    "Hybrid",
    "JorgensenSampling",
    "OwnedPlan",
    "PublishedAdaPDP",
    "PublishedRounds",
    "Request",
    "Rounds",
    "Sample",
    "Scale",
    "Sequential",
    "Strategy",
    "Threshold",
    "Uniform",
    "assign",
    "assign_levels",
    "assign_owned",
    "compare",
    "noise_over_signal",
    "schedule_noise",
    "strategy_named",
    "unspent_notes",
]
