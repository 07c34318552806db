"""Samples per second and memory of large models beside non-private PyTorch and Opacus' ghost norms.

WRN-16-4 on images of CIFAR's shape, and a transformer of GPT-2's size, fine-tuned in full and by
low-rank adapters. Each contender makes the same steps from the same batch, in turn.

    python benchmarks/training_gpu.py --device cuda --out benchmarks/results/training-gpu.json
    python benchmarks/training_gpu.py --device cpu --tiny       # does it run at all
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from apiece.training import add_noise, clip_and_sum

Step = Callable[[], None]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A wide residual block with group norms (Zagoruyko and Komodakis 2016; De et al. 2022)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(16, channels), nn.GroupNorm(16, width)
        self.one = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = stride == 1 and channels == width
        self.skip = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.first(x))
        return self.skip(x) + self.two(functional.relu(self.second(self.one(h))))


def wide_resnet(depth: int = 16, factor: int = 4) -> nn.Module:
    """WRN-depth-factor for images of 32 by 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for k in range((depth - 4) // 6):
            layers.append(Block(channels, width * factor, stride if k == 0 else 1))
            channels = width * factor
    layers += [nn.GroupNorm(16, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, 10))


class Adapted(nn.Module):
    """A frozen linear layer with a trainable low-rank adapter (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


class Layer(nn.Module):
    """A decoder layer, norms first."""

    def __init__(self, width: int, heads: int, *, adapters: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        make = (lambda i, o: Adapted(nn.Linear(i, o))) if adapters else nn.Linear
        self.mix, self.out = make(width, 3 * width), make(width, width)
        self.wide, self.narrow = make(width, 4 * width), make(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Decoder(nn.Module):
    """A language model of GPT-2's shape: 124 million parameters by default."""

    def __init__(
        self,
        *,
        adapters: bool,
        words: int = 50257,
        length: int = 256,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        made = [Layer(width, heads, adapters=adapters) for _ in range(layers)]
        self.layers, self.last = nn.ModuleList(made), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if adapters:
            for part in (self.words, self.places, self.last, self.head):
                part.requires_grad_(False)
            for layer in made:
                layer.before.requires_grad_(False)
                layer.between.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        x = self.words(tokens) + self.places(place)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x))


def classify(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def predict(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    each = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(1)


def tasks(device: str, *, tiny: bool) -> dict[str, tuple[Callable[[], nn.Module], Loss, list]]:
    """Return for each task a maker of the model, its loss, and a batch."""
    images, texts, length, words = (4, 4, 8, 50) if tiny else (256, 16, 256, 50257)
    small = {"width": 16, "layers": 1, "heads": 2} if tiny else {}
    size = {"words": words, "length": length, **small}
    x, y = torch.randn(images, 3, 32, 32), torch.randint(0, 10, (images,))
    tokens = torch.randint(0, words, (texts, length + 1))
    text = [tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device)]
    resnet = (lambda: wide_resnet(10, 1)) if tiny else wide_resnet
    return {
        "WRN-16-4": (resnet, classify, [x.to(device), y.to(device)]),
        "transformer, full": (lambda: Decoder(adapters=False, **size), predict, text),
        "transformer, adapters": (lambda: Decoder(adapters=True, **size), predict, text),
    }


def plain(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        loss(model(x), y).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def private(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> Step:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(list(named.values()), lr=1e-3)
    bounds = torch.linspace(0.1, 2, len(x), device=x.device)
    generator = torch.Generator(x.device)

    def step() -> None:
        clipped = clip_and_sum(model, loss, x, y, bounds)
        for name, noisy in add_noise(clipped, 1.0, generator=generator).items():
            named[name].grad = noisy.div_(len(x))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=1.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3)
    bounds = torch.linspace(0.1, 2, len(x), device=x.device)

    def step() -> None:
        losses = loss(wrapped(x), y)
        losses.sum().backward(retain_graph=True)
        optimizer.zero_grad()
        factors = (bounds / wrapped.get_norm_sample()).clamp(max=1)
        wrapped.disable_hooks()
        (losses * factors).sum().backward()
        wrapped.enable_hooks()
        for parameter in trained:
            parameter.grad.add_(torch.randn_like(parameter)).div_(len(x))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


CONTENDERS = {"pytorch, not private": plain, "apiece": private, "opacus, ghost": opacus_ghost}


def timed(step: Step, device: str) -> tuple[float, float]:
    """Return the seconds of a step, and its peak megabytes above what was held on a GPU."""
    held = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    begun = time.perf_counter()
    step()
    if device != "cuda":
        return time.perf_counter() - begun, 0.0
    torch.cuda.synchronize()
    return time.perf_counter() - begun, (torch.cuda.max_memory_allocated() - held) / 2**20


def measure(make: Callable[[], nn.Module], loss: Loss, batch: list, device: str, rounds: int):
    """Return samples per second, the ratio of times and the memory of a step, by contender."""
    steps = {who: begin(make().to(device), loss, *batch) for who, begin in CONTENDERS.items()}
    took: dict[str, list[float]] = {who: [] for who in steps}
    peaks: dict[str, float] = {}
    for turn in range(rounds + 2):
        for who, step in steps.items():
            seconds, peak = timed(step, device)
            if turn >= 2:
                took[who].append(seconds)
                peaks[who] = max(peaks.get(who, 0.0), peak)
    base = statistics.median(took["pytorch, not private"])
    return {
        who: {
            "samples_per_second": round(len(batch[0]) / statistics.median(values), 1),
            "ratio": round(statistics.median(values) / base, 3),
            "peak_megabytes": round(peaks[who]),
        }
        for who, values in took.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    info = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    found = {
        task: measure(*given, options.device, options.rounds)
        for task, given in tasks(options.device, tiny=options.tiny).items()
    }
    text = json.dumps({"machine": info, "tiny": options.tiny, "tasks": found}, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
