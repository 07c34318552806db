"""Trainer: run a plan, step by step, and nothing but the plan."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece import _check
from apiece._types import Mask
from apiece.errors import InputError, StateError
from apiece.plan import Plan, Stage
from apiece.training.batches import PoissonSampler, bound_index, participants, taking_part
from apiece.training.callbacks import Callback, Progress
from apiece.training.checkpoints import Folder, Journal
from apiece.training.clipping import (
    ClippedSum,
    LossFunction,
    State,
    clip_and_sum,
    empty_sum,
    guards,
    model_randomness,
    selection,
)
from apiece.training.distributed import Processes
from apiece.training.noise import add_noise
from apiece.training.randomness import Streams
from apiece.training.sources import source_of
from apiece.training.stages import OutputAverage, Restarts, stage_of
from apiece.training.updates import Scheduler, Updates, check_holds, check_same


class Trainer:
    """Runs individual DP-SGD exactly as a plan says (Boenisch et al. 2023 Alg. 1 and 2).

    Each step: records join at their own rates; their gradients are clipped at their own norms and
    summed; noise of the stage's standard deviation is added once to the sum; the sum is divided by
    the stage's *expected* batch size; the optimizer takes it as the gradient. An empty batch is a
    step of noise only. Stages follow one another on the same model; where plan.combine is
    "average", each starts again from the first parameters, optimizer and scheduler, and
    `average()` returns the stages' models as one. plan.learning_rate, where there is one, sets
    the learning rate of each step.

    Guarantee: record i's guarantee is that of `plan.mechanism_for(its group)`, for the parameters
    after every step together, as long as optimizer and scheduler see nothing but these gradients.

    dataset: (inputs, targets), a TensorDataset or a map-style Dataset of the plan's records, in
    the order of the budgets that it was made from. seed: None takes the key of all
    randomness from the operating system, for a release; a number makes an experiment repeatable.
    physical_batch_size bounds how many records are in memory at a time, not the mechanism.
    checkpoint: a folder for `save`; the first checkpoint is written before the first step, then
    fit saves every `save_every` steps. callbacks get a `Progress` after each step, which holds
    public values only. included: a mask of the records that may take part, such as those whom a
    ledger admitted; the others are in no batch, and nothing else of the plan changes.

    In torch.distributed each process takes a share of the records, and process 0 adds the noise.

    Raises `InputError` for a plan of another number of records or not bound to records, a model
    without trainable parameters, parameters that the optimizer does not hold, and two schedules;
    for a release, what `Plan.require` raises: every promise is recomputed before the first step;
    `UnsupportedError` for optimizers that call for a closure (LBFGS) and schedulers that call for
    a metric; and what `clip_and_sum` raises.

    >>> from apiece import Budgets, Scale, assign
    >>> budgets = Budgets.from_groups([("strict", 0.5, 1.0), ("weak", 0.5, 3.0)], 40, 1e-3)
    >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=8, clip_norm=1.0)
    >>> model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none")
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> data = torch.randn(40, 3), torch.zeros(40, dtype=torch.long)
    >>> trainer = Trainer(model, optimizer, loss, plan, data, seed=0)
    >>> trainer.fit()
    >>> trainer.step_number
    5
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
        self.model, self.optimizer = guards.unwrap(model), optimizer
        self._updates = Updates(optimizer, scheduler, plan.learning_rate)
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
        self._state = State(model=self.model)
        self._stage: int | None = None
        self.step_number = 0
        self._rejected = 0
        self._data: str | None = None
        self._begun, self._finished = False, False
        self._check()
        self.processes.wait()
        self.processes.share_parameters(self.model.state_dict().values())
        average = plan.combine == "average"
        self._restarts = Restarts(self.model, self._updates) if average else None

    def _check(self) -> None:
        if self._streams.release:
            self.plan.require()
        if len(self.source) != self._group_index.size:
            raise InputError(
                f"dataset: {len(self.source)} records, but the plan is for "
                f"{self._group_index.size}; make the plan from the budgets of exactly these records"
            )
        check_holds(self.optimizer, self._parameters)
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
        if self._folder is not None and not self._finished:
            self.save()
            if self.step_number == self.steps:
                self._finished = True
                if self.processes.rank == 0:
                    self._folder.finish()

    def step(self) -> Progress:
        """Take one step of the plan.

        Raises `StateError` when all have been taken, when the last was interrupted half-way, and
        when other parameters are trainable than at first.
        """
        if self.step_number >= self.steps:
            raise StateError(
                f"trainer: all {self.steps} steps of the plan are taken; a further one would cost "
                "privacy that nobody planned: make a new plan"
            )
        self._updates.check_whole(self.step_number)
        check_same(self.model, self._parameters)
        if self._folder is not None and not self._begun:
            self.save()  # before anything is released, so that it can be made again
        begun = time.perf_counter()
        number, within, stage = self._enter_stage()
        stream = self._streams.sampling(self.step_number, self.processes.rank)
        batch = self._sampler.draw(stream)
        seed = self._streams.model(self.step_number, self.processes.rank)
        devices = (p.device for p in self._parameters.values())
        with model_randomness(seed, devices), self._state.kept(contents=False):
            clipped = self._clip(batch, stage)
        self._rejected += clipped.rejected
        update = self._release(clipped, stage)
        count = self.step_number if self._restarts is None else within
        rate = self._updates.apply(count, self._parameters, update)
        self.step_number += 1
        seconds = time.perf_counter() - begun
        done = Progress(self.step_number, self.steps, number, seconds, rate)
        for callback in self.callbacks:
            callback(done)
        return done

    def _release(self, clipped: ClippedSum, stage: Stage) -> dict[str, torch.Tensor]:
        """Return the noisy sum over all processes, divided by the expected batch size."""
        total = self.processes.gather(clipped)
        noisy = total.gradients
        if self.processes.rank == 0:
            generator = self._streams.noise(self.step_number)
            noisy = add_noise(total, stage.noise_stddev, generator=generator)
        noisy = self.processes.share(noisy)
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

    def _enter_stage(self) -> tuple[int, int, Stage]:
        number, within = stage_of(self.plan, self.step_number)
        stage = self.plan.stages[number]
        if self._stage != number:
            if self._restarts is not None and len(self._restarts.finished) < number:
                self._restarts.restart()
            shard = self.processes.shard
            coins = self._streams.participation(number)
            joined = participants(stage, self._group_index, coins) & self._included
            self._sampler = PoissonSampler(stage, self._group_index, joined=joined, shard=shard)
            self._stage = number
        return number, within, stage

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
        """Write a checkpoint, atomically, and return its folder.

        folder: for a trainer made without `checkpoint`, once; it is then the run's. Raises
        `InputError` for none and for a second one, which would know nothing of the first's steps.
        """
        place = self._folder or (None if folder is None else Folder(Path(folder)))
        if place is None:
            raise InputError("save: no folder; give one here or as Trainer(checkpoint=...)")
        if folder is not None and Path(folder) != place.path:
            raise InputError(f"save: folder {folder}, but the run's is {place.path}; leave it out")
        self._updates.check_whole(self.step_number)
        self._folder, self._begun = place, True
        if self.processes.rank == 0 and not self._finished:
            self._data = self._data or self._fingerprint()
            state = {
                "step": self.step_number,
                "finished": self.step_number == self.steps,
                "plan": self.plan.hash(),
                "data": self._data,
                "release": self._streams.release,
                "world": self.processes.world,
                "rejected": self._rejected,
                "paths": selection.chosen(self.model),
                "model": self.model.state_dict(),
                "updates": self._updates.state_dict(),
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

        A finished run comes back with its last parameters and no step left.

        Raises `StateError` if the folder has no usable checkpoint, or if the plan, the data, the
        budget groups, the number of processes, the model, optimizer or scheduler are not those
        of that run.
        """
        for name in {"seed", "checkpoint"} & set(options):
            raise InputError(f"resume: {name} is the folder's to say; leave it out")
        place = Folder(Path(folder))
        state, key = place.load()
        seed = None if state["release"] else 0  # the key takes its place
        trainer = cls(model, optimizer, loss_fn, plan, dataset, seed=seed, **options)
        trainer._folder, trainer._begun = place, True
        trainer._continue_from(state, key)
        return trainer

    def _continue_from(self, state: dict[str, Any], key: bytes | None) -> None:
        own = {"plan": self.plan.hash(), "world": self.processes.world}
        if key is None:
            self._finished = True
        else:
            self._streams = Streams(key, state["release"])
            own["data"] = self._fingerprint()
        for what, value in own.items():
            if state[what] != value:
                raise StateError(
                    f"checkpoint: its {what} is not the one given here; resume with the plan, "
                    "the data, the groups and the number of processes that the run began with"
                )
        self._data = state["data"]
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise StateError(f"checkpoint: its model is another ({error})") from None
        self._updates.load_state_dict(state["updates"])
        if self._restarts is not None:
            self._restarts.load_state_dict(state["restarts"])
        self.step_number = self._updates.begun = int(state["step"])
        self._rejected = int(state["rejected"])
        selection.choose(self.model, state["paths"])
        self._stage = None
