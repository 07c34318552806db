"""Packed sequences, written out step by step: each record under a mask of its own length.

Torch packs a batch by sorting its records by length, and pads to the longest of them: what a record
becomes there depends on the others. In a capture a packed sequence is the padded one with its
lengths, in the records' own order, and a recurrent layer keeps a record's state once it has ended.
That is what each record gets alone; a sequence without an entry leaves the state as it was.
"""

from __future__ import annotations

import contextlib
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Tensor = torch.Tensor
States = tuple[Tensor, ...]
_OPEN = threading.local()
_FUSED = ("cuda", "mps")  # where a recurrent layer is one operator for all steps


class Unwritten(Exception):  # noqa: N818
    """A packed sequence is used in a way that has no meaning for each record alone."""


def _hidden(_sequence: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise Unwritten(
        "reads inside a packed sequence, where the records of a batch are mixed by length; pad it "
        "again (pad_packed_sequence), or give it to a recurrent layer of torch's"
    )


class Padded(rnn.PackedSequence):
    """Stands for a packed sequence: padded (B, T, …), with each record's length (B,).

    What is beyond a record's length is not looked at; without lengths, all are T long.
    """

    padded: Tensor
    lengths: Tensor | None

    def __new__(cls, padded: Tensor, lengths: Tensor | None) -> Padded:
        """Return one; its fields as a tuple are empty."""
        result = tuple.__new__(cls, (None, None, None, None))
        result.padded, result.lengths = padded, lengths
        return result

    data = batch_sizes = sorted_indices = unsorted_indices = property(_hidden)
    _replace = __iter__ = __getitem__ = _hidden

    def alive(self, step: int) -> Tensor | None:
        """Return whether each record has an entry at a step, (B, 1); None where all have."""
        return None if self.lengths is None else (self.lengths > step).unsqueeze(1)


def packed(
    input: Tensor,  # noqa: A002
    lengths: object,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Padded:
    """Return what stands for `pack_padded_sequence`; the records keep their own order."""
    if not isinstance(lengths, Tensor):
        raise Unwritten("lengths are given as numbers, one for each record; give a tensor of them")
    of_records = input if batch_first else input.transpose(0, 1)
    return Padded(of_records, lengths.to(input.device, torch.int64))


def padded(
    sequence: Padded,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what stands for `pad_packed_sequence`: as long as what was packed, or as asked."""
    given, lengths = sequence.padded, sequence.lengths
    assert lengths is not None
    more = 0 if total_length is None else total_length - given.shape[1]
    if more < 0:
        raise Unwritten(f"total_length={total_length} is less than the {given.shape[1]} packed")
    there = torch.arange(given.shape[1], device=given.device) < lengths.unsqueeze(1)
    there = there.reshape(*there.shape, *(1 for _ in given.shape[2:]))
    result = torch.where(there, given, padding_value)
    if more:
        sides = [0, 0] * (result.dim() - 2) + [0, more]
        result = nn.functional.pad(result, sides, value=padding_value)
    return (result if batch_first else result.transpose(0, 1)), lengths


# ---------------------------------------------------------------- recurrent layers


def recurrent(
    layer: nn.RNNBase, given: Padded, start: Tensor | States | None = None
) -> tuple[Padded, Tensor | States]:
    """Return what a recurrent layer gives for a packed sequence: outputs, and the last states."""
    is_lstm, sides = layer.mode == "LSTM", 2 if layer.bidirectional else 1
    starts = None if start is None else (start,) if isinstance(start, Tensor) else start
    like, sizes = given.padded, [layer.proj_size or layer.hidden_size, layer.hidden_size]
    zeros = tuple(like.new_zeros(like.shape[0], size) for size in sizes[: 2 if is_lstm else 1])
    out, last = given, list[States]()
    for depth in range(layer.num_layers):
        given = out
        if depth and layer.dropout:
            dropped = nn.functional.dropout(given.padded, layer.dropout, layer.training)
            given = Padded(dropped, given.lengths)
        made = list[Tensor]()
        for side in range(sides):
            first = zeros if starts is None else tuple(s[len(last)] for s in starts)
            end = f"_l{depth}" + ("_reverse" if side else "")
            steps, states = _run(layer, given, end, first, reverse=side == 1)
            made.append(steps)
            last.append(states)
        out = Padded(torch.cat(made, 2), given.lengths)
    stacked = tuple(torch.stack(each) for each in zip(*last, strict=True))
    return out, stacked if is_lstm else stacked[0]


def unfused(
    layer: nn.RNNBase,
    input: Tensor,  # noqa: A002
    start: Tensor | States | None = None,
) -> tuple[Tensor, Tensor | States]:
    """Return what a recurrent layer gives, step by step: cuDNN's has no operators in a graph."""
    if input.dim() == 2:
        raise Unwritten("a recurrent layer is given a sequence without records; batch it")
    given = input if layer.batch_first else input.transpose(0, 1)
    out, last = recurrent(layer, Padded(given, None), start)
    return out.padded if layer.batch_first else out.padded.transpose(0, 1), last


def _run(
    layer: nn.RNNBase, given: Padded, end: str, states: States, *, reverse: bool
) -> tuple[Tensor, States]:
    """Return one direction of one layer: (B, T, H), and its states when each record has ended."""

    def linear(of: Tensor, kind: str) -> Tensor:
        weight, bias = (getattr(layer, f"{n}_{kind}{end}", None) for n in ("weight", "bias"))
        assert weight is not None
        return nn.functional.linear(of, weight, bias)

    gates, length = linear(given.padded, "ih"), given.padded.shape[1]
    made: list[Tensor] = [states[0]] * length
    for step in reversed(range(length)) if reverse else range(length):
        new = _cell(layer.mode, gates[:, step], linear(states[0], "hh"), states)
        if layer.proj_size:
            new = (linear(new[0], "hr"), *new[1:])
        if (there := given.alive(step)) is not None:
            new = tuple(torch.where(there, n, s) for n, s in zip(new, states, strict=True))
        states = new
        made[step] = states[0]
    return torch.stack(made, 1), states


def _cell(mode: str, given: Tensor, of_state: Tensor, states: States) -> States:
    """Return the states after one step, as the documents of torch's layers have it."""
    if mode == "GRU":
        (reset, update, new), (r, z, n) = given.chunk(3, 1), of_state.chunk(3, 1)
        keep = torch.sigmoid(update + z)
        proposed = torch.tanh(new + torch.sigmoid(reset + r) * n)
        return ((states[0] - proposed) * keep + proposed,)
    if mode == "LSTM":
        enter, forget, new, leave = (given + of_state).chunk(4, 1)
        cell = torch.sigmoid(forget) * states[1] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell
    act = torch.relu if mode == "RNN_RELU" else torch.tanh
    return (act(given + of_state),)


# ---------------------------------------------------------------- in place of torch's


def _pack(*args: Any, **kwargs: Any) -> object:
    return vars(pack_padded_sequence)["instead"](*args, **kwargs)


def _pad(*args: Any, **kwargs: Any) -> object:
    return vars(pad_packed_sequence)["instead"](*args, **kwargs)


def _instead(function: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a call of torch's own function comes to: in other threads, the same as ever."""
    kept = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        return (stand_in if getattr(_OPEN, "yes", False) else kept)(*args, **kwargs)

    return call


pack_padded_sequence.instead = _instead(pack_padded_sequence, packed)  # type: ignore[attr-defined]
pad_packed_sequence.instead = _instead(pad_packed_sequence, padded)  # type: ignore[attr-defined]


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002
        if isinstance(input, Padded):
            return recurrent(self, input, hx)
        if isinstance(input, Tensor) and input.device.type in _FUSED:
            return unfused(self, input, hx)
        return original(self, input, hx)

    return forward


@contextlib.contextmanager
def written_out(model: nn.Module) -> Iterator[None]:
    """Let packed sequences be padded ones under a mask, where a model has recurrent layers.

    The code of torch's two functions is exchanged meanwhile, and not their names: a model's file
    has mostly imported them.
    """
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    functions: list[Any] = [pack_padded_sequence, pad_packed_sequence]
    kinds: list[Any] = [nn.RNN, nn.LSTM, nn.GRU]
    codes, forwards = [f.__code__ for f in functions], [kind.forward for kind in kinds]
    _OPEN.yes = True
    settings = contextlib.ExitStack()
    try:
        # step by step also where nothing is packed, in place of one fused operator
        settings.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="TF32 acceleration")
        settings.enter_context(torch.backends.mkldnn.flags(enabled=False))
        for function, new in zip(functions, (_pack, _pad), strict=True):
            function.__code__ = new.__code__
        for kind, original in zip(kinds, forwards, strict=True):
            kind.forward = _forward(original)
        yield
    finally:
        settings.close()
        _OPEN.yes = False
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        for kind, original in zip(kinds, forwards, strict=True):
            kind.forward = original
