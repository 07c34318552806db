"""What training_gpu.py times: the contenders of networks.py, torch.func and fastDP."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from research.benchmarks.network_contenders import CONTENDERS as OTHERS
from research.benchmarks.network_contenders import Losses, Step, run, trained


def by_torch_func(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    """Return a step by one vectorised gradient of all records, each made at once."""
    model = copy.deepcopy(model)
    own = {name: p.detach() for name, p in trained(model).items()}
    keyed = inputs if isinstance(inputs, dict) else {"": inputs}

    def one(values: dict[str, torch.Tensor], given: Any, target: torch.Tensor) -> torch.Tensor:
        rows = {name: value.unsqueeze(0) for name, value in given.items()}
        args, kwargs = ((rows[""],), {}) if "" in rows else ((), rows)
        outputs = functional_call(model, values, args, kwargs)
        return losses(outputs, target.unsqueeze(0))[0]

    def step() -> dict[str, torch.Tensor]:
        each = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(own, keyed, targets)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
        factors = (1.0 / norms).clamp(max=1)
        return {name: torch.einsum("i,i...", factors.to(g), g) for name, g in each.items()}

    return step


def by_fastdp(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    """Return a step by fastDP's book-keeping, with one bound over all layers (Bu et al. 2022)."""
    from fastDP import PrivacyEngine

    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained(model).values(), lr=0.0)
    engine = PrivacyEngine(
        model,
        batch_size=len(targets),
        sample_size=1000 * len(targets),
        num_steps=1000,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        clipping_fn="Abadi",
        clipping_mode="MixOpt",
        clipping_style="all-layer",
    )
    engine.attach(optimizer)

    def step() -> dict[str, torch.Tensor]:
        losses(run(model, inputs), targets).mean().backward()
        optimizer.step()
        found = {name: p.grad for name, p in trained(model).items() if p.grad is not None}
        optimizer.zero_grad()
        return found

    return step


CONTENDERS: dict[str, Callable[[nn.Module, Losses, Any, torch.Tensor], Step]] = {
    **OTHERS,
    "torch.func": by_torch_func,
    "fastDP": by_fastdp,
}
