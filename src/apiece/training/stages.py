"""Plans that train one model a stage and average the models' outputs (Heo et al.'s AdaPDP)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from apiece._types import State
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.training.updates import Updates


def stage_of(plan: Plan, step: int) -> tuple[int, int]:
    """Return the stage that `step` is in, and how many of the stage's steps come before it."""
    for number, stage in enumerate(plan.stages):
        if step < stage.steps:
            return number, step
        step -= stage.steps
    raise InputError(f"step: {step} beyond the last of the plan's steps")


class OutputAverage(nn.Module):
    """The weighted mean of several models' outputs: Σ weight·model(inputs) / Σ weight.

    Args:
        models: At least one.
        weights: One a model, positive.

    Raises:
        InputError: For no model, or another number of weights.

    Example:
        >>> whole = OutputAverage([nn.Identity(), nn.Threshold(0.0, 9.0)], [1.0, 3.0])
        >>> whole(torch.tensor([-2.0, 4.0])).tolist()
        [6.25, 4.0]
    """

    weights: torch.Tensor

    def __init__(self, models: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        if not models or len(models) != len(weights):
            raise InputError(f"models: {len(models)} of them, {len(weights)} weights; give as many")
        self.models = nn.ModuleList(models)
        share = torch.tensor(weights, dtype=torch.float64)
        self.register_buffer("weights", share / share.sum())

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the average of the models' outputs, which must be tensors.

        Args:
            *args: As each of the models takes them.
            **kwargs: As each of the models takes them.
        """
        total: torch.Tensor | None = None
        for share, model in zip(self.weights.tolist(), self.models, strict=True):
            part = model(*args, **kwargs) * share
            total = part if total is None else total + part
        assert total is not None
        return total


class Restarts:
    """Keeps the first state of model and updates, and each finished stage's parameters.

    Args:
        model: Trained by `updates`.
        updates: With optimizer and schedule.
    """

    def __init__(self, model: nn.Module, updates: Updates) -> None:
        self._model, self._updates = model, updates
        self._first = copy.deepcopy((model.state_dict(), updates.state_dict()))
        self.finished: list[State] = []

    def enter(self, stage: int) -> None:
        """Where `stage` was not entered before, put the parameters of the last one aside.

        Model and updates go back to the first state. Each step says where it is; a stage is
        entered once.

        Args:
            stage: Counted from 0.
        """
        if stage <= len(self.finished):
            return
        self.finished.append(copy.deepcopy(self._model.state_dict()))
        model, updates = copy.deepcopy(self._first)
        self._model.load_state_dict(model)
        self._updates.load_state_dict(updates)

    def average(self, weights: Sequence[float]) -> OutputAverage:
        """Return the average over the finished stages and the present one."""
        models = []
        for state in [*self.finished, self._model.state_dict()]:
            model = copy.deepcopy(self._model)
            model.load_state_dict(state)
            models.append(model)
        return OutputAverage(models, list(weights)[: len(models)])

    def state_dict(self) -> State:
        """Return what a checkpoint must keep."""
        return {"first": list(self._first), "finished": self.finished}

    def load_state_dict(self, state: State) -> None:
        """Take up what a checkpoint kept."""
        model, updates = state["first"]
        self._first = (model, updates)
        self.finished = list(state["finished"])
