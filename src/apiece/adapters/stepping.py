"""A private step as other frameworks' loops take one: by calling an optimizer."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from apiece._lazy import lacking

try:
    import torch
    from torch.nn import functional
except ModuleNotFoundError as error:
    raise lacking(error.name, "train") from None

from apiece._types import State
from apiece.errors import InputError, StateError
from apiece.training import Progress, Trainer


class PrivateStep(torch.optim.Optimizer):
    """An optimizer whose step is one step of a `Trainer`: draw, clip, noise, update.

    It shares the parameter groups of the trainer's optimizer, so that a loop that shows or
    schedules learning rates finds them. Gradients that a loop computes are not looked at.

    Guarantee:
        The parameters change by steps of the trainer alone.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        # Only so that loops take it for an optimizer: it holds no state of its own.
        super().__init__(trainer.optimizer.param_groups, {})
        # The very same lists: schedulers of the loop change the optimizer's own rates.
        self.param_groups = trainer.optimizer.param_groups
        self.trainer = trainer
        self._around = around
        self.progress: Progress | None = None  # of the last step

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take one step of the trainer."""
        with self._around():
            self.progress = self.trainer.step()

    def __getstate__(self) -> State:
        return {"trainer": self.trainer}  # which refuses to be copied

    def state_dict(self) -> State:
        """Return an empty state: a run is saved in its own checkpoint folder."""
        return {}

    def load_state_dict(self, state_dict: State) -> None:
        """Refuse a state that is not empty: parameters and noise would be of two runs."""
        # An empty state is what `state_dict` gave: a loop may hand it back.
        if state_dict:
            raise make_resume_error("optimizer")


def make_resume_error(name: str, remedy: str = "apiece.Trainer.resume") -> StateError:
    """Return the error for going on from another framework's checkpoint."""
    return StateError(
        f"{name}: a private run goes on from its own folder only; give checkpoint=... and use "
        f"{remedy}"
    )


Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class Outputs(Protocol):
    """Outputs of a model of Hugging Face."""

    logits: torch.Tensor


# The label of a token that counts for nothing, as Hugging Face has it.
_IGNORED = -100

# The names of the losses below are digested into checkpoints: with another name, a run that was
# begun before could not be resumed.


def of_classes(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's cross-entropy, (B,), of logits (B, C) and labels (B,)."""
    return functional.cross_entropy(outputs.logits, labels, reduction="none")


def of_numbers(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean squared error, (B,)."""
    logits = outputs.logits
    # (B, …): the mean over a record's own numbers, and of no other's.
    errors: torch.Tensor = logits - labels.view_as(logits).to(logits.dtype)
    return errors.square().flatten(1).mean(1)


def of_several(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean binary cross-entropy, (B,), of logits and labels (B, C)."""
    logits = outputs.logits
    losses = functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="none"
    )
    return losses.mean(1)


def of_tokens(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean cross-entropy over its tokens, (B,), of logits (B, T, C)."""
    logits = outputs.logits
    # (B, T): cross-entropy wants classes second.
    losses = functional.cross_entropy(
        logits.transpose(1, 2), labels, reduction="none", ignore_index=_IGNORED
    )
    # By the record's own tokens: a mean over the batch would divide by other people's.
    tokens = (labels != _IGNORED).sum(1).clamp(min=1)
    return losses.sum(1) / tokens


def of_next_tokens(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean cross-entropy of the token that follows, (B,)."""
    # Place t is to predict token t + 1; the last place has none.
    next_labels = functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
    return of_tokens(outputs, next_labels)


def of_kind_of_labels(outputs: Outputs, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's loss, (B,), for several classes: of one where the labels are integers.

    Real numbers are several labels a record, as Hugging Face takes them where `problem_type` is not
    set.
    """
    logits = outputs.logits
    # Integers are classes; real numbers are several labels.
    are_classes = not labels.is_floating_point()
    if labels.shape != (logits.shape[:1] if are_classes else logits.shape):
        raise InputError(
            f"labels: shape {tuple(labels.shape)} of {str(labels.dtype).removeprefix('torch.')} "
            f"for outputs of shape {tuple(logits.shape)}; give one integer a record, or one real "
            "number for each of several labels"
        )
    return of_classes(outputs, labels) if are_classes else of_several(outputs, labels)


# What Hugging Face calls a model's loss → the loss of one record that it averages.
_LOSSES: dict[str, Loss] = {
    "ForCausalLM": of_next_tokens,
    "ForMaskedLM": of_tokens,
    "ForTokenClassification": of_tokens,
}
# Kinds for which Hugging Face chooses by `problem_type`, the number of labels and their type.
_RECORD_KINDS = frozenset(
    f"For{medium}Classification" for medium in ("Sequence", "Image", "Video", "Audio")
)
# By `problem_type`, where a model's settings have one.
_BY_PROBLEM: dict[str, Loss] = {
    "regression": of_numbers,
    "single_label_classification": of_classes,
    "multi_label_classification": of_several,
}


def find_loss(model: object) -> Loss:
    """Return the loss of one record that a model's own loss averages.

    Raises `InputError` for models whose loss is of another kind.
    """
    # Adapters wrap the model whose class and settings decide.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(base).__name__
    config = getattr(base, "config", None)
    kind = getattr(base, "loss_type", None)
    if kind is None and name.endswith("LMHeadModel"):
        kind = "ForCausalLM"  # as Hugging Face treats it
    problem = getattr(config, "problem_type", None)
    if kind in _RECORD_KINDS and (problem is None or problem in _BY_PROBLEM):
        if problem is not None:
            return _BY_PROBLEM[problem]
        # One output is a number, as Hugging Face takes it where nothing else is said.
        is_number: bool = config.num_labels == 1  # type: ignore[union-attr]
        return of_numbers if is_number else of_kind_of_labels
    if kind not in _LOSSES:
        raise InputError(
            f"loss_fn: there is none for a {name}, whose loss is {kind!r}; give "
            "loss_fn(outputs, labels) with one loss a record"
        )
    return _LOSSES[kind]
