"""What a layer rule is: from one call of a layer to what each record's gradient is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Contribution

Contributions = dict[str, Contribution]  # by the parameter's name within its layer
Gradients = Sequence[torch.Tensor | None]


class NotBookable(Exception):  # noqa: N818 - a signal, not an error: another path takes over
    """This model, or this call of it, has to take the functional path."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerUse:
    """One call of a layer in a pass over B records, as its rule sees it.

    Attributes:
        path: The layer's name in the model.
        input: What went in, (B, ...).
        gradients: Of those outputs that take one, in order; None where nothing depends on it.
        kwargs: The call's.
        output: The first output, for rules that make it again, else None.
        others: The call's further positional arguments, for rules that take more than one.

    Example:
        >>> one = torch.ones(2, 3)
        >>> LayerUse("0", one, [2 * one], {}).gradient is not None
        True
    """

    path: str
    input: torch.Tensor
    gradients: Gradients
    kwargs: Mapping[str, Any]
    output: torch.Tensor | None = None
    others: tuple[Any, ...] = ()

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient of the first output."""
        first = self.gradients[0]
        if first is None:
            raise NotBookable(f"{self.path}: nothing depends on its first output")
        return first


def own_weight_and_bias(module: nn.Module) -> bool:
    """Whether a layer has no other parameters than these two."""
    return all(p is None or name in ("weight", "bias") for name, p in module._parameters.items())


def any_call(_module: nn.Module, _args: Any, _kwargs: Any, _gradients: Gradients) -> bool:
    """Take every call."""
    return True


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a kind of layer gives each record's gradient.

    gives(layer, use) returns the `Contribution` of each trainable parameter, by its name within the
    layer. It runs without autograd for clipping, and with it for partial sensitivities, which
    differentiate what it returns with respect to `use.input` and `use.gradients`.
    suits(layer): whether a layer is as the rule expects. takes(layer, args, kwargs, gradients):
    whether a call is; what neither suits nor is taken is clipped by torch.func, exact as well.
    remakes: whether the rule makes the layer's output again, by other operators than the layer's,
    and compares the two (`same_output`); such a rule is not differentiated.
    positions: whether the layer does the same at every place of all dimensions but its last ones,
    so that a record may have several rows of the first dimension.
    packs: whether a call may be of packed sequences; the rule gets them padded, and their lengths
    as `others`.
    more: whether a call may have further arguments; the records are then those of its output.
    """

    gives: Callable[[Any, LayerUse], Contributions]
    suits: Callable[[Any], bool] = own_weight_and_bias
    takes: Callable[[Any, Any, Any, Gradients], bool] = any_call
    remakes: bool = False
    positions: bool = False
    more: bool = False
    packs: bool = False


def trains(module: nn.Module, name: str) -> bool:
    """Whether the layer has a parameter of this name, and trains it."""
    parameter = module._parameters.get(name)
    return parameter is not None and parameter.requires_grad


def same_output(path: str, made: torch.Tensor, again: torch.Tensor) -> None:
    """Raise `NotBookable` unless a layer's output and the one made again differ by round-off."""
    coarse = torch.finfo(made.dtype).eps > 1e-4
    rtol, atol = (3e-2, 1e-2) if coarse else (1e-3, 1e-5)
    if not torch.allclose(made.to(again.dtype), again, rtol=rtol, atol=atol, equal_nan=True):
        raise NotBookable(f"{path}: gives another output when run again")
