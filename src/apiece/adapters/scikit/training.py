"""From encoded rows and budgets to a trained network and the plan that it was trained by."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece.assignment import assign
from apiece.budgets import Budgets, doubts
from apiece.errors import UnsupportedError
from apiece.jobs import Target, build
from apiece.plan import BoundPlan
from apiece.training import Streams, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained; what is None is chosen by the number of records, which is public.

    Args:
        strategy: By which budgets become a plan.
        batch_size: Expected.
        steps: How many updates.
        clip_norm: The mean bound on a record's gradient.
        learning_rate: Of plain SGD.
        hidden: Widths of hidden layers.
        rows_per_person: The most rows that a person brings to a step.
    """

    strategy: Any
    batch_size: float | None
    steps: int
    clip_norm: float
    learning_rate: float
    hidden: tuple[int, ...]
    rows_per_person: int | None

    def plan(self, budgets: Budgets) -> BoundPlan:
        """Return the verified plan for these records or persons.

        Args:
            budgets: Theirs.

        Raises:
            UnsupportedError: For a strategy that trains several models.
            InputError: As `assign` does.
        """
        size = len(budgets)
        plan = assign(
            budgets,
            self.strategy,
            steps=self.steps,
            expected_batch_size=batch_size(size) if self.batch_size is None else self.batch_size,
            clip_norm=self.clip_norm,
        )
        if plan.combine != "continue":
            raise UnsupportedError(
                f"strategy {plan.strategy}: averages the outputs of {len(plan.stages)} models, and "
                "an estimator has one; choose sample, scale or hybrid"
            )
        say_doubts(plan)
        return plan

    def train(
        self,
        plan: BoundPlan,
        target: Target,
        features: npt.NDArray[np.float32],
        targets: torch.Tensor,
        *,
        people: npt.NDArray[Any] | None,
        seed: int | None,
    ) -> nn.Sequential:
        """Return the network that the plan gives on these rows.

        Args:
            plan: As `plan` made it.
            target: What is predicted.
            features: (n, d).
            targets: (n, …), as `target` encodes them.
            people: (n,) Each row's person, or None.
            seed: None for randomness of the operating system.
        """
        network = build(
            features.shape[1], target.outputs, self.hidden, Streams.from_seed(seed).initialisation()
        )
        Trainer(
            network,
            torch.optim.SGD(network.parameters(), lr=self.learning_rate),
            target.loss,
            plan,
            (torch.from_numpy(features), targets),
            seed=seed,
            people=people,
            rows_per_person=self.rows_per_person,
        ).fit()
        return network


def say_doubts(plan: BoundPlan) -> None:
    """Warn of budgets that look like a mistake.

    Args:
        plan: Of these budgets.
    """
    for doubt in doubts(plan.budget_groups):
        warnings.warn(doubt, UserWarning, stacklevel=5)


def batch_size(records: int) -> float:
    """Return the expected batch size that is taken where none is given."""
    return float(min(records, 2048))
