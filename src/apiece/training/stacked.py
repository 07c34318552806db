"""Many small models as one, their parameters in one matrix (K, D): a row a model.

For fully connected layers per-record clipping has a closed form. The gradient of record i is the
outer product δ_i a_iᵀ, so its norm is ‖δ_i‖·√(‖a_i‖² + 1) (bias included) and the clipped sum is
one batched product: no per-record gradient is ever stored (Goodfellow 2015; Li et al. 2022, ghost
clipping). Any other module without buffers runs by vectorised per-record gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional

from apiece import _check
from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import ClippedSum, clip_factors
from apiece.training.modes import called_with

SUMS = "parameters"  # the name of the matrix in a stacked model's clipped sum
_CELLS = 1 << 24  # products between rows in memory at a time


def row_squares(rows: Tensor) -> Tensor:
    """Return at least the squared norms (K, P) of (K, P, W), to a few units of precision.

    `sum` adds in pairs, and whatever underflow can take from the squares is added to them.
    """
    return rows.square().sum(2).add_(rows.shape[2] * torch.finfo(rows.dtype).tiny)


def added(values: Tensor, owner: Tensor, persons: int) -> Tensor:
    """Return (K, persons, …): what the rows of each person, values (K, R, …), add up to."""
    place = owner.view(*owner.shape, *[1] * (values.dim() - 2)).expand_as(values)
    total = values.new_zeros(values.shape[0], persons, *values.shape[2:])
    return total.scatter_add_(1, place, values)


@dataclass(frozen=True, slots=True)
class StackedMlp:
    """Fully connected layers with ReLU between them.

    The MLP of Kaiser et al. 2026 is (features, 128, 64, classes).

    Attributes:
        sizes: (features, …hidden…, classes).

    Raises:
        InputError: For fewer than two sizes, or one below 1.

    Example:
        >>> from apiece.training import StackedMlp
        >>> StackedMlp((59, 128, 64, 2)).parameters
        16066
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise InputError(f"sizes = {self.sizes}: give (features, …hidden…, classes), all ≥ 1")

    @property
    def parameters(self) -> int:
        """How many parameters one model has."""
        return sum((i + 1) * o for i, o in zip(self.sizes, self.sizes[1:], strict=False))

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views (weight (K, out, in), bias (K, 1, out)) into the matrix `flat`.

        Args:
            flat: (K, parameters).
        """
        views, at, count = [], 0, flat.shape[0]
        for i, o in zip(self.sizes, self.sizes[1:], strict=False):
            weight = flat[:, at : at + i * o].view(count, o, i)
            bias = flat[:, at + i * o : at + i * o + o].view(count, 1, o)
            views.append((weight, bias))
            at += (i + 1) * o
        return views

    def initial(self, models: int, generator: torch.Generator) -> Tensor:
        """Return U(±1/√in) for weights and biases, as torch's Linear does.

        Args:
            models: How many.
            generator: Of the parameters.
        """
        flat = torch.rand(models, self.parameters, generator=generator, device=generator.device)
        for weight, bias in self.layers(flat.mul_(2).sub_(1)):
            for part in (weight, bias):
                part.mul_(1 / math.sqrt(weight.shape[2]))
        return flat

    def _activations(self, flat: Tensor, inputs: Tensor) -> list[Tensor]:
        """Return each layer's inputs, and the logits."""
        outputs = [inputs]
        layers = self.layers(flat)
        for at, (weight, bias) in enumerate(layers):
            out = torch.baddbmm(bias, outputs[-1], weight.transpose(1, 2))
            outputs.append(out.relu_() if at + 1 < len(layers) else out)
        return outputs

    def logits(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (K, P, classes).

        Args:
            flat: (K, parameters).
            inputs: (K, P, features).
        """
        return self._activations(flat, inputs)[-1]

    def _backward(
        self, flat: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return each layer's inputs a, the loss's derivative δ by its output, and ‖δ aᵀ‖ (K, P).

        The norms are of a record's whole gradient, biases included. The last of the inputs are
        the logits.
        """
        outputs, own = self._activations(flat, inputs), targets[..., None]
        delta = torch.softmax(outputs[-1], dim=2)
        delta.scatter_add_(2, own, delta.new_full((1, 1, 1), -1.0).expand_as(own))
        layers = self.layers(flat)
        deltas = [delta]
        for at in range(len(layers) - 1, 0, -1):
            back = torch.bmm(deltas[0], layers[at][0])
            # of ReLU, in one pass; multiplying by a mask takes seven times as long
            deltas.insert(0, torch.ops.aten.threshold_backward(back, outputs[at], 0.0))
        squared = inputs.new_zeros(inputs.shape[:2])
        for a, d in zip(outputs, deltas, strict=False):
            squared += row_squares(d) * (row_squares(a) + 1)
        return outputs, deltas, squared.sqrt_()

    def _joined(
        self,
        outputs: list[Tensor],
        deltas: list[Tensor],
        norms: Tensor,
        owner: Tensor,
        persons: int,
    ) -> Tensor:
        """Return the persons' norms (K, persons): ‖Σ_r δ_r a_rᵀ‖² is Σ_rs (δ_r·δ_s)(a_r·a_s)."""
        squared = norms.new_zeros(norms.shape[0], persons)
        together = max(1, _CELLS // norms.shape[1] ** 2)
        for at in range(0, norms.shape[0], together):
            part = slice(at, at + together)
            gram = norms.new_zeros(())
            for a, d in zip(outputs, deltas, strict=False):
                gram = gram + (d[part] @ d[part].mT) * (a[part] @ a[part].mT + 1)
            mine = owner[part, :, None] == owner[part, None, :]
            squared[part] = added(torch.where(mine, gram, 0.0).sum(2), owner[part], persons)
        most = added(norms, owner, persons).square_()  # the terms together, which may cancel
        return squared.clamp_(min=0).add_(most, alpha=2.0**-20).sqrt_()

    def gradient_norms(self, flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return (K, P): the norm of each record's cross-entropy gradient, before any clipping.

        Args:
            flat: (K, parameters).
            inputs: (K, P, features).
            targets: (K, P) Classes.
        """
        return self._backward(flat, inputs, targets)[2]

    def clipped_sum(
        self,
        flat: Tensor,
        inputs: Tensor,
        targets: Tensor,
        clip_norms: Tensor,
        owner: Tensor | None = None,
    ) -> ClippedSum:
        """Return the sums of clipped cross-entropy gradients, one a model.

        Args:
            flat: (K, parameters).
            inputs: (K, R, features) One row a record, or persons' rows.
            targets: (K, R) Classes.
            clip_norms: (K, P) One a record or person; 0 leaves it out.
            owner: (K, R) Whose in 0 … P − 1 each row is; None where each is a record.

        Guarantee:
            Record p's share of row k has norm at most clip_norms[k, p], after round-off.
        """
        outputs, deltas, norms = self._backward(flat, inputs, targets)
        if owner is not None:
            norms = self._joined(outputs, deltas, norms, owner, clip_norms.shape[1])
        factors, finite = clip_factors(norms, clip_norms), torch.isfinite(norms)
        if owner is not None:
            factors, finite = factors.gather(1, owner), finite.gather(1, owner)
        factors, result = factors[..., None], torch.empty_like(flat)
        broken = not bool(finite.all())
        for (weight, bias), a, d in zip(self.layers(result), outputs, deltas, strict=False):
            if broken:
                a, d = (torch.where(finite[..., None], t, 0.0) for t in (a, d))
            scaled = d * factors
            torch.bmm(scaled.transpose(1, 2), a, out=weight)
            torch.sum(scaled, dim=1, keepdim=True, out=bias)
        logits = outputs[-1]
        losses = torch.logsumexp(logits, dim=2) - logits.gather(2, targets[..., None])[..., 0]
        return ClippedSum({SUMS: result}, norms, losses, clip_norms)


@dataclass(frozen=True, eq=False)
class StackedModule:
    """K copies of `module` with parameters of their own; records are scored one by one.

    module: maps (P, …) to logits (P, classes), every record on its own; a module with buffers
    (batch norm) is refused, since its records share statistics. Its own values are neither used nor
    changed: `initial` calls each submodule's `reset_parameters` in a copy. block: models
    differentiated together, which bounds the memory at block × P × parameters.

    Raises `UnsupportedError` for buffers or for parameters that no `reset_parameters` sets.
    """

    module: nn.Module
    block: int = 8

    def __post_init__(self) -> None:
        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise UnsupportedError(
                f"module: it has buffers ({buffers[0]}, …), so records would share statistics; "
                "use group normalisation in place of batch normalisation"
            )
        _check.count("block", self.block)

    @property
    def parameters(self) -> int:
        """How many parameters one model has."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self, models: int, generator: torch.Generator) -> Tensor:
        """Return independently initialised parameters, (models, parameters)."""
        rows, module = [], copy.deepcopy(self.module)
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(models):
                _reset(module)
                rows.append(nn.utils.parameters_to_vector(module.parameters()).detach())
        return torch.stack(rows).to(generator.device)

    def _one(self, row: Tensor, records: Tensor) -> Tensor:
        """Return one model's logits (P, classes) of records (P, …)."""
        named, at = {}, 0
        for name, parameter in self.module.named_parameters():
            named[name] = row[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
        out: Tensor = called_with(self.module, named, records)
        return out

    def logits(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (K, P, classes) of inputs (K, P, …)."""
        with torch.no_grad():
            logits: Tensor = vmap(self._one, chunk_size=self.block)(flat, inputs)
        return logits

    def clipped_sum(
        self,
        flat: Tensor,
        inputs: Tensor,
        targets: Tensor,
        clip_norms: Tensor,
        owner: Tensor | None = None,
    ) -> ClippedSum:
        """Return the sums of clipped cross-entropy gradients, one a model."""

        def loss(row: Tensor, record: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(self._one(row, record[None]), target[None])

        per_record = vmap(vmap(grad_and_value(loss), in_dims=(None, 0, 0)))
        sums, norms, losses = [], [], []
        for at in range(0, flat.shape[0], self.block):
            part = slice(at, at + self.block)
            gradients, values = per_record(flat[part], inputs[part], targets[part])
            if owner is not None:
                gradients = added(gradients, owner[part], clip_norms.shape[1])
            sizes = row_squares(gradients).sqrt_()
            factors = clip_factors(sizes, clip_norms[part])
            if not bool(torch.isfinite(sizes).all()):
                gradients = torch.where(torch.isfinite(sizes)[..., None], gradients, 0.0)
            sums.append(torch.bmm(factors[:, None], gradients)[:, 0])
            norms.append(sizes)
            losses.append(values)
        return ClippedSum({SUMS: torch.cat(sums)}, torch.cat(norms), torch.cat(losses), clip_norms)


StackedModel: TypeAlias = StackedMlp | StackedModule


def logits_in_parts(
    model: StackedModel, flat: Tensor, inputs: Tensor, width: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield which of the inputs (n, …), at most `width`, and all models' logits of these."""
    for at in range(0, inputs.shape[0], width):
        part = slice(at, at + width)
        yield part, model.logits(flat, inputs[part].expand(flat.shape[0], *inputs[part].shape))


def _reset(module: nn.Module) -> None:
    """Start every part of a module anew."""
    for name, part in module.named_modules():
        own = list(part.parameters(recurse=False))
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        elif own:
            raise UnsupportedError(
                f"module {name or type(part).__name__}: has parameters but no reset_parameters, "
                "so independent models cannot be started; give it one"
            )
