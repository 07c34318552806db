"""Partial sensitivities of recurrent and attention layers, beside central differences."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from apiece.errors import SlowPathWarning
from apiece.sensitivity.neural import ModelLoss

RECORDS = 3
LENGTH = 4
WIDTH = 4
LOSS = nn.CrossEntropyLoss(reduction="none")


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self, *, need_weights: bool = False) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x, x, x, need_weights=self.need_weights)[0].mean(1))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, Mean(), nn.Linear(WIDTH, 2))


MODELS = {
    "RNN": lambda: Recurrent(nn.RNN(WIDTH, 3, batch_first=True)),
    "GRU": lambda: Recurrent(nn.GRU(WIDTH, 3, batch_first=True)),
    "LSTM": lambda: Recurrent(nn.LSTM(WIDTH, 3, batch_first=True)),
    "two-way GRU": lambda: Recurrent(
        nn.GRU(WIDTH, 3, batch_first=True, bidirectional=True, num_layers=2)
    ),
    "attention": Attention,
    "attention with weights": lambda: Attention(need_weights=True),
    "encoder": encoder,
    "encoder in evaluation": lambda: encoder().eval(),
}


def gradient_norm(model: nn.Module, record: Tensor, target: Tensor) -> Tensor:
    losses = LOSS(model(record[None]), target[None])
    gradients = torch.autograd.grad(losses.sum(), list(model.parameters()))
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()


def by_differences(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The derivative of each record's gradient norm, by central differences in double precision."""
    exact = copy.deepcopy(model).double()
    step = 1e-5
    derivative = torch.zeros_like(inputs, dtype=torch.float64)
    for record in range(len(inputs)):
        for place in range(inputs[record].numel()):
            ends = []
            for sign in (1, -1):
                moved = inputs[record].double().clone()
                moved.view(-1)[place] += sign * step
                ends.append(gradient_norm(exact, moved, targets[record]))
            derivative[record].view(-1)[place] = (ends[0] - ends[1]) / (2 * step)
    return derivative


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_sequences_agree_with_differences(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs = torch.randn(RECORDS, LENGTH, WIDTH)
    targets = torch.tensor([0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = ModelLoss(model, LOSS).differentiate(inputs, targets)
    expected = by_differences(model, inputs, targets)
    assert torch.allclose(torch.from_numpy(found.raw), expected, rtol=1e-3, atol=1e-5)


def test_a_record_at_a_time_is_said() -> None:
    model = MODELS["GRU"]()
    with pytest.warns(SlowPathWarning, match="one after the other"):
        ModelLoss(model, LOSS).differentiate(torch.randn(2, 3, WIDTH), torch.tensor([0, 1]))
