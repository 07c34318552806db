"""ModelLoss: a torch model and its loss, as a function of one record's inputs.

The norm of a record's gradient is written with the activations and output gradients of each layer
(the ghost norm), which stay in the autograd graph. The sum over a batch of those norms separates
over the records, so one backward pass through it gives every record's partial sensitivities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from apiece import _check
from apiece.errors import (
    DataError,
    InputError,
    NotDifferentiableError,
    RangeError,
    UnsupportedError,
)
from apiece.sensitivity.partial import PartialSensitivity
from apiece.training import Contribution, LayerUse, called_with, rule_for, unchanged

LossFn: TypeAlias = Callable[[Any, Any], Tensor]
_SHOWN = 4  # records on which the fast method is compared
Derivatives: TypeAlias = tuple[Tensor, Tensor]  # norms (n,), and their gradients (n, ...)


@dataclass(frozen=True, slots=True)
class ModelLoss:
    """The loss ℓ(θ; x, y) of `model` on one record, for `partial_sensitivity`.

    `partial_sensitivity(ModelLoss(model, loss_fn), inputs, targets)` differentiates ‖∇_θ ℓ(θ; x,
    y)‖₂ with respect to the entries of x: `raw` has the shape of the inputs, images, tables or
    sequences; the relation is "add_remove", because this norm is what the record adds to a sum of
    gradients, before clipping.

    Where the model has kinks (ReLU, max pooling) the derivative is that of the piece on which the
    record lies. Where the gradient is exactly 0 (a hinge loss beyond its margin) the answer is 0
    and `zero` is True.

    Args:
        model: Any torch module that treats the records of a batch apart, at any checkpoint; it is
            used as it stands and left as it was. Frozen parameters do not count.
        loss_fn: `loss_fn(outputs, targets)` gives one loss a record.
        records_at_a_time: Bounds the memory.

    Raises:
        UnsupportedError: For batch norm or dropout in training mode, and other models that write
            to a buffer in the forward pass, because then a record's gradient depends on the others
            or on chance.
        NotDifferentiableError: For integer inputs, such as tokens (give embeddings).
        InputError: Where no parameter is trainable or the loss is not one number a record.
        DataError: For inputs that are not finite.
        RangeError: Where a norm is not.

    References:
        Mueller et al. 2021, §5.2; ghost norms: Goodfellow 2015, Li et al. 2022.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> square = ModelLoss(model, lambda out, y: (out[:, 0] - y) ** 2 / 2)
        >>> square.differentiate(torch.tensor([[3.0, 4.0]]), torch.tensor([5.0])).norms.tolist()
        [10.0]
    """

    model: nn.Module
    loss_fn: LossFn
    records_at_a_time: int = 256

    def differentiate(self, inputs: Any, targets: Any) -> PartialSensitivity:
        """Return what `partial_sensitivity(self, inputs, targets)` returns.

        Args:
            inputs: Arrays or tensors, a record each; they are moved to the model's device and
                precision.
            targets: One a record.

        Raises:
            DataError: For inputs that are not finite, and another number of targets.
            RangeError: Where a norm is not finite.
        """
        size = _check.count("records_at_a_time", self.records_at_a_time)
        first = _check_model(self.model)
        x, y = _inputs(inputs).to(first), torch.as_tensor(targets).to(first.device)
        if len(x) != len(y):
            raise DataError(f"inputs, targets: {len(x)} and {len(y)} records; give one target each")
        with torch.enable_grad(), unchanged(self.model):
            _check_kept(self.model, x[:1])
            method = _choose(self.model, self.loss_fn, x[:_SHOWN], y[:_SHOWN])
            parts = [
                method(self.model, self.loss_fn, x[i : i + size], y[i : i + size])
                for i in range(0, len(x), size)
            ]
        norms = np.concatenate([n.detach().cpu().double().numpy() for n, _ in parts])
        raw = np.concatenate([r.detach().cpu().double().numpy() for _, r in parts])
        if not (np.isfinite(norms).all() and np.isfinite(raw).all()):
            raise RangeError("partial sensitivity: a norm is not finite; check the model's values")
        return PartialSensitivity(raw, norms, norms == 0, "add_remove")


def _inputs(inputs: Any) -> Tensor:
    x = torch.as_tensor(inputs)
    if not x.is_floating_point():
        raise NotDifferentiableError(
            f"inputs: {x.dtype} has no derivative; give floating point inputs (for tokens, their "
            "embeddings)"
        )
    if x.ndim < 2 or len(x) == 0:
        raise DataError(f"inputs: shape {tuple(x.shape)}; give (n, ...) with at least one record")
    bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
    if bad:
        raise DataError(f"inputs: {bad} records with NaN or infinite entries; leave them out")
    return x.detach()


def _check_model(model: nn.Module) -> nn.Parameter:
    """Return a trainable parameter, whose type and device the inputs are to have."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise InputError("model: no trainable parameter; nothing is released about a record")
    for name, module in model.named_modules():
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        coupled = isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        )
        if coupled or (random and module.training):
            raise UnsupportedError(
                f"model: {name or 'it'} ({type(module).__name__}) in training mode makes a "
                "record's gradient depend on the others or on chance; call model.eval() first"
            )
    return trainable[0]


def _check_kept(model: nn.Module, one: Tensor) -> None:
    """Refuse a model that keeps something of the record that it runs on."""
    with unchanged(model) as written, torch.no_grad():
        model(one)
    if written:
        raise UnsupportedError(
            f"model: its forward pass writes to {written[0]!r}, so a record's gradient may depend "
            "on the others; call model.eval() first, or take that out"
        )


def _choose(
    model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor
) -> Callable[[nn.Module, LossFn, Tensor, Tensor], Derivatives]:
    """Return the fast method where it applies, shown on one record, else the general one.

    Both are exact. Ghost norms need every trainable parameter in a layer with a rule, called once.
    A parameter that is also used elsewhere, or records that are mixed, show as a difference between
    the largest norm of a few records and that record's norm by plain differentiation, alone.
    """
    if not _layers(model):
        return by_torch_func
    try:
        ghost, _ = by_ghost_norms(model, loss_fn, x, y)
    except _NotOnce:
        return by_torch_func
    i = int(ghost.argmax())
    loss = _losses(model, loss_fn, x[i : i + 1], y[i : i + 1]).sum()
    trainable = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, trainable, materialize_grads=True, allow_unused=True)
    exact = torch.stack([g.double().norm() for g in grads]).norm()
    agree = torch.isclose(ghost[i].double(), exact, rtol=1e-3, atol=0) and exact > 0
    return by_ghost_norms if agree else by_torch_func


def _losses(model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor) -> Tensor:
    losses = loss_fn(model(x), y)
    if losses.shape != (len(x),):
        raise InputError(
            f"loss_fn: shape {tuple(losses.shape)} for {len(x)} records; give one loss a record "
            "(reduction='none')"
        )
    return losses


def by_torch_func(model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor) -> Derivatives:
    """Differentiate one record's gradient norm, mapped over records; any model."""
    trainable = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def norm(one: Tensor, target: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor]) -> Tensor:
            outputs = called_with(model, parameters, one[None])
            return loss_fn(outputs, target[None]).sum()

        gradients = torch.func.grad(loss)(trainable).values()
        scale = torch.stack([g.detach().abs().max() for g in gradients]).max()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        square = torch.stack([(g / scale).square().sum() for g in gradients]).sum()
        return scale * _root(square)

    growth, norms = torch.func.vmap(torch.func.grad_and_value(norm))(x, y)
    return norms, growth


def by_ghost_norms(model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor) -> Derivatives:
    """Differentiate the sum over records of their gradient norms, in one backward pass."""
    x = x.clone().requires_grad_()
    with _recorded(_layers(model)) as calls:
        losses = _losses(model, loss_fn, x, y)
    if any(len(made) != 1 or len(made[0][1]) != len(x) for made in calls.values()):
        raise _NotOnce
    made = {module: inputs_outputs[0] for module, inputs_outputs in calls.items()}
    outputs = [out for _, out in made.values()]
    errors = torch.autograd.grad(
        losses.sum(), outputs, create_graph=True, materialize_grads=True, allow_unused=True
    )
    # The norm is homogeneous in the output gradients: scaled, their squares cannot underflow.
    scale = torch.stack([e.detach().abs().flatten(1).amax(1) for e in errors]).amax(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    square = torch.zeros_like(losses)
    for (module, (entering, _)), error in zip(made.items(), errors, strict=True):
        scaled = error / scale.view(-1, *[1] * (error.ndim - 1))
        for part in _parts(module, entering, scaled):
            square = square + part.smooth_squares()
    norms = scale * _root(square)
    (growth,) = torch.autograd.grad(norms.sum(), x, materialize_grads=True, allow_unused=True)
    return norms, growth


def _root(square: Tensor) -> Tensor:
    """Return the square root, with derivative 0 where it is 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


class _NotOnce(Exception):  # noqa: N818
    """A layer was called several times, not at all, or not on one row a record."""


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that own trainable parameters; none of them if one has no rule."""
    owners = [
        m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))
    ]
    owned = sum(len(list(m.parameters(recurse=False))) for m in owners)
    shared = owned != len({id(p) for m in owners for p in m.parameters(recurse=False)})
    smooth = all((rule := rule_for(m)) is not None and not rule.remakes for m in owners)
    return owners if smooth and not shared else []


def _parts(layer: nn.Module, entering: Tensor, error: Tensor) -> Iterable[Contribution]:
    """Return what the layer's trainable parameters give each record, by the rule it has."""
    rule = rule_for(layer)
    assert rule is not None
    return rule.gives(layer, LayerUse("", entering, [error], {})).values()


@contextmanager
def _recorded(layers: list[nn.Module]) -> Iterator[dict[nn.Module, list[tuple[Tensor, Tensor]]]]:
    """Record what enters and leaves each layer; the model goes on with a copy of what leaves, so
    that an in-place activation does not overwrite the record."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {m: [] for m in layers}

    def record(module: nn.Module, entering: tuple[Tensor, ...], leaving: Tensor) -> Tensor:
        calls[module].append((entering[0], leaving))
        return leaving.clone()

    handles = [m.register_forward_hook(record) for m in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
