"""Torch's own generators, from which dropout draws: seeded for a step, then put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

States = list[tuple[torch.Generator, torch.Tensor]]


@contextlib.contextmanager
def model_randomness(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Yield with torch's generators seeded, and leave them as they were.

    The generators of the CPU and of every device start from the step's own seed, so that a step is
    repeated exactly after a resume.

    Args:
        seed: Of the step.
        devices: Where the model's parameters are.

    Example:
        >>> with model_randomness(0, []):
        ...     one = torch.rand(2)
        >>> with model_randomness(0, []):
        ...     bool((torch.rand(2) == one).all())
        True
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
