"""Torch's own generators, from which dropout draws: seeded for a step, then put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

States = list[tuple[torch.Generator, torch.Tensor]]


@contextlib.contextmanager
def model_randomness(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Let the model draw from generators seeded by `seed`, and leave torch's as they were.

    devices: where the model's parameters are. A step is repeated exactly after a resume because
    the generators of the CPU and of every one of these devices start from the step's own seed.
    """
    with trial(devices):
        for generator in _generators(devices):
            generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def trial(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put the generators back afterwards: what is only tried draws nothing of the run's."""
    before = states(devices)
    try:
        yield
    finally:
        put_back(before)


def states(devices: Iterable[torch.device]) -> States:
    """Return the generators and their states, for `put_back`."""
    return [(generator, generator.get_state()) for generator in _generators(devices)]


def put_back(before: States) -> None:
    """Set the generators back, so that another way starts as if alone."""
    for generator, state in before:
        generator.set_state(state)


def _generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """Return the generator of the CPU and those of `devices`, each once."""
    found = [torch.default_generator]
    others = {device for device in devices if device.type != "cpu"}
    for device in sorted(others, key=str):
        if _generator(device) not in found:
            found.append(_generator(device))
    return found


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return torch.cuda.default_generators[device.index]  # parameters' devices have an index
    if device.type == "mps":
        found: torch.Generator = torch.mps._get_default_mps_generator()
        return found
    return torch.default_generator
