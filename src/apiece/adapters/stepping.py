"""A private step as other frameworks' loops take one: by calling an optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from apiece._types import State
from apiece.errors import StateError
from apiece.training import Progress, Trainer


class PrivateStep(torch.optim.Optimizer):
    """An optimizer whose step is one step of a `Trainer`: draw, clip, noise, update.

    It shares the parameter groups of the trainer's own optimizer, so that what shows or schedules
    learning rates finds them. Gradients that a loop computes are not looked at.

    Args:
        trainer: Whose steps these are.
        around: Makes the context of each step, such as autocast.

    Guarantee:
        The parameters change by steps of the trainer alone.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets(epsilon=[1.0] * 20, delta=1e-3), Scale(), steps=3,
        ...               expected_batch_size=5, clip_norm=1.0)
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> data = torch.randn(20, 3), torch.zeros(20, dtype=torch.long)
        >>> trainer = Trainer(model, sgd, loss, plan, data, seed=0)
        >>> PrivateStep(trainer).step()
        >>> trainer.step_number
        1
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(trainer.optimizer.param_groups, {})
        self.param_groups = trainer.optimizer.param_groups
        self.trainer, self._around = trainer, around
        self.done: Progress | None = None  # what callbacks were told of the last step

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step of the trainer.

        Args:
            closure: Not called; a loop's own losses and gradients have no part in the step.

        Raises:
            StateError: As `Trainer.step`.
        """
        with self._around():
            self.done = self.trainer.step()

    def __getstate__(self) -> State:
        return {"trainer": self.trainer}  # which refuses to be copied

    def state_dict(self) -> State:
        """Return nothing: a run is kept in its own checkpoint folder."""
        return {}

    def load_state_dict(self, state_dict: State) -> None:
        """Refuse all but nothing: parameters and noise would no longer be those of one run.

        Args:
            state_dict: Empty, as `state_dict` gives it.

        Raises:
            StateError: For any other.
        """
        if not state_dict:
            return
        raise StateError(
            "optimizer: a private run goes on from its own folder only; use "
            "Trainer(checkpoint=...) and Trainer.resume"
        )
