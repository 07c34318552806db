"""Per-record gradients of any model by torch.func: the path that needs to know no layer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from apiece.training.clipping import records
from apiece.training.clipping.clipped import ClippedSum, add_up, clip_factors
from apiece.training.clipping.precision import single, wide
from apiece.training.clipping.records import Batch, Parameters
from apiece.training.clipping.rules.contributions import cancellation_of
from apiece.training.clipping.rules.kernels import flattened, row_squares

Gradients = dict[str, torch.Tensor]
_CELLS = 1 << 26  # entries of per-record gradients at a time


@contextlib.contextmanager
def vectorised(*modules: nn.Module) -> Iterator[None]:
    """Choose kernels that vmap can vectorise: attention in plain products, cells unfused."""
    recurrent = any(isinstance(m, nn.RNNBase) for module in modules for m in module.modules())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="TF32 acceleration")
        fused = torch.backends.mkldnn.flags(enabled=False) if recurrent else None
        with sdpa_kernel(SDPBackend.MATH), fused or contextlib.nullcontext():
            yield


def clip_vectorised(batch: Batch) -> ClippedSum:
    """Return the clipped sum by per-record gradients, as many at a time as fit in memory."""
    return add_up(_clip(per_record, part) for part in batch.parts(width_of(batch)))


def clip_one_by_one(batch: Batch) -> ClippedSum:
    """Return the same by a plain loop, for models that vmap cannot run."""
    return add_up(_clip(one_by_one, part) for part in batch.parts(width_of(batch)))


def clip_person(batch: Batch, width: int) -> ClippedSum:
    """Return the clipped share of one person, by plain gradients of `width` rows at a time."""
    tensors = list(batch.parameters.values())
    total = {name: torch.zeros_like(p, dtype=wide(p.dtype)) for name, p in batch.parameters.items()}
    losses: list[torch.Tensor] = []
    for part in batch.of_rows().parts(width):
        some = part.losses()
        losses.append(some.detach())
        for name, g in zip(total, _total(some, tensors), strict=True):
            total[name] += g
    gradients = {name: g.detach().unsqueeze(0) for name, g in total.items()}
    return clip_each(gradients, torch.cat(losses), batch)


def _clip(make: Callable[[Batch], tuple[Gradients, torch.Tensor]], batch: Batch) -> ClippedSum:
    """Return the clipped sum of gradients that `make` gives row by row, by person where it is."""
    if batch.owner is None:
        return clip_each(*make(batch), batch)
    total: Gradients = {}
    losses: list[torch.Tensor] = []
    persons, start = batch.clip_norms.numel(), 0
    sizes = batch.clip_norms.new_zeros(persons)
    for part in batch.of_rows().parts(width_of(batch)):
        mine = batch.owner[start : start + len(part)]
        start += len(part)
        gradients, some = make(part)
        losses.append(some)
        of_rows = {name: g.detach().to(wide(g.dtype)) for name, g in gradients.items()}
        sizes.index_add_(0, mine, _norms(of_rows).to(sizes.dtype))
        for name, rows in of_rows.items():
            if name not in total:
                total[name] = rows.new_zeros(persons, *rows.shape[1:])
            total[name].index_add_(0, mine, rows)
    return clip_each(total, torch.cat(losses), batch, sizes)


def width_of(batch: Batch, cells: int = _CELLS) -> int:
    """Return how many records' gradients have at most `cells` entries together."""
    return max(1, cells // sum(p.numel() for p in batch.parameters.values()))


def per_record(batch: Batch, *, randomness: str = "different") -> tuple[Gradients, torch.Tensor]:
    """Return each record's gradients, name → (B, *shape), and losses (B,), in one vmap.

    randomness: "same" lets all records draw the same numbers.
    """
    model, loss_fn = batch.model, batch.loss_fn
    places = places_of(model, batch.parameters)

    def loss_of_one(values: Gradients, one: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
        args, kwargs = records.arguments(records.lift(one))
        everywhere = {place: values[name] for place, name in places.items()}
        outputs = functional_call(model, everywhere, args, kwargs, tie_weights=False)
        losses = records.check_losses(loss_fn(outputs, records.lift(target)), 1, loss_fn)
        return losses[0], losses[0].detach()

    values = {name: p.detach() for name, p in batch.parameters.items()}
    each = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0), randomness=randomness)
    with vectorised(model):
        gradients, losses = each(values, batch.inputs, batch.targets)
    return gradients, losses


def places_of(model: nn.Module, parameters: Parameters) -> dict[str, str]:
    """Return, for every place in `model` that holds one of `parameters`, that one's name.

    `functional_call` ties weights by itself, but where a module is used under two names it leaves
    the replacement behind.
    """
    names = {id(p): name for name, p in parameters.items()}
    return {
        f"{path}.{name}".lstrip("."): names[id(p)]
        for path, module in model.named_modules()
        for name, p in module._parameters.items()
        if id(p) in names
    }


def one_by_one(batch: Batch) -> tuple[Gradients, torch.Tensor]:
    """Return the same as `per_record` by a loop."""
    rows: list[tuple[torch.Tensor, ...]] = []
    losses: list[torch.Tensor] = []
    tensors = list(batch.parameters.values())
    for part in batch.parts(1):
        loss = part.losses()
        rows.append(_total(loss, tensors))
        losses.append(loss.detach()[0])
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return dict(zip(batch.parameters, stacked, strict=True)), torch.stack(losses)


def _total(losses: torch.Tensor, tensors: list[nn.Parameter]) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the sum of losses, zeros where these depend on no parameter."""
    if not losses.requires_grad:
        return tuple(torch.zeros_like(p, requires_grad=False) for p in tensors)
    found = torch.autograd.grad(losses.sum(), tensors, allow_unused=True, materialize_grads=True)
    return tuple(g.to_dense() if g.is_sparse else g for g in found)


def clip_each(
    gradients: Gradients, losses: torch.Tensor, batch: Batch, sizes: torch.Tensor | None = None
) -> ClippedSum:
    """Return the sum of per-record gradients (B, *shape), each clipped at its own bound.

    sizes: where each is a sum, the norms of its terms added up, (B,): room is left for what their
    round-off comes to where they cancel.
    """
    rows = {name: g.detach().to(wide(g.dtype)) for name, g in gradients.items()}
    with single(losses.device):
        norms = _norms(rows)
        if sizes is not None:
            room = cancellation_of(sizes.to(norms.dtype), norms.dtype)
            norms = norms.square_().add_(room).sqrt_()
        factors = clip_factors(norms, batch.clip_norms)
        good = torch.isfinite(norms)
        sums = {name: weighted_sum(g, factors, good) for name, g in rows.items()}
    return ClippedSum(sums, norms, losses, batch.clip_norms)


def _norms(gradients: Gradients) -> torch.Tensor:
    """Return (B,) norms of per-record gradients over all parameters."""
    return torch.stack([row_squares(g) for g in gradients.values()]).sum(0).sqrt()


def weighted_sum(
    gradients: torch.Tensor, factors: torch.Tensor, good: torch.Tensor
) -> torch.Tensor:
    """Return Σ factor·gradient over the good records; what is not finite never enters."""
    flat = flattened(gradients)
    if not bool(good.all()):
        flat = flat[good]
        factors = factors[good]
    return (factors.to(flat.dtype) @ flat).view(gradients.shape[1:])
