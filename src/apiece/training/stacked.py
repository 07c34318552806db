"""Many small models as one, their parameters in one matrix (K, D): a row a model.

For fully connected layers per-record clipping has a closed form. The gradient of record i is the
outer product δ_i a_iᵀ, so its norm is ‖δ_i‖·√(‖a_i‖² + 1) (bias included) and the clipped sum is
one batched product: no per-record gradient is ever stored (Goodfellow 2015; Li et al. 2022, ghost
clipping). Any other module without buffers runs by vectorised per-record gradients.
"""

from __future__ import annotations

import copy
import itertools
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
from apiece.training.clipping import ClippedSum
from apiece.training.clipping.records import clip_factors
from apiece.training.modes import call_with

# The name of the matrix of parameters in a stacked model's clipped sum.
SUMS = "parameters"

# Products between rows in memory at a time.
_MOST_CELLS = 1 << 24


def row_squares(rows: Tensor) -> Tensor:
    """Return at least the squared norms (K, P) of (K, P, W), to a few units of precision.

    `sum` adds in pairs, and the most that underflow can take from the squares is added to them.
    """
    underflow = rows.shape[2] * torch.finfo(rows.dtype).tiny
    return rows.square().sum(2).add_(underflow)


def sum_by_person(values: Tensor, owner: Tensor, persons: int) -> Tensor:
    """Return (K, persons, …): the sums over each person's rows of the values (K, R, …).

    owner: (K, R) the person of each row, in 0 … persons − 1.
    """
    models, rows, *shape = values.shape
    # The owner's index is broadcast over the further axes.
    index = owner.view(models, rows, *[1] * len(shape)).expand_as(values)
    total = values.new_zeros(models, persons, *shape)
    return total.scatter_add_(1, index, values)


@dataclass(frozen=True, slots=True)
class StackedMlp:
    """Fully connected layers with ReLU between them.

    The MLP of Kaiser et al. 2026 is (features, 128, 64, classes).

    Attributes:
        sizes: (features, …hidden…, classes).

    Raises:
        InputError: For fewer than two sizes, or one below 1.

    Example:
        >>> from apiece.training.stacked import StackedMlp
        >>> StackedMlp((59, 128, 64, 2)).parameters
        16066
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise InputError(f"sizes = {self.sizes}: give (features, …hidden…, classes), all ≥ 1")

    @property
    def parameters(self) -> int:
        """Number of parameters of one model."""
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(self.sizes))

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views (weight (K, out, in), bias (K, 1, out)) into the matrix `flat`.

        Args:
            flat: (K, parameters).
        """
        # Layer after layer: a weight, then its bias, side by side in a row of parameters.
        views = []
        models = flat.shape[0]
        start = 0
        for inputs, outputs in itertools.pairwise(self.sizes):
            bias_start = start + inputs * outputs
            end = bias_start + outputs
            weight = flat[:, start:bias_start].view(models, outputs, inputs)
            bias = flat[:, bias_start:end].view(models, 1, outputs)
            views.append((weight, bias))
            start = end
        return views

    def initial(self, models: int, generator: torch.Generator) -> Tensor:
        """Return U(±1/√in) for weights and biases, as torch's Linear does.

        Args:
            models: Number of models.
            generator: Source of the random parameters.
        """
        flat = torch.rand(models, self.parameters, generator=generator, device=generator.device)
        # From [0, 1) to [−1, 1), in place; then by layer to ±1/√in.
        for weight, bias in self.layers(flat.mul_(2).sub_(1)):
            for part in (weight, bias):
                part.mul_(1 / math.sqrt(weight.shape[2]))
        return flat

    def _activations(self, flat: Tensor, inputs: Tensor) -> list[Tensor]:
        """Return each layer's inputs, and the logits."""
        # (K, P, width): outputs of a layer are the inputs of the next.
        outputs = [inputs]
        layers = self.layers(flat)
        for number, (weight, bias) in enumerate(layers, start=1):
            output = torch.baddbmm(bias, outputs[-1], weight.transpose(1, 2))
            outputs.append(output.relu_() if number < len(layers) else output)
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
        outputs = self._activations(flat, inputs)
        # The derivative of cross-entropy by the logits is softmax less 1 at the target.
        # (K, P, classes): the first δ, from which the others follow backwards.
        delta = torch.softmax(outputs[-1], dim=2)
        classes = targets[..., None]
        minus_one = delta.new_full((1, 1, 1), -1.0)
        delta.scatter_add_(2, classes, minus_one.expand_as(classes))
        layers = self.layers(flat)
        deltas = [delta]
        for number in range(len(layers) - 1, 0, -1):
            weight, _ = layers[number]
            # δ of a layer is δ of the next one times that layer's weight, where ReLU let the input
            # through.
            back = torch.bmm(deltas[0], weight)
            # The derivative of ReLU, in one pass; multiplying by a mask takes seven times as long.
            deltas.insert(0, torch.ops.aten.threshold_backward(back, outputs[number], 0.0))
        squared = inputs.new_zeros(inputs.shape[:2])
        # ‖δ aᵀ‖² = ‖δ‖²·‖a‖², and the bias, whose input is 1, adds ‖δ‖².
        for a, d in zip(outputs, deltas, strict=False):
            squared += row_squares(d) * (row_squares(a) + 1)
        return outputs, deltas, squared.sqrt_()

    def _join_norms(
        self,
        outputs: list[Tensor],
        deltas: list[Tensor],
        norms: Tensor,
        owner: Tensor,
        persons: int,
    ) -> Tensor:
        """Return the persons' norms (K, persons): ‖Σ_r δ_r a_rᵀ‖² is Σ_rs (δ_r·δ_s)(a_r·a_s)."""
        squared = norms.new_zeros(norms.shape[0], persons)
        # So many models that their (R, R) matrices of products fit.
        models_at_a_time = max(1, _MOST_CELLS // norms.shape[1] ** 2)
        for start in range(0, norms.shape[0], models_at_a_time):
            part = slice(start, start + models_at_a_time)
            gram = norms.new_zeros(())
            for a, d in zip(outputs, deltas, strict=False):
                delta_products = d[part] @ d[part].mT
                input_products = a[part] @ a[part].mT
                gram = gram + delta_products * (input_products + 1)
            # Products between rows of two persons are no part of anybody's norm.
            is_same_person = owner[part, :, None] == owner[part, None, :]
            rows = torch.where(is_same_person, gram, 0.0).sum(2)
            squared[part] = sum_by_person(rows, owner[part], persons)
        # The terms may cancel: round-off is relative to the largest that the sum could be, the
        # square of the summed norms, and so much of it is added.
        largest = sum_by_person(norms, owner, persons).square_()
        return squared.clamp_(min=0).add_(largest, alpha=2.0**-20).sqrt_()

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
        # Of persons; a row is then scaled by its person's factor.
        if owner is not None:
            norms = self._join_norms(outputs, deltas, norms, owner, clip_norms.shape[1])
        factors = clip_factors(norms, clip_norms)
        finite = torch.isfinite(norms)
        if owner is not None:
            # From persons (K, P) to rows (K, R).
            factors = factors.gather(1, owner)
            finite = finite.gather(1, owner)
        factors = factors[..., None]
        finite = finite[..., None]
        # One number to wait for: mostly nobody is left out.
        all_finite = bool(finite.all())
        result = torch.empty_like(flat)
        # Written through views into the result: a layer's δᵀa, and δ for its bias.
        for (weight, bias), a, d in zip(self.layers(result), outputs, deltas, strict=False):
            if not all_finite:
                # By selection: 0·NaN would be NaN.
                a = torch.where(finite, a, 0.0)
                d = torch.where(finite, d, 0.0)
            scaled = d * factors
            torch.bmm(scaled.transpose(1, 2), a, out=weight)
            torch.sum(scaled, dim=1, keepdim=True, out=bias)
        logits = outputs[-1]
        # Cross-entropy is log Σ exp(logits) − the target's logit.
        target_logits = logits.gather(2, targets[..., None])[..., 0]
        losses = torch.logsumexp(logits, dim=2) - target_logits
        return ClippedSum({SUMS: result}, norms, losses, clip_norms)


@dataclass(frozen=True, eq=False)
class StackedModule:
    """K copies of `module` with parameters of their own; records are scored one by one.

    module: maps (P, …) to logits (P, classes), every record on its own; a module with buffers
    (batch norm) is refused, since its records share statistics. The values of its parameters are
    neither used nor changed: `initial` calls each submodule's `reset_parameters` in a copy. block:
    models differentiated together, which bounds the memory at block × P × parameters.

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
        """Number of parameters of one model."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self, models: int, generator: torch.Generator) -> Tensor:
        """Return independently initialised parameters, (models, parameters)."""
        rows = []
        module = copy.deepcopy(self.module)
        # From the caller's stream: models are the same for the same generator.
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(models):
                _reset_parameters(module)
                row = nn.utils.parameters_to_vector(module.parameters())
                rows.append(row.detach())
        return torch.stack(rows).to(generator.device)

    def _call_model(self, row: Tensor, records: Tensor) -> Tensor:
        """Return the logits (P, classes) of records (P, …) by one model, a row (parameters,)."""
        # Parameters lie in a row one after the other, in the order of their names.
        parameters = {}
        start = 0
        for name, parameter in self.module.named_parameters():
            end = start + parameter.numel()
            parameters[name] = row[start:end].view(parameter.shape)
            start = end
        logits: Tensor = call_with(self.module, parameters, records)
        return logits

    def logits(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (K, P, classes) of inputs (K, P, …)."""
        with torch.no_grad():
            logits: Tensor = vmap(self._call_model, chunk_size=self.block)(flat, inputs)
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
            return functional.cross_entropy(self._call_model(row, record[None]), target[None])

        # Over the models, and over each model's records.
        # (block, P, parameters) gradients and (block, P) losses.
        per_record = vmap(vmap(grad_and_value(loss), in_dims=(None, 0, 0)))
        sums = []
        norms = []
        losses = []
        for start in range(0, flat.shape[0], self.block):
            part = slice(start, start + self.block)
            gradients, values = per_record(flat[part], inputs[part], targets[part])
            if owner is not None:
                gradients = sum_by_person(gradients, owner[part], clip_norms.shape[1])
            # (block, P): each record's or person's norm, over all parameters.
            part_norms = row_squares(gradients).sqrt_()
            factors = clip_factors(part_norms, clip_norms[part])
            finite = torch.isfinite(part_norms)
            if not bool(finite.all()):
                gradients = torch.where(finite[..., None], gradients, 0.0)
            # Σ_i factor_i·gradient_i as a product (1, P)·(P, parameters) for each model.
            sums.append(torch.bmm(factors[:, None], gradients)[:, 0])
            norms.append(part_norms)
            losses.append(values)
        return ClippedSum({SUMS: torch.cat(sums)}, torch.cat(norms), torch.cat(losses), clip_norms)


StackedModel: TypeAlias = StackedMlp | StackedModule


def logits_in_parts(
    model: StackedModel, flat: Tensor, inputs: Tensor, width: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the inputs (n, …), of `width` at most, and all models' logits of these."""
    for start in range(0, inputs.shape[0], width):
        part = slice(start, start + width)
        records = inputs[part]
        # All models see the same records: expanded, not copied.
        yield part, model.logits(flat, records.expand(flat.shape[0], *records.shape))


def _reset_parameters(module: nn.Module) -> None:
    """Initialise the parameters of every part of a module anew."""
    for name, part in module.named_modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        elif list(part.parameters(recurse=False)):
            raise UnsupportedError(
                f"module {name or type(part).__name__}: has parameters but no reset_parameters, "
                "so independent models cannot be started; give it one"
            )
