"""Settings and streams around a step: torch's generators, put back, and its precision, held."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from apiece.errors import UnsupportedError

States = list[tuple[torch.Generator, torch.Tensor]]


@contextlib.contextmanager
def model_randomness(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Yield with torch's generators seeded, so that a step repeats exactly; then put them back."""
    with trial(devices):
        for generator in _generators(devices):
            generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def trial(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put torch's generators back afterwards: what is only tried draws nothing of the run's."""
    before = states(devices)
    try:
        yield
    finally:
        put_back(before)


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    """Leave Python's and NumPy's streams, and torch's of the CPU, as they were."""
    before, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with trial([]):
            yield
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)  # noqa: NPY002


def states(devices: Iterable[torch.device]) -> States:
    """Return the generators and their states, for `put_back`."""
    return [(generator, generator.get_state()) for generator in _generators(devices)]


def put_back(before: States) -> None:
    """Set the generators back, so that another way starts as if alone."""
    for generator, state in before:
        generator.set_state(state)


def _generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """Return the generator of the CPU and those of `devices`, each once."""
    result = [torch.default_generator]
    for device in sorted(set(devices), key=str):
        generator = torch.default_generator
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            generator = torch.cuda.default_generators[device.index]  # parameters' have an index
        elif device.type == "mps":
            generator = torch.mps._get_default_mps_generator()
        if generator not in result:
            result.append(generator)
    return result


# ---------------------------------------------------------------- precision


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or single precision where it has less: what sums are made in."""
    return torch.promote_types(dtype, torch.float32)


def is_highest() -> bool:
    """Return whether torch multiplies matrices of single precision in single precision."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set one backend at a time, which this cannot put in one word
        return False


@contextlib.contextmanager
def single(device: torch.device) -> Iterator[None]:
    """Let products of single precision be made in it: without autocast, bf16 or TF32."""
    needed = _settings(device)
    if not needed and not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False), contextlib.ExitStack() as settings:
        for place, name, value in needed:
            settings.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def _settings(device: torch.device) -> list[tuple[Any, str, object]]:
    """Return what must be set, to which value, for products in single precision."""
    on_gpu = device.type == "cuda"
    backends: Any = torch.backends
    if is_highest() and not on_gpu:
        return []
    if hasattr(backends, "fp32_precision"):
        of = backends.cuda if on_gpu else backends.mkldnn
        conv = backends.cudnn.conv if on_gpu else backends.mkldnn.conv
        return [(place, "fp32_precision", "ieee") for place in (of.matmul, conv)]
    if on_gpu:  # torch before 2.9
        return [(place, "allow_tf32", False) for place in (backends.cuda.matmul, backends.cudnn)]
    raise UnsupportedError(
        f"torch.get_float32_matmul_precision() = {torch.get_float32_matmul_precision()!r}: "
        'clipping needs "highest" with this version of torch; set it, or use autocast'
    )
