"""Recurrent layers, packed sequences under a mask: what torch's own give each record alone."""

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import recurrence, sequences

SIZE, LENGTH, WIDTH = 7, 3, 3


class Packs(nn.Module):
    """A recurrent layer over packed sequences, with a readout of outputs and of last states."""

    def __init__(self, kind=nn.GRU, *, start=False, total=None, value=0.0, **options):
        super().__init__()
        self.layer = kind(WIDTH, 4, **options)
        self.first = bool(options.get("batch_first"))
        self.start, self.total, self.value = start, total, value
        self.last = nn.LazyLinear(1)

    def forward(self, x, lengths):
        shape = (self.layer.num_layers * (1 + self.layer.bidirectional), len(x))
        hidden = x.new_zeros(*shape, self.layer.proj_size or 4) + x[:, 0, :1]
        state = hidden
        if isinstance(self.layer, nn.LSTM):
            state = hidden, x.new_ones(*shape, 4) * x[:, 1, 1:2]
        along = x if self.first else x.transpose(0, 1)
        packed = rnn.pack_padded_sequence(along, lengths, self.first, enforce_sorted=False)
        out, last = self.layer(packed, state) if self.start else self.layer(packed)
        out, again = rnn.pad_packed_sequence(out, self.first, self.value, self.total)
        out = out if self.first else out.transpose(0, 1)
        last = torch.cat(list(last), 2) if isinstance(last, tuple) else last
        read = [out.sum(1) / again.unsqueeze(1), *last.unbind(0)]
        return self.last(torch.cat(read, 1))


def squares(out, y):
    return (out.squeeze(1) - y).square()


MODELS = {
    "gru": {},
    "rnn": {"kind": nn.RNN, "batch_first": True, "total": LENGTH + 2},
    "rnn, relu, no biases": {"kind": nn.RNN, "nonlinearity": "relu", "bias": False},
    "both ways, given a start": {"start": True, "bidirectional": True, "batch_first": True},
    "lstm, given a start": {"kind": nn.LSTM, "start": True, "batch_first": True},
    "lstm, projected, both ways, two layers": {
        "kind": nn.LSTM, "proj_size": 2, "num_layers": 2, "bidirectional": True, "dropout": 0.5,
    },
}  # fmt: skip


def batch(name):
    torch.manual_seed(3)
    model = Packs(**MODELS[name]).double()
    x, lengths = torch.randn(SIZE, LENGTH, WIDTH).double(), torch.tensor([2, 3, 1, 3, 3, 2, 1])
    model(x, lengths)
    return model.eval(), (x, lengths), torch.randn(SIZE).double()


def apart(name):
    """Return how far the proved sum, norms and losses are from those of each record alone."""
    model, inputs, y = batch(name)
    one, other = (
        clip_and_sum(model, squares, inputs, y, 0.05, method=method)
        for method in ("proved", "alone")
    )
    pairs = [(one.gradients[n], other.gradients[n]) for n in one.gradients]
    pairs += [(one.norms, other.norms), (one.losses, other.losses)]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_as_each_record_alone(name):
    assert apart(name) < 1e-9


@pytest.mark.parametrize("wrong", [lambda lengths: lengths + 1, lambda lengths: lengths * 0 + 3])
def test_a_mask_that_is_wrong_is_seen(wrong, monkeypatch):
    right = recurrence._open_steps
    monkeypatch.setattr(recurrence, "_open_steps", lambda n, steps: right(wrong(n), steps))
    assert apart("gru") > 1e-4


def test_beyond_its_length_a_record_is_not_looked_at():
    model, (x, lengths), y = batch("both ways, given a start")
    sums = []
    for beyond in (0.0, 1e6):
        x[lengths.unsqueeze(1) <= torch.arange(LENGTH)] = beyond
        sums.append(clip_and_sum(model, squares, (x, lengths), y, 0.05, method="proved"))
    assert torch.equal(sums[0].norms, sums[1].norms)


def test_an_empty_sequence_leaves_the_state_as_it_was():
    model, (x, _), y = batch("lstm, given a start")
    lengths = torch.tensor([0, 3, 1, 3, 3, 2, 1])
    found = clip_and_sum(model, squares, (x, lengths), y, 1.0, method="proved")
    assert not torch.isfinite(found.losses[0])  # 0/0 in the readout, for that record alone
    assert torch.isfinite(found.losses[1:]).all()
    assert found.rejected == 1


INSIDE = {
    "data": lambda p: p.data,
    "sizes": lambda p: p.batch_sizes,
    "order": lambda p: p.unsorted_indices,
    "unpacked": lambda p: p[0],
    "taken apart": lambda p: next(iter(p)),
    "replaced": lambda p: p._replace(sorted_indices=None),
    "moved": lambda p: p.to(torch.float64),
}


@pytest.mark.parametrize("name", INSIDE)
def test_nobody_reads_inside(name):
    packed = sequences.pack(torch.ones(2, 3, 1), torch.tensor([3, 1]), True, False)
    with pytest.raises(sequences.Unwritten, match="reads inside a packed sequence"):
        INSIDE[name](packed)


def test_who_reads_inside_is_refused():
    class Reads(Packs):
        def forward(self, x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, True, False)
            return super().forward(x, lengths) + packed.data.mean()

    _, inputs, y = batch("gru")
    model = Reads().double()
    model(*inputs)
    with pytest.raises(UnsupportedError, match=r"test_sequences.py:\d+ .*reads inside a packed"):
        clip_and_sum(model, squares, inputs, y, 0.05, method="proved")


def test_torch_is_left_as_it_was():
    before = (rnn.pack_padded_sequence.__code__, rnn.pad_packed_sequence.__code__, nn.GRU.forward)
    model, inputs, y = batch("gru")
    clip_and_sum(model, squares, inputs, y, 0.05, method="proved")
    after = (rnn.pack_padded_sequence.__code__, rnn.pad_packed_sequence.__code__, nn.GRU.forward)
    assert before == after
    assert isinstance(rnn.pack_sequence([torch.ones(2, 1)]).data, torch.Tensor)


class Reads(nn.Module):
    """A recurrent layer over whole sequences, with a readout of outputs and of last states."""

    def __init__(self, kind=nn.GRU, **options):
        super().__init__()
        self.layer, self.first = kind(WIDTH, 4, **options), bool(options.get("batch_first"))
        self.last = nn.LazyLinear(1)

    def forward(self, x):
        out, last = self.layer(x if self.first else x.transpose(0, 1))
        out = out if self.first else out.transpose(0, 1)
        last = torch.cat(list(last), 2) if isinstance(last, tuple) else last
        return self.last(torch.cat([out.sum(1), *last.unbind(0)], 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": nn.RNN, "batch_first": True, "nonlinearity": "relu"},
        {"bidirectional": True, "num_layers": 2},
        {"kind": nn.LSTM, "batch_first": True, "bidirectional": True, "proj_size": 2},
    ],
    ids=["gru", "rnn", "two layers, both ways", "lstm, projected"],
)
def test_unpacked_is_the_same_as_each_record_alone(options):
    torch.manual_seed(3)
    model, x, y = (
        Reads(**options).double(),
        torch.randn(SIZE, LENGTH, WIDTH).double(),
        torch.randn(SIZE),
    )
    model(x)
    alone = clip_and_sum(model, squares, x, y, 0.05, method="alone")
    proved = clip_and_sum(model, squares, x, y, 0.05, method="proved")
    torch.testing.assert_close(proved.norms, alone.norms, rtol=1e-9, atol=0)
    torch.testing.assert_close(dict(proved.gradients), dict(alone.gradients), rtol=1e-9, atol=1e-12)
