"""A small world that the tests of PATE share: people, a stack of models, and plans."""

import copy
import math

import numpy as np
import torch
from scipy.stats import norm

from apiece.budgets import Budgets
from apiece.pate import plan_votes
from apiece.pate.planning import VotePlan
from apiece.pate.strategies import Voters
from apiece.training.stacked import StackedMlp

MODEL = StackedMlp((4, 3))
CLASSES = 3


def budgets(size: int = 60, *, ids: bool = False) -> Budgets:
    levels = np.array([1.0, 2.0, 3.0])[np.arange(size) % 3]
    return Budgets(levels, 1e-5, ids=[f"p{i:03d}" for i in range(size)] if ids else None)


def plan(strategy: str | Voters = "weight", *, size: int = 60, questions: int = 20) -> VotePlan:
    return plan_votes(budgets(size), strategy, teachers=12, questions=questions)


def people(rows: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    return inputs, inputs[:, :3].argmax(dim=1)


def public(rows: int = 20) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(9))


def unchecked(votes: VotePlan, **changes: object) -> VotePlan:
    """A plan of votes as it would be if nothing were checked when it is made."""
    made = copy.copy(votes)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def passed(votes: VotePlan) -> list[str]:
    """Name the groups whose (ε, δ) is passed: from seats, noise and phases, by textbook formulas.

    Nothing of the project's accountant is asked: μ² adds up over Gaussian mechanisms, and
    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    seats, noise, found = votes.seats, votes.noise, []
    groups = votes.plan.budget_groups
    for g in range(len(groups)):
        own = int(seats.pool[g])
        reach = float(seats.copies[g]) * float(seats.weight[own])
        square = 0.0
        for phase in votes.phases:
            if phase.voting[own]:
                square += phase.answers * 2 * (reach / noise.answer) ** 2
                if noise.check is not None:
                    square += phase.questions * (reach / noise.check) ** 2
        mu, epsilon = math.sqrt(square), float(groups.epsilon[g])
        delta = 0.0
        if mu:
            far = math.exp(epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu)))
            delta = float(norm.cdf(mu / 2 - epsilon / mu)) - far
        if not delta <= float(groups.delta[g]) * (1 + 1e-7):
            found.append(str(groups.name[g]))
    return found
