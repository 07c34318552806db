"""The same random numbers for a record alone and in company, so that the two can be compared.

A forward with dropout gives another result each time. `Draws` notes what one record's forward
draws; in later runs, whatever the batch, every record is given the very same numbers. This works
where operators draw (all of torch's that draw independently of their input, and those below that
do not), and for Python's and NumPy's global generators.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_SHAPES_ONLY = """
    bernoulli_.float bernoulli.p uniform_.default normal_.default exponential_.default
    geometric_.default cauchy_.default log_normal_.default random_.default random_.from random_.to
    rand.default randn.default rand_like.default randn_like.default randint.default randint.low
    randint_like.default randint_like.low_dtype randperm.default
"""
_PLAIN = frozenset(_SHAPES_ONLY.split())  # what they draw depends on shapes and numbers only


class Draws:
    """What one record draws, to be met again by all.

    strayed: whether something was drawn that could not be given again, as where a shape does not
    follow from one record's or an operator draws by its input's values. Two runs may then differ
    for no other reason than that.
    """

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        self.strayed = False

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Run one record, and note what it draws."""
        with self._seeded(), _Noting(self._kept):
            yield

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Run any number of records, each with what was drawn first."""
        mode = _Repeating(self._kept)
        with self._seeded(), mode:
            yield
        self.strayed |= mode.strayed

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        _set(self._states)
        try:
            yield
        finally:
            _set(before)


def _set(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what operators draw."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = str(func).removeprefix("aten.")
        if name in _PLAIN:
            return self.drawn(func, args, kwargs, in_place=func.__name__.split(".")[0][-1] == "_")
        if name in _BY_HAND:
            return _BY_HAND[name](self._uniform, *args, **kwargs)
        return self.unknown(func, args, kwargs)

    def drawn(self, func: Any, args: Any, kwargs: dict[str, Any], *, in_place: bool) -> Any:
        found = func(*args, **kwargs)
        self.kept.append(found.detach().clone() if in_place else found)
        return found

    def unknown(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _uniform(self, like: torch.Tensor) -> torch.Tensor:
        options = {"dtype": torch.float64 if like.device.type == "cpu" else torch.float32}
        found: torch.Tensor = self.drawn(_aten.rand_like.default, (like,), options, in_place=False)
        return found


class _Repeating(_Noting):  # type: ignore[no-untyped-call]
    """Gives what was drawn again, repeated along the dimensions that hold several records."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__(kept)
        self.place, self.strayed = 0, False

    def drawn(self, func: Any, args: Any, kwargs: dict[str, Any], *, in_place: bool) -> Any:
        found = func(*args, **kwargs)
        one = self.kept[self.place] if self.place < len(self.kept) else None
        self.place += 1
        if one is None or one.dim() != found.dim():
            return self.unknown(None, found, kwargs)
        times = [
            here // was if was and here % was == 0 else 0
            for here, was in zip(found.shape, one.shape, strict=True)
        ]
        if not all(times) and found.numel():
            return self.unknown(None, found, kwargs)
        again = one.repeat(times) if found.numel() else found
        return found.copy_(again) if in_place else again.to(found.dtype)

    def unknown(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.strayed = True
        return args if func is None else func(*args, **kwargs)


Uniform = Callable[[torch.Tensor], torch.Tensor]


def _dropout(uniform: Uniform, values: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    keep = uniform(values) >= p
    return values * keep / max(1 - p, 1e-12), keep


def _coins(uniform: Uniform, chances: torch.Tensor, **_: Any) -> torch.Tensor:
    return (uniform(chances) < chances).to(chances.dtype)


def _coins_in_place(uniform: Uniform, target: torch.Tensor, chances: Any, **_: Any) -> torch.Tensor:
    return target.copy_(uniform(target) < chances)


def _leaky(
    uniform: Uniform,
    values: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    **_: Any,
) -> torch.Tensor:
    slopes = (lower + (upper - lower) * uniform(values)).to(values.dtype)
    if not training:
        slopes = torch.full_like(values, (lower + upper) / 2)
    noise.copy_(torch.where(values <= 0, slopes, torch.ones_like(values)))
    return values * noise


_BY_HAND: dict[str, Callable[..., Any]] = {  # those that look at the values of their input too
    "native_dropout.default": _dropout,
    "bernoulli.default": _coins,
    "bernoulli_.Tensor": _coins_in_place,
    "rrelu_with_noise.default": _leaky,
}
