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
from apiece.training.identity import copy_settings
from apiece.training.sums import Sums


class Scheduler(Protocol):
    """A learning-rate scheduler that takes one step an update, and can be saved."""

    def step(self) -> None:
        """Move on by one update."""
        ...

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        ...

    def load_state_dict(self, state_dict: State) -> None:
        """Take up the state of a checkpoint."""
        ...


def check_holds(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `InputError` unless the optimizer holds all of the parameters."""
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
        # The scheduler points to its optimizer: both are copied together, so that the copy moves
        # its own.
        copied, copied_optimizer = copy.deepcopy(
            (scheduler, optimizer), _make_small_tensors(optimizer)
        )
    except Exception:  # an object of the user's may raise anything where it cannot be copied
        return
    kind = type(scheduler).__name__
    remedy = f"make it for {updates} updates"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects the optimizer to step too
        for update in range(1, updates + 1):
            try:
                copied.step()
            except Exception as error:  # a scheduler of the user's may raise anything
                reason = " ".join(str(error).split())
                raise InputError(
                    f"scheduler: {kind} fails after update {update} of {updates} ({reason}); "
                    f"{remedy}"
                ) from None
            # Each group's rate must be a number that an update can take; after the last one it does
            # not matter.
            rate = min(float(group["lr"]) for group in copied_optimizer.param_groups)
            if update < updates and not 0 <= rate < math.inf:
                raise InputError(
                    f"scheduler: {kind} gives update {update + 1} of {updates} the learning rate "
                    f"{rate:g}, must be finite and at least 0; {remedy}"
                )


def _make_small_tensors(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """Return a memo for `deepcopy` that puts one number for each tensor of an optimizer."""
    # The memo maps each tensor's id to a tensor of one number: a copy of a large model costs
    # nothing.
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return {id(tensor): torch.zeros(1, requires_grad=tensor.requires_grad) for tensor in tensors}


class Updates:
    """Optimizer and learning rate, one step an update, fed with noisy gradients only.

    schedule: the plan's factors on the learning rates that the optimizer starts with. scheduler:
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
        # A closure would be called inside the step, and would see losses and gradients without
        # noise.
        if arguments := find_step_arguments(optimizer):
            raise UnsupportedError(
                f"optimizer: {type(optimizer).__name__}.step needs {arguments[0]!r}, and would see "
                "the loss and gradients without clipping or noise; use a first-order optimizer, "
                "such as SGD, Adam, AdamW or Adagrad"
            )
        if scheduler is not None and (arguments := find_step_arguments(scheduler)):
            raise UnsupportedError(
                f"scheduler: {type(scheduler).__name__}.step needs {arguments[0]!r}, a figure "
                "about the records that no noise is on; use one that follows the number of the step"
            )
        if scheduler is not None and schedule is not None:
            raise InputError(
                "scheduler: the plan has a learning-rate schedule of its own; leave this one out, "
                "or take it out of the plan"
            )
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.schedule = schedule
        self.settings = copy_settings(optimizer, scheduler)  # as they are before the first step
        self.begun = 0
        # Of each group of parameters the learning rate on which the schedule's factors act.
        self._base_rates: list[float] = []
        if schedule:
            self._base_rates = [float(group["lr"]) for group in optimizer.param_groups]

    def apply(
        self, step: int, parameters: dict[str, nn.Parameter], gradients: dict[str, torch.Tensor]
    ) -> float:
        """Update the parameters, and return the learning rate of the optimizer's first group.

        `step` counts the model's updates from 0. The gradients are in single precision or more, and
        rounded to the parameters' own only now. All other parameters of the optimizer lose their
        gradients: one that somebody left there would be without clipping and noise.
        """
        # Counted first: an exception below leaves an update that has begun and is not made.
        self.begun += 1
        # All parameters of the optimizer, and not only those with a noisy gradient.
        optimized = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in optimized:  # zero_grad does the same at a higher cost
            parameter.grad = None
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        # By the plan's schedule: the factor of this step on the rate that each group began with.
        if self.schedule is not None:
            factor = self.schedule.at(step)
            for group, base_rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(base_rate * factor)
                else:
                    group["lr"] = base_rate * factor
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        # No gradient stays for a step that is not the plan's.
        for parameter in optimized:
            parameter.grad = None
        if self.scheduler is not None:
            self.scheduler.step()
        return rate

    def check_complete(self, updates: int) -> None:
        """Raise `StateError` where more updates have begun than `updates`: one was interrupted."""
        if self.begun != updates:
            raise StateError(
                "trainer: its last update was interrupted half-way; to make it again on what it "
                "left would use its noise twice: resume from the checkpoint, or start afresh"
            )

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "learning_rates": self._base_rates,
        }

    def load_state_dict(self, state: State) -> None:
        """Take up the state of a checkpoint; raise `StateError` where it does not fit."""
        if (self.scheduler is None) != (state["scheduler"] is None):
            article = "no" if state["scheduler"] is None else "a"
            raise StateError(
                f"checkpoint: its run had {article} scheduler; resume with the optimizer and the "
                "scheduler that the run began with"
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
        self._base_rates = list(state["learning_rates"])


def find_step_arguments(stepper: object) -> list[str]:
    """Return the names of the arguments without which its method `step` cannot be called."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # The method of the class: torch's schedulers put a wrapper over the optimizer's.
    step = type(stepper).step  # type: ignore[attr-defined]
    # The first argument is self; what has a default, or is *args, need not be given.
    _, *arguments = inspect.signature(step).parameters.values()
    return [a.name for a in arguments if a.default is a.empty and a.kind not in variadic]


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
        >>> from apiece.training.updates import OutputAverage
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
        # Normalised once, in double precision, so that outputs are weighted by shares.
        share = torch.tensor(checked, dtype=torch.float64)
        self.register_buffer("weights", share / share.sum())

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the average of the models' outputs, which must be tensors.

        Args:
            *args: As each of the models takes them.
            **kwargs: As each of the models takes them.
        """
        # The first output starts the sum, whose type and device it decides.
        (share, model), *further = zip(self.weights.tolist(), self.models, strict=True)
        total: torch.Tensor = model(*args, **kwargs) * share
        for share, model in further:
            total = total + model(*args, **kwargs) * share
        return total


class Restarts:
    """Starts each stage from the first state, and stores the model of each finished stage.

    For plans that train one model a stage and average their outputs (Heo et al.'s AdaPDP).
    """

    def __init__(self, model: nn.Module, updates: Updates) -> None:
        self._model = model
        self._updates = updates
        # A deep copy: the model's own tensors go on changing.
        self._first = copy.deepcopy((model.state_dict(), updates.state_dict()))
        self.finished: list[State] = []

    def enter(self, stage: int) -> None:
        """Enter a stage, counted from 0; where it is new, store the last one's model first.

        Model and updates then go back to the first state.
        """
        # Once a stage: after a resumption `finished` has those that came before.
        while stage > len(self.finished):
            self.finished.append(copy.deepcopy(self._model.state_dict()))
            model, updates = copy.deepcopy(self._first)
            self._model.load_state_dict(model)
            self._updates.load_state_dict(updates)

    def average(self, weights: Sequence[float]) -> OutputAverage:
        """Return the average over the finished stages and the present one."""
        models = []
        # In order of the stages, the one in training last; each model is a copy with its own state.
        for state in [*self.finished, self._model.state_dict()]:
            model = copy.deepcopy(self._model)
            model.load_state_dict(state)
            models.append(model)
        # Weights of the stages so far: the later ones are not trained yet.
        return OutputAverage(models, list(weights)[: len(models)])

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {"first": list(self._first), "finished": self.finished}

    def load_state_dict(self, state: State) -> None:
        """Take up the state of a checkpoint."""
        model, updates = state["first"]
        self._first = (model, updates)
        self.finished = list(state["finished"])


class Unfreezing:
    """Trains, from each step of a schedule on, the parameters whose names begin as it says.

    Clipping, noise and update are of these alone; the others stand still. The schedule is fixed
    before the run, so that the mechanism of a step and the plan's promises do not change.

    schedule: step, from 0 on, to beginnings of names, in whole parts: "encoder.0" is not
    "encoder.01"; "" is every parameter.
    """

    def __init__(self, model: nn.Module, schedule: Mapping[int, Sequence[str]]) -> None:
        self._parameters = dict(model.named_parameters())
        self.schedule = schedule
        steps = [_check.count("unfreeze", step, least=0) for step in schedule]
        if not steps or min(steps) != 0:
            raise InputError(
                f"unfreeze: begins at step {min(steps, default=None)}; give step 0 too"
            )
        self._stages = [(step, self._find_names(schedule[step])) for step in sorted(steps)]

    def _find_names(self, beginnings: Sequence[str]) -> frozenset[str]:
        """Return the parameters' names with one of the beginnings."""
        if isinstance(beginnings, str):
            raise InputError(f"unfreeze: {beginnings!r} is one name; give a list of them")
        names: set[str] = set()
        for beginning in beginnings:
            prefix = f"{beginning}." if beginning else ""
            matches = {name for name in self._parameters if f"{name}.".startswith(prefix)}
            if not matches:
                raise InputError(
                    f"unfreeze: no parameter's name begins with {beginning!r}; the first is "
                    f"{next(iter(self._parameters), None)!r}"
                )
            names |= matches
        if not names:
            raise InputError("unfreeze: a stage trains no parameter; give beginnings of names")
        return frozenset(names)

    def at(self, step: int) -> frozenset[str]:
        """Return the names of the parameters trained in a step, counted from 0."""
        # The last stage of the schedule that has begun.
        return next(names for start, names in reversed(self._stages) if start <= step)

    def enter(self, step: int, sums: Sums) -> None:
        """Let `sums` be over the parameters trained in a step, and freeze the others.

        Raises `StateError` where somebody else changed requires_grad in the meantime.
        """
        names = self.at(step)
        if names == sums.parameters.keys():
            return
        # Before the change, since it looks for changes that somebody else has made.
        sums.check_parameters()
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in names)
        sums.take_parameters()
