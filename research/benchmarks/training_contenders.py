"""What takes part in training.py: three models, and one private step by each contender.

Every private contender makes the same update from the same batch: a bound for each record, all
bounds distinct, noise on the sum, SGD.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from apiece.training import clip_and_sum
from apiece.training.clipping.cache import ENGINES
from apiece.training.clipping.guards import trainable
from apiece.training.clipping.records import Batch
from apiece.training.randomness import ChaCha20Stream, noisy_mean

Step = Callable[[], None]
LOSS = nn.CrossEntropyLoss(reduction="none")
STDDEV = 1.0


def mnist_cnn() -> nn.Module:
    """The CNN of Tramèr and Boneh for MNIST, as in Boenisch et al. 2023."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def cifar_cnn() -> nn.Module:
    """The CNN of Tramèr and Boneh for CIFAR-10, as in Boenisch et al. 2023."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(128 * 4 * 4, 128), nn.Tanh(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def mlp() -> nn.Module:
    """59-128-64-2, the size of a table of encoded attributes."""
    return nn.Sequential(
        nn.Linear(59, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "mnist-cnn": (mnist_cnn, (1, 28, 28), 10, 512),
    "cifar-cnn": (cifar_cnn, (3, 32, 32), 10, 256),
    "mlp": (mlp, (59,), 2, 512),
}


def plain(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    fused: bool = False,
    compiles: bool = False,
) -> Step:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)

    def mean() -> torch.Tensor:
        loss: torch.Tensor = LOSS(model(x), y).mean()
        return loss

    forward = torch.compile(mean) if compiles else mean

    def step() -> None:
        forward().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def channels_last(
    make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, **options: bool
) -> Step:
    """The same with model and images in the layout that PyTorch's kernels for processors prefer."""
    made, x = in_channels_last(make(), x)
    return plain(lambda: made, x, y, **options)


def in_channels_last(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    if x.dim() != 4:
        raise ValueError("no images")
    layout: Any = torch.channels_last
    return model.to(memory_format=layout), x.contiguous(memory_format=layout)


def floor(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    """One forward, one backward, noise and an update, in the parts that apiece works in.

    Clipping needs no fewer products than this, which knows nothing of norms.
    """
    model, generator = make(), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = sum(p.numel() for p in model.parameters())
    bounds = torch.ones(len(x), dtype=torch.float64)
    width = ENGINES.find(Batch(model, trainable(model), LOSS, x, y, bounds)).capacity

    def step() -> None:
        for start in range(0, len(x), width):
            part = slice(start, start + width)
            (LOSS(model(x[part]), y[part]).sum() / len(x)).backward()
        noise = torch.randn(size, generator=generator)
        at = 0
        for parameter in model.parameters():
            assert parameter.grad is not None
            part = noise[at : at + parameter.numel()].view(parameter.shape)
            parameter.grad.add_(part, alpha=STDDEV / len(x))
            at += parameter.numel()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, sums: dict[str, torch.Tensor], size: int
) -> None:
    torch._foreach_div_(list(sums.values()), float(size))
    for parameter, total in zip(model.parameters(), sums.values(), strict=True):
        parameter.grad = total
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def noisy(sums: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {n: s + STDDEV * torch.randn(s.shape, generator=generator) for n, s in sums.items()}


def ours(
    *, release: bool = False, last: bool = False, compiled: bool = False
) -> Callable[..., Step]:
    def prepare(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
        model, generator = make(), ChaCha20Stream() if release else torch.Generator()
        if last:
            model, x = in_channels_last(model, x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        bounds = torch.linspace(0.1, 2, len(x), dtype=torch.float64)  # as the trainer has them

        def step() -> None:
            clipped = clip_and_sum(model, LOSS, x, y, bounds, method="proved", compiled=compiled)
            update(model, optimizer, noisy_mean(clipped, STDDEV, 1.0, generator=generator), len(x))

        return step

    return prepare


def by_torch_func(
    make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, *, compiles: bool = False
) -> Step:
    model, generator = make(), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bounds = torch.linspace(0.1, 2, len(x))

    def one(values: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return LOSS(functional_call(model, values, (a.unsqueeze(0),)), b.unsqueeze(0))[0]

    def clipped(values, a, b, c):  # type: ignore[no-untyped-def]
        grads = vmap(grad(one), in_dims=(None, 0, 0))(values, a, b)
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        factors = (c / norms).clamp(max=1)
        return {n: torch.tensordot(factors, g, 1) for n, g in grads.items()}

    summed = torch.compile(clipped) if compiles else clipped

    def step() -> None:
        values = {n: p.detach() for n, p in model.named_parameters()}
        update(model, optimizer, noisy(summed(values, x, y, bounds), generator), len(x))

    return step


def opacus_hooks(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModule

    model, generator = make(), torch.Generator()
    wrapped = GradSampleModule(model, loss_reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bounds = torch.linspace(0.1, 2, len(x))

    def step() -> None:
        LOSS(wrapped(x), y).sum().backward()
        grads = {n: p.grad_sample for n, p in model.named_parameters()}
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        factors = (bounds / norms).clamp(max=1)
        sums = {n: torch.einsum("i,i...", factors, g) for n, g in grads.items()}
        update(model, optimizer, noisy(sums, generator), len(x))
        for parameter in model.parameters():
            parameter.grad_sample = None

    return step


def opacus_ghost(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model, generator = make(), torch.Generator()
    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bounds = torch.linspace(0.1, 2, len(x))

    def step() -> None:
        losses = LOSS(wrapped(x), y)
        losses.sum().backward(retain_graph=True)
        optimizer.zero_grad()
        factors = (bounds / wrapped.get_norm_sample()).clamp(max=1)
        wrapped.disable_hooks()
        (losses * factors).sum().backward()
        wrapped.enable_hooks()
        sums = {n: p.grad for n, p in model.named_parameters()}
        update(model, optimizer, noisy(sums, generator), len(x))

    return step


def jax_layers(model: nn.Module) -> tuple[Any, Callable[..., Any]]:
    """Return the model's parameters as JAX arrays and its loss of one record."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    layers = list(model.children())
    values = [[jnp.asarray(p.detach().numpy()) for p in layer.parameters()] for layer in layers]

    def forward(values: Any, h: Any) -> Any:
        for layer, own in zip(layers, values, strict=True):
            if isinstance(layer, nn.Linear):
                h = own[0] @ h + own[1]
            elif isinstance(layer, nn.Conv2d):
                pads = [(int(n), int(n)) for n in layer.padding]
                h = lax.conv_general_dilated(h[None], own[0], layer.stride, pads)[0]
                h = h + own[1][:, None, None]
            elif isinstance(layer, nn.MaxPool2d):
                window, stride = (1, layer.kernel_size, layer.kernel_size), layer.stride
                h = lax.reduce_window(h, -jnp.inf, lax.max, window, (1, stride, stride), "VALID")
            elif isinstance(layer, nn.Flatten):
                h = h.reshape(-1)
            else:
                h = {nn.Tanh: jnp.tanh, nn.ReLU: jax.nn.relu}[type(layer)](h)
        return h

    return values, lambda values, one, target: -jax.nn.log_softmax(forward(values, one))[target]


def jax_compiled(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    import jax
    import jax.numpy as jnp

    values, loss = jax_layers(make())
    inputs, targets = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    bounds = jnp.linspace(0.1, 2, len(x))

    @jax.jit
    def stepped(values: Any, key: Any) -> Any:
        grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(values, inputs, targets)
        leaves, tree = jax.tree.flatten(grads)
        norms = jnp.sqrt(sum((g.reshape(len(x), -1) ** 2).sum(1) for g in leaves))
        factors = jnp.minimum(1, bounds / norms)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            jnp.tensordot(factors, g, 1) + STDDEV * jax.random.normal(k, g.shape[1:])
            for g, k in zip(leaves, keys, strict=True)
        ]
        moved = jax.tree.unflatten(tree, noisy)
        return jax.tree.map(lambda p, g: p - 0.01 * g / len(x), values, moved)

    state = {"values": values, "key": jax.random.key(0)}

    def step() -> None:
        state["key"], key = jax.random.split(state["key"])
        state["values"] = jax.block_until_ready(stepped(state["values"], key))

    return step


CONTENDERS: dict[str, Callable[..., Step]] = {
    "pytorch, not private": plain,
    "pytorch, not private, fused": partial(plain, fused=True),
    "pytorch, not private, compiled, fused": partial(plain, fused=True, compiles=True),
    "pytorch, not private, channels last": partial(channels_last, fused=True),
    "pytorch, not private, channels last, compiled": partial(
        channels_last, fused=True, compiles=True
    ),
    "floor": floor,
    "apiece": ours(),
    "apiece, channels last": ours(last=True),
    "apiece, compiled": ours(compiled=True),
    "apiece, release noise": ours(release=True),
    "torch.func": by_torch_func,
    "torch.func, compiled": partial(by_torch_func, compiles=True),
    "opacus, hooks": opacus_hooks,
    "opacus, ghost": opacus_ghost,
    "jax, compiled": jax_compiled,
}
