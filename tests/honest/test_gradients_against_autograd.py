"""Gradients of honest models against autograd: equal, or refused with the operator's name.

Random programs (seeds are their names) and every layer and loss of torch.nn, in single precision,
beside autograd's gradients of each record in double precision: their sum, unclipped and clipped,
their norms and the losses.
"""

import collections

import pytest
import torch

from apiece.training.clipping import contributions, rewrite
from planted import plant

from .autograd import Outcome, compared
from .programs import program_of
from .torch_layers import LAYERS, LOSSES

PROGRAMS = 500
FAST_PROGRAMS = 24
# Programs a slow test runs, of which a share may be refused.
CHUNK = 50
LARGEST_REFUSED_SHARE = 0.1
BAD = (Outcome.WRONG, Outcome.CRASHED, Outcome.UNEXPLAINED)
CASES = {**LAYERS, **LOSSES}
# What is not proved, and what the reason names.
REFUSED = {
    "Embedding, by frequency": "embedding_dense_backward",
    "Embedding, sparse": "_sparse_coo_tensor_with_dims_and_tensors",
    "MaxUnpool1d": "arange", "MaxUnpool2d": "arange", "MaxUnpool3d": "arange",
    "CrossMapLRN2d": "select",
    "RReLU": "rrelu_with_noise_functional",
}  # fmt: skip
# Of layers that differ by their number of dimensions, or are pointwise, one stands for all.
FAST = (
    "GELU", "PReLU, a slope each", "Softmax2d", "Linear, sequences", "Bilinear", "Conv1d",
    "Conv2d, groups and stride", "ConvTranspose2d, groups", "Fold", "MaxPool2d", "AvgPool1d",
    "AdaptiveAvgPool3d", "ReplicationPad2d", "LayerNorm, two axes", "RMSNorm", "GroupNorm",
    "InstanceNorm2d", "BatchNorm2d, eval", "LSTM, two directions, projected", "GRUCell",
    "MultiheadAttention", "TransformerEncoderLayer", "Embedding, padded", "EmbeddingBag, mean",
    "CosineSimilarity", "PixelShuffle", "Upsample, bilinear", "Conv2d, weight norm",
    "CrossEntropyLoss, weights", "KLDivLoss", "MultiMarginLoss", "TripletMarginLoss",
    "EmbeddingBag, max", "GaussianNLLLoss", "RReLU",
)  # fmt: skip


def outcome_of(seed):
    program = program_of(seed)
    found = compared(program.model, program.loss, program.inputs, program.targets)
    return found, f"seed {seed}: {found.outcome.value}: {found.said}\n{program.source}"


@pytest.mark.parametrize("seed", range(FAST_PROGRAMS))
def test_a_random_program(seed):
    found, text = outcome_of(seed)
    assert found.outcome not in BAD, text


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, PROGRAMS, CHUNK))
def test_random_programs(start):
    counts = collections.Counter()
    for seed in range(start, start + CHUNK):
        found, text = outcome_of(seed)
        assert found.outcome not in BAD, text
        counts[found.outcome] += 1
    assert counts[Outcome.REFUSED] <= LARGEST_REFUSED_SHARE * CHUNK, counts


def held_against_autograd(name):
    torch.manual_seed(0)
    model, loss, inputs, targets = CASES[name]()
    found = compared(model, loss, inputs, targets)
    if name not in REFUSED:
        assert found.outcome is Outcome.EQUAL, f"{found.outcome.value}: {found.said}"
        return
    assert found.outcome is Outcome.REFUSED, f"{found.outcome.value}: {found.said}"
    assert REFUSED[name] in found.said
    alone = compared(model, loss, inputs, targets, method="alone")
    assert alone.outcome is Outcome.EQUAL, f"alone: {alone.outcome.value}: {alone.said}"


@pytest.mark.parametrize("name", FAST)
def test_a_layer_or_loss(name):
    held_against_autograd(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_every_layer_and_loss(name):
    held_against_autograd(name)


def test_no_layer_of_torch_is_left_out():
    """Containers, dropout in training and layers that mix records have no gradients to compare."""
    without = {
        "Module", "Container", "Sequential", "ModuleList", "ModuleDict", "ParameterList",
        "ParameterDict", "Parameter", "DataParallel", "RNNBase", "RNNCellBase", "CrossMapLRN2d",
        "Dropout1d", "Dropout3d", "TransformerDecoder", "FractionalMaxPool2d",
        "FractionalMaxPool3d", "Buffer", "UninitializedBuffer", "UninitializedParameter",
        "NLLLoss2d", "LinearCrossEntropyOptions",
    }  # fmt: skip
    listed = " ".join(CASES)
    kinds = {name for name, one in vars(torch.nn).items() if isinstance(one, type)}
    missing = {name for name in kinds - without if name not in listed and "Lazy" not in name}
    assert not missing, missing


# ---------------------------------------------------------------- what is planted is caught


def unguarded(monkeypatch):
    """Let neither shapes nor the trial on made-up records catch anything first."""
    monkeypatch.setattr(rewrite, "LARGEST_MODEL", 0)
    for module in (rewrite, contributions):
        monkeypatch.setattr(module, "check_shape", lambda *_: None)


BREAKS = {
    "keepdim is dropped": (rewrite._sum, "operands[0].reshape(size, *shape)", "operands[0]"),
    "a broadcast sum is left out": (rewrite._sum, "rows.sum([1, *summed])", "rows.sum(1)"),
    "a gradient is transposed": (
        rewrite.Program.finish_gradient, "total = step.apply(total)", "total = step.apply(total).mT"
    ),
    "a step is left out": (rewrite.Program.finish_gradient, "total = step.apply(total)", "pass"),
    "the next record's gradient": (
        rewrite._sum, "return Rows(total.reshape", "return Rows(total.roll(1, 0).reshape"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_caught_by_a_few_programs(name, monkeypatch):
    unguarded(monkeypatch)
    target, old, new = BREAKS[name]
    plant(monkeypatch, target, old, new)
    monkeypatch.setitem(rewrite.LEAVES, "sum", rewrite._sum)
    assert any(outcome_of(seed)[0].outcome in BAD for seed in range(FAST_PROGRAMS))
