"""Trainer: run a plan, step by step, and nothing but the plan."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from apiece import _check
from apiece.errors import InputError, StateError
from apiece.plan import Plan, Stage
from apiece.training import guards
from apiece.training.batches import Mask, PoissonSampler, bound_index, participants, taking_part
from apiece.training.checkpoints import Folder, Journal
from apiece.training.clipped import ClippedSum
from apiece.training.clipping import LossFunction, clip_and_sum, empty_sum
from apiece.training.distributed import Processes, without_noise
from apiece.training.noise import add_noise
from apiece.training.randomness import Streams
from apiece.training.sources import source_of
from apiece.training.stages import OutputAverage, Restarts


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come; public, a function of the plan and the clock."""

    step: int
    steps: int
    stage: int
    seconds: float


Callback = Callable[[Progress], object]


class Scheduler(Protocol):
    """What the trainer needs of a learning-rate scheduler: one step an update."""

    def step(self) -> None:
        """Move on by one update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what a checkpoint kept."""
        ...


class Trainer:
    """Runs individual DP-SGD exactly as a plan says (S1 Alg. 1 and 2).

    Each step: records join at their own rates; their gradients are clipped at their own norms and
    summed; noise of the stage's standard deviation is added once to the sum; the sum is divided by
    the stage's *expected* batch size; the optimizer takes it as the gradient. An empty batch is a
    step of noise only. Where plan.combine is "average", each stage starts again from the first
    parameters, and `average()` returns the stages' models as one.

    Guarantee: record i's guarantee is that of `plan.mechanism_for(its group)`, for the parameters
    after every step together, as long as optimizer and scheduler see nothing but these gradients.

    dataset: (inputs, targets), a TensorDataset or a map-style Dataset of plan.records records, in
    the order of the budgets that the plan was made from. seed: None takes the key of all
    randomness from the operating system, for a release; a number makes an experiment repeatable.
    physical_batch_size bounds how many records are in memory at a time, not the mechanism.
    checkpoint: a folder for `save`, where fit saves every `save_every` steps. callbacks get a
    `Progress` after each step, which holds public values only. included: a mask of the records
    that may take part, such as those whom a ledger admitted; the others are in no batch, and
    nothing else of the plan changes.

    In torch.distributed each process takes a share of the records, and process 0 adds the noise.

    Raises `InputError` for a plan of another number of records or not bound to records, and what
    `clip_and_sum` raises.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction,
        plan: Plan,
        dataset: Any,
        *,
        seed: int | None = None,
        scheduler: Scheduler | None = None,
        physical_batch_size: int = 1024,
        method: str = "auto",
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
        save_every: int = 100,
        included: Mask | None = None,
    ) -> None:
        self.model, self.optimizer, self.scheduler = guards.unwrap(model), optimizer, scheduler
        self.loss_fn, self.plan, self.method = loss_fn, plan, method
        self.callbacks = tuple(callbacks)
        self.source = source_of(dataset)
        self.processes = Processes.current()
        streams = Streams.from_seed(seed)
        self._streams = replace(streams, key=self.processes.share_key(streams.key))
        self._width = _check.count("physical_batch_size", physical_batch_size)
        self._save_every = _check.count("save_every", save_every)
        self._folder = None if checkpoint is None else Folder(Path(checkpoint))
        self._journal: Journal | None = None
        self._group_index = bound_index(plan)
        self._included = taking_part(included, self._group_index.size)
        self._parameters = guards.trainable(self.model)
        self._stage: int | None = None
        self.step_number = 0
        self._rejected = 0
        self._check()
        self.processes.share_parameters(self.model.state_dict().values())
        average = plan.combine == "average"
        self._restarts = Restarts(self.model, self.optimizer) if average else None

    def _check(self) -> None:
        if self.plan.objections and self._streams.release:
            raise InputError(
                f"plan: not fit for a release ({self.plan.objections[0]}); use another "
                "strategy, or give a seed to run it as an experiment"
            )
        if len(self.source) != self.plan.records or self._group_index.size != len(self.source):
            raise InputError(
                f"dataset: {len(self.source)} records, but the plan is for {self.plan.records}; "
                "make the plan from the budgets of exactly these records"
            )
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [name for name, p in self._parameters.items() if id(p) not in held]
        if missing:
            raise InputError(
                f"optimizer: does not hold parameter {missing[0]!r} ({len(missing)} missing); give "
                "it all trainable parameters, or freeze those with requires_grad_(False)"
            )
        guards.check_modules(self.model)
        if self._folder is not None and self._folder.state.exists():
            raise StateError(
                f"{self._folder.path}: holds a checkpoint already; use Trainer.resume, or another "
                "folder"
            )

    @property
    def steps(self) -> int:
        """Number of steps in the plan."""
        return self.plan.steps

    @property
    def rejected(self) -> int:
        """How many times a sampled record was not finite and left out; a private count."""
        return self._rejected

    def fit(self, steps: int | None = None) -> None:
        """Take `steps` further steps, or all that are left of the plan."""
        left = self.steps - self.step_number
        todo = left if steps is None else min(left, _check.count("steps", steps, least=0))
        for _ in range(todo):
            self.step()
            if self._folder is not None and self.step_number % self._save_every == 0:
                self.save()
        if self._folder is not None and todo:
            self.save()
            if self.step_number == self.steps and self.processes.rank == 0:
                self._folder.finish()

    def step(self) -> Progress:
        """Take one step of the plan. Raises `StateError` when all have been taken."""
        if self.step_number >= self.steps:
            raise StateError(
                f"trainer: all {self.steps} steps of the plan are taken; a further one would cost "
                "privacy that nobody planned: make a new plan"
            )
        begun = time.perf_counter()
        number, stage = self._enter_stage()
        stream = self._streams.sampling(self.step_number, self.processes.rank)
        batch = self._sampler.draw(stream)
        with self._model_randomness():
            clipped = self._clip(batch, stage)
        self._rejected += clipped.rejected
        update = self._release(clipped, stage)
        for name, parameter in self._parameters.items():
            parameter.grad = update[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        self.step_number += 1
        done = Progress(self.step_number, self.steps, number, time.perf_counter() - begun)
        for callback in self.callbacks:
            callback(done)
        return done

    def _release(self, clipped: ClippedSum, stage: Stage) -> dict[str, torch.Tensor]:
        """Return the noisy sum over all processes, divided by the expected batch size."""
        if self.processes.rank == 0:
            generator = self._streams.noise(self.step_number)
            part = add_noise(clipped, stage.noise_stddev, generator=generator)
        else:
            part = without_noise(clipped)
        noisy = self.processes.add_up(part)
        update = {name: value / stage.expected_batch_size for name, value in noisy.items()}
        if self._folder is not None and self.processes.rank == 0:
            if self._journal is None:
                self._journal = Journal(self._folder.journal)
            self._journal.record(self.step_number, update.values())
        return update

    def _clip(self, batch: np.ndarray[Any, np.dtype[np.int64]], stage: Stage) -> ClippedSum:
        device = next(iter(self._parameters.values())).device
        bounds = torch.from_numpy(stage.clip_norm[self._group_index[batch]])
        total = empty_sum(self._parameters)
        for start in range(0, batch.size, self._width):
            part = slice(start, start + self._width)
            inputs, targets = self.source.fetch(batch[part], device)
            clipped = clip_and_sum(
                self.model, self.loss_fn, inputs, targets, bounds[part], method=self.method
            )
            total = clipped if start == 0 else total + clipped
        return total

    def _enter_stage(self) -> tuple[int, Stage]:
        number, before = 0, 0
        while self.step_number >= before + self.plan.stages[number].steps:
            before += self.plan.stages[number].steps
            number += 1
        stage = self.plan.stages[number]
        if self._stage != number:
            if self._restarts is not None and len(self._restarts.finished) < number:
                self._restarts.restart()
            shard = self.processes.shard
            coins = self._streams.participation(number)
            joined = participants(stage, self._group_index, coins) & self._included
            self._sampler = PoissonSampler(stage, self._group_index, joined=joined, shard=shard)
            self._stage = number
        return number, stage

    @contextlib.contextmanager
    def _model_randomness(self) -> Iterator[None]:
        """Give dropout and the like a stream of their own, and leave torch's as it was."""
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(self._streams.model(self.step_number, self.processes.rank))
        try:
            yield
        finally:
            generator.set_state(before)

    def _fingerprint(self) -> str:
        """Return a keyed hash of records and their groups: the same people, in the same order."""
        key = self._streams.derive("fingerprint", 0)
        who = np.where(self._included, self._group_index, -1)
        groups = hashlib.blake2b(who.tobytes(), key=key, digest_size=16)
        return self.source.fingerprint(key) + groups.hexdigest()

    def average(self) -> OutputAverage:
        """Return the stages' models as one, for a plan that combines them by "average".

        Outputs are averaged by the stages' weights. Raises `InputError` for other plans.
        """
        if self._restarts is None:
            raise InputError("average: the plan trains one model through all stages; use .model")
        return self._restarts.average([stage.weight for stage in self.plan.stages])

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, atomically, and return its folder (by default `checkpoint`)."""
        place = self._folder if folder is None else Folder(Path(folder))
        if place is None:
            raise InputError("save: no folder; give one here or as Trainer(checkpoint=...)")
        if self.processes.rank == 0:
            if not hasattr(self, "_data"):
                self._data = self._fingerprint()
            state = {
                "step": self.step_number,
                "plan": self.plan.hash(),
                "data": self._data,
                "release": self._streams.release,
                "world": self.processes.world,
                "rejected": self._rejected,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "restarts": None if self._restarts is None else self._restarts.state_dict(),
            }
            place.save(state, self._streams.key)
        self.processes.wait()
        return place.path

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction,
        plan: Plan,
        dataset: Any,
        **options: Any,
    ) -> Trainer:
        """Return a trainer that goes on from a checkpoint to bit-identical parameters.

        The arguments are those of `Trainer`, the same as for the run that was stopped, but for
        `seed` and `checkpoint`, which the folder gives. Steps made after the checkpoint was
        written are made again with the same records and the same noise.

        Raises `StateError` if the folder has no usable checkpoint, or if the plan, the data, the
        budget groups or the number of processes are not those of that run.
        """
        place = Folder(Path(folder))
        state, key = place.load()
        trainer = cls(model, optimizer, loss_fn, plan, dataset, **options)
        trainer._folder = place
        trainer._streams = Streams(key, state["release"])
        trainer._continue_from(state)
        return trainer

    def _continue_from(self, state: dict[str, Any]) -> None:
        own = {
            "plan": self.plan.hash(),
            "data": self._fingerprint(),
            "world": self.processes.world,
        }
        for what, value in own.items():
            if state[what] != value:
                raise StateError(
                    f"checkpoint: its {what} is not the one given here; resume with the plan, "
                    "the data, the groups and the number of processes that the run began with"
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._restarts is not None:
            self._restarts.load_state_dict(state["restarts"])
        self.step_number = int(state["step"])
        self._rejected = int(state["rejected"])
        self._stage = None
