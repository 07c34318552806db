"""Hugging Face's Trainer with a plan's private steps; needs the `huggingface` extra."""

import contextlib
import copy
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from apiece._lazy import lacking

try:
    import accelerate  # noqa: F401
    import torch
    import transformers
    from torch.utils.data import DataLoader
    from transformers.trainer_utils import TrainOutput
except ModuleNotFoundError as error:
    raise lacking(error.name, "huggingface") from None

from apiece._types import Flags, State
from apiece.adapters.stepping import (
    Loss,
    PrivateStep,
    find_loss,
    make_resume_error,
)
from apiece.errors import InputError, UnsupportedError
from apiece.plan import Plan
from apiece.training import Trainer as Engine
from apiece.training.callbacks import PlannedSpending, public_numbers
from apiece.training.epochs import count_epoch_steps, count_expected_records
from apiece.training.updates import find_step_arguments

# Fields of `TrainingArguments` that private steps honour: evaluation, optimizer, logs, models.
_HONOURED_NAMES = (
    "output_dir per_device_train_batch_size per_device_eval_batch_size learning_rate "
    "lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args "
    "weight_decay adam_beta1 adam_beta2 adam_epsilon bf16 bf16_full_eval fp16_full_eval tf32 "
    "use_cache use_cpu seed full_determinism logging_strategy logging_steps "
    "logging_first_step log_on_each_node logging_dir log_level log_level_replica disable_tqdm "
    "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id "
    "eval_strategy eval_steps eval_delay prediction_loss_only eval_on_start "
    "eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
    "include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps "
    "save_on_each_node save_total_limit save_safetensors enable_jit_checkpoint push_to_hub "
    "hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
    "metric_for_best_model greater_is_better dataloader_num_workers dataloader_pin_memory "
    "dataloader_persistent_workers dataloader_prefetch_factor "
    "dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names "
    "do_train do_eval do_predict"
)
# The same names, one by one.
HONOURED = frozenset(_HONOURED_NAMES.split())

# The other fields, by what to do in place of giving them.
_REMEDIES = {
    "the plan says how many steps are made: leave it out, or give assign steps=": (
        "max_steps num_train_epochs"
    ),
    "the plan says what a step is and whom it draws: leave it out, or plan another": (
        "gradient_accumulation_steps auto_find_batch_size data_seed dataloader_drop_last "
        "train_sampling_strategy group_by_length length_column_name average_tokens_across_devices"
    ),
    "the plan bounds each record's gradient: leave it out, or give assign clip_norm=": (
        "max_grad_norm"
    ),
    "a loss of your own goes into loss_fn=": "label_smoothing_factor neftune_noise_alpha",
    "give bf16=True in its place": "fp16 fp16_opt_level half_precision_backend",
    "a private run goes on from its own folder: give checkpoint= and train(True)": (
        "resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint"
    ),
    "it follows figures about records that no noise is on: leave it out": (
        "load_best_model_at_end debug include_num_input_tokens_seen skip_memory_metrics "
        "logging_nan_inf_filter"
    ),
    "the steps run in one process: leave it out, or train by apiece.Trainer under torchrun": (
        "accelerator_config parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb "
        "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed "
        "local_rank"
    ),
    "the model runs as the engine captured it: leave it out": (
        "torch_compile torch_compile_backend torch_compile_mode use_liger_kernel "
        "liger_kernel_config torch_empty_cache_steps optim_target_modules gradient_checkpointing "
        "gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs"
    ),
}
# Name of a field → what to do in place of giving it.
REFUSED = {name: remedy for remedy, names in _REMEDIES.items() for name in names.split()}

# What is computed from records without noise, and so never logged.
_PRIVATE_LOGS = frozenset(("loss", "grad_norm", "train_loss"))


class PrivateTrainer(transformers.Trainer):
    """`transformers.Trainer` whose steps are those of an apiece `Trainer` under a plan.

    Optimizer, learning rates, evaluation, callbacks, logging and saved models are Hugging Face's,
    by `args`; who takes part in a step, clipping, noise and the number of steps are the plan's. The
    training batch size of `args` is the number of records in memory at a time; other settings of a
    step, as epochs and `max_grad_norm`, are refused if they are given. `bf16=True` runs the steps
    under autocast.

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
        checkpoint: A folder for the run's own checkpoints; `train(True)` goes on from it.
        save_every: Steps between two of them.
        **options: Of `transformers.Trainer`.

    Raises:
        InputError: For a plan with a learning-rate schedule, which `args` gives here; for a model
            whose loss is not known, without `loss_fn`.
        StateError: For a folder that holds a checkpoint, at `train`, and for `train` with another
            folder than the run's own.
        UnsupportedError: For arguments that are not `HONOURED`, where they are not the defaults,
            as gradient accumulation, epochs, fp16 and label smoothing; for `compute_loss_func` and
            several processes.

    Guarantee:
        That of `apiece.Trainer`. What is logged of training is public: planned spending, learning
        rate and time; no loss and no gradient norm, which are computed from records. The training
        loss that is returned is None. `train_samples_per_second` is of the records (persons, with
        `people`) that the plan expects in the steps of this call, over the time that they took: how
        many were drawn is private.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.adapters.huggingface import PrivateTrainer
        >>> budgets = Budgets([1.0] * 20 + [3.0] * 20, 1e-3)
        >>> plan = assign(budgets, Scale(), steps=3, expected_batch_size=8, clip_norm=1.0)
        >>> small = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                    intermediate_size=8, vocab_size=50)
        >>> texts = [{"input_ids": [1 + k, 2, 3], "labels": k % 2} for k in range(40)]
        >>> arguments = TrainingArguments("out", report_to=[], use_cpu=True, disable_tqdm=True)
        >>> trainer = PrivateTrainer(BertForSequenceClassification(small), arguments, plan=plan,
        ...                          train_dataset=texts, private_seed=0)
        >>> trainer.train().global_step
        {'train_runtime': ...}
        3
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: transformers.TrainingArguments | None = None,
        *,
        plan: Plan,
        loss_fn: Loss | None = None,
        people: npt.ArrayLike | None = None,
        rows_per_person: int | None = None,
        private_seed: int | None = None,
        checkpoint: str | Path | None = None,
        save_every: int = 100,
        **options: Any,
    ) -> None:
        # A copy, as the caller's arguments may serve other trainers.
        args = copy.copy(args or transformers.TrainingArguments("tmp_trainer"))
        _check(args, plan, options)
        bf16 = args.bf16
        # The loop counts steps of the plan, and its scheduler is as long.
        args.max_steps = plan.steps
        args.max_grad_norm = 0.0  # records are clipped, and not their sum
        args.bf16 = False  # the private step enters autocast itself
        super().__init__(model, args, **options)
        self.plan = plan
        self._loss = loss_fn or find_loss(model)
        self._seed = private_seed
        self._checkpoint = checkpoint
        self._settings: dict[str, Any] = {
            "people": people,
            "rows_per_person": rows_per_person,
            "save_every": save_every,
            "physical_batch_size": args.per_device_train_batch_size,
        }
        self._resumes = False
        self._first_step = 0  # of this call of `train`
        # A factory: each step enters a context of its own.
        self._around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        if bf16:
            self._around = partial(torch.autocast, args.device.type, torch.bfloat16)
        self._spending = PlannedSpending(plan)
        self._private: PrivateStep | None = None
        self._rates: _Rates | None = None
        self.add_callback(_StepNumber(self))

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the private step, around the optimizer and the scheduler that `args` ask for."""
        if self._private is None:
            if model is None:
                optimizer = super().create_optimizer()
            else:
                optimizer = super().create_optimizer(model)
            # The scheduler is made before the step that moves it on.
            self._rates = _Rates(super().create_scheduler(self.plan.steps, optimizer))
            self._private = PrivateStep(self._make_engine(optimizer), around=self._around)
        self.optimizer = self._private
        return self.optimizer

    def _make_engine(self, optimizer: torch.optim.Optimizer) -> Engine:
        """Return the trainer whose steps are run: a new one, or one that is resumed."""
        assert self._rates is not None
        # For its dataset and collate function alone: apiece draws and batches by itself.
        loader = self._get_dataloader(self.train_dataset, "Training", batch_size=1)
        records = DataLoader(loader.dataset, collate_fn=loader.collate_fn)
        self.model.train()  # as it is in every step: a checkpoint is of a model in this mode
        arguments = (self.model, optimizer, self._loss, self.plan, records)
        settings = self._settings | {"scheduler": self._rates.scheduler}
        if self._resumes and self._checkpoint is not None:
            return Engine.resume(self._checkpoint, *arguments, **settings)
        return Engine(*arguments, seed=self._seed, checkpoint=self._checkpoint, **settings)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Return the learning rates as the loop sees them; the private step moves them on."""
        self.lr_scheduler = self._rates
        return self.lr_scheduler

    def _get_learning_rate(self) -> float:
        """Return the rate of the last update, which is logged after it."""
        progress = None if self._private is None else self._private.progress
        if progress is None:
            return float(super()._get_learning_rate())
        return progress.learning_rate

    def add_callback(self, callback: object) -> None:
        """Add a callback, as `transformers.Trainer` does.

        Raises:
            UnsupportedError: For early stopping: when it stops tells of losses without noise.
        """
        _refuse_stopping(callback)
        super().add_callback(callback)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return an epoch's steps, empty: the records are drawn in the step."""
        # As many empty batches as a pass over the records has steps.
        steps: Any = [{}] * count_epoch_steps(self.plan)
        return DataLoader(steps, batch_size=None)

    def training_step(self, model: torch.nn.Module, *_: object, **__: object) -> torch.Tensor:
        """Leave the step to the optimizer; return no loss."""
        model.train()
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0: how large the batches were is private."""
        return 0

    def log(self, logs: dict[str, float], *args: object) -> None:
        """Log public numbers: planned spending instead of losses and norms of gradients."""
        # Checked here for every log, whoever asks for it.
        public = self._correct_speed(logs)
        progress = None if self._private is None else self._private.progress
        if progress is not None and "learning_rate" in public:
            public |= public_numbers(progress, self._spending)
        super().log(public, *args)

    def train(self, resume_from_checkpoint: object = None, **options: Any) -> Any:
        """Run the plan; see `transformers.Trainer.train`.

        Args:
            resume_from_checkpoint: True, or the folder given as `checkpoint`, goes on from there
                with everything else as in the run that was stopped; steps since its last checkpoint
                are made again with the same noise. None begins.
            **options: As there.

        Raises:
            StateError: For another folder, such as a checkpoint of Hugging Face's own, which has
                no randomness of the run; for no `checkpoint`; where it is of another run.
        """
        if resume_from_checkpoint:
            folder = self._checkpoint if resume_from_checkpoint is True else resume_from_checkpoint
            # A checkpoint of Hugging Face's own has no key of the noise.
            is_own = self._checkpoint is not None and Path(str(folder)) == Path(self._checkpoint)
            if not is_own:
                raise make_resume_error("resume_from_checkpoint", "train(True)")
            self._resumes = True
        engine = self.create_optimizer().trainer  # type: ignore[attr-defined]
        self._first_step = engine.step_number
        # A finished run has nothing left to train.
        if engine.step_number == self.plan.steps:
            return TrainOutput(self.plan.steps, None, {})
        result = super().train(**options)
        # Writes the last checkpoint, and after the plan's last step deletes the key.
        engine.fit(0)
        metrics = self._correct_speed(result.metrics)
        return result._replace(training_loss=None, metrics=metrics)

    def _correct_speed(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return what a run logs at its end with the speed of its own steps, and no loss.

        Hugging Face multiplies steps by the batch size of `args`, which is here what fits into
        memory. How many records were drawn is private; how many the plan expects is not.
        """
        public = {name: value for name, value in logs.items() if name not in _PRIVATE_LOGS}
        seconds = public.get("train_runtime")
        # Only what is computed at the end of a run has the run's time.
        if seconds:
            steps = self.plan.steps - self._first_step
            records = count_expected_records(self.plan, self._first_step)
            public["train_samples_per_second"] = round(records / seconds, 3)
            public["train_steps_per_second"] = round(steps / seconds, 3)
        return public


class _Rates:
    """A scheduler as Hugging Face's loop sees it: read only, as the private step moves it on."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: object) -> None:
        """Do nothing: the update has moved it on."""

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group of parameters."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> State:
        """Return an empty state: a run is saved in its own checkpoint folder."""
        return {}


class _StepNumber(transformers.TrainerCallback):
    """Gives the loop the number of steps that a resumed run has made."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        # Not a strong reference: the trainer holds this callback itself.
        self._trainer = weakref.proxy(trainer)

    def on_train_begin(self, args: object, state: Any, control: object, **_: object) -> None:
        """Set the number of the last step."""
        state.global_step = self._trainer._private.trainer.step_number


def _refuse_stopping(callback: object) -> None:
    kind = callback if isinstance(callback, type) else type(callback)
    if issubclass(kind, transformers.EarlyStoppingCallback):
        raise UnsupportedError(
            "callbacks: early stopping follows an evaluation, whose figures have no noise; give "
            "the plan the steps that are to be made"
        )


def _check(args: transformers.TrainingArguments, plan: Plan, options: Flags) -> None:
    """Raise an error for arguments that private steps would not honour."""
    # The user may give optimizer and scheduler as a pair.
    _, scheduler = options.get("optimizers") or (None, None)
    kind = str(args.lr_scheduler_type).lower()
    if "plateau" in kind or (scheduler is not None and find_step_arguments(scheduler)):
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
    # Defaults of the installed version: fields come and go with it.
    defaults = transformers.TrainingArguments("tmp_trainer", use_cpu=args.use_cpu)
    for field in fields(args):
        name = field.name
        # Compared by value: a field may be given, and say the same as its default.
        value = getattr(args, name)
        is_default = value == getattr(defaults, name, field.default)
        # The number of steps may be given where it says the same as the plan.
        agrees = name == "max_steps" and value == plan.steps
        if name in HONOURED or is_default or agrees:
            continue
        remedy = REFUSED.get(name, "apiece does not know it: leave it out")
        raise UnsupportedError(f"args: {name} = {value!r} has no say in private steps; {remedy}")
    # Settings that no comparison with a default can find.
    meaningless = {
        "several processes": args.world_size > 1,
        "compute_loss_func": options.get("compute_loss_func") is not None,
        "save_strategy = 'best'": str(args.save_strategy).endswith(("best", "BEST")),
    }
    for name, is_set in meaningless.items():
        if is_set:
            raise UnsupportedError(
                f"args: {name} has no meaning in private steps; leave it out (a loss of your own "
                "goes into loss_fn)"
            )
