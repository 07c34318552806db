"""Settings and streams around a step: torch's generators, put back, and its precision, held."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from apiece.errors import UnsupportedError
from apiece.training.clipping import torch_internals

States = list[tuple[torch.Generator, torch.Tensor]]


@contextlib.contextmanager
def model_randomness(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Yield with torch's generators seeded, so that a step repeats exactly; then put them back."""
    with trial(devices):
        # Seeded within `trial`, which puts the states back whatever happens inside.
        for generator in _generators(devices):
            generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def trial(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put torch's generators back afterwards: what is only tried draws nothing of the run's."""
    states = read_states(devices)
    try:
        yield
    finally:
        restore_states(states)


@contextlib.contextmanager
def keep_streams() -> Iterator[None]:
    """Leave Python's and NumPy's streams, and torch's of the CPU, as they were."""
    state_of_python = random.getstate()
    state_of_numpy = np.random.get_state()  # noqa: NPY002
    try:
        with trial([]):
            yield
    finally:
        random.setstate(state_of_python)
        np.random.set_state(state_of_numpy)  # noqa: NPY002


def read_states(devices: Iterable[torch.device]) -> States:
    """Return the generators and their states, for `restore_states`."""
    return [(generator, generator.get_state()) for generator in _generators(devices)]


def restore_states(states: States) -> None:
    """Set generators back, so that another way to make a step starts as if it were the only one."""
    for generator, state in states:
        generator.set_state(state)


def _generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """Return the generator of the CPU and those of `devices`, each once."""
    # The CPU's always, since a model on a GPU may draw there as well.
    result = [torch.default_generator]
    for device in sorted(set(devices), key=str):
        generator = torch.default_generator
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            # a parameter's device has an index, also where its user named none
            generator = torch.cuda.default_generators[device.index]
        elif device.type == "mps":
            generator = torch_internals.mps_generator()
        if generator not in result:
            result.append(generator)
    return result


# ---------------------------------------------------------------- precision


def widen(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or single precision where it has less: what sums are made in."""
    return torch.promote_types(dtype, torch.float32)


def computes_in_single() -> bool:
    """Return whether torch multiplies matrices of single precision in single precision."""
    # "highest" means no TF32 and no bf16 passes in products of single precision.
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set one backend at a time, which this cannot put in one word
        return False


# For a step that needs no setting: one context for all, which costs nothing to enter.
_AS_IT_IS = contextlib.nullcontext()


def single_precision(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Let products of single precision be made in it: without autocast, bf16 or TF32.

    A norm from less precise products may lie below the true one, and a share above its bound.
    """
    settings = _settings_of_single(device)
    if not settings and not torch.is_autocast_enabled(device.type):
        return _AS_IT_IS
    return _with_settings(device, settings)


@contextlib.contextmanager
def _with_settings(device: torch.device, settings: list[_Setting]) -> Iterator[None]:
    """Set what must be set, without autocast; then put it back."""
    # `ExitStack` restores in reverse, also where only some settings were made.
    with torch.autocast(device.type, enabled=False), contextlib.ExitStack() as undo:
        for holder, name, value in settings:
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield


class _Setting(NamedTuple):
    """An attribute of one of torch's backends, and the value that it must have."""

    holder: Any
    name: str
    value: object


def _settings_of_single(device: torch.device) -> list[_Setting]:
    """Return what must be set for products in single precision; nothing where it is so already."""
    on_gpu = device.type == "cuda"
    backends: Any = torch.backends
    # On a processor that one setting covers convolutions as well, on a GPU it does not.
    if computes_in_single() and not on_gpu:
        return []
    if hasattr(backends, "fp32_precision"):
        products = backends.cuda.matmul if on_gpu else backends.mkldnn.matmul
        convolutions = backends.cudnn.conv if on_gpu else backends.mkldnn.conv
        return [
            _Setting(products, "fp32_precision", "ieee"),
            _Setting(convolutions, "fp32_precision", "ieee"),
        ]
    if on_gpu:  # torch before 2.9
        return [
            _Setting(backends.cuda.matmul, "allow_tf32", False),
            _Setting(backends.cudnn, "allow_tf32", False),
        ]
    raise UnsupportedError(
        f"torch.get_float32_matmul_precision() = {torch.get_float32_matmul_precision()!r}: "
        'clipping needs "highest" with this version of torch; set it, or use autocast'
    )
