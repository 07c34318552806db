"""Time of one private step beside non-private PyTorch, Opacus and torch.func, interleaved.

Every contender makes the same update from the same batch: a bound for each record, all bounds
distinct, noise on the sum, SGD. Contenders take turns in every round, so that whatever else the
machine does hits all of them; figures are medians over rounds and ratios to non-private PyTorch.

    python benchmarks/training.py --rounds 15 --out benchmarks/results/training.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from apiece.training import add_noise, clip_and_sum

Step = Callable[[], None]
LOSS = nn.CrossEntropyLoss(reduction="none")
STDDEV = 1.0


def mnist_cnn() -> nn.Module:
    """The CNN of Tramèr and Boneh for MNIST, as in S1."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def cifar_cnn() -> nn.Module:
    """The CNN of Tramèr and Boneh for CIFAR-10, as in S1."""
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


def plain(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        LOSS(model(x), y).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, sums: dict[str, torch.Tensor], size: int
) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = sums[name] / size
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def noisy(sums: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {n: s + STDDEV * torch.randn(s.shape, generator=generator) for n, s in sums.items()}


def ours(method: str, *, release: bool = False) -> Callable[..., Step]:
    def prepare(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
        from apiece.training import ChaCha20Stream

        model, generator = make(), ChaCha20Stream() if release else torch.Generator()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        bounds = torch.linspace(0.1, 2, len(x))

        def step() -> None:
            clipped = clip_and_sum(model, LOSS, x, y, bounds, method=method)
            update(model, optimizer, add_noise(clipped, STDDEV, generator=generator), len(x))

        return step

    return prepare


def compiled(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> Step:
    model, generator = make(), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bounds = torch.linspace(0.1, 2, len(x))

    def one(values: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return LOSS(functional_call(model, values, (a.unsqueeze(0),)), b.unsqueeze(0))[0]

    @torch.compile
    def clipped(values, a, b, c):  # type: ignore[no-untyped-def]
        grads = vmap(grad(one), in_dims=(None, 0, 0))(values, a, b)
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        factors = (c / norms).clamp(max=1)
        return {n: torch.tensordot(factors, g, 1) for n, g in grads.items()}

    def step() -> None:
        values = {n: p.detach() for n, p in model.named_parameters()}
        update(model, optimizer, noisy(clipped(values, x, y, bounds), generator), len(x))

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


CONTENDERS: dict[str, Callable[..., Step]] = {
    "pytorch, not private": plain,
    "apiece": ours("auto"),
    "apiece, release noise": ours("auto", release=True),
    "apiece, functional": ours("functional"),
    "torch.func, compiled": compiled,
    "opacus, hooks": opacus_hooks,
    "opacus, ghost": opacus_ghost,
}


def measure(name: str, contenders: list[str], rounds: int) -> dict[str, object]:
    """Return medians and ratios of one model."""
    make, shape, classes, size = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(size, *shape), torch.randint(0, classes, (size,))
    steps = {who: CONTENDERS[who](make, x, y) for who in contenders}
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {who: [] for who in steps}
    repeat = 10 if name == "mlp" else 1
    for _ in range(rounds):
        for who, step in steps.items():
            begun = time.perf_counter()
            for _ in range(repeat):
                step()
            times[who].append((time.perf_counter() - begun) / repeat)
    base = times["pytorch, not private"]
    rows = {}
    for who, took in times.items():
        ratios = [t / b for t, b in zip(took, base, strict=True)]
        rows[who] = {
            "milliseconds": round(statistics.median(took) * 1e3, 3),
            "ratio": round(statistics.median(ratios), 3),
            "best_ratio": round(min(took) / min(base), 3),
        }
    return {"batch": size, "rounds": rounds, "contenders": rows}


def machine() -> dict[str, object]:
    """Name the machine by its processor and the software by its versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((row.split(":")[1].strip() for row in lines if row.startswith("model name")), "")
    return {
        "cpu": cpu or platform.processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = options.contenders or list(CONTENDERS)
    info = machine()
    if any(who.startswith("opacus") for who in chosen):
        info["opacus"] = version("opacus")
    warnings.filterwarnings("ignore")
    results = {name: measure(name, chosen, options.rounds) for name in options.models}
    text = json.dumps({"machine": info, "models": results}, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
