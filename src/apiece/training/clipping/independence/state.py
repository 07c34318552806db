"""What a forward pass must leave as it is: parameters, buffers, and whatever else is saved.

Anything of the records that a model keeps would be released with it, or act on later gradients,
and neither clipping nor noise would reach it.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from apiece.errors import UnsupportedError


class State:
    """The parameters, buffers and extra state of modules, by place.

    Args:
        **roots: The modules, by the name that messages call them.

    Guarantee:
        `kept` sees whether a tensor was replaced or written to, by torch's own count of writes;
        with `contents` it compares the values too, which also sees writes through `.data`.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> with State(model=model).kept(contents=False):
        ...     _ = model(torch.ones(3, 2))
        Traceback (most recent call last):
        ...
        apiece.errors.UnsupportedError: model.num_batches_tracked: the forward pass changes it, ...
    """

    def __init__(self, **roots: nn.Module) -> None:
        self._modules = [
            (f"{root}.{path}".rstrip("."), module)
            for root, top in roots.items()
            for path, module in top.named_modules()
        ]
        self._places = [
            (f"{path}.{name}", held, name)
            for path, module in self._modules
            for held in (module._parameters, module._buffers)
            for name in held
        ]

    @contextlib.contextmanager
    def kept(self, *, contents: bool) -> Iterator[None]:
        """Yield, and raise if something of it changes meanwhile; what was replaced is put back.

        Args:
            contents: Whether values are compared as well.

        Raises:
            UnsupportedError: Naming what changed.
        """
        tensors, versions = self._now()
        values = [None if t is None else t.detach().clone() for t in tensors] if contents else []
        extra = self._extra() if contents else {}
        try:
            yield
        except Exception:
            self._compare(tensors, versions)  # which may be why
            raise
        after = self._compare(tensors, versions)
        if not contents:
            return
        for (path, _, _), was, now in zip(self._places, values, after, strict=True):
            if was is not None and now is not None and not _same(was, now):
                raise _changed(path)
        for path, what in self._extra().items():
            if extra.get(path) != what:
                raise _changed(f"{path}.get_extra_state()")

    def _compare(
        self, tensors: list[torch.Tensor | None], versions: list[int]
    ) -> list[torch.Tensor | None]:
        """Put back what was replaced, and raise where anything was replaced or written to."""
        after, later = self._now()
        for (_, held, name), was, now in zip(self._places, tensors, after, strict=True):
            if was is not now:
                held[name] = was
        for place, (path, _, _) in enumerate(self._places):
            if tensors[place] is not after[place] or versions[place] != later[place]:
                raise _changed(path)
        return after

    def _now(self) -> tuple[list[torch.Tensor | None], list[int]]:
        found: list[torch.Tensor | None] = [held.get(name) for _, held, name in self._places]
        return found, [0 if t is None else t._version for t in found]

    def _extra(self) -> dict[str, bytes]:
        plain = nn.Module.get_extra_state
        return {
            path: _bytes_of(path, module.get_extra_state())
            for path, module in self._modules
            if type(module).get_extra_state is not plain
        }


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN stays NaN


def _bytes_of(path: str, what: Any) -> bytes:
    try:
        return pickle.dumps(what)
    except Exception as error:  # an object may refuse to be pickled by any error
        raise UnsupportedError(
            f"{path}.get_extra_state(): cannot be pickled ({type(error).__name__}), so nobody sees "
            "what a forward pass keeps there; return plain values and tensors"
        ) from None


def _changed(path: str) -> UnsupportedError:
    return UnsupportedError(
        f"{path}: the forward pass changes it, and so keeps something of the records without "
        "clipping and noise; put its module in eval() mode or take it out, initialise what is "
        "made in the first forward on public data, and start again from a model that has not run"
    )
