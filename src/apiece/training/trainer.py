"""Trainer: run a plan, step by step, and nothing but the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece import _check
from apiece._text import MAX_ROWS, html_table, rounded_up
from apiece._types import Mask
from apiece.budgets.groups import SMALL_GROUP
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.plan import BoundPlan, Plan
from apiece.plan.verification import compute_spending_at
from apiece.training.batches import PlannedSampler, read_included
from apiece.training.callbacks import Callback, Progress
from apiece.training.checkpoints import CheckpointFolder, Keeper
from apiece.training.clipping import guards
from apiece.training.clipping.records import LossFunction
from apiece.training.correlated import CorrelatedNoise
from apiece.training.epochs import EpochLoader
from apiece.training.loop import Descent, Loop, NoiseAlone, Prepaid
from apiece.training.processes import Processes
from apiece.training.randomness import Streams
from apiece.training.sources import look_at_items, source_of
from apiece.training.sums import Sums, read_units
from apiece.training.updates import (
    OutputAverage,
    Restarts,
    Scheduler,
    Unfreezing,
    Updates,
    check_holds,
    run_dry,
)

# The columns of a trainer's table in a notebook.
_COLUMNS = ("group", "ε asked", "δ", "ε spent so far")


class Trainer(Descent):
    """Runs individual DP-SGD exactly as a plan says.

    Each step: records join at their own rates; their gradients are clipped at their own norms and
    summed; noise of the stage's standard deviation is added once to the sum; the sum is divided by
    the stage's *expected* batch size; the optimizer takes it as the gradient. An empty batch is a
    step of noise only. Stages follow one another on the same model; where plan.combine is
    "average", each starts again from the first parameters, optimizer and scheduler, and
    `average()` returns the stages' models as one. plan.learning_rate, where there is one, sets
    the learning rate of each step.

    In torch.distributed each process takes a share of the records, and process 0 adds the noise.

    Args:
        model: The model that is trained; no layer of it may mix records.
        optimizer: Holds every trainable parameter, and calls for no closure.
        loss_fn: Maps outputs and targets to one loss a record, as in `clip_and_sum`.
        plan: Bound to its records.
        dataset: (inputs, targets), a TensorDataset or a map-style Dataset of the plan's records,
            in the order of the budgets that it was made from; items are pairs (inputs, target) or
            dicts with "labels". Or a DataLoader, of which dataset and `collate_fn` are taken.
        seed: None takes the key of all randomness from the operating system, for a release; a
            number makes an experiment repeatable.
        scheduler: Of the learning rate, where the plan has no schedule; one step an update. It is
            run through all updates on a copy, before the first is paid.
        physical_batch_size: Number of records in memory at a time; no part of the mechanism.
        method: Method of `clip_and_sum`.
        callbacks: Get a `Progress` after each step, which holds public values only.
        checkpoint: A folder for `save`; the first checkpoint is written before the first step.
        save_every: Steps between two checkpoints; `fit` writes one at its end too.
        included: A mask of the records that may take part, such as those whom a ledger admitted;
            the others are in no batch, and nothing else of the plan changes. A Series has the ids
            of the plan as its index; an array is in their order.
        withdrawn: Asked before each step, also of a run that is resumed: a mask of the records that
            have left since, such as `TrainingCharge.withdrawn`. They are in no further batch. The
            draws of all others stay the same to the bit. A step that was made before a kill is not
            made again without them: its two sums under one noise would tell them, so it is refused.
        paid_steps: Asked before each step: how many of the plan's steps are paid for, such as
            `TrainingCharge.paid_steps`; a further one is refused. None, or None returned, for all.
        people: (n,) The id of each row's person, where the plan's records are persons with any
            number of rows, in any order; None where each row is a record. It is in the order of
            the dataset, which has no index, so that a Series with one (other than 0, 1, 2, …) is
            refused: `.to_numpy()` says that it is in this order.
        rows_per_person: The most rows that a person brings to a step, by coins of that person
            alone; None for all. Their gradients are added and clipped as one.
        unfreeze: Step → beginnings of the names of the parameters trained from that step on, such
            as {0: ["head"], 100: ["head", "encoder.11"], 300: [""]}; the others are frozen, and
            get neither gradient nor noise. None trains those that require a gradient.
        compiled: Whether the proved graph is compiled at the first step, as in `clip_and_sum`: for
            long runs of models without convolutions. A run that is resumed needs the same.
        order: For a plan with correlated noise, batches in an order of one's own in place of the
            plan's: an iterable that yields the positions of a step's records (of persons, with
            `people`), or a DataLoader, whose batches are taken pass after pass. It must not depend
            on who is there. Each batch is checked as it comes. A run that is resumed needs the same
            order from its beginning, and all processes need the same.

    Raises:
        DataError: For a Series that cannot be joined to the plan's ids or to the dataset.
        InputError: For a plan of another number of records or not bound to records, a plan for
            persons without `people`, a model without trainable parameters, parameters that the
            optimizer does not hold, two schedules, a scheduler that ends before the plan does, an
            order for a plan that draws its batches; for a release, a plan with objections.
        VerificationError: For a release by a plan that breaks a promise: all are recomputed.
        UnsupportedError: For an optimizer that calls for a closure (LBFGS), a scheduler that calls
            for a metric, and what `clip_and_sum` does not take.
        StateError: Where the folder holds a checkpoint already.

    Guarantee:
        The parameters after all steps together are to record (or person) i, under add/remove, at
        most what `plan.mechanism_for(its group)` is, where `seed` is None and optimizer and
        scheduler see nothing but these gradients.

    References:
        Abadi et al. 2016, Alg. 1; Boenisch et al. 2023, Alg. 1 and 2.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece import Budgets, Scale, Trainer, assign
        >>> budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 40, 1e-3)
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
        dataset: object,
        *,
        seed: int | None = None,
        scheduler: Scheduler | None = None,
        physical_batch_size: int = 1024,
        method: str = "auto",
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
        save_every: int = 100,
        included: Mask | None = None,
        withdrawn: Callable[[], Mask] | None = None,
        paid_steps: Callable[[], int | None] | None = None,
        people: npt.ArrayLike | None = None,
        rows_per_person: int | None = None,
        unfreeze: Mapping[int, Sequence[str]] | None = None,
        compiled: bool = False,
        order: object = None,
    ) -> None:
        self.model = guards.unwrap(model)
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.plan = plan
        # Everything that may be refused is refused before the run owns a folder, a key or a step.
        updates = Updates(optimizer, scheduler, plan.learning_rate)
        _run_schedule_dry(plan, scheduler, optimizer)
        source = source_of(dataset, order=order)
        width = _check.count("physical_batch_size", physical_batch_size)
        # Who may be drawn, by which coins, and whose each row is.
        bound = BoundPlan.of(plan)
        processes = Processes.current(self.model)
        streams = Streams.from_seed(seed)
        # Boolean, one a record of the plan, in the plan's order.
        mask = read_included(included, bound.ids)
        # One key for all processes: they draw parts of the same batch, and the same noise.
        streams = replace(streams, key=processes.share_key(streams.key))
        units = read_units(people, bound.ids, source, rows_per_person, plan.unit)
        # What turns a batch of them into a clipped sum.
        # The plan counts units (records, or persons with several rows); a capture is weighed
        # against rows.
        units_of_run = sum(stage.steps * stage.expected_batch_size for stage in plan.stages)
        sums = Sums(
            self.model,
            loss_fn,
            source,
            width=width,
            method=method,
            people=units,
            compiled=compiled,
            rows_of_run=units_of_run * len(source) / len(bound.ids),
        )
        # A release stands by its promises; an experiment may break them.
        if streams.release:
            plan.require()
        is_correlated = any(stage.correlated is not None for stage in plan.stages)
        if is_correlated and unfreeze is not None:
            raise InputError(
                "unfreeze: correlated noise is of the same parameters in all steps; leave out"
            )
        self._paid_steps = paid_steps
        self._loop = Loop(
            sums=sums,
            sampler=PlannedSampler(bound, mask, processes.shard, withdrawn, order),
            charger=Prepaid(),
            updates=updates,
            streams=streams,
            processes=processes,
            callbacks=tuple(callbacks),
            unfreezing=_make_unfreezing(plan, sums, optimizer, unfreeze),
            # Its test is for noise that is independent between steps.
            watch=None if is_correlated else _watch_noise(plan),
            correlated=CorrelatedNoise(plan.stages) if is_correlated else None,
        )
        self._keeper = Keeper(
            self._loop,
            plan=plan,
            # The group of each record; −1 for one that is left out, so that a resumed run leaves
            # out the same.
            groups=np.where(mask, bound.group_index, -1),
            folder=checkpoint,
            every=_check.count("save_every", save_every),
        )
        # All processes must have made their trainers before parameters are broadcast.
        processes.wait()
        processes.share_parameters(self.model.state_dict().values())
        # Only now, as it copies the parameters, which each stage starts from.
        self._loop.restarts = _make_restarts(plan, self.model, updates, processes)

    @property
    def steps(self) -> int:
        """Number of steps in the plan."""
        return self.plan.steps

    @property
    def loader(self) -> EpochLoader:
        """The batches of a pass over the records, for a loop that calls `step` once a batch."""
        return EpochLoader(self)

    def epsilon_spent(self) -> dict[str, float]:
        """Return each group's ε after the steps taken so far, at its own δ, by its name.

        Returns:
            Upper bounds by the plan's own accounting: 0 before the first step, `plan.epsilon_spent`
            after the last. They follow from the plan and the number of steps alone, and hold
            whoever was drawn or has withdrawn. Each distinct group takes a privacy curve at each
            number of steps, once.

        Guarantee:
            Each value is an upper bound, under the plan's relation.
        """
        groups = range(len(self.plan.budget_groups))
        names = self.plan.budget_groups.name.tolist()
        return dict(zip(names, map(self._compute_spending, groups), strict=True))

    def _compute_spending(self, group: int) -> float:
        """Return a group's ε after the steps taken so far."""
        # After the last step the plan's own figure is the answer, and no curve is needed.
        if self.step_number >= self.steps:
            return float(self.plan.epsilon_spent[group])
        return compute_spending_at(self.plan, group, self.step_number, self.plan.method)

    def __repr__(self) -> str:
        """Return what is public and short: nothing of a record."""
        model = type(self.model).__name__
        return f"Trainer({model}, {self.plan.strategy}, step {self.step_number} of {self.steps})"

    def _repr_html_(self) -> str:
        """Return the table of groups for a notebook; of small ones only how many there are."""
        groups = self.plan.groups
        # A small group's row could tell of few people, and stays hidden.
        large = [g for g, group in enumerate(groups) if group.records >= SMALL_GROUP]
        rows = []
        for g in large[:MAX_ROWS]:
            group = groups[g]
            asked = (group.name, f"{group.epsilon:g}", f"{group.delta:g}")
            rows.append((*asked, rounded_up(self._compute_spending(g))))
        notes = ["ε spent so far is an upper bound, by the plan and the number of steps."]
        if len(large) < len(groups):
            hidden = len(groups) - len(large)
            notes.append(f"{hidden} groups of fewer than {SMALL_GROUP} records are not shown.")
        if len(large) > MAX_ROWS:
            notes.append(f"{len(large) - MAX_ROWS} more groups are not shown.")
        caption = f"{self.plan.strategy}, step {self.step_number} of {self.steps}"
        return html_table(caption, _COLUMNS, rows, notes)

    def fit(self, steps: int | None = None) -> None:
        """Take `steps` further steps, or all that are left of the plan.

        Args:
            steps: At most so many; None for all.

        Raises:
            InputError: For a negative number.
            StateError: As `step`.
        """
        remaining = self.steps - self.step_number
        if steps is not None:
            remaining = min(remaining, _check.count("steps", steps, least=0))
        for _ in range(remaining):
            self.step()
        self._keeper.after_fit()

    def step(self) -> Progress:
        """Take one step of the plan, and write a checkpoint where one is due.

        Returns:
            The progress that the callbacks got.

        Raises:
            BudgetError: For a batch of an order of one's own that breaks the plan's limits.
            DataError: For an order that has ended, or a batch that is no positions.
            StateError: Where all steps have been taken, the last was interrupted half-way, or
                other parameters are trainable than at first.
        """
        if self.step_number >= self.steps:
            raise StateError(
                f"trainer: all {self.steps} steps of the plan are taken; a further one would cost "
                "privacy that nobody planned: make a new plan"
            )
        if self._keeper.has_ended:
            raise StateError(
                f"trainer: the run was ended after {self.step_number} of {self.steps} steps, and "
                "the key of its noise is deleted; make a new plan"
            )
        # Asked again before each step: a step that nobody has paid for draws nothing.
        paid = None if self._paid_steps is None else self._paid_steps()
        if paid is not None and self.step_number >= paid:
            raise StateError(
                f"trainer: {paid} steps are paid for and taken; have the next ones paid "
                "(TrainingCharge.extend), or stop and release the model"
            )
        # Only once: a resumed run has looked at its first step.
        if self.step_number == 0:
            look_at_items(self._loop.sums.source)
        # First the checkpoint from which the step could be made again, then the step, then the next
        # one.
        self._keeper.before_step()
        progress = self._loop.step(self.steps)
        self._keeper.after_step()
        return progress

    def stop(self) -> None:
        """End the run before the plan's last step: no further one is taken.

        The last checkpoint is written and the key of the noise deleted, as after the last step.
        What was paid stays paid (see `charge_training(stops=)`).

        Raises:
            StateError: Where the last update was interrupted half-way.
        """
        self._keeper.stop()

    def average(self) -> OutputAverage:
        """Return the stages' models as one, for a plan that combines them by "average".

        Outputs are averaged by the stages' weights.

        Raises:
            InputError: Where the plan trains one model through all stages.
        """
        if self._loop.restarts is None:
            raise InputError("average: the plan trains one model through all stages; use .model")
        return self._loop.restarts.average([stage.weight for stage in self.plan.stages])

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, atomically.

        Args:
            folder: For a trainer made without `checkpoint`, once; it is then the run's.

        Returns:
            The run's folder.

        Raises:
            InputError: For no folder, or a second one, which would know nothing of the first's
                steps.
            StateError: Where the last update was interrupted half-way, or the folder is another
                run's.
        """
        return self._keeper.save(folder)

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction,
        plan: Plan,
        dataset: object,
        **options: Any,
    ) -> Trainer:
        """Return a trainer that goes on from a checkpoint to bit-identical parameters.

        Steps made after the checkpoint was written are made again with the same records and the
        same noise; where somebody withdrew since, none is: they stay made and paid, what they
        changed is lost, and the run goes on after them, with a warning. A finished run comes back
        with its last parameters and no step left.

        Args:
            folder: Folder of the run that was stopped.
            model: As for that run.
            optimizer: As for that run.
            loss_fn: As for that run.
            plan: As for that run.
            dataset: As for that run.
            **options: As for that run, but for `seed` and `checkpoint`, which the folder gives.

        Raises:
            InputError: For `seed` or `checkpoint`.
            StateError: Where the folder has no usable checkpoint, or something that makes the
                updates is not what it was in that run, since noise would be used twice: the plan,
                the data, the budget groups, the loss, the model, the optimizer, the scheduler, the
                method, the physical batch size or the schedule of unfreezing; or where another
                number of processes would make a step again that was made.
        """
        for name in {"seed", "checkpoint"} & set(options):
            raise InputError(f"resume: {name} is the folder's to say; leave it out")
        checkpoint = CheckpointFolder(Path(folder))
        state, key = checkpoint.load()
        # A seed only says whether the run is a release; `resume` sets the key itself.
        seed = None if state["release"] else 0  # the checkpoint's key replaces the seed's
        trainer = cls(model, optimizer, loss_fn, plan, dataset, seed=seed, **options)
        trainer._keeper.resume(checkpoint, state, key)
        return trainer


def _make_restarts(
    plan: Plan, model: nn.Module, updates: Updates, processes: Processes
) -> Restarts | None:
    """Return the restarts of a plan whose stages are averaged; None for other plans."""
    if plan.combine != "average":
        return None
    if processes.sharded is not None:
        raise UnsupportedError(
            "model: sharded by fully_shard, and the plan averages the models of its stages, each "
            "kept whole; use DistributedDataParallel"
        )
    return Restarts(model, updates)


def _watch_noise(plan: Plan) -> NoiseAlone:
    """Return what warns of parameters that only noise moves."""
    return NoiseAlone([float(stage.clip_norm.min()) for stage in plan.stages])


def _run_schedule_dry(
    plan: Plan, scheduler: Scheduler | None, optimizer: torch.optim.Optimizer
) -> None:
    """Run a scheduler through all updates of the plan on a copy; raise where it ends before."""
    # Where stages are averaged, each starts the scheduler again.
    steps = [stage.steps for stage in plan.stages]
    run_dry(scheduler, optimizer, max(steps) if plan.combine == "average" else sum(steps))


def _make_unfreezing(
    plan: Plan,
    sums: Sums,
    optimizer: torch.optim.Optimizer,
    schedule: Mapping[int, Sequence[str]] | None,
) -> Unfreezing | None:
    """Return the schedule, entered at step 0; the optimizer must hold all that is ever trained."""
    if schedule is None:
        check_holds(optimizer, sums.parameters)
        return None
    if plan.combine == "average":
        raise InputError(
            "unfreeze: the plan begins each stage anew, with all parameters; leave out"
        )
    unfreezing = Unfreezing(sums.model, schedule)
    parameters = dict(sums.model.named_parameters())
    # All parameters that any stage trains, by name: the optimizer must hold them from the
    # beginning.
    trained = {}
    for step in schedule:
        for name in sorted(unfreezing.at(step)):
            trained[name] = parameters[name]
    check_holds(optimizer, trained)
    unfreezing.enter(0, sums)
    return unfreezing


def fit_by_sgd(
    model: nn.Module,
    loss_fn: LossFunction,
    plan: Plan,
    dataset: Any,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    seed: int | None,
    checkpoint: Path | None = None,
    **options: Any,
) -> None:
    """Train a model by a plan and SGD; resume where `checkpoint` holds a part of this run."""
    sgd = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    arguments = (model, sgd, loss_fn, plan, dataset)
    # The state file is written before the first step, so that it tells a run that has begun.
    if checkpoint is not None and (checkpoint / "state.pt").exists():
        trainer = Trainer.resume(checkpoint, *arguments, **options)
    else:
        trainer = Trainer(*arguments, seed=seed, checkpoint=checkpoint, **options)
    trainer.fit()
