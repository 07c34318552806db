"""Functions of torch in operators that the table knows: the same values, and nothing to decide.

Torch's own look at values before they compute (a variance below zero, the longest target of the
batch), or are one operator whose gradient no rule of the table takes through.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from apiece.training.clipping.graphs import Uncaptured
from apiece.training.clipping.table import Call, Layouts, Records, Shared, Unproved, rule

Tensor = torch.Tensor
functional = nn.functional
aten = torch.ops.aten
# Functions that make a value of Python's of a tensor. Of a tensor without values torch raises; of
# one that has them (a plain attribute of a module) the capture would freeze what they are now.
_READING_VALUES = {
    *(getattr(torch.Tensor, name) for name in (
        "item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__complex__",
        "__array__", "__contains__", "is_nonzero", "equal", "allclose", "unique",
    )), torch.is_nonzero, torch.equal, torch.allclose,
}  # fmt: skip
# By function of torch, what stands in its place.
_INSTEAD: dict[Any, Callable[..., Any]] = {}


class Restated(TorchFunctionMode):
    """Puts what stands in `_INSTEAD` in the place of torch's functions; refuses to read values."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        # A subclass or a tensor without values is left to torch, which raises of itself.
        has_values = bool(args) and type(args[0]) in (torch.Tensor, nn.Parameter)
        if has_values and func in _READING_VALUES:
            raise Uncaptured(
                "a tensor that is no buffer becomes a number, which would stay as it is; hold the "
                "number, or compute with the tensor"
            )
        function: Callable[..., object] = _INSTEAD.get(func, func)
        return function(*args, **(kwargs or {}))


def _instead_of(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function in the place of torch's."""

    def put(replacement: Callable[..., Any]) -> Callable[..., Any]:
        _INSTEAD.update(dict.fromkeys(functions, replacement))
        return replacement

    return put


# ---------------------------------------------------------------- pictures and tables


def _pool(function: Any, axes: tuple[int, ...], input: Tensor, output_size: Any) -> Any:  # noqa: A002
    """Return an adaptive mean; of a whole picture by `mean`.

    Torch's own writes other strides into its result, for pictures with their channels last.
    """
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    if set(sizes) == {1}:
        return input.mean(axes, keepdim=True)
    return function(input, output_size)


# Adaptive means in one, two and three dimensions.
_POOLS = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
          functional.adaptive_avg_pool3d)  # fmt: skip
for _rank, _function in enumerate(_POOLS, 1):
    # Over the last axes of a picture, whatever comes before them.
    _axes = tuple(range(-_rank, 0))
    _INSTEAD[_function] = functools.partial(_pool, _function, _axes)


@_instead_of(functional.one_hot)
def _one_hot(input: Tensor, num_classes: int = -1) -> Tensor:  # noqa: A002
    """Return `one_hot` by a scatter, which refuses a label beyond the classes when it runs.

    Torch's own, without values, compares labels with all classes: one beyond them would be none.
    """
    if num_classes < 0:  # the largest label among the records, and one more
        raise Uncaptured("one_hot: the records' labels decide how many classes there are; say it")
    # New zeros with one more axis, and a one at each label.
    zeros = input.new_zeros((*input.shape, num_classes))
    return zeros.scatter(-1, input.unsqueeze(-1), 1)


# ---------------------------------------------------------------- matrices

# Times that an exponential is squared: exact up to a norm of 2 to this power, and NaN beyond it.
_SQUARINGS = 10
# Terms of its series, for a norm of at most 1: what they leave out is below the precision.
_TERMS = 11
_TERMS_OF_DOUBLE = 18


@_instead_of(torch.matrix_exp, torch.linalg.matrix_exp, torch.Tensor.matrix_exp)
def _matrix_exp(matrix: Tensor) -> Tensor:
    """Return exp(A) = exp(A/2ˢ) to the power 2ˢ: of the largest column's sum comes s."""
    # The 1-norm, per matrix, (…, 1, 1): the largest sum of a column's sizes.
    norm = matrix.detach().abs().sum(-2).amax(-1)[..., None, None]
    # ‖A/2ˢ‖ ≤ 1 needs s ≥ log₂‖A‖; a norm of zero has −∞ for its logarithm, which becomes no
    # squaring.
    squarings = norm.log2().ceil().clamp(0, _SQUARINGS)
    scaled = matrix * torch.exp2(-squarings)
    is_double = matrix.dtype in (torch.float64, torch.complex128)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    # Horner's scheme: 1 + A(1 + A/2(1 + A/3(…)))
    result = identity.expand(matrix.shape)
    for term in range(_TERMS_OF_DOUBLE if is_double else _TERMS, 0, -1):
        result = identity + scaled @ result / term
    # As many squarings for all, and a selection: the number must not depend on a value.
    for step in range(_SQUARINGS):
        result = torch.where(squarings > step, result @ result, result)
    # Beyond, the bound on what the series leaves out does not hold.
    return torch.where(norm <= 2.0**_SQUARINGS, result, math.nan)


@_instead_of(torch.linalg.solve)
def _solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Return A⁻¹B, or BA⁻¹."""
    # By the inverse, whose operator has a rule, and not by a factorisation, which has none.
    inverse: Tensor = torch.linalg.inv(A)
    # As torch decides: a batch of vectors has one axis less than the matrices.
    is_vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    if is_vector:
        return (inverse @ B.unsqueeze(-1)).squeeze(-1)
    return inverse @ B if left else B @ inverse


@_instead_of(torch.linalg.householder_product, torch.orgqr, torch.Tensor.orgqr)
def _householder_product(input: Tensor, tau: Tensor) -> Tensor:  # noqa: A002
    """Return the first columns of H₁H₂…, Hₖ = 1 − τₖvₖvₖᴴ, as 1 − V·T·Vᴴ."""
    rows, columns = input.shape[-2:]
    count = tau.shape[-1]
    # (rows, columns), ones on the diagonal: the first columns of the identity.
    identity = torch.eye(rows, columns, dtype=input.dtype, device=input.device)
    # vₖ has zeros above its place and a one there, as LAPACK stores it.
    vectors = (input.tril(-1) + identity)[..., :count]
    # One more factor adds a column to T; by induction T⁻¹ = 1/τ + the upper part of VᴴV.
    above = (vectors.mH @ vectors).triu(1)
    scales = tau.unsqueeze(-1)
    ones = torch.eye(count, dtype=input.dtype, device=input.device)
    triangle: Tensor = torch.linalg.inv(ones + scales * above) @ (scales * ones)
    return identity - vectors @ triangle @ vectors[..., :columns, :].mH


# ---------------------------------------------------------------- losses


@_instead_of(functional.gaussian_nll_loss)
def _gaussian_nll_loss(
    input: Tensor,  # noqa: A002
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return a normal density's negative logarithm; NaN for a variance below zero."""
    if not isinstance(var, Tensor):
        var = var * torch.ones_like(input)
    # One variance for all entries of the last axis, as torch allows.
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    # As in torch, the floor under a variance has no say in its gradient.
    above_floor = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (above_floor.log() + (input - target) ** 2 / above_floor)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduce(torch.where(var < 0, math.nan, loss), reduction)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    """Return losses as torch's argument `reduction` has them."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


@torch.library.custom_op("apiece::ctc_loss", mutates_args=())
def _ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """Return each record's loss, (B,), and its gradient, (T, B, C).

    Raises `IndexError` for a length or a label that there is not: torch would read elsewhere.
    """
    longest_input, _, classes = log_probs.shape
    longest_target = targets.shape[1]
    # Beyond a record's own length labels become blank: what pads them, perhaps −1, is no label to
    # be checked.
    places = torch.arange(longest_target, device=targets.device)
    is_label = places < target_lengths.unsqueeze(1)
    targets = targets.masked_fill(~is_label, blank)
    is_valid = (
        ((input_lengths >= 0) & (input_lengths <= longest_input)).all()
        & ((target_lengths >= 0) & (target_lengths <= longest_target)).all()
        & ((targets >= 0) & (targets < classes)).all()
    )
    if not is_valid:
        raise IndexError("ctc_loss: a length or a label is out of range")
    lengths = input_lengths.tolist(), target_lengths.tolist()
    losses, paths = aten._ctc_loss(log_probs, targets, *lengths, blank)
    # of each record's path; what is infinite has none where it counts for nothing
    gradient = aten._ctc_loss_backward(
        torch.ones_like(losses), log_probs, targets, *lengths, losses, paths, blank, zero_infinity
    )
    if zero_infinity:
        losses = losses.masked_fill(losses == math.inf, 0)
    return losses, gradient


@_ctc.register_fake
def _(log_probs: Tensor, targets: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return log_probs.new_empty(targets.shape[0]), torch.empty_like(log_probs)


def _save_gradient(ctx: Any, inputs: object, output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _take_back(
    ctx: Any, of_losses: Tensor, of_gradient: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradient of log_probs: of each loss, its own record's part."""
    if of_gradient is not None:
        raise NotImplementedError("ctc_loss cannot be differentiated twice")
    (gradient,) = ctx.saved_tensors
    return gradient * of_losses[:, None], *[None] * 5


_ctc.register_autograd(_take_back, setup_context=_save_gradient)


@rule("apiece::ctc_loss")
def _ctc_layouts(call: Call) -> Layouts:
    """Losses and gradients are of a record's own column, target and lengths."""
    columns = call.of(call.argument("log_probs"))
    # log_probs has the records along its second axis (T, B, C), all else along the first.
    rows = {call.of(call.argument(name)) for name in ("targets", "input_lengths", "target_lengths")}
    if columns == Records(1) and rows == {Records(0)}:
        return Records(0), Records(1)
    if isinstance(columns, Shared) and all(isinstance(layout, Shared) for layout in rows):
        return columns
    raise Unproved("records are not along the second axis of log_probs and the first of all else")


@_instead_of(functional.ctc_loss)
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the connectionist loss of records of their own lengths."""
    if log_probs.dim() != 3 or targets.dim() != 2:
        raise Uncaptured(
            "ctc_loss: gives targets one after the other, or without an axis for the records; pad "
            "them to shape (records, longest)"
        )
    size = targets.shape[0]
    lengths = [_as_lengths(value, size, targets) for value in (input_lengths, target_lengths)]
    losses, _ = _ctc(log_probs, targets, *lengths, blank, zero_infinity)
    return _reduce(losses, reduction)


def _as_lengths(lengths: Any, size: int, like: Tensor) -> Tensor:
    """Return lengths (B,) as a tensor; numbers of Python's only where all records have one."""
    # Numbers pass only where the loss makes them of shapes, one for all records: others would be
    # those of one batch.
    if isinstance(lengths, Tensor):
        return lengths.to(like.device, torch.int64)
    if len(lengths) != size or len(set(lengths)) != 1:
        raise Uncaptured("ctc_loss: lengths are numbers of Python's; give a tensor of them")
    return torch.full((size,), lengths[0], dtype=torch.int64, device=like.device)
