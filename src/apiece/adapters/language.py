"""One loss a record from what Hugging Face's models give: classes, tokens, or numbers.

Hugging Face averages over a batch, tokens of all records together; here each record's loss is the
mean over its own labels, those of -100 left out, so that no record weighs on another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from apiece.errors import InputError

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
_IGNORED = -100  # the label of a token that counts for nothing, as Hugging Face has it


def of_classes(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's cross-entropy, (B,), of logits (B, C) and labels (B,)."""
    return functional.cross_entropy(outputs.logits, labels, reduction="none")


def of_numbers(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean squared error, (B,)."""
    logits = outputs.logits
    off: torch.Tensor = logits - labels.view_as(logits).to(logits.dtype)
    return off.square().flatten(1).mean(1)


def of_several(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean binary cross-entropy, (B,), of logits and labels (B, C)."""
    logits = outputs.logits
    each = functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="none"
    )
    return each.mean(1)


def of_tokens(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean cross-entropy over its tokens, (B,), of logits (B, T, C)."""
    logits = outputs.logits
    each = functional.cross_entropy(
        logits.transpose(1, 2), labels, reduction="none", ignore_index=_IGNORED
    )
    counted = (labels != _IGNORED).sum(1).clamp(min=1)
    return each.sum(1) / counted


def of_next_tokens(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return each record's mean cross-entropy of the token that follows, (B,)."""
    after = functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
    return of_tokens(outputs, after)


_LOSSES: dict[str, Loss] = {
    "ForCausalLM": of_next_tokens,
    "ForMaskedLM": of_tokens,
    "ForTokenClassification": of_tokens,
    "ForImageClassification": of_classes,
}


def loss_of(model: Any) -> Loss:
    """Return the loss of one record that a model's own loss averages.

    Raises `InputError` for models whose loss is of another kind.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(base).__name__, getattr(base, "config", None)
    kind = getattr(base, "loss_type", None)
    if kind is None and name.endswith("LMHeadModel"):
        kind = "ForCausalLM"  # which Hugging Face takes it for
    if kind == "ForSequenceClassification":
        problem = getattr(config, "problem_type", None)
        if problem == "multi_label_classification":
            return of_several
        one = problem == "regression" or (problem is None and config.num_labels == 1)  # type: ignore[union-attr]
        return of_numbers if one else of_classes
    if kind not in _LOSSES:
        raise InputError(
            f"loss_fn: there is none for a {name}, whose loss is {kind!r}; give "
            "loss_fn(outputs, labels) with one loss a record"
        )
    return _LOSSES[kind]
