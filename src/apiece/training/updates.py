"""From a noisy gradient to new parameters: optimizer, learning rate, stages, unfreezing."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from apiece import _check
from apiece._types import State
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.plan import Schedule
from apiece.training.identity import settings_of
from apiece.training.sums import Sums


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


def run_dry(scheduler: Scheduler | None, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Raise `InputError` unless a scheduler gives a learning rate for each of so many updates.

    Before anything is paid for, it is run on a copy, in which every tensor is one number. A
    scheduler that cannot be copied is not looked at.
    """
    if scheduler is None:
        return
    try:
        dry, rates = copy.deepcopy((scheduler, optimizer), _small_tensors(optimizer))
    except Exception:  # whatever objects of the user's raise that cannot be copied
        return
    kind = type(scheduler).__name__
    remedy = f"make it for {updates} updates"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects the optimizer to step too
        for made in range(1, updates + 1):
            try:
                dry.step()
            except Exception as error:  # as above
                reason = " ".join(str(error).split())
                raise InputError(
                    f"scheduler: {kind} fails after update {made} of {updates} ({reason}); {remedy}"
                ) from None
            rate = min(float(group["lr"]) for group in rates.param_groups)
            if made < updates and not 0 <= rate < math.inf:
                raise InputError(
                    f"scheduler: {kind} gives update {made + 1} of {updates} the learning rate "
                    f"{rate:g}, must be finite and at least 0; {remedy}"
                )


def _small_tensors(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """Return what `deepcopy` takes instead of an optimizer's parameters and states."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*held, *(value for value in states if isinstance(value, torch.Tensor))]
    return {id(tensor): torch.zeros(1, requires_grad=tensor.requires_grad) for tensor in tensors}


class Updates:
    """Optimizer and learning rate, one step an update, fed with noisy gradients only.

    schedule: the plan's factors on the learning rates that the optimizer has at first. scheduler:
    torch's, where the plan has none. `begun` counts the updates begun; one that was interrupted has
    begun and is not counted by the loop.
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
        if needed := needed_by(optimizer):
            raise UnsupportedError(
                f"optimizer: {type(optimizer).__name__}.step needs {needed[0]!r}, and would see "
                "the loss and gradients without clipping or noise; use a first-order optimizer, "
                "such as SGD, Adam, AdamW or Adagrad"
            )
        if scheduler is not None and (needed := needed_by(scheduler)):
            raise UnsupportedError(
                f"scheduler: {type(scheduler).__name__}.step needs {needed[0]!r}, a figure about "
                "the records that no noise is on; use one that follows the number of the step"
            )
        if scheduler is not None and schedule is not None:
            raise InputError(
                "scheduler: the plan has a learning-rate schedule of its own; leave this one out, "
                "or take it out of the plan"
            )
        self.optimizer, self.scheduler, self.schedule = optimizer, scheduler, schedule
        self.settings = settings_of(optimizer, scheduler)  # as they are before the first step
        self.begun = 0
        self._first = [float(group["lr"]) for group in optimizer.param_groups] if schedule else []

    def apply(
        self, step: int, parameters: dict[str, nn.Parameter], gradients: dict[str, torch.Tensor]
    ) -> float:
        """Update the parameters, and return the learning rate of the optimizer's first group.

        `step` counts the model's updates from 0. The gradients are in single precision or more, and
        rounded to the parameters' own only now. Whatever else the optimizer holds has no gradient:
        one that somebody left there would be without clipping and noise.
        """
        self.begun += 1
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in held:  # what zero_grad does, with less around it
            parameter.grad = None
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
        for parameter in held:
            parameter.grad = None
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


def needed_by(stepper: object) -> list[str]:
    """Return the names of the arguments that its method `step` cannot be called without."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # of the class, because torch's schedulers put a wrapper over the optimizer's own method
    step = type(stepper).step  # type: ignore[attr-defined]
    _, *arguments = inspect.signature(step).parameters.values()
    return [a.name for a in arguments if a.default is a.empty and a.kind not in kinds]


class OutputAverage(nn.Module):
    """The weighted mean of several models' outputs: Σ weight·model(inputs) / Σ weight.

    Args:
        models: At least one.
        weights: One a model, positive.

    Raises:
        InputError: For no model, another number of weights, or a weight that is not positive.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece.training import OutputAverage
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
        checked = [_check.positive("weight", weight) for weight in weights]
        share = torch.tensor(checked, dtype=torch.float64)
        self.register_buffer("weights", share / share.sum())

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the average of the models' outputs, which must be tensors.

        Args:
            *args: As each of the models takes them.
            **kwargs: As each of the models takes them.
        """
        first, *others = zip(self.weights.tolist(), self.models, strict=True)
        total: torch.Tensor = first[1](*args, **kwargs) * first[0]
        for share, model in others:
            total = total + model(*args, **kwargs) * share
        return total


class Restarts:
    """Begins each stage anew: keeps the first state, and each finished stage's parameters.

    For plans that train one model a stage and average their outputs (Heo et al.'s AdaPDP).
    """

    def __init__(self, model: nn.Module, updates: Updates) -> None:
        self._model, self._updates = model, updates
        self._first = copy.deepcopy((model.state_dict(), updates.state_dict()))
        self.finished: list[State] = []

    def enter(self, stage: int) -> None:
        """Where `stage`, counted from 0, was not entered before, put the last one's model aside.

        Model and updates go back to the first state.
        """
        while stage > len(self.finished):
            self.finished.append(copy.deepcopy(self._model.state_dict()))
            model, updates = copy.deepcopy(self._first)
            self._model.load_state_dict(model)
            self._updates.load_state_dict(updates)

    def average(self, weights: Sequence[float]) -> OutputAverage:
        """Return the average over the finished stages and the present one."""
        models = []
        for state in [*self.finished, self._model.state_dict()]:
            models.append(copy.deepcopy(self._model))
            models[-1].load_state_dict(state)
        return OutputAverage(models, list(weights)[: len(models)])

    def state_dict(self) -> State:
        """Return what a checkpoint must keep."""
        return {"first": list(self._first), "finished": self.finished}

    def load_state_dict(self, state: State) -> None:
        """Take up what a checkpoint kept."""
        model, updates = state["first"]
        self._first = (model, updates)
        self.finished = list(state["finished"])


class Unfreezing:
    """Trains, from each step of a schedule on, the parameters whose names begin as it says.

    Clipping, noise and update are of these alone; the others stand still. The schedule is fixed
    before the run, so that a step's mechanism, and the plan's promises, are what they were.

    schedule: step, from 0 on, to beginnings of names, in whole parts: "encoder.0" is not
    "encoder.01"; "" is every parameter.
    """

    def __init__(self, model: nn.Module, schedule: Mapping[int, Sequence[str]]) -> None:
        self._named, self.schedule = dict(model.named_parameters()), schedule
        steps = [_check.count("unfreeze", step, least=0) for step in schedule]
        if not steps or min(steps) != 0:
            raise InputError(
                f"unfreeze: begins at step {min(steps, default=None)}; give step 0 too"
            )
        self._stages = [(step, self._trained(schedule[step])) for step in sorted(steps)]

    def _trained(self, beginnings: Sequence[str]) -> frozenset[str]:
        """Return the parameters whose names begin so."""
        if isinstance(beginnings, str):
            raise InputError(f"unfreeze: {beginnings!r} is one name; give a list of them")
        names: set[str] = set()
        for start in beginnings:
            held = {n for n in self._named if not start or f"{n}.".startswith(f"{start}.")}
            if not held:
                raise InputError(
                    f"unfreeze: no parameter's name begins with {start!r}; the first is "
                    f"{next(iter(self._named), None)!r}"
                )
            names |= held
        if not names:
            raise InputError("unfreeze: a stage trains no parameter; give beginnings of names")
        return frozenset(names)

    def at(self, step: int) -> frozenset[str]:
        """Return the names of the parameters trained in a step, counted from 0."""
        return next(names for begin, names in reversed(self._stages) if begin <= step)

    def enter(self, step: int, sums: Sums) -> None:
        """Let `sums` be over the parameters trained in a step, and freeze the others.

        Raises `StateError` where requires_grad was changed by others meanwhile.
        """
        names = self.at(step)
        if names == sums.parameters.keys():
            return
        sums.check_same()
        for name, parameter in self._named.items():
            parameter.requires_grad_(name in names)
        sums.take_parameters()
