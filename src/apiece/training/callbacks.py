"""Callbacks of a run: progress, planned spending and evaluations, all from public values."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from apiece import _check, _lazy
from apiece._text import plain
from apiece.plan import Plan
from apiece.plan.verification import compute_spending_at
from apiece.training.modes import evaluating

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run; public, a function of the plan and the clock.

    Args:
        step: Number of updates that have been made.
        steps: Number of updates in all.
        stage: The plan's stage, from 0.
        seconds: Duration of the update.
        learning_rate: Learning rate of the update, in the optimizer's first group.

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
    """One group's ε at its δ: the budget, and an upper bound on what is spent so far."""

    group: str
    budget: float
    spent: float


class PlannedSpending:
    """The spending of a run of `plan` after each of its steps, as planned and not as realised.

    It depends on the plan and the number of the step only, so it may be shown to anyone who may
    see the plan.

    Args:
        plan: The plan that is run.
        points: Number of steps, evenly spread, at which it is computed; between two of them the
            later one's value is given. Each takes a privacy curve a group, once.

    Raises:
        InputError: For `points` below 1.

    Guarantee:
        The value of a step is an upper bound on the group's spending by then.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.training.callbacks import PlannedSpending
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 1000, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=10, expected_batch_size=100, clip_norm=1.0)
        >>> strict, weak = PlannedSpending(plan).at(10)
        >>> strict.group, strict.spent <= 1.0, PlannedSpending(plan).at(5)[0].spent < strict.spent
        ('strict', True, True)
    """

    def __init__(self, plan: Plan, *, points: int = 20) -> None:
        self._plan = plan.public()
        self._points = min(_check.count("points", points), plan.steps)
        # The two ends of the budgets, for which a bar has room.
        order = np.argsort(plan.budget_groups.epsilon, kind="stable").tolist()
        strictest = order[0]
        loosest = order[-1]
        # One group where both are the same.
        self._groups = list(dict.fromkeys([strictest, loosest]))
        self._cache: dict[int, tuple[Spent, ...]] = {}  # by the number of the point

    def at(self, step: int) -> tuple[Spent, ...]:
        """Return the spending of the strictest and the loosest group after `step` steps.

        Args:
            step: Updates made; more than the plan has count as all of them.

        Raises:
            InputError: For a step below 0.
        """
        steps = self._plan.steps
        step = min(_check.count("step", step, least=0), steps)
        # Rounded up: a later point's spending bounds that of every step before it.
        point = -(-step * self._points // steps)
        if point not in self._cache:
            # The first step at or after the point, rounded up: still an upper bound.
            step_of_point = -(-point * steps // self._points)
            self._cache[point] = self._compute(step_of_point)
        return self._cache[point]

    def _compute(self, steps: int) -> tuple[Spent, ...]:
        """Return the spending of the plan's first `steps` steps."""
        budgets = self._plan.budget_groups
        spendings = []
        for group in self._groups:
            upper = compute_spending_at(self._plan, group, steps, self._plan.method)
            name = str(budgets.name[group])
            spendings.append(Spent(name, float(budgets.epsilon[group]), upper))
        return tuple(spendings)


class ProgressBar:
    """A callback that shows steps, time left and ε spent as planned, on stderr or `console`.

    In a notebook it is a bar below the cell. The ε shown is that of the strictest and the loosest
    group by `PlannedSpending`. It begins with the first step and ends with the last. A `with` block
    puts the terminal in order where a run is broken off; what is not a terminal gets the last state
    only.

    Args:
        plan: The plan that is run.
        console: A rich console; None takes the notebook, or stderr.

    Guarantee:
        The bar shows a function of the plan and the step: an upper bound on the spending.

    Example:
        >>> from apiece import Trainer
        >>> from apiece.training import ProgressBar
        >>> def train(model, optimizer, loss, plan, data):
        ...     with ProgressBar(plan) as bar:
        ...         Trainer(model, optimizer, loss, plan, data, callbacks=[bar]).fit()
    """

    def __init__(self, plan: Plan, *, console: Console | None = None) -> None:
        _lazy.require("train", "rich")
        self._spending = PlannedSpending(plan)
        self._is_running = False
        self._bar: _TerminalBar | _NotebookBar
        if console is None and is_notebook():
            self._bar = _NotebookBar(plan.steps)
        else:
            self._bar = _TerminalBar(plan.steps, console)

    def __call__(self, progress: Progress) -> None:
        """Show one step more."""
        self._start()
        text = ", ".join(map(describe_spending, self._spending.at(progress.step)))
        self._bar.show(progress.step, f"planned {text}")
        if progress.step == progress.steps:
            self._stop()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._bar.start()

    def _stop(self) -> None:
        if self._is_running:
            self._is_running = False
            self._bar.stop()


def is_notebook() -> bool:
    """Return whether the process is a notebook's kernel, which shows HTML."""
    # What nobody has imported is not running; a terminal's IPython has another shell.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _TerminalBar:
    """A bar of rich, on a console or stderr."""

    def __init__(self, steps: int, console: Console | None) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            "{task.description}",
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=steps)

    def start(self) -> None:
        self._bar.start()

    def show(self, step: int, text: str) -> None:
        self._bar.update(self._task, completed=step, description=text)

    def stop(self) -> None:
        self._bar.stop()


# Seconds between two states of a bar in a notebook.
_NOTEBOOK_PAUSE = 0.2


class _NotebookBar:
    """A bar of HTML, which a notebook shows by itself: no widgets have to be installed."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._handle: Any = None
        self._html = ""
        self._begun = 0.0
        self._shown = -math.inf

    def start(self) -> None:
        from IPython.display import HTML, display

        self._begun = time.monotonic()
        self._html = self._describe(0, "")
        self._handle = display(HTML(self._html), display_id=True)

    def show(self, step: int, text: str) -> None:
        self._html = self._describe(step, text)
        now = time.monotonic()
        if step == self._steps or now - self._shown > _NOTEBOOK_PAUSE:
            self._shown = now
            self._update()

    def stop(self) -> None:
        # Also after an interruption: the bar shows the last state.
        self._update()

    def _update(self) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(self._html))

    def _describe(self, step: int, text: str) -> str:
        passed = time.monotonic() - self._begun
        clock = ""
        if 0 < step < self._steps:
            seconds = round(passed / step * (self._steps - step))
            clock = f" · {timedelta(seconds=seconds)} left"
        words = f"{step:,} of {self._steps:,} steps{clock} {text}".rstrip()
        return (
            f'<progress value="{step}" max="{self._steps}" style="width: 12rem"></progress> '
            f"{escape(plain(words))}"
        )


def describe_spending(spending: Spent) -> str:
    """Return one group's spending in few words, with three digits, rounded up."""
    # A unit of the third digit, so that rounding up keeps the value an upper bound.
    unit = 1.0
    if spending.spent > 0:
        unit = 10.0 ** (math.floor(math.log10(spending.spent)) - 2)
    rounded = math.ceil(spending.spent / unit) * unit
    return f"ε {rounded:.3g} of {spending.budget:g} ({spending.group})"


def public_numbers(progress: Progress, spending: PlannedSpending) -> dict[str, float]:
    """Return a step's numbers for a log, by name; none of them depends on records.

    Args:
        progress: The progress after the step.
        spending: The planned spending of the plan that is run.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.training import Progress
        >>> from apiece.training.callbacks import PlannedSpending
        >>> from apiece.training.callbacks import public_numbers
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
    for group in spending.at(progress.step):
        values[f"planned ε/{group.group}"] = group.spent
    return values


def public_parameters(plan: Plan) -> dict[str, str | int]:
    """Return what a plan says of a run before its first step, by name, for a log."""
    parameters: dict[str, str | int] = {
        "apiece/strategy": plan.strategy,
        "apiece/steps": plan.steps,
    }
    for group in plan.public().groups:
        budget = f"epsilon {group.epsilon:g}, delta {group.delta:g}"
        parameters[f"asked/{group.name}"] = budget
    return parameters


class TensorBoard:
    """A callback that writes learning rate, seconds a step and planned ε for TensorBoard.

    Nothing it writes depends on records.

    Args:
        folder: Folder of the event files.
        plan: The plan that is run.
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
        self.model = model
        self.evaluate = evaluate
        self.every = _check.count("every", every)
        self.history: list[tuple[int, float]] = []

    def __call__(self, progress: Progress) -> None:
        """Evaluate, if it is time to, or the run is at its end."""
        # Modes and buffers are put back: an evaluation must leave no trace in the model.
        is_last = progress.step == progress.steps
        if is_last or progress.step % self.every == 0:
            with evaluating(self.model), torch.no_grad():
                value = float(self.evaluate(self.model))
            self.history.append((progress.step, value))
