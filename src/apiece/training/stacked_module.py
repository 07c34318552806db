"""Any torch module without buffers, K times over, by vectorised per-record gradients."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import ClippedSum, clip_factors
from apiece.training.modes import called_with
from apiece.training.stacked import SUMS, added, row_squares


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
        if not self.block >= 1:
            raise InputError(f"block = {self.block}: must be at least 1")

    @property
    def parameters(self) -> int:
        """How many parameters one model has."""
        return sum(p.numel() for p in self.module.parameters())

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        """Return one model's parameters by name, as views of its row."""
        named, at = {}, 0
        for name, parameter in self.module.named_parameters():
            named[name] = row[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
        return named

    def initial(self, models: int, generator: torch.Generator) -> Tensor:
        """Return independently initialised parameters, (models, parameters)."""
        rows, module = [], copy.deepcopy(self.module)
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(models):
                _reset(module)
                parts = [p.detach().reshape(-1).clone() for p in module.parameters()]
                rows.append(torch.cat(parts))
        return torch.stack(rows).to(generator.device)

    def _one(self, row: Tensor, record: Tensor) -> Tensor:
        out: Tensor = called_with(self.module, self._named(row), record[None])
        return out[0]

    def logits(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (K, P, classes) of inputs (K, P, …)."""

        def model(row: Tensor, records: Tensor) -> Tensor:
            out: Tensor = called_with(self.module, self._named(row), records)
            return out

        with torch.no_grad():
            parts = [
                vmap(model)(flat[at : at + self.block], inputs[at : at + self.block])
                for at in range(0, flat.shape[0], self.block)
            ]
        return torch.cat(parts)

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
            return functional.cross_entropy(self._one(row, record)[None], target[None])

        per_record = vmap(vmap(grad_and_value(loss), in_dims=(None, 0, 0)))
        sums, norms, losses = [], [], []
        for at in range(0, flat.shape[0], self.block):
            part = slice(at, at + self.block)
            gradients, values = per_record(flat[part], inputs[part], targets[part])
            if owner is not None:
                gradients = added(gradients, owner[part], clip_norms.shape[1])
            found = row_squares(gradients).sqrt_()
            factors = clip_factors(found, clip_norms[part])
            if not bool(torch.isfinite(found).all()):
                gradients = torch.where(torch.isfinite(found)[..., None], gradients, 0.0)
            sums.append(torch.bmm(factors[:, None], gradients)[:, 0])
            norms.append(found)
            losses.append(values)
        return ClippedSum({SUMS: torch.cat(sums)}, torch.cat(norms), torch.cat(losses), clip_norms)


def _reset(module: nn.Module) -> None:
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


def cnn(channels: int, size: int, classes: int) -> nn.Module:
    """Return the CNN of Kaiser et al. 2026.

    Two 3×3 convolutions (32, 64) with pooling, 128 hidden units, `classes` outputs.
    """
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_conv(channels, channels), _conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def _conv(channels_in: int, channels_out: int, *, pool: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.GroupNorm(channels_out // 4, channels_out),
        nn.ReLU(),
    ]
    return nn.Sequential(*parts, *([nn.MaxPool2d(2)] if pool else []))


def resnet9(channels: int, classes: int, *, width: int = 64) -> nn.Module:
    """Return a ResNet-9 with group normalisation; images of at least 16×16, width ≥ 4."""
    return nn.Sequential(
        _conv(channels, width),
        _conv(width, 2 * width, pool=True),
        _Block(2 * width),
        _conv(2 * width, 4 * width, pool=True),
        _conv(4 * width, 4 * width, pool=True),
        _Block(4 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )
