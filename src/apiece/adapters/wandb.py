"""A callback for Weights & Biases: a plan's public numbers; needs the `wandb` extra."""

from apiece import _check
from apiece._lazy import optional
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.training import Progress
from apiece.training.callbacks import PlannedSpending, public_numbers, public_parameters


class WandB:
    """A callback that writes a plan's parameters and planned spending into the run that is open.

    The run is `wandb.init`'s: its project, its name, online or offline (`mode="offline"` keeps it
    in a folder). Metrics of public data are logged by `wandb.log`; what is computed from training
    records is private and has no place there: call no `wandb.watch`, which logs gradients.

    Args:
        plan: The plan that is run.
        every: Steps between two entries.

    Raises:
        InputError: For an `every` below 1, and where no run is open.
        NotInstalledError: Where wandb is not installed.

    Guarantee:
        What is written is a function of the public plan, the step and the clock.

    Example:
        >>> from apiece import Trainer
        >>> from apiece.adapters.wandb import WandB
        >>> def train(model, optimizer, loss, plan, data):
        ...     import wandb
        ...     with wandb.init(project="consented", mode="offline"):
        ...         Trainer(model, optimizer, loss, plan, data, callbacks=[WandB(plan)]).fit()
    """

    def __init__(self, plan: Plan, *, every: int = 10) -> None:
        wandb = optional("wandb", "wandb")
        self._every = _check.count("every", every)
        if wandb.run is None:
            raise InputError("wandb: no run is open; call wandb.init(...) first")
        self._run = wandb.run
        self._spending = PlannedSpending(plan)
        self._run.config.update(public_parameters(plan))

    def __call__(self, progress: Progress) -> None:
        """Write one entry, if it is time for one."""
        if progress.step % self._every and progress.step != progress.steps:
            return
        self._run.log(public_numbers(progress, self._spending), step=progress.step)
