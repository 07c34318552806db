"""Values told while a run goes on: progress, planned spending, evaluations; public ones only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import nn

from apiece import _check, _lazy
from apiece.accounting import privacy_curve
from apiece.plan import Plan
from apiece.training.modes import evaluating

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come; public, a function of the plan and the clock.

    Args:
        step: How many updates have been made.
        steps: How many there are in all.
        stage: The plan's stage, from 0.
        seconds: How long the update took.
        learning_rate: That of the update, in the optimizer's first group.

    Example:
        >>> from apiece.training import Progress
        >>> Progress(step=10, steps=100, stage=0, seconds=0.01, learning_rate=0.1).step
        10
    """

    step: int
    steps: int
    stage: int
    seconds: float
    learning_rate: float


Callback = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Spent:
    """One group's ε at its δ: what it asked, and an upper bound on what is spent so far."""

    group: str
    asked: float
    spent: float


class PlannedSpending:
    """What a run of `plan` has spent after some of its steps, as planned and not as realised.

    It depends on the plan and the number of the step only, so it may be shown to anyone who may
    see the plan.

    Args:
        plan: The plan that is run.
        points: At how many steps, evenly spread, it is computed; between two of them the later
            one's value is given. Each takes a privacy curve a group, once.

    Raises:
        InputError: For `points` below 1.

    Guarantee:
        What is given for a step is an upper bound on what the group has spent by then.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.training import PlannedSpending
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 1000, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=10, expected_batch_size=100, clip_norm=1.0)
        >>> strict, weak = PlannedSpending(plan).at(10)
        >>> strict.group, strict.spent <= 1.0, PlannedSpending(plan).at(5)[0].spent < strict.spent
        ('strict', True, True)
    """

    def __init__(self, plan: Plan, *, points: int = 20) -> None:
        self._plan = plan.public()
        self._points = min(_check.count("points", points), plan.steps)
        order = np.argsort(plan.budget_groups.epsilon, kind="stable").tolist()
        self._groups = list(dict.fromkeys([order[0], order[-1]]))  # the strictest, the loosest
        self._known: dict[int, tuple[Spent, ...]] = {}

    def at(self, step: int) -> tuple[Spent, ...]:
        """Return what the strictest and the loosest group have spent after `step` steps.

        Args:
            step: Updates made; beyond the plan's last one as at it.

        Raises:
            InputError: For a step below 0.
        """
        steps = self._plan.steps
        point = -(-min(_check.count("step", step, least=0), steps) * self._points // steps)
        if point not in self._known:
            self._known[point] = self._compute(-(-point * steps // self._points))
        return self._known[point]

    def _compute(self, steps: int) -> tuple[Spent, ...]:
        """Return what the plan's first `steps` steps spend."""
        asked = self._plan.budget_groups
        spent = []
        for g in self._groups:
            upper = 0.0
            if steps:
                first = self._plan.mechanism_at(g, steps)
                curve = privacy_curve(first, method=self._plan.method)
                upper = float(curve.epsilon(float(asked.delta[g])).upper)
            spent.append(Spent(str(asked.name[g]), float(asked.epsilon[g]), upper))
        return tuple(spent)


class ProgressBar:
    """A callback that shows steps, time left and ε spent as planned, on stderr or `console`.

    The ε shown is that of the strictest and the loosest group by `PlannedSpending`. Use it in a
    `with` block, so that the terminal is put in order whatever happens; what is not a terminal
    gets the last state only.

    Args:
        plan: The plan that is run.
        console: A rich console; None takes stderr.

    Guarantee:
        What is shown is a function of the plan and the step: an upper bound on what is spent.

    Example:
        >>> from apiece import Trainer
        >>> from apiece.training import ProgressBar
        >>> def train(model, optimizer, loss, plan, data):
        ...     with ProgressBar(plan) as bar:
        ...         Trainer(model, optimizer, loss, plan, data, callbacks=[bar]).fit()
    """

    def __init__(self, plan: Plan, *, console: Console | None = None) -> None:
        from rich import progress
        from rich.console import Console

        self._spending = PlannedSpending(plan)
        self._bar = progress.Progress(
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            "{task.description}",
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=plan.steps)

    def __call__(self, progress: Progress) -> None:
        """Show one step more."""
        text = ", ".join(map(describe, self._spending.at(progress.step)))
        self._bar.update(self._task, completed=progress.step, description=f"planned {text}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def describe(spent: Spent) -> str:
    """Return one group's spending in few words, with three digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(spent.spent)) - 2) if spent.spent > 0 else 1.0
    rounded = math.ceil(spent.spent / unit) * unit
    return f"ε {rounded:.3g} of {spent.asked:g} ({spent.group})"


def public_numbers(progress: Progress, spending: PlannedSpending) -> dict[str, float]:
    """Return what a log may hold of a step, by name; nothing of it depends on records.

    Args:
        progress: Of the step.
        spending: Of the plan that is run.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.training import PlannedSpending, Progress, public_numbers
        >>> budgets = Budgets(epsilon=[1.0] * 20, delta=1e-3)
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=8, clip_norm=1.0)
        >>> done = Progress(step=5, steps=5, stage=0, seconds=0.1, learning_rate=0.2)
        >>> list(public_numbers(done, PlannedSpending(plan)))
        ['learning rate', 'seconds a step', 'stage', 'planned ε/epsilon=1']
    """
    values = {
        "learning rate": progress.learning_rate,
        "seconds a step": progress.seconds,
        "stage": float(progress.stage),
    }
    return values | {f"planned ε/{s.group}": s.spent for s in spending.at(progress.step)}


class TensorBoard:
    """A callback that writes learning rate, seconds a step and planned ε for TensorBoard.

    Nothing it writes depends on records.

    Args:
        folder: Of the event files.
        plan: That is run.
        every: Steps between two entries.

    Raises:
        InputError: For an `every` below 1.
        NotInstalledError: Where TensorBoard is not installed.

    Example:
        >>> from apiece import Trainer
        >>> from apiece.training import TensorBoard
        >>> def train(model, optimizer, loss, plan, data):
        ...     board = TensorBoard("runs/first", plan, every=50)
        ...     Trainer(model, optimizer, loss, plan, data, callbacks=[board]).fit()
    """

    def __init__(self, folder: str | Path, plan: Plan, *, every: int = 10) -> None:
        _lazy.optional("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._every = _check.count("every", every)
        self._spending = PlannedSpending(plan)
        self._writer = SummaryWriter(str(folder))

    def __call__(self, progress: Progress) -> None:
        """Write one entry, if it is time for one."""
        if progress.step % self._every and progress.step != progress.steps:
            return
        for name, value in public_numbers(progress, self._spending).items():
            self._writer.add_scalar(name, value, progress.step)
        if progress.step == progress.steps:
            self._writer.close()


class Evaluation:
    """A callback that evaluates the model every so many steps, in eval mode, without gradients.

    `history` holds the (step, number) pairs. The model's modes are put back; drawing from torch's
    generators in `evaluate` does not disturb the run.

    What it costs: nothing where `evaluate` reads public data. The plan accounts for the training
    records and for the parameters; any figure computed *on* training records is a further release
    that no ε covers. Figures on held-out people are exact and protect nobody: publishing them, or
    choosing settings or a moment to stop by them, reveals something of these people, and must be
    accounted for as theirs.

    Args:
        model: The model that is trained.
        evaluate: Takes the model, returns a number.
        every: Steps between two evaluations; there is one after the last step too.

    Raises:
        InputError: For an `every` below 1.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece.training import Evaluation, Progress
        >>> model = nn.Linear(2, 1)
        >>> check = Evaluation(model, lambda model: float(model(torch.ones(1, 2))), every=10)
        >>> check(Progress(step=10, steps=100, stage=0, seconds=0.0, learning_rate=0.1))
        >>> check.history[0][0]
        10
    """

    def __init__(
        self, model: nn.Module, evaluate: Callable[[nn.Module], float], *, every: int
    ) -> None:
        self.model, self.evaluate = model, evaluate
        self.every = _check.count("every", every)
        self.history: list[tuple[int, float]] = []

    def __call__(self, progress: Progress) -> None:
        """Evaluate, if it is time to, or the run is at its end."""
        if progress.step % self.every == 0 or progress.step == progress.steps:
            with evaluating(self.model), torch.no_grad():
                self.history.append((progress.step, float(self.evaluate(self.model))))
