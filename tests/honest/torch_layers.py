"""Every layer and loss of torch.nn: a small model around each, with its records and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

B = 5
Case = tuple[nn.Module, Callable[..., torch.Tensor], Any, Any]


class Around(nn.Module):
    """A layer between parameters of its own: what it takes is scaled, so that both have gradients.

    take: what of the layer's output counts.
    """

    def __init__(self, layer: nn.Module, *, features: int = 0, take: int | None = None) -> None:
        super().__init__()
        self.layer, self.take = layer, take
        self.scale = nn.Parameter(torch.rand(features or 1) + 0.5)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        first, *others = given
        out = self.layer(first * self.scale if first.is_floating_point() else first, *others)
        return out if self.take is None else out[self.take]


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Celled(nn.Module):
    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


class Unpooled(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, *[1] * rank))
        self.pool = getattr(nn, f"MaxPool{rank}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{rank}d")(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unpool(*self.pool(x * self.scale))


class Asked(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Watched(nn.Module):
    """Attention that gives its weights as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, weights = self.layer(x, x, x)
        return torch.cat([out, weights], -1)


class Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4], div_value=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.log_prob(x)


class Pair(nn.Module):
    """Two outputs of one layer, for losses and layers of two."""

    def __init__(self, layer: nn.Module, width: int = 4, count: int = 2) -> None:
        super().__init__()
        self.linear, self.layer, self.count = nn.Linear(width, width), layer, count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.linear(x)
        given = [first, x.sin(), first.cos()][: self.count]
        return self.layer(*given)


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.reshape(len(outputs), -1) - targets.unsqueeze(1)).square().sum(1)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(B, *shape)


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, (B, *shape))


def around(layer: nn.Module, *shape: int, features: int = 0, take: int | None = None) -> Case:
    return Around(layer, features=features, take=take), squares, rows(*shape), rows()


def tables(layer: nn.Module, *shape: int) -> Case:
    return nn.Sequential(layer, nn.Flatten(1)), squares, whole(6, *shape), rows()


ACTIVATIONS = (
    "ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU",
    "ReLU", "ReLU6", "SELU", "CELU", "GELU", "Sigmoid", "SiLU", "Mish", "Softplus", "Softshrink",
    "Softsign", "Tanh", "Tanhshrink", "Identity",
)  # fmt: skip
LAYERS: dict[str, Callable[[], Case]] = {
    **{name: (lambda name=name: around(getattr(nn, name)(), 4)) for name in ACTIVATIONS},
    "RReLU": lambda: around(nn.RReLU().eval(), 4),
    "Threshold": lambda: around(nn.Threshold(0.1, 0.3), 4),
    "GLU": lambda: around(nn.GLU(), 4),
    "Softmin": lambda: around(nn.Softmin(1), 4),
    "Softmax": lambda: around(nn.Softmax(1), 4),
    "Softmax2d": lambda: around(nn.Softmax2d(), 3, 2, 2),
    "LogSoftmax": lambda: around(nn.LogSoftmax(1), 4),
    "PReLU, a slope each": lambda: around(nn.PReLU(4), 4, 3),
    # linear
    "Linear": lambda: (nn.Linear(4, 3), squares, rows(4), rows()),
    "Linear, sequences": lambda: (nn.Linear(4, 3), squares, rows(6, 4), rows()),
    "Bilinear": lambda: (Pair(nn.Bilinear(4, 4, 3)), squares, rows(4), rows()),
    "LazyLinear": lambda: _settled(nn.LazyLinear(3), rows(4)),
    # convolutions
    **{
        f"{kind}{n}d": (
            lambda kind=kind, n=n: around(getattr(nn, f"{kind}{n}d")(2, 4, 2), 2, *[3] * n)
        )
        for kind in ("Conv", "ConvTranspose")
        for n in (1, 2, 3)
    },
    "Conv2d, groups and stride": lambda: around(
        nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), 4, 5, 4
    ),
    "Conv2d, dilated, circular": lambda: around(
        nn.Conv2d(2, 2, 2, padding=1, dilation=2, padding_mode="circular"), 2, 4, 4
    ),
    "ConvTranspose2d, groups": lambda: around(
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), 4, 3, 3
    ),
    "LazyConv1d": lambda: _settled(nn.LazyConv1d(2, 2), rows(3, 4)),
    "Unfold": lambda: around(nn.Unfold(2), 2, 3, 3),
    "Fold": lambda: around(nn.Fold((3, 3), 2), 8, 4),
    # pools
    **{
        f"{kind}{n}d": (lambda kind=kind, n=n: around(getattr(nn, f"{kind}{n}d")(2), 2, *[4] * n))
        for kind in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
        for n in (1, 2, 3)
    },
    **{f"LPPool{n}d": (lambda n=n: _positive(getattr(nn, f"LPPool{n}d")(2, 2), n))
       for n in (1, 2, 3)},
    **{f"MaxUnpool{n}d": (lambda n=n: (Unpooled(n), squares, rows(2, *[4] * n), rows()))
       for n in (1, 2, 3)},
    # padding
    **{
        f"{kind}Pad{n}d": (lambda kind=kind, n=n: around(
            getattr(nn, f"{kind}Pad{n}d")(*([1, 0.5] if kind == "Constant" else [1])), 2, *[3] * n))
        for kind in ("Reflection", "Replication", "Zero", "Constant", "Circular")
        for n in (1, 2, 3)
    },
    # normalisers
    "LayerNorm": lambda: around(nn.LayerNorm(4), 3, 4),
    "LayerNorm, two axes": lambda: around(nn.LayerNorm((3, 4)), 2, 3, 4),
    "LayerNorm, no bias": lambda: around(nn.LayerNorm(4, bias=False), 4),
    "RMSNorm": lambda: around(nn.RMSNorm(4), 3, 4),
    "GroupNorm": lambda: around(nn.GroupNorm(2, 4), 4, 3),
    "LocalResponseNorm": lambda: around(nn.LocalResponseNorm(2), 4, 3),
    "CrossMapLRN2d": lambda: around(nn.CrossMapLRN2d(2), 4, 3, 3),
    **{f"InstanceNorm{n}d": (
        lambda n=n: around(getattr(nn, f"InstanceNorm{n}d")(2, affine=True), 2, *[3] * n))
       for n in (1, 2, 3)},
    **{f"BatchNorm{n}d, eval": (
        lambda n=n: around(getattr(nn, f"BatchNorm{n}d")(2).eval(), 2, *[3] * (n - 1 or 1)
                           if n == 1 else [3] * n))
       for n in (1, 2, 3)},
    "SyncBatchNorm, eval": lambda: around(nn.SyncBatchNorm(4).eval(), 4, 3),
    # recurrent layers
    **{name: (lambda name=name: (Recurrent(getattr(nn, name)(4, 3, batch_first=True)), squares,
                                 rows(3, 4), rows())) for name in ("RNN", "LSTM", "GRU")},
    "RNN, relu": lambda: (
        Recurrent(nn.RNN(4, 3, nonlinearity="relu", batch_first=True)), squares, rows(3, 4), rows()
    ),
    "LSTM, two directions, projected": lambda: (
        Recurrent(nn.LSTM(4, 3, 2, bidirectional=True, proj_size=2, batch_first=True)), squares,
        rows(3, 4), rows(),
    ),
    **{f"{name}Cell": (lambda name=name: (Celled(getattr(nn, f"{name}Cell")(4, 3)), squares,
                                          rows(3, 4), rows())) for name in ("RNN", "LSTM", "GRU")},
    # attention
    "MultiheadAttention": lambda: (Asked(), squares, rows(3, 4), rows()),
    "MultiheadAttention, weights": lambda: (Watched(), squares, rows(3, 4), rows()),
    "MultiheadAttention, bias_k and zeros": lambda: (
        Asked(add_bias_kv=True, add_zero_attn=True), squares, rows(3, 4), rows()
    ),
    "TransformerEncoderLayer": lambda: (
        nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), squares, rows(3, 4), rows()
    ),
    "TransformerEncoderLayer, norm first": lambda: (
        nn.TransformerEncoderLayer(4, 2, 6, 0.0, "gelu", batch_first=True, norm_first=True),
        squares, rows(3, 4), rows(),
    ),
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 2,
                              enable_nested_tensor=False), squares, rows(3, 4), rows()
    ),
    "TransformerDecoderLayer": lambda: (
        nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True), squares,
        (rows(3, 4), rows(2, 4)), rows(),
    ),
    "Transformer": lambda: (
        nn.Transformer(4, 2, 1, 1, 6, 0.0, batch_first=True), squares, (rows(3, 4), rows(2, 4)),
        rows(),
    ),
    # tables
    "Embedding": lambda: tables(nn.Embedding(6, 3), 4),
    "Embedding, padded": lambda: tables(nn.Embedding(6, 3, padding_idx=2), 4),
    "Embedding, by frequency": lambda: tables(nn.Embedding(6, 3, scale_grad_by_freq=True), 4),
    "Embedding, sparse": lambda: tables(nn.Embedding(6, 3, sparse=True), 4),
    **{f"EmbeddingBag, {mode}": (lambda mode=mode: tables(nn.EmbeddingBag(6, 3, mode=mode), 4))
       for mode in ("sum", "mean", "max")},
    # the rest
    "Dropout, eval": lambda: around(nn.Dropout().eval(), 4),
    "AlphaDropout, eval": lambda: around(nn.AlphaDropout().eval(), 4),
    "Dropout2d, none": lambda: around(nn.Dropout2d(0.0), 4, 3, 3),
    "FeatureAlphaDropout, eval": lambda: around(nn.FeatureAlphaDropout().eval(), 4, 3),
    "Flatten": lambda: around(nn.Flatten(), 2, 3),
    "Unflatten": lambda: around(nn.Unflatten(1, (2, 2)), 4),
    "CosineSimilarity": lambda: (Pair(nn.CosineSimilarity()), squares, rows(4), rows()),
    "PairwiseDistance": lambda: (Pair(nn.PairwiseDistance()), squares, rows(4), rows()),
    "PixelShuffle": lambda: around(nn.PixelShuffle(2), 4, 2, 2),
    "PixelUnshuffle": lambda: around(nn.PixelUnshuffle(2), 1, 4, 4),
    "ChannelShuffle": lambda: around(nn.ChannelShuffle(2), 4, 2, 2),
    "Upsample": lambda: around(nn.Upsample(scale_factor=2), 2, 3),
    **{f"Upsample, {mode}": (
        lambda mode=mode, n=n: around(nn.Upsample(scale_factor=2, mode=mode), 2, *[3] * n))
       for mode, n in [("linear", 1), ("nearest", 2), ("bilinear", 2), ("bicubic", 2),
                       ("nearest", 3), ("trilinear", 3), ("nearest-exact", 2)]},
    "UpsamplingNearest2d": lambda: around(nn.UpsamplingNearest2d(scale_factor=2), 2, 3, 3),
    "UpsamplingBilinear2d": lambda: around(nn.UpsamplingBilinear2d(scale_factor=2), 2, 3, 3),
    "AdaptiveLogSoftmaxWithLoss": lambda: (Adaptive(), squares, rows(4), rows()),
    "Sequential, weight norm": lambda: (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), squares, rows(4), rows()
    ),
    "Conv2d, weight norm": lambda: (
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 2)), squares, rows(2, 3, 3), rows()
    ),
    "Linear, orthogonal": lambda: (
        nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), squares, rows(4), rows()
    ),
    "Linear, spectral norm": lambda: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), squares, rows(4), rows()
    ),
}  # fmt: skip


def _settled(layer: nn.Module, inputs: torch.Tensor) -> Case:
    layer(inputs)
    return layer, squares, inputs, rows()


def _positive(layer: nn.Module, rank: int) -> Case:
    return Around(layer), squares, torch.rand(B, 2, *[4] * rank) + 0.1, rows()


class Added(nn.Module):
    """A loss whose values are added up within each record."""

    def __init__(self, loss: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.loss, self.prepare = loss, prepare

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values = self.loss(self.prepare(outputs), targets)
        return values.reshape(len(outputs), -1).sum(1)


def _as_they_are(outputs: torch.Tensor) -> torch.Tensor:
    return outputs


def _loss(
    loss: nn.Module,
    targets: torch.Tensor,
    *,
    prepare: Callable[[torch.Tensor], torch.Tensor] = _as_they_are,
) -> Case:
    """Return a linear layer under a loss."""
    return nn.Linear(4, 3), Added(loss, prepare), rows(4), targets


def _signs(*shape: int) -> torch.Tensor:
    return whole(2, *shape) * 2.0 - 1


LOSSES: dict[str, Callable[[], Case]] = {
    **{
        name: (lambda name=name: _loss(getattr(nn, name)(reduction="none"), rows(3)))
        for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss")
    },
    "CrossEntropyLoss": lambda: _loss(nn.CrossEntropyLoss(reduction="none"), whole(3)),
    "CrossEntropyLoss, smoothed": lambda: _loss(
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), whole(3)
    ),
    "CrossEntropyLoss, weights": lambda: _loss(
        nn.CrossEntropyLoss(torch.tensor([0.3, 1.0, 2.0]), reduction="none"), whole(3)
    ),
    "CrossEntropyLoss, chances": lambda: _loss(
        nn.CrossEntropyLoss(reduction="none"), rows(3).softmax(1)
    ),
    "NLLLoss": lambda: _loss(
        nn.NLLLoss(reduction="none"), whole(3), prepare=lambda o: o.log_softmax(1)
    ),
    "PoissonNLLLoss": lambda: _loss(nn.PoissonNLLLoss(reduction="none"), torch.rand(B, 3)),
    "PoissonNLLLoss, full": lambda: _loss(
        nn.PoissonNLLLoss(full=True, reduction="none"), 3 * torch.rand(B, 3)
    ),
    "KLDivLoss": lambda: _loss(
        nn.KLDivLoss(reduction="none"), rows(3).softmax(1), prepare=lambda o: o.log_softmax(1)
    ),
    "KLDivLoss, log": lambda: _loss(
        nn.KLDivLoss(reduction="none", log_target=True), rows(3).log_softmax(1),
        prepare=lambda o: o.log_softmax(1),
    ),
    "BCELoss": lambda: _loss(
        nn.BCELoss(reduction="none"), torch.rand(B, 3), prepare=torch.sigmoid
    ),
    "BCEWithLogitsLoss": lambda: _loss(nn.BCEWithLogitsLoss(reduction="none"), torch.rand(B, 3)),
    "BCEWithLogitsLoss, pos_weight": lambda: _loss(
        nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor([1.0, 2.0, 0.5])),
        torch.rand(B, 3),
    ),
    "HingeEmbeddingLoss": lambda: _loss(nn.HingeEmbeddingLoss(reduction="none"), _signs(3)),
    "SoftMarginLoss": lambda: _loss(nn.SoftMarginLoss(reduction="none"), _signs(3)),
    "MultiLabelMarginLoss": lambda: _loss(
        nn.MultiLabelMarginLoss(reduction="none"), torch.tensor([[0, 2, -1]] * B)
    ),
    "MultiLabelSoftMarginLoss": lambda: _loss(
        nn.MultiLabelSoftMarginLoss(reduction="none"), whole(2, 3).float()
    ),
    "MultiMarginLoss": lambda: _loss(nn.MultiMarginLoss(reduction="none"), whole(3)),
    "CosineEmbeddingLoss": lambda: (
        nn.Linear(4, 3),
        lambda o, y: nn.CosineEmbeddingLoss(reduction="none", margin=-0.5)(o, y[0], y[1]),
        rows(4), (rows(3), _signs()),
    ),
    "MarginRankingLoss": lambda: (
        nn.Linear(4, 2),
        lambda o, y: nn.MarginRankingLoss(0.5, reduction="none")(o[:, 0], o[:, 1], y), rows(4),
        _signs(),
    ),
    "TripletMarginLoss": lambda: (
        nn.Linear(4, 3),
        lambda o, y: nn.TripletMarginLoss(reduction="none")(o, y[0], y[1]), rows(4),
        (rows(3), rows(3)),
    ),
    "TripletMarginWithDistanceLoss": lambda: (
        nn.Linear(4, 3),
        lambda o, y: nn.TripletMarginWithDistanceLoss(reduction="none")(o, y[0], y[1]), rows(4),
        (rows(3), rows(3)),
    ),
    "GaussianNLLLoss": lambda: (
        nn.Linear(4, 2),
        lambda o, y: nn.GaussianNLLLoss(reduction="none")(
            o[:, 0], y, functional.softplus(o[:, 1]) + 0.1
        ),
        rows(4), rows(),
    ),
    "CTCLoss": lambda: (
        nn.Linear(4, 3),
        lambda o, y: nn.CTCLoss(reduction="none")(
            o.log_softmax(-1).transpose(0, 1), y[0], y[1], y[2]
        ),
        rows(6, 4),
        (1 + whole(2, 2), torch.full((B,), 6), torch.full((B,), 2)),
    ),
}  # fmt: skip


class Labelled(nn.Module):
    """A layer that makes the losses itself, of inputs and labels."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.layer(x, labels)


def _first(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return outputs


if hasattr(nn, "LinearCrossEntropyLoss"):  # since torch 2.13
    LOSSES["LinearCrossEntropyLoss"] = lambda: (
        Labelled(nn.LinearCrossEntropyLoss(4, 3, bias=True, reduction="none")),
        _first,
        (rows(4), whole(3)),
        rows(),
    )
