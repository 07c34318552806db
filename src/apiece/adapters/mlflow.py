"""A callback for MLflow: a plan's public numbers and the steps; needs the `mlflow` extra."""

import re

from apiece import _check
from apiece._lazy import optional
from apiece.plan import Plan
from apiece.training import Progress
from apiece.training.callbacks import PlannedSpending, public_numbers, public_parameters


class MLflow:
    """A callback that writes a plan's parameters and planned spending into MLflow's active run.

    MLflow starts a run where none is active. Metrics of public data are logged by MLflow's own
    functions; what is computed from training records is private and has no place there.

    Args:
        plan: The plan that is run.
        every: Steps between two entries.

    Raises:
        InputError: For an `every` below 1.
        NotInstalledError: Where MLflow is not installed.

    Guarantee:
        What is written is a function of the public plan, the step and the clock.

    Example:
        >>> from apiece import Trainer
        >>> from apiece.adapters.mlflow import MLflow
        >>> def train(model, optimizer, loss, plan, data):
        ...     import mlflow
        ...     with mlflow.start_run():
        ...         Trainer(model, optimizer, loss, plan, data, callbacks=[MLflow(plan)]).fit()
    """

    def __init__(self, plan: Plan, *, every: int = 10) -> None:
        self._mlflow = optional("mlflow", "mlflow")
        self._every = _check.count("every", every)
        self._spending = PlannedSpending(plan)
        parameters = public_parameters(plan)
        self._mlflow.log_params({_make_name(name): value for name, value in parameters.items()})

    def __call__(self, progress: Progress) -> None:
        """Write one entry, if it is time for one."""
        if progress.step % self._every and progress.step != progress.steps:
            return
        numbers = public_numbers(progress, self._spending)
        metrics = {_make_name(name): value for name, value in numbers.items()}
        self._mlflow.log_metrics(metrics, step=progress.step)


def _make_name(text: str) -> str:
    """Return a name that MLflow takes."""
    # MLflow takes letters, digits, blanks and few signs.
    return re.sub(r"[^\w\-. /]", "_", text.replace("ε", "epsilon"))
