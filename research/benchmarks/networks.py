"""Time and memory of one clipped sum beside plain steps and Opacus, on networks that people train.

All take turns in random order; medians over rounds, by the clock and by the processor, and the
medians of the ratios to the fastest plain step (as it is, channels last, compiled) and to the usual
one. The total is that of fifty steps, the first call among them with its capture and proof, over as
many of the usual plain step: the first call as measured, then the medians. The longest single step
after the first is in median steps. Sums are held to a loop over records in double precision. Memory
is what a step adds at most to what the process holds before. Needs torchvision, timm, transformers
and peft, and Opacus to be beside it; networks whose library is missing are left out, and the result
says so. `--first` measures a first call and a few steps of models as large as people train, against
plain steps alone; `--memory` the memory alone, of which a busy machine takes nothing.

    python -m research.benchmarks.networks --compile --out research/results/networks.json
    python -m research.benchmarks.networks --wide --out research/results/networks_wide.json
    python -m research.benchmarks.networks --first --out research/results/networks_first.json
    python -m research.benchmarks.networks --memory --out research/results/networks_memory.json

The first two take half an hour each, the third ten minutes, the last one two.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import json
import os
import platform
import random
import statistics
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.cache import proof_of
from research.benchmarks.network_contenders import CONTENDERS, Step, run, trained
from research.benchmarks.network_models import FULL, NETWORKS, WIDE, torchvision
from research.benchmarks.training import Taken, timed

WARM = 2  # the first one captures the model
STEPS = 50  # in a total


def losses(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy, a token's or a record's, one a record."""
    scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    if scores.dim() == 2:
        return nn.functional.cross_entropy(scores, targets, reduction="none")
    each = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def rows(inputs: Any, where: slice) -> Any:
    if isinstance(inputs, dict):
        return {name: value[where] for name, value in inputs.items()}
    return inputs[where]


def certain(model: nn.Module) -> nn.Module:
    """Return a copy without dropout and random depth, whose gradients can be compared."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name in ("p", "dropout", "drop_prob"):  # of dropout, and of torchvision's random depth
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def looped(model: nn.Module, inputs: Any, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the clipped sum over some records by a loop in double precision."""
    double = copy.deepcopy(model).double()
    own = trained(double)
    total = {name: torch.zeros_like(p) for name, p in own.items()}
    for k in range(len(targets)):
        one = rows(inputs, slice(k, k + 1))
        one = one.double() if isinstance(one, torch.Tensor) else one
        loss = losses(run(double, one), targets[k : k + 1]).sum()
        tensors = list(own.values())
        each = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        norm = torch.stack([g.square().sum() for g in each]).sum().sqrt()
        for t, g in zip(total.values(), each, strict=True):
            t += g.detach() * min(1.0, 1.0 / float(norm))
    return total


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Return how far a sum is from another, relatively; what has no gradient counts as zero."""
    error = sum(
        float((found[n].double() - w if n in found else w).square().sum())
        for n, w in wanted.items()
    )
    return float(f"{(error / sum(float(w.square().sum()) for w in wanted.values())) ** 0.5:.1e}")


def held(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak(step: Step) -> float:
    """Return the megabytes that a step adds at most to what the process holds."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = held("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    step()
    return round((held("VmHWM:") - before) / 1024, 1)


def take_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[Taken]]:
    """Return the seconds of each step, round by round."""
    took: dict[str, list[Taken]] = {who: [] for who in steps}
    turns = random.Random(0)
    order = list(steps)
    for _ in range(rounds):
        turns.shuffle(order)
        for who in order:
            took[who].append(timed(steps[who]))
    return took


def ready(
    made: tuple[nn.Module, Any, torch.Tensor], compiles: bool
) -> tuple[dict[str, Step], dict[str, str], dict[str, float], dict[str, Taken]]:
    """Return the steps of those that can run a network, why others cannot, errors, first calls."""
    model, inputs, targets = made
    some, few = rows(inputs, slice(4)), targets[:4]
    steady = certain(model)
    wanted = looped(steady, some, few)
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    errors: dict[str, float] = {}
    firsts: dict[str, Taken] = {}
    for who, make in CONTENDERS.items():
        if who.endswith("compiled") and not compiles:
            continue
        try:
            if not who.startswith("plain"):
                errors[who] = distance(make(steady, losses, some, few)(), wanted)
            steps[who] = make(model, losses, inputs, targets)
            firsts[who] = timed(steps[who])
            for _ in range(WARM - 1):
                steps[who]()
        except Exception as error:  # a contender that cannot run this network is named, not hidden
            steps.pop(who, None)
            failed[who] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return steps, failed, errors, firsts


def measure(name: str, rounds: int, *, compiles: bool = False) -> dict[str, Any]:
    """Return the figures of one network."""
    torch.manual_seed(0)
    made = (NETWORKS | WIDE)[name]()
    steps, failed, errors, firsts = ready(made, compiles)
    turns = take_turns(steps, rounds)
    took = {who: [taken.clock for taken in some] for who, some in turns.items()}
    processor = {who: [taken.processor for taken in some] for who, some in turns.items()}
    medians = {who: statistics.median(some) for who, some in took.items()}
    fastest = min((who for who in took if who.startswith("plain")), key=medians.__getitem__)
    memory = {who: statistics.median(peak(step) for _ in range(3)) for who, step in steps.items()}
    model, _, targets = made
    totals = {who: firsts[who].clock + (STEPS - 1) * medians[who] for who in steps}
    proof = proof_of(model)
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "records": len(targets),
        "proved": proof is not None and proof.proved,
        "why not": "" if proof is None else proof.why,
        "fastest plain": fastest,
        "contenders": {
            who: {
                "milliseconds": round(medians[who] * 1e3, 2),
                "to the fastest plain": ratio(took[who], took[fastest]),
                "to the usual plain": ratio(took[who], took["plain"]),
                "processor's milliseconds": round(statistics.median(processor[who]) * 1e3, 2),
                "to the usual plain, processor": ratio(processor[who], processor["plain"]),
                "first call, seconds": round(firsts[who].clock, 2),
                "first call, in usual plain steps": round(firsts[who].clock / medians["plain"], 1),
                "longest later step, in median steps": round(max(took[who]) / medians[who], 1),
                "total of 50 steps to the usual plain": round(totals[who] / totals["plain"], 3),
                "megabytes": memory[who],
                "error against float64": errors.get(who),
            }
            for who in steps
        },
        "cannot": failed,
    }


def ratio(some: list[float], base: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(some, base, strict=True)), 3)


def measure_first(name: str, rounds: int) -> dict[str, Any]:
    """Return a private first call in plain steps, and later steps beside plain ones in turn."""
    torch.manual_seed(0)
    model, inputs, targets = FULL[name]()
    steps = {who: CONTENDERS[who](model, losses, inputs, targets) for who in ("plain", "apiece")}
    steps["plain"]()
    first = timed(steps["apiece"])
    took = take_turns(steps, rounds)
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "records": len(targets),
    }
    for k, clock in enumerate(Taken._fields):
        plain = [taken[k] for taken in took["plain"]]
        ours = [taken[k] for taken in took["apiece"]]
        found[clock] = {
            "plain step, seconds": round(statistics.median(plain), 3),
            "to plain": ratio(ours, plain),
            "first call, seconds": round(first[k], 2),
            "first call, in plain steps": round(first[k] / statistics.median(plain), 1),
            "longest later step, in median steps": round(max(ours) / statistics.median(ours), 1),
        }
    return found


def measure_memory(name: str, rounds: int) -> dict[str, Any]:
    """Return the megabytes that a plain step and a private one add, and their ratio."""
    torch.manual_seed(0)
    model, inputs, targets = (NETWORKS | WIDE)[name]()
    found: dict[str, Any] = {"records": len(targets)}
    for who in ("plain", "apiece"):
        step = CONTENDERS[who](model, losses, inputs, targets)
        for _ in range(WARM + 1):
            step()
        found[who] = statistics.median(peak(step) for _ in range(rounds))
    found["to plain"] = round(found["apiece"] / found["plain"], 3)
    return found


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "torchvision", "timm", "transformers", "peft", "opacus"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some networks only")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="time compiled steps too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wide", action="store_true", help="as wide as people train them")
    parser.add_argument("--first", action="store_true", help="first calls of whole models")
    parser.add_argument("--memory", action="store_true", help="memory alone")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    with contextlib.suppress(ImportError):
        torchvision()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(row.split(":")[1].strip() for row in lines if row.startswith("model name"))
    machine: dict[str, Any] = {
        "cpu": cpu,
        "threads": options.threads,
        "python": platform.python_version(),
    }
    machine |= {"load": round(os.getloadavg()[0], 1)} | versions()
    found: dict[str, Any] = {"machine": machine, "networks": {}, "not here": []}
    if options.out and options.out.exists() and options.names:  # measure these again
        found = json.loads(options.out.read_text()) | {"machine": machine}
    chosen = FULL if options.first else WIDE if options.wide else NETWORKS
    for name in options.names or chosen:
        try:
            if options.first:
                found["networks"][name] = measure_first(name, options.rounds)
            elif options.memory:
                found["networks"][name] = measure_memory(name, options.rounds)
            else:
                found["networks"][name] = measure(name, options.rounds, compiles=options.compile)
            print(name, json.dumps(found["networks"][name]), flush=True)
        except ImportError as error:
            found["not here"].append(f"{name}: {error.name}")
        if options.memory and found["networks"]:
            ratios = [row["to plain"] for row in found["networks"].values()]
            found["median and largest"] = [statistics.median(ratios), max(ratios)]
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
