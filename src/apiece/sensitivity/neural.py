"""ModelLoss: a torch model and its loss, as a function of one record's inputs.

Where the graph of the model is proved to keep records apart, their norms come from one run of it
(ghost norms), and one backward pass through their sum gives every record's partial sensitivities.
Elsewhere `torch.func` differentiates one record's norm and is mapped over the records, or, where it
has no rule for a layer (recurrent ones), autograd differentiates twice, record by record.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from apiece import _check
from apiece._types import Floats
from apiece.errors import (
    DataError,
    InputError,
    NotDifferentiableError,
    RangeError,
    SlowPathWarning,
    UnsupportedError,
)
from apiece.sensitivity.partial import PartialSensitivity
from apiece.sensitivity.smooth import smooth_squares
from apiece.training.clipping.records import LossFunction
from apiece.training.clipping.torch_internals import BatchNormBase, DropoutBase
from apiece.training.modes import call_with, restoring

Derivatives: TypeAlias = tuple[Tensor, Tensor]  # norms (n,), and their gradients (n, ...)


@dataclass(frozen=True, slots=True)
class ModelLoss:
    """The loss ℓ(θ; x, y) of `model` on one record, for `partial_sensitivity`.

    ‖∇_θ ℓ(θ; x, y)‖₂ is differentiated with respect to the entries of x: `raw` has the shape of the
    inputs, images, tables or sequences. The relation is "add_remove", because this norm is what the
    record adds to a sum of gradients, before clipping.

    Where the model has kinks (ReLU, max pooling) the derivative is that of the piece on which the
    record lies. Where the gradient is exactly 0 (a hinge loss beyond its margin) the answer is 0
    and `zero` is True.

    Args:
        model: Any torch module that treats the records of a batch apart, at any checkpoint; it is
            used as it stands and left as it was. Frozen parameters do not count.
        loss_fn: `loss_fn(outputs, targets)` gives one loss a record.
        records_at_a_time: Bounds the memory.

    Raises:
        UnsupportedError: For batch norm or dropout in training mode, and other models that write to
            a buffer in the forward pass: a record's gradient depends on the others or on chance.
        NotDifferentiableError: For integer inputs, such as tokens (give embeddings).
        InputError: Where no parameter is trainable or the loss is not one number a record.
        DataError: For inputs that are not finite.
        RangeError: Where a norm is not.

    References:
        Mueller et al. 2021, §5.2; ghost norms: Goodfellow 2015, Li et al. 2022.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece import ModelLoss
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> square = ModelLoss(model, lambda out, y: (out[:, 0] - y) ** 2 / 2)
        >>> square.differentiate(torch.tensor([[3.0, 4.0]]), torch.tensor([5.0])).norms.tolist()
        [10.0]
    """

    model: nn.Module
    loss_fn: LossFunction
    records_at_a_time: int = 256

    def differentiate(self, inputs: object, targets: object) -> PartialSensitivity:
        """Return the partial sensitivities, as `partial_sensitivity(self, inputs, targets)` does.

        Args:
            inputs: Arrays or tensors, a record each; they are moved to the model's device and
                precision.
            targets: One a record.

        Raises:
            DataError: For inputs that are not finite, and another number of targets.
            RangeError: Where a norm is not finite.
        """
        size = _check.count("records_at_a_time", self.records_at_a_time)
        parameter = _check_model(self.model)
        # In the model's precision, on its device.
        x = _check_inputs(inputs).to(parameter)
        y = torch.as_tensor(targets).to(parameter.device)
        if len(x) != len(y):
            raise DataError(f"inputs, targets: {len(x)} and {len(y)} records; give one target each")
        # Gradients are on whatever the caller has set, and the model is put back as it was.
        with torch.enable_grad(), restoring(self.model), _twice_differentiable_kernels():
            _check_buffers(self.model, x[:1])
            parts = [
                _differentiate_norms(self.model, self.loss_fn, x[i : i + size], y[i : i + size])
                for i in range(0, len(x), size)
            ]
        norms = np.concatenate([_to_array(part_norms) for part_norms, _ in parts])
        raw = np.concatenate([_to_array(growth) for _, growth in parts])
        if not (np.isfinite(norms).all() and np.isfinite(raw).all()):
            raise RangeError("partial sensitivity: a norm is not finite; check the model's values")
        return PartialSensitivity(raw, norms, norms == 0, "add_remove")


def _to_array(tensor: Tensor) -> Floats:
    """Return a tensor's values in double precision."""
    array: Floats = tensor.detach().cpu().double().numpy()
    return array


def _check_inputs(inputs: object) -> Tensor:
    """Return the inputs as a tensor of finite floats, a record each."""
    x = torch.as_tensor(inputs)
    if not x.is_floating_point():
        raise NotDifferentiableError(
            f"inputs: {x.dtype} has no derivative; give floating point inputs (for tokens, their "
            "embeddings)"
        )
    if x.ndim < 2 or len(x) == 0:
        raise DataError(f"inputs: shape {tuple(x.shape)}; give (n, ...) with at least one record")
    broken = (~torch.isfinite(x)).flatten(1).any(1)
    count = int(broken.sum())
    if count:
        raise DataError(f"inputs: {count} records with NaN or infinite entries; leave them out")
    return x.detach()


def _check_model(model: nn.Module) -> nn.Parameter:
    """Return a trainable parameter, whose type and device the inputs must have."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise InputError("model: no trainable parameter; nothing is released about a record")
    for name, module in model.named_modules():
        is_random = False
        if isinstance(module, DropoutBase):
            is_random = module.p > 0 and module.training
        is_coupled = False
        # Batch norm without running statistics takes those of the batch in evaluation too.
        if isinstance(module, BatchNormBase):
            is_coupled = module.training or module.running_mean is None
        if is_coupled or is_random:
            raise UnsupportedError(
                f"model: {name or 'it'} ({type(module).__name__}) in training mode makes a "
                "record's gradient depend on the others or on chance; call model.eval() first"
            )
    return trainable[0]


def _check_buffers(model: nn.Module, record: Tensor) -> None:
    """Raise `UnsupportedError` for a model whose forward pass writes to a buffer."""
    # One record tells whether the pass writes, and nothing is kept of it.
    with restoring(model) as changed, torch.no_grad():
        model(record)
    if changed:
        raise UnsupportedError(
            f"model: its forward pass writes to {changed[0]!r}, so a record's gradient may depend "
            "on the others; call model.eval() first, or take that out"
        )


def _differentiate_norms(
    model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor
) -> Derivatives:
    """Differentiate the records' norms, by the graph where their squares cannot underflow."""
    # torch.func has no rule for recurrent layers: they go record by record from the start.
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return by_autograd(model, loss_fn, x, y)
    x = x.clone().requires_grad_()
    squares = smooth_squares(model, loss_fn, x, y)
    is_usable = False
    if squares is not None:
        # Below it, the squares of the norm's entries may have underflowed.
        smallest_square = torch.finfo(squares.dtype).tiny ** 0.5
        is_usable = bool((squares > smallest_square).all())
    # One record's norm at a time, in units of its largest entry: slower, and of any size.
    if squares is None or not is_usable:
        try:
            return by_torch_func(model, loss_fn, x.detach(), y)
        except RuntimeError:  # torch.func has no rule for one of its operators
            return by_autograd(model, loss_fn, x.detach(), y)
    norms = squares.sqrt()
    # Records stay apart, so that the gradient of the sum is each record's own.
    (growth,) = torch.autograd.grad(norms.sum(), x, materialize_grads=True, allow_unused=True)
    return norms.detach(), growth


@contextmanager
def _twice_differentiable_kernels() -> Iterator[None]:
    """Run layers by kernels that have a second derivative: fused ones have only a first."""
    switches: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    enabled = [switch.enabled for switch in switches]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        for switch in switches:
            switch.enabled = False
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        for switch, value in zip(switches, enabled, strict=True):
            switch.enabled = value
        torch.backends.mha.set_fastpath_enabled(fast_path)


def by_autograd(model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor) -> Derivatives:
    """Differentiate each record's gradient norm by itself, by two backward passes; any model."""
    warnings.warn(
        "model: records run one after the other, as torch.func has no rule for one of its layers",
        SlowPathWarning,
        stacklevel=5,
    )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    growths = []
    for record, target in zip(x.detach(), y, strict=True):
        batch = record[None].clone().requires_grad_()
        loss = _take_loss(loss_fn(model(batch), target[None]))
        # The graph of the first derivative is kept: it is differentiated once more.
        gradients = torch.autograd.grad(
            loss, trainable, create_graph=True, materialize_grads=True, allow_unused=True
        )
        norm = _compute_norm(gradients)
        (growth,) = torch.autograd.grad(norm, batch, materialize_grads=True, allow_unused=True)
        norms.append(norm.detach())
        growths.append(growth[0])
    return torch.stack(norms), torch.stack(growths)


def _take_loss(losses: Tensor) -> Tensor:
    """Return the loss of a batch of one record as a number."""
    if losses.shape != (1,):
        raise InputError(
            f"loss_fn: shape {tuple(losses.shape)} for 1 record; give one loss a record "
            "(reduction='none')"
        )
    return losses.sum()


def _compute_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the ℓ2 norm of several gradients together, of derivative 0 where it is 0.

    They are divided by their largest entry first, so that no square under- or overflows.
    """
    parts = list(gradients)
    largest = [part.detach().abs().max() for part in parts]
    scale = torch.stack(largest).max()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    squares = [(part / scale).square().sum() for part in parts]
    square = torch.stack(squares).sum()
    # Twice by selection: the root's derivative at 0 is infinite, and ∞ times 0 would be NaN.
    positive = square > 0
    root = torch.where(positive, square, 1.0).sqrt()
    return scale * torch.where(positive, root, 0.0)


def by_torch_func(model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor) -> Derivatives:
    """Differentiate one record's gradient norm, mapped over records; any model."""
    # Detached: what is differentiated are these arguments, not the model's own parameters.
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def compute_norm(record: Tensor, target: Tensor) -> Tensor:
        # A batch of one record: models take batches.
        def compute_loss(parameters: dict[str, Tensor]) -> Tensor:
            outputs = call_with(model, parameters, record[None])
            return _take_loss(loss_fn(outputs, target[None]))

        gradients = torch.func.grad(compute_loss)(trainable)
        return _compute_norm(gradients.values())

    differentiate = torch.func.vmap(torch.func.grad_and_value(compute_norm))
    growth, norms = differentiate(x, y)
    return norms, growth
