"""Torch's own generators, from which dropout draws: seeded for a step, then put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


@contextlib.contextmanager
def model_randomness(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Let the model draw from generators seeded by `seed`, and leave torch's as they were.

    devices: where the model's parameters are. A step is repeated exactly after a resume because
    the generators of the CPU and of every one of these devices start from the step's own seed.
    """
    generators = [torch.default_generator, *(_generator(d) for d in sorted(set(devices), key=str))]
    generators = [g for k, g in enumerate(generators) if g not in generators[:k]]
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return torch.cuda.default_generators[device.index]  # parameters' devices have an index
    if device.type == "mps":
        found: torch.Generator = torch.mps._get_default_mps_generator()
        return found
    return torch.default_generator
