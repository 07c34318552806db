"""Time and memory of one clipped sum on a GPU, beside plain steps and others' ways of clipping.

WRN-16-4, ViT-B, GPT-2 in full and with LoRA, BERT in full, all with random weights; in single
precision and in bf16 (autocast). Beside it: non-private PyTorch (as it is, channels last,
compiled), Opacus' hooks and ghost norms, fastDP and `torch.func`. Clipping is over all parameters
together, never by layer. Noise and the optimizer's step, which all have in common, are left out.
Contenders take turns; medians over rounds. Last, shadow models in one stack against one by one.

What is not installed, or cannot run a network or fit it, is named in the result with its reason.
On a processor it is a test of the script, not a measurement.

    python -m research.benchmarks.training_gpu --out research/results/training_gpu.json
    python -m research.benchmarks.training_gpu --device cpu --tiny
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from apiece.training.clipping.cache import proof_of
from research.benchmarks import shadows
from research.benchmarks.gpu_contenders import CONTENDERS
from research.benchmarks.gpu_networks import NETWORKS, Made
from research.benchmarks.network_contenders import Step
from research.benchmarks.network_models import torchvision
from research.benchmarks.networks import losses, peak, ratio, versions

PRECISIONS = {"float32": None, "bf16": torch.bfloat16}
WARM = 6  # looks at whether records keep apart come in the first steps
PLAIN = "plain"


def on(device: str, tree: Any) -> Any:
    """Return tensors, or a dict of them, on a device."""
    if isinstance(tree, dict):
        return {name: value.to(device) for name, value in tree.items()}
    return tree.to(device)


def seconds(step: Step, device: str) -> float:
    """Return how long a step takes until the device has done it."""
    shadows.wait(device)
    begun = time.perf_counter()
    step()
    shadows.wait(device)
    return time.perf_counter() - begun


def memory(step: Step, device: str) -> float:
    """Return the megabytes that a step adds at most to what is held."""
    if device == "cpu":
        return peak(step)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - held) / 2**20, 1)


def ready(
    made: Made, device: str, kind: torch.dtype | None, chosen: list[str]
) -> tuple[dict[str, Step], dict[str, float], dict[str, str]]:
    """Return the steps of those that can run a network, their first calls, why others cannot."""
    model, inputs, targets = (on(device, each) for each in made)
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for who in chosen:
        try:
            step = CONTENDERS[who](model, losses, inputs, targets)
            steps[who] = cast(step, device, kind)
            first[who] = round(seconds(steps[who], device), 2)
            for _ in range(WARM - 1):
                steps[who]()
        except Exception as error:  # a contender that cannot run this network is named, not hidden
            steps.pop(who, None)
            failed[who] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            torch.cuda.empty_cache()
    return steps, first, failed


def cast(step: Step, device: str, kind: torch.dtype | None) -> Step:
    """Return the step under autocast to `kind`; None leaves it in single precision."""

    def run() -> dict[str, torch.Tensor]:
        with torch.autocast(device, dtype=kind, enabled=kind is not None):
            return step()

    return run


def measure(
    made: Made, device: str, precision: str, chosen: list[str], rounds: int
) -> dict[str, Any]:
    """Return the figures of one network in one precision."""
    steps, first, failed = ready(made, device, PRECISIONS[precision], chosen)
    took: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            took[who].append(seconds(step, device))
    medians = {who: statistics.median(some) for who, some in took.items()}
    fastest = min((who for who in took if who.startswith(PLAIN)), key=medians.__getitem__)
    model, _, targets = made
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "records": len(targets),
        "proved": (proof := proof_of(model)) is not None and proof.proved,
        "fastest plain": fastest,
        "contenders": {
            who: {
                "milliseconds": round(medians[who] * 1e3, 2),
                "first call, seconds": first[who],
                "records per second": round(len(targets) / medians[who], 1),
                "to the fastest plain": ratio(took[who], took[fastest]),
                "to the usual plain": ratio(took[who], took[PLAIN]),
                "megabytes": memory(steps[who], device),
            }
            for who in steps
        },
        "cannot": failed,
    }


def stacks(device: str, models: int, steps: int) -> dict[str, Any]:
    """Return the model-steps per second of shadow models in one stack, and one by one."""
    found = {"stacked": shadows.stacked(models, steps, device), "alone": None}
    found["alone"] = shadows.stacked(1, steps, device)
    found["opacus, alone"] = shadows.opacus(steps, device)
    runs = {who: run for who, run in found.items() if run is not None}
    for run in runs.values():
        run()
    rates = {who: statistics.median(run() for _ in range(3)) for who, run in runs.items()}
    alone = max(rate for who, rate in rates.items() if who != "stacked")
    return {"models": models, "model-steps per second": rates, "times": rates["stacked"] / alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help="some networks only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small networks and batches")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--models", type=int, default=4096, help="shadow models in one stack")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.device == "cpu":
        torch.set_num_threads(1)
        with contextlib.suppress(ImportError):
            torchvision()
    device, tiny = options.device, options.tiny
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    machine = {"device": name, "python": platform.python_version()} | versions()
    found: dict[str, Any] = {"machine": machine, "tiny": tiny, "networks": {}, "not here": []}
    chosen = [PLAIN, *(who for who in options.contenders if who != PLAIN)]
    for network in options.networks or NETWORKS:
        rows = found["networks"].setdefault(network, {})
        for precision in options.precisions:
            torch.manual_seed(0)
            try:
                made = NETWORKS[network](tiny)
            except ImportError as error:
                found["not here"].append(f"{network}: {error.name}")
                break
            rows[precision] = measure(made, device, precision, chosen, options.rounds)
            print(network, precision, json.dumps(rows[precision]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    found["shadows"] = stacks(device, *((8, 10) if tiny else (options.models, 60)))
    print("shadows", json.dumps(found["shadows"]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
