"""The recurrence as one operator, beside torch's own layers and autograd."""

import functools

import pytest
import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping import recurrence
from apiece.training.clipping.cache import proof_of
from apiece.training.clipping.recurrence import recur
from apiece.training.clipping.sequences import Padded, run_recurrent

SIZE, LENGTH, WIDTH, HIDDEN = 4, 5, 3, 6
LAYERS = {
    "lstm": functools.partial(nn.LSTM, WIDTH, HIDDEN),
    "lstm, projected": functools.partial(nn.LSTM, WIDTH, HIDDEN, proj_size=2),
    "gru": functools.partial(nn.GRU, WIDTH, HIDDEN),
    "gru, no biases": functools.partial(nn.GRU, WIDTH, HIDDEN, bias=False),
    "rnn": functools.partial(nn.RNN, WIDTH, HIDDEN),
    "rnn, relu": functools.partial(nn.RNN, WIDTH, HIDDEN, nonlinearity="relu"),
    "two layers, both ways": functools.partial(
        nn.LSTM, WIDTH, HIDDEN, num_layers=2, bidirectional=True
    ),
    "gru, both ways": functools.partial(nn.GRU, WIDTH, HIDDEN, bidirectional=True),
}


def differences(name, dtype, last_only=False):
    """Return how far outputs and gradients are from torch's, each as a share of its largest."""
    torch.manual_seed(5)
    layer = LAYERS[name](batch_first=True).to(dtype)
    x = torch.randn(SIZE, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    count = layer.num_layers * (1 + layer.bidirectional)
    sizes = [layer.proj_size or HIDDEN] + [HIDDEN] * (layer.mode == "LSTM")
    starts = [torch.randn(count, SIZE, n, dtype=dtype, requires_grad=True) for n in sizes]
    start = tuple(starts) if len(starts) > 1 else starts[0]
    ours, our_last = run_recurrent(layer, Padded(x, None), start)
    theirs, their_last = layer(x, start)
    weights = torch.randn_like(theirs)
    results = []
    for outputs, last in ((ours.padded, our_last), (theirs, their_last)):
        finals = last if isinstance(last, tuple) else (last,)
        total = sum(final.sin().sum() for final in finals)
        if not last_only:
            total = total + (outputs * weights).sum()
        leaves = [x, *starts, *layer.parameters()]
        results.append([outputs.detach(), *finals, *torch.autograd.grad(total, leaves)])
    return [
        float((one - other).detach().abs().max() / other.detach().abs().max().clamp(min=1e-3))
        for one, other in zip(*results, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("last_only", [False, True])
def test_the_same_as_torchs_layers(name, last_only):
    assert max(differences(name, torch.float64, last_only)) < 1e-12
    assert max(differences(name, torch.float32, last_only)) < 1e-4


def forget_reset(activations, previous):
    """Return the slopes of a GRU whose reset gate gets no gradient."""
    slopes = RIGHT(activations, previous)
    size = previous.shape[2]
    slopes.gates[..., :size] = 0
    return slopes


def reset_nothing(activations, previous):
    """Return the slopes of a GRU whose state enters the new gate past the reset gate."""
    slopes = RIGHT(activations, previous)
    size = previous.shape[2]
    slopes.gates[..., 2 * size : 3 * size] = slopes.gates[..., 3 * size :]
    return slopes


RIGHT = recurrence._slopes_of_gru


@pytest.mark.parametrize("wrong", [forget_reset, reset_nothing])
def test_a_backward_that_forgets_a_path_is_seen(wrong, monkeypatch):
    monkeypatch.setattr(recurrence, "_slopes_of_gru", wrong)
    assert max(differences("gru", torch.float64)) > 1e-3


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_ragged_sequences_are_those_of_differences(mode, reverse):
    torch.manual_seed(2)
    blocks = recurrence._BLOCKS[mode]
    # in double precision, and small: each entry is moved by itself
    new = functools.partial(torch.randn, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 0, 2])
    cell = new(3, 2) if mode == "LSTM" else None
    bias = new(blocks * 2) if mode == "GRU" else None

    def run(gates, state, weight, *others):
        others = iter(others)
        cell_ = next(others) if cell is not None else None
        bias_ = next(others) if bias is not None else None
        given = weight, bias_, None, lengths, mode, reverse
        states, _, _, _, last, last_cell = recur(gates, state, cell_, *given)
        return states, last, last_cell

    tensors = [new(3, 3, blocks * 2), new(3, 2), new(blocks * 2, 2)]
    tensors += [tensor for tensor in (cell, bias) if tensor is not None]
    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_RELU"])
def test_what_torch_asks_of_an_operator(mode):
    blocks = recurrence._BLOCKS[mode]
    cell = torch.randn(2, 3) if mode == "LSTM" else None
    given = torch.randn(blocks * 3, 3), None, None, torch.tensor([4, 2]), mode, True
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    gates, state = torch.randn(2, 4, blocks * 3), torch.randn(2, 3)
    torch.library.opcheck(recur, (gates, state, cell, *given), test_utils=tests)


def test_what_is_beyond_a_record_may_be_infinite():
    gates = torch.randn(2, 4, 12, requires_grad=True)
    lengths = torch.tensor([4, 1])
    weight = torch.randn(12, 4)
    zeros = torch.zeros(2, 4)
    found = []
    for beyond in (0.0, float("inf"), float("nan")):
        values = gates.detach().clone()
        values[1, 1:] = beyond
        values.requires_grad_()
        states, *_ = recur(values, zeros, None, weight, None, None, lengths, "GRU", True)
        (gradient,) = torch.autograd.grad(states.sin().sum(), values)
        found.append((states.detach(), gradient))
    for states, gradient in found[1:]:
        assert torch.equal(states, found[0][0])
        assert torch.equal(gradient, found[0][1])


class Reads(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.last(self.layer(x)[0].mean(1))


def squares(out, y):
    return (out.squeeze(1) - y).square()


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_a_graph_does_not_grow_with_the_length(name):
    model = Reads(LAYERS[name](batch_first=True))
    counts = []
    for length in (2, 40):
        x, y = torch.randn(SIZE, length, WIDTH), torch.randn(SIZE)
        clip_and_sum(model, squares, x, y, 0.1, method="proved")
        counts.append(sum(proof_of(model).operators.values()))
    assert counts[0] == counts[1] < 60


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_under_autocast_the_recurrence_is_as_wide_as_its_states(name):
    torch.manual_seed(1)
    model = Reads(LAYERS[name](batch_first=True))
    x, y = torch.randn(SIZE, LENGTH, WIDTH), torch.randn(SIZE)
    full = clip_and_sum(model, squares, x, y, 10.0, method="proved")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = clip_and_sum(model, squares, x, y, 10.0, method="proved")
    torch.testing.assert_close(half.norms, full.norms, rtol=0.05, atol=0.05)


def test_a_model_in_half_precision_is_clipped():
    torch.manual_seed(1)
    model = Reads(LAYERS["lstm"](batch_first=True)).bfloat16()
    x, y = torch.randn(SIZE, LENGTH, WIDTH).bfloat16(), torch.randn(SIZE).bfloat16()
    found = clip_and_sum(model, squares, x, y, 1e-3, method="proved")
    assert all(g.dtype == torch.float32 for g in found.gradients.values())
    assert (found.norms > 1e-3).all()
