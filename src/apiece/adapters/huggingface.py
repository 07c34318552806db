"""Hugging Face's Trainer with a plan's private steps; needs the `huggingface` extra."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from apiece._lazy import lacking
from apiece.adapters.stepping import Loss, PrivateStep, loss_of, steps_an_epoch
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.plan import Plan
from apiece.training import PlannedSpending, public_numbers
from apiece.training import Trainer as Engine
from apiece.training.updates import needed_by

try:
    import transformers
except ModuleNotFoundError as error:
    raise lacking(error.name) from None


class PrivateTrainer(transformers.Trainer):
    """`transformers.Trainer` whose steps are those of an apiece `Trainer` under a plan.

    Optimizer, learning rates, evaluation, callbacks, logging and saved models are Hugging Face's,
    by `args`; who takes part in a step, clipping, noise and the number of steps are the plan's, so
    that batch size, epochs and `max_grad_norm` of `args` have no say (the batch size is how many
    records are in memory at a time). `bf16=True` runs the steps under autocast.

    Args:
        model: A module whose outputs have `.logits`, with PEFT's adapters or without.
        args: `transformers.TrainingArguments`; not changed.
        plan: Bound to its records, those of `train_dataset` in its order.
        loss_fn: Takes outputs and labels, returns one loss a record; None for the model's own kind,
            over a record's own tokens.
        people: As for `apiece.Trainer`.
        rows_per_person: As for `apiece.Trainer`.
        private_seed: None takes all randomness of the steps from the operating system, for a
            release; a number makes an experiment repeatable.
        checkpoint: A folder for the run's own checkpoints.
        **options: Of `transformers.Trainer`.

    Raises:
        InputError: For a plan with a learning-rate schedule, which `args` gives here; for a model
            whose loss is not known, without `loss_fn`.
        StateError: For `resume_from_checkpoint`: a private run goes on from its own folder only.
        UnsupportedError: For gradient accumulation, fp16, `compute_loss_func`, label smoothing,
            NEFTune's noise and several processes.

    Guarantee:
        That of `apiece.Trainer`. What is logged of training is public: planned spending, learning
        rate and time; no loss and no gradient norm, which are computed from records. The training
        loss that is returned is None.

    Example:
        >>> def train(model, arguments, plan, texts, collator):
        ...     PrivateTrainer(model, arguments, plan=plan, train_dataset=texts,
        ...                    data_collator=collator).train()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Any = None,
        *,
        plan: Plan,
        loss_fn: Loss | None = None,
        people: npt.ArrayLike | None = None,
        rows_per_person: int | None = None,
        private_seed: int | None = None,
        checkpoint: str | None = None,
        **options: Any,
    ) -> None:
        args = copy.copy(args or transformers.TrainingArguments("tmp_trainer"))
        _check(args, plan, options)
        bf16 = args.bf16
        args.max_steps, args.max_grad_norm, args.bf16 = plan.steps, 0.0, False
        super().__init__(model, args, **options)
        self._plan, self._loss = plan, loss_fn or loss_of(model)
        self._engine = partial(
            Engine,
            seed=private_seed,
            people=people,
            rows_per_person=rows_per_person,
            checkpoint=checkpoint,
            physical_batch_size=args.per_device_train_batch_size,
        )
        self._around: Any = contextlib.nullcontext
        if bf16:
            self._around = partial(torch.autocast, args.device.type, torch.bfloat16)
        self._spending = PlannedSpending(plan)
        self._private: PrivateStep | None = None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the private step, around the optimizer that `args` ask for."""
        if self._private is None:
            own = super().create_optimizer() if model is None else super().create_optimizer(model)
            loader = self._get_dataloader(self.train_dataset, "Training", batch_size=1)
            records = DataLoader(loader.dataset, collate_fn=loader.collate_fn)
            engine = self._engine(self.model, own, self._loss, self._plan, records)
            self._private = PrivateStep(engine, around=self._around)
        self.optimizer = self._private
        return self.optimizer

    def add_callback(self, callback: Any) -> None:
        """Add a callback, as `transformers.Trainer` does.

        Raises:
            UnsupportedError: For early stopping: when it stops tells of losses without noise.
        """
        _refuse_stopping(callback)
        super().add_callback(callback)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return an epoch's steps, empty: the records are drawn in the step."""
        return DataLoader([{}] * steps_an_epoch(self._plan), batch_size=None)  # type: ignore[arg-type]

    def training_step(self, model: torch.nn.Module, *_: object, **__: object) -> torch.Tensor:
        """Leave the step to the optimizer; return no loss."""
        model.train()
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0: how large the batches were is private."""
        return 0

    def log(self, logs: dict[str, float], *rest: Any) -> None:
        """Log what is public: planned spending instead of losses and norms of gradients."""
        kept = {k: v for k, v in logs.items() if k not in ("loss", "grad_norm", "train_loss")}
        done = None if self._private is None else self._private.done
        if done is not None and "learning_rate" in kept:
            kept |= public_numbers(done, self._spending)
        super().log(kept, *rest)

    def train(self, resume_from_checkpoint: object = None, **options: Any) -> Any:
        """Run the plan; see `transformers.Trainer.train`.

        Args:
            resume_from_checkpoint: None.
            **options: As there.

        Raises:
            StateError: To resume; use `checkpoint` and `apiece.Trainer.resume`.
        """
        if resume_from_checkpoint:
            raise StateError(
                "resume_from_checkpoint: a private run goes on from its own folder only; use "
                "checkpoint=... here and apiece.Trainer.resume"
            )
        result = super().train(**options)
        if self._private is not None:
            self._private.trainer.fit(0)
        told = {k: v for k, v in result.metrics.items() if k != "train_loss"}
        return result._replace(training_loss=None, metrics=told)


def _refuse_stopping(callback: Any) -> None:
    kind = callback if isinstance(callback, type) else type(callback)
    if issubclass(kind, transformers.EarlyStoppingCallback):
        raise UnsupportedError(
            "callbacks: early stopping follows an evaluation, whose figures have no noise; give "
            "the plan the steps that are to be made"
        )


def _check(args: Any, plan: Plan, options: dict[str, Any]) -> None:
    """Raise for what would not be what it says."""
    scheduler = (options.get("optimizers") or (None, None))[1]
    kind = str(args.lr_scheduler_type).lower()
    if "plateau" in kind or (scheduler is not None and needed_by(scheduler)):
        raise UnsupportedError(
            "args: a learning rate that follows an evaluation has figures about records in it that "
            "no noise is on; give lr_scheduler_type='linear' or another that follows the step"
        )
    for callback in options.get("callbacks") or ():
        _refuse_stopping(callback)
    if plan.learning_rate is not None:
        raise InputError(
            "plan: it has a learning-rate schedule, and args another; make the plan without one"
        )
    given = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps != 1,
        "fp16": bool(args.fp16),
        "label_smoothing_factor": bool(args.label_smoothing_factor),
        "neftune_noise_alpha": bool(getattr(args, "neftune_noise_alpha", None)),
        "several processes": args.world_size > 1,
        "compute_loss_func": options.get("compute_loss_func") is not None,
        "resume_from_checkpoint": bool(args.resume_from_checkpoint),
        "load_best_model_at_end": bool(args.load_best_model_at_end),
    }
    for name in (name for name, is_set in given.items() if is_set):
        raise UnsupportedError(
            f"args: {name} has no meaning in private steps; leave it out (the plan says what a "
            "step is; a loss of your own goes into loss_fn, bf16=True in place of fp16)"
        )
