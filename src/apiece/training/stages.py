"""Plans that train one model a stage and average the models' outputs (S3's AdaPDP)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from apiece.errors import InputError


class OutputAverage(nn.Module):
    """The weighted mean of several models' outputs: Σ weight·model(inputs) / Σ weight."""

    weights: torch.Tensor

    def __init__(self, models: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        if not models or len(models) != len(weights):
            raise InputError(f"models: {len(models)} of them, {len(weights)} weights; give as many")
        self.models = nn.ModuleList(models)
        share = torch.tensor(weights, dtype=torch.float64)
        self.register_buffer("weights", share / share.sum())

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the average of the models' outputs, which must be tensors."""
        total: torch.Tensor | None = None
        for share, model in zip(self.weights.tolist(), self.models, strict=True):
            part = model(*args, **kwargs) * share
            total = part if total is None else total + part
        assert total is not None
        return total


class Restarts:
    """Keeps the first state of model and optimizer, and each finished stage's parameters."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._first = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        self.finished: list[dict[str, Any]] = []

    def restart(self) -> None:
        """Put the stage's parameters aside, and model and optimizer back to the first state."""
        self.finished.append(copy.deepcopy(self._model.state_dict()))
        model, optimizer = copy.deepcopy(self._first)
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)

    def average(self, weights: Sequence[float]) -> OutputAverage:
        """Return the average over the finished stages and the present one."""
        models = []
        for state in [*self.finished, self._model.state_dict()]:
            model = copy.deepcopy(self._model)
            model.load_state_dict(state)
            models.append(model)
        return OutputAverage(models, list(weights)[: len(models)])

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        return {"first": list(self._first), "finished": self.finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint kept."""
        first, optimizer = state["first"]
        self._first = (first, optimizer)
        self.finished = list(state["finished"])
