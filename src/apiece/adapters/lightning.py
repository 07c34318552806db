"""A `Trainer`'s run inside Lightning: its loop, callbacks, loggers; needs the `lightning` extra."""

from typing import Any

from apiece._lazy import lacking

try:
    from lightning import LightningModule
    from torch.utils.data import DataLoader
except ModuleNotFoundError as error:
    raise lacking(error.name, "lightning") from None

from apiece._types import State
from apiece.adapters.stepping import PrivateStep, make_resume_error
from apiece.errors import UnsupportedError
from apiece.training import Trainer
from apiece.training.callbacks import PlannedSpending, public_numbers
from apiece.training.epochs import count_epoch_steps


class PrivateModule(LightningModule):
    """A LightningModule whose training steps are those of an apiece `Trainer`.

    An epoch has as many steps as the plan takes for as many records as there are; Lightning's
    trainer stops after the plan's last step. Override `validation_step` and give a validation
    loader as ever; the model is `self.model`.

    Args:
        trainer: With plan, data and loss; its optimizer and scheduler are used, not Lightning's.

    Raises:
        StateError: When a Lightning checkpoint is loaded: a private run goes on from its own folder
            only (`Trainer.resume`).
        UnsupportedError: When Lightning starts several processes; use `Trainer` under torchrun.

    Guarantee:
        That of `Trainer`. What is logged of training is public: planned spending, learning rate,
        seconds; no loss, which is computed from records.

    Example:
        >>> import lightning, torch
        >>> from apiece import Budgets, Scale, Trainer, assign
        >>> from apiece.adapters.lightning import PrivateModule
        >>> budgets = Budgets([1.0] * 20 + [3.0] * 20, 1e-3)
        >>> plan = assign(budgets, Scale(), steps=3, expected_batch_size=8, clip_norm=1.0)
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> data = torch.randn(40, 3), torch.zeros(40, dtype=torch.long)
        >>> trainer = Trainer(model, sgd, loss, plan, data, seed=0)
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False,
        ...          "enable_model_summary": False}
        >>> loop = lightning.Trainer(max_epochs=-1, accelerator="cpu", **quiet)
        >>> loop.fit(PrivateModule(trainer))
        >>> trainer.step_number
        3
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        # Lightning would otherwise call backward and step by itself.
        self.automatic_optimization = False
        self.model = trainer.model
        self._step = PrivateStep(trainer)
        self._spending = PlannedSpending(trainer.plan)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Return the model's outputs."""
        return self.model(*args, **kwargs)

    def on_fit_start(self) -> None:
        """Refuse several processes."""
        if self.trainer.world_size > 1:
            raise UnsupportedError(
                f"lightning: {self.trainer.world_size} processes; the records are shared out by "
                "apiece.Trainer itself: run it under torchrun, or one process here"
            )

    def train_dataloader(self) -> DataLoader[int]:
        """Return the numbers of an epoch's steps; the records are drawn in the step."""
        # Numbers, not records: the step draws its own.
        steps = range(count_epoch_steps(self._step.trainer.plan))
        return DataLoader(steps, batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> PrivateStep:
        """Return the private step as an optimizer."""
        return self._step

    def training_step(self, *_: object) -> None:
        """Take one step of the plan, and log its public numbers."""
        optimizer: Any = self.optimizers()
        optimizer.step()
        if (progress := self._step.progress) is not None:
            self.log_dict(public_numbers(progress, self._spending))
            # Exactly the plan's steps, whatever epochs Lightning was told.
            self.trainer.should_stop = progress.step == progress.steps

    def on_train_end(self) -> None:
        """Write the run's last checkpoint, where it has a folder."""
        # Also where the loop was stopped: writes the checkpoint, and after the last step deletes
        # the key.
        self._step.trainer.fit(0)

    def on_load_checkpoint(self, checkpoint: State) -> None:
        """Refuse: parameters and noise would be of two runs."""
        raise make_resume_error("lightning")
