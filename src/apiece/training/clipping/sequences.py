"""Recurrent layers and packed sequences in a capture: each record under a mask of its own length.

Torch packs a batch by sorting its records by length, and pads to the longest of them: what a record
becomes there depends on the others. In a capture a packed sequence is the padded one with its
lengths, in the records' own order, and a recurrent layer keeps a record's state once it has ended.
That is what each record gets alone; a sequence without an entry leaves the state as it was. All
steps of a layer's direction are one operator (`recurrence`), however many there are.
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

from apiece.training.clipping.recurrence import recur

Tensor = torch.Tensor
# What a recurrent layer carries from step to step, each (B, H): one tensor, two for an LSTM.
States = tuple[Tensor, ...]
# `is_capturing`: whether the thread is within `write_out`. Code is exchanged for all threads, and
# others must find what they know.
_THREAD = threading.local()


class Unwritten(Exception):  # noqa: N818
    """A packed sequence is used in a way that has no meaning for each record alone."""


def _refuse_reading(_sequence: object, *_args: object, **_kwargs: object) -> NoReturn:
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
        # Torch takes it for a packed sequence by its type; whoever reads a field is refused.
        result = tuple.__new__(cls, (None, None, None, None))
        result.padded = padded
        result.lengths = lengths
        return result

    data = batch_sizes = sorted_indices = unsorted_indices = property(_refuse_reading)
    _replace = __iter__ = __getitem__ = _refuse_reading


def pack(
    input: Tensor,  # noqa: A002
    lengths: object,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Padded:
    """Return what stands for `pack_padded_sequence`; the records stay in their order."""
    # numbers of Python's would be frozen, those of the first batch for all
    if not isinstance(lengths, Tensor):
        raise Unwritten("lengths are given as numbers, one for each record; give a tensor of them")
    # Records first inside, whatever the caller's convention: the captured operators count on it.
    of_records = input if batch_first else input.transpose(0, 1)
    return Padded(of_records, lengths.to(input.device, torch.int64))


def pad(
    sequence: Padded,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what stands for `pad_packed_sequence`: as long as what was packed, or as asked."""
    values = sequence.padded
    lengths = sequence.lengths
    assert lengths is not None
    length = values.shape[1]
    missing = 0 if total_length is None else total_length - length
    if missing < 0:
        raise Unwritten(f"total_length={total_length} is less than the {length} packed")
    # (B, T): whether a record has an entry there; then with the values' further axes.
    is_entry = torch.arange(length, device=values.device) < lengths.unsqueeze(1)
    ones = [1] * (values.dim() - 2)
    is_entry = is_entry.reshape(*is_entry.shape, *ones)
    result = torch.where(is_entry, values, padding_value)
    if missing:
        # from the last axis to the second, both ends of each
        ends = [0, 0] * (result.dim() - 2) + [0, missing]
        result = nn.functional.pad(result, ends, value=padding_value)
    return (result if batch_first else result.transpose(0, 1)), lengths


# ---------------------------------------------------------------- recurrent layers


def run_recurrent(
    layer: nn.RNNBase, sequence: Padded, start: Tensor | States | None = None
) -> tuple[Padded, Tensor | States]:
    """Return what a recurrent layer gives for a packed sequence: outputs, and the last states."""
    is_lstm = layer.mode == "LSTM"
    directions = 2 if layer.bidirectional else 1
    # One state for an RNN or a GRU, two for an LSTM: in each (layers·directions, B, ·).
    starts = (start,) if isinstance(start, Tensor) else start
    batch = sequence.padded.shape[0]
    # A projection makes an LSTM's output, and not its cell, smaller.
    sizes = [layer.proj_size or layer.hidden_size]
    if is_lstm:
        sizes.append(layer.hidden_size)
    zeros = tuple(sequence.padded.new_zeros(batch, size) for size in sizes)
    # by layer and direction, as torch numbers them
    final_states: list[States] = []
    for depth in range(layer.num_layers):
        # Dropout acts between layers, and so not on the first one's input.
        if depth and layer.dropout:
            dropped = nn.functional.dropout(sequence.padded, layer.dropout, layer.training)
            sequence = Padded(dropped, sequence.lengths)
        outputs: list[Tensor] = []
        for direction in range(directions):
            states = zeros
            if starts is not None:
                # `final_states` counts layers and directions in torch's order, in which start
                # states lie, too.
                states = tuple(start_of[len(final_states)] for start_of in starts)
            suffix = f"_l{depth}_reverse" if direction else f"_l{depth}"
            steps, states = _run_direction(layer, sequence, suffix, states, reverse=direction == 1)
            outputs.append(steps)
            final_states.append(states)
        sequence = Padded(torch.cat(outputs, 2), sequence.lengths)
    # (layers·directions, B, ·), as torch returns states.
    stacked = tuple(torch.stack(states) for states in zip(*final_states, strict=True))
    return sequence, stacked if is_lstm else stacked[0]


def run_unpacked(
    layer: nn.RNNBase,
    input: Tensor,  # noqa: A002
    start: Tensor | States | None = None,
) -> tuple[Tensor, Tensor | States]:
    """Return what a recurrent layer gives for sequences that are not packed."""
    if input.dim() == 2:
        raise Unwritten("a recurrent layer is given a sequence without records; batch it")
    values = input if layer.batch_first else input.transpose(0, 1)
    outputs, states = run_recurrent(layer, Padded(values, None), start)
    return outputs.padded if layer.batch_first else outputs.padded.transpose(0, 1), states


def _run_direction(
    layer: nn.RNNBase, sequence: Padded, suffix: str, starts: States, *, reverse: bool
) -> tuple[Tensor, States]:
    """Return one direction of one layer: (B, T, H), and its states when each record has ended.

    suffix: of the names of its weights.
    """

    def find(kind: str) -> Any:
        return getattr(layer, f"{kind}{suffix}", None)

    bias = find("bias_ih")
    bias_of_state = find("bias_hh")
    # of the two one sum, but where a reset gate comes between them
    if bias is not None and layer.mode != "GRU":
        bias = bias + bias_of_state
        bias_of_state = None
    # of all steps at once: what the input gives does not depend on the state
    gates = nn.functional.linear(sequence.padded, find("weight_ih"), bias)
    # under autocast the gates are narrower than states and weights
    dtype = torch.promote_types(gates.dtype, starts[0].dtype)
    state, cell = starts if layer.mode == "LSTM" else (starts[0], None)
    # What enters in another type is cast to the common one: the operator takes one type only.
    tensors = (gates, state, cell, find("weight_hh"), bias_of_state, find("weight_hr"))
    of_one_type = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    states, _, _, _, last, last_cell = recur(*of_one_type, sequence.lengths, layer.mode, reverse)
    return states, (last,) if cell is None else (last, last_cell)


# ---------------------------------------------------------------- in place of torch's


# A function's code can be exchanged only for code that needs no closure. These two run with the
# globals of torch's file and find what they call there, as an attribute of torch's function.


def _pack(*args: Any, **kwargs: Any) -> object:
    return vars(pack_padded_sequence)["instead"](*args, **kwargs)


def _pad(*args: Any, **kwargs: Any) -> object:
    return vars(pad_packed_sequence)["instead"](*args, **kwargs)


def _dispatch(function: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a call of torch's own function comes to: in other threads, the same as ever."""
    # with the code of now: the function itself will have another one
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        is_capturing = getattr(_THREAD, "is_capturing", False)
        return (stand_in if is_capturing else original)(*args, **kwargs)

    return call


# Installed once, at import: outside of a capture they call torch's own.
pack_padded_sequence.instead = _dispatch(pack_padded_sequence, pack)  # type: ignore[attr-defined]
pad_packed_sequence.instead = _dispatch(pad_packed_sequence, pad)  # type: ignore[attr-defined]


def _replace_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer's forward in operators that say what they do."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002
        if isinstance(input, Padded):
            return run_recurrent(self, input, hx)
        if isinstance(input, Tensor):
            return run_unpacked(self, input, hx)
        return original(self, input, hx)

    return forward


@contextlib.contextmanager
def write_out(model: nn.Module) -> Iterator[None]:
    """Let packed sequences be padded ones under a mask, where a model has recurrent layers.

    The code of torch's two functions is exchanged meanwhile, and not their names: a model's file
    has mostly imported them.
    """
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    functions: list[Any] = [pack_padded_sequence, pad_packed_sequence]
    layers: list[Any] = [nn.RNN, nn.LSTM, nn.GRU]
    # What is to be restored, read before the first exchange.
    codes = [function.__code__ for function in functions]
    forwards = [layer.forward for layer in layers]
    _THREAD.is_capturing = True
    settings = contextlib.ExitStack()
    try:
        # step by step also where nothing is packed, in place of one fused operator
        settings.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="TF32 acceleration")
        settings.enter_context(torch.backends.mkldnn.flags(enabled=False))
        for function, replacement in zip(functions, (_pack, _pad), strict=True):
            function.__code__ = replacement.__code__
        for layer, original in zip(layers, forwards, strict=True):
            layer.forward = _replace_forward(original)
        yield
    finally:
        settings.close()
        _THREAD.is_capturing = False
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        for layer, original in zip(layers, forwards, strict=True):
            layer.forward = original
