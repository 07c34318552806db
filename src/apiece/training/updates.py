"""From a noisy gradient to new parameters: the optimizer, its learning rate, what they remember."""

from __future__ import annotations

import inspect
import operator
from typing import Any, Protocol

import torch
from torch import nn

from apiece._types import State
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.plan import Schedule
from apiece.training.clipping import guards
from apiece.training.identity import settings_of


class Scheduler(Protocol):
    """What the trainer needs of a learning-rate scheduler: one step an update."""

    def step(self) -> None:
        """Move on by one update."""
        ...

    def state_dict(self) -> State:
        """Return what a checkpoint must keep."""
        ...

    def load_state_dict(self, state_dict: State) -> None:
        """Take up what a checkpoint kept."""
        ...


def check_holds(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `InputError` unless the optimizer holds every one of the parameters."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if id(p) not in held]
    if missing:
        raise InputError(
            f"optimizer: does not hold parameter {missing[0]!r} ({len(missing)} missing); give "
            "it all trainable parameters, or freeze those with requires_grad_(False)"
        )


def check_same(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `StateError` unless these are still the model's trainable parameters.

    Of one that was frozen there is no gradient any more, and one that took another's place, or
    was unfrozen, is not updated: the noise would be drawn for a sum that nobody applies.
    """
    every = (p for _, module in guards.modules_of(model) for p in module._parameters.values())
    trained = [p for p in dict.fromkeys(every) if p is not None and p.requires_grad]
    if len(trained) == len(parameters) and all(map(operator.is_, trained, parameters.values())):
        return
    now = {name: p for name, p in model.named_parameters() if p.requires_grad}
    frozen, added = sorted(parameters.keys() - now.keys()), sorted(now.keys() - parameters.keys())
    other = sorted(
        name for name in now.keys() & parameters.keys() if now[name] is not parameters[name]
    )
    told = {"no longer trainable": frozen, "trainable now": added, "another tensor now": other}
    what = "; ".join(f"{names[0]!r} is {how}" for how, names in told.items() if names)
    raise StateError(
        f"model: its trainable parameters changed since the trainer was made ({what}); keep "
        "requires_grad and the parameters as they were, or make a trainer for each part of the run"
    )


class Updates:
    """Optimizer and learning rate, one step an update, fed with noisy gradients only.

    schedule: the plan's factors on the learning rates that the optimizer has at first. scheduler:
    torch's, where the plan has none.

    Raises `UnsupportedError` for an optimizer that calls for closures, and so would see gradients
    without clipping and noise, and for a scheduler that calls for a metric; `InputError` where
    both kinds of schedule are given.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler | None,
        schedule: Schedule | None,
    ) -> None:
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise UnsupportedError(
                "optimizer: SparseAdam takes sparse gradients only, and noise makes every entry "
                "of them; use Adam"
            )
        needed = _needed(optimizer)
        if needed:
            raise UnsupportedError(
                f"optimizer: {type(optimizer).__name__}.step needs {needed[0]!r}, and would see "
                "the loss and gradients without clipping or noise; use a first-order optimizer, "
                "such as SGD, Adam, AdamW or Adagrad"
            )
        if scheduler is not None and _needed(scheduler):
            raise UnsupportedError(
                f"scheduler: {type(scheduler).__name__}.step needs "
                f"{_needed(scheduler)[0]!r}, a figure about the records that no noise is "
                "on; use one that follows the number of the step"
            )
        if scheduler is not None and schedule is not None:
            raise InputError(
                "scheduler: the plan has a learning-rate schedule of its own; leave this one out, "
                "or take it out of the plan"
            )
        self.optimizer, self.scheduler, self.schedule = optimizer, scheduler, schedule
        self.settings = settings_of(optimizer, scheduler)  # as they are before the first step
        self.begun = 0  # updates begun; one that was interrupted has begun and is not counted
        self._first = [float(group["lr"]) for group in optimizer.param_groups] if schedule else []

    def apply(
        self, step: int, parameters: dict[str, nn.Parameter], gradients: dict[str, torch.Tensor]
    ) -> float:
        """Update the parameters by these gradients; `step` counts the model's updates from 0.

        The gradients are in single precision or more, and rounded to the parameters' own only now.

        Whatever else the optimizer holds has no gradient: one that somebody left there would be
        without clipping and noise. Returns the learning rate of the first group.
        """
        self.begun += 1
        self.optimizer.zero_grad(set_to_none=True)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        if self.schedule is not None:
            factor = self.schedule.at(step)
            for group, first in zip(self.optimizer.param_groups, self._first, strict=True):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(first * factor)
                else:
                    group["lr"] = first * factor
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        return rate

    def check_whole(self, made: int) -> None:
        """Raise `StateError` where an update has begun beyond the `made` ones: it was torn."""
        if self.begun != made:
            raise StateError(
                "trainer: its last update was interrupted half-way; to make it again on what it "
                "left would use its noise twice: resume from the checkpoint, or start afresh"
            )

    def state_dict(self) -> State:
        """Return what a checkpoint must keep."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "learning_rates": self._first,
        }

    def load_state_dict(self, state: State) -> None:
        """Take up what a checkpoint kept. Raises `StateError` where it does not fit."""
        if (self.scheduler is None) != (state["scheduler"] is None):
            raise StateError(
                "checkpoint: its run had "
                f"{'no' if state['scheduler'] is None else 'a'} scheduler; resume with the "
                "optimizer and the scheduler that the run began with"
            )
        try:
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
        except (ValueError, KeyError, AttributeError) as error:
            raise StateError(
                f"checkpoint: its optimizer or scheduler does not fit ({error}); resume with "
                "those that the run began with"
            ) from None
        self._first = list(state["learning_rates"])


def _needed(stepper: Any) -> list[str]:
    """Return the names of the arguments that its method `step` cannot be called without."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # of the class, because torch's schedulers put a wrapper over the optimizer's own method
    _, *arguments = inspect.signature(type(stepper).step).parameters.values()
    return [a.name for a in arguments if a.default is a.empty and a.kind not in kinds]
