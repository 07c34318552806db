"""Models and losses that keep records apart, and others that do not: small, and of every kind."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .harness import SIZE


class Net(nn.Module):
    """Two layers with `between` applied before, between or after them."""

    def __init__(self, between=None, place=1, wrap=None):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.between, self.place = between, place
        self.wrap = wrap or (lambda out: out)

    def forward(self, x):
        for place, layer in enumerate((self.first, self.last)):
            if place == self.place and self.between is not None:
                x = self.between(x)
            x = torch.tanh(layer(x))
        return self.wrap(x)


def squares(out, y):
    out = out["logits"] if isinstance(out, dict) else out
    out = out[0] if isinstance(out, tuple) else out
    return (out - y.unsqueeze(1)).square().sum(1)


def case(model=Net, loss=squares):
    """Return a function that makes a model, its loss and a batch of any size."""

    def make(size=SIZE):
        held = loss() if isinstance(loss, type) else loss
        return model(), held, torch.randn(size, 6), torch.randn(size)

    return make


def _softmax(h):
    return h * functional.softmax(h.sum(1), 0).unsqueeze(1) * len(h)


def _attend(h):
    return functional.softmax(h @ h.t(), 1) @ h


def _capacity(h):
    """A mixture of experts whose places are given first come, first served."""
    goes = h[:, 0] > -2
    rank = torch.cumsum(goes.int(), 0)
    return torch.where((goes & (rank <= 1)).unsqueeze(1), 2 * h, h)


def _mixup(h):
    return 0.5 * h + 0.5 * h[torch.randperm(len(h))]


class _Normed(torch.autograd.Function):
    """A backward that normalises by the batch's gradient."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


def _hooked(h):
    if h.requires_grad:
        h.register_hook(lambda g: g - g.mean(0, keepdim=True))
    return h


FUNCTIONS = {
    "mean": lambda h: h - h.mean(0),
    "weak mean": lambda h: h - 1e-3 * h.mean(0),
    "detached mean": lambda h: h - h.mean(0).detach(),
    "deviation": lambda h: h / (1e-3 + h.std(0, unbiased=False)),
    "maximum": lambda h: h / (1e-3 + h.abs().max()),
    "norm": lambda h: h / (1e-3 + h.norm()),
    "cumsum": lambda h: torch.cumsum(h, 0),
    "roll": lambda h: h + h.roll(1, 0),
    "flip": lambda h: h + 0.5 * h.flip(0),
    "first record": lambda h: h + h[:1],
    "last record": lambda h: h + h[-1:],
    "all but the first": lambda h: torch.cat([h[:1], h[1:] - h[1:].mean(0)] if len(h) > 1 else [h]),
    "sort": lambda h: torch.sort(h, 0).values,
    "quantile": lambda h: h * torch.clamp(h.detach().float().median(), 0.1, 2).to(h.dtype),
    "softmax over the batch": _softmax,
    "attention over the batch": _attend,
    "beyond eight": lambda h: h - h.mean(0) if len(h) > 8 else h,
    "size": lambda h: h / len(h),
    "parity": lambda h: h * (1 + len(h) % 2),
    "any": lambda h: h * (1 + (h > 0.8).any()),
    "expert capacity": _capacity,
    "nearest": lambda h: h + h[torch.cdist(h.float(), h.float()).argsort(1)[:, -1]],
    "mixup": _mixup,
    "backward by the batch": _Normed.apply,
    "hook by the batch": _hooked,
}


class _Stateful(nn.Module):
    """Keeps something of the batch by one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.how, self.kept, self.begun = how, torch.zeros(6), False
        self.register_buffer("buffer", torch.ones(6))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(6))
        self.saved = 0.0

    def get_extra_state(self):
        return self.saved

    def set_extra_state(self, state):
        self.saved = state

    def forward(self, h):
        seen = h.detach().mean(0)
        if self.how == "buffer in place":
            self.buffer.mul_(0.9).add_(seen.to(self.buffer.dtype))
        elif self.how == "buffer by data":
            self.buffer.data.mul_(0.9)
            self.buffer.data.add_(seen.to(self.buffer.dtype))
        elif self.how == "buffer replaced":
            self.buffer = 0.9 * self.buffer + seen
        elif self.how == "frozen parameter":
            self.frozen.data.add_(seen.to(self.frozen.dtype))
        elif self.how == "trained parameter":
            self.scale.data.add_(0.1 * seen.to(self.scale.dtype))
        elif self.how == "first batch" and not self.begun:
            self.begun = True
            self.scale.data.copy_(1 / (0.1 + h.detach().std(0, unbiased=False)))
        elif self.how == "attribute":
            self.kept = 0.5 * self.kept + seen
            return h + self.kept.to(h.dtype)
        elif self.how == "extra state":
            self.saved = float(self.saved) + float(seen.sum())
        return h * self.scale * self.frozen + self.buffer * 0.1


STATES = [
    "buffer in place", "buffer by data", "buffer replaced", "frozen parameter",
    "trained parameter", "first batch", "attribute", "extra state",
]  # fmt: skip


def _mined(losses):
    keep = losses.detach() >= losses.detach().median()
    return losses * keep


LOSSES = {
    "mean for all": lambda v, y: v.mean().expand(len(v)),
    "over the size": lambda v, y: v / len(v),
    "over the sum": lambda v, y: v / (1e-3 + v.sum()),
    "less the mean": lambda v, y: v - v.mean(),
    "less the least": lambda v, y: v * (1 + v.detach().min()),
    "class weights of the batch": lambda v, y: v / (y > 0).float().mean().clamp(min=0.05),
    "token count": lambda v, y: v / (y > 0.3).sum().clamp(min=1),
    "mining": lambda v, y: _mined(v),
    "focal, normalised": lambda v, y: v.square() / (1e-3 + v.detach().sum()),
    "contrast": lambda v, y: v - torch.logsumexp(v, 0),
    "rank": lambda v, y: v * (1 + v.detach().argsort().argsort()),
    "cumulative": lambda v, y: torch.cumsum(v, 0),
    "beyond eight": lambda v, y: v * v.mean() if len(v) > 8 else v,
    "the last one's": lambda v, y: v + v[-1],
    "standardised": lambda v, y: v / (1e-3 + y.std(unbiased=False)),
}
WRAPS = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, out.detach()),
    "dict": lambda out: {"logits": out},
}


def _loss(reweigh):
    return lambda out, y: reweigh(squares(out, y), y)


MIXING = {
    **{
        f"{name} at {place}": case(lambda f=f, place=place: Net(f, place))
        for name, f in FUNCTIONS.items()
        for place in (0, 1)
        if not (place == 0 and "by the batch" in name)
    },
    **{f"keeps: {how}": case(lambda how=how: Net(_Stateful(how))) for how in STATES},
    **{
        f"packed in another order at {place}": case(
            lambda place=place: Net(_PacksInAnotherOrder(), place)
        )
        for place in (0, 1)
    },
    **{
        f"loss: {name}, {kind}": case(lambda w=w: Net(wrap=w), _loss(reweigh))
        for name, reweigh in LOSSES.items()
        for kind, w in list(WRAPS.items())[:: 1 if len(name) % 2 else 2]
    },
}

LAYERS = {
    "nothing": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "layer norm": lambda: nn.LayerNorm(6),
    "rms norm": lambda: nn.RMSNorm(6),
    "group norm": lambda: nn.GroupNorm(2, 6),
    "batch norm, eval": lambda: nn.BatchNorm1d(6).eval(),
    "bilinear": lambda: _Twice(nn.Bilinear(6, 6, 6)),
    "prelu": nn.PReLU,
    "own parameter": lambda: _Own(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
    "shared layer": lambda: _Shared(),
    "frozen layer": lambda: nn.Linear(6, 6).requires_grad_(False),
    "residual": lambda: _Residual(),
    "sequence first": lambda: _SequenceFirst(),
    "sequence of two": lambda: _SequenceFirst(2),
    "attention in a record": lambda: _Attends(),
    "convolution": lambda: _Convolves(),
    "gru": lambda: _Recurs(nn.GRU),
    "lstm": lambda: _Recurs(nn.LSTM),
    "softmax": lambda: nn.Softmax(1),
    "top two": lambda: _TopTwo(),
    "gate by value": lambda: _Gate(),
    "checked value": lambda: _Wary(),
    "cache of shapes": lambda: _Caches(),
    "counter": lambda: _Counts(),
    "bags": lambda: _Bags(),
    "packed": lambda: _Packs(),
    "packed and padded": lambda: _PacksAndPads(),
    "checkpointed": lambda: _Checkpointed(nn.Linear(6, 6)),
    "checkpointed parameter": lambda: _Checkpointed(_Own()),
}


class _Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, h):
        return self.layer(h, h)


class _Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, h):
        return h * self.scale


class _Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, h):
        return self.layer(torch.tanh(self.layer(h)))


class _Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, h):
        return h + torch.relu(self.layer(h))


class _SequenceFirst(nn.Module):
    """Works with the records in the second dimension."""

    def __init__(self, length=3):
        super().__init__()
        self.length, self.layer = length, nn.Linear(6 // length, 6 // length)

    def forward(self, h):
        steps = h.view(len(h), self.length, -1).transpose(0, 1)
        return self.layer(steps).transpose(0, 1).flatten(1)


class _Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, h):
        h = h.view(len(h), 3, 2)
        return self.layer(h, h, h, need_weights=False)[0].flatten(1)


class _Convolves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, h):
        return self.layer(h.view(len(h), 2, 3)).flatten(1)


class _Recurs(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(2, 2, batch_first=True)

    def forward(self, h):
        return self.layer(h.view(len(h), 3, 2))[0].flatten(1)


class _TopTwo(nn.Module):
    def forward(self, h):
        return torch.zeros_like(h).scatter(1, *reversed(h.topk(2, 1)))


class _Gate(nn.Module):
    def forward(self, h):
        return torch.where(h.sum(1, keepdim=True) > 0, h, 2 * h)


class _Wary(nn.Module):
    def forward(self, h):
        assert bool(torch.isfinite(h).all())
        return h


class _Caches(nn.Module):
    """Keeps what follows from shapes alone."""

    def __init__(self):
        super().__init__()
        self.positions = None

    def forward(self, h):
        if self.positions is None:
            self.positions = torch.linspace(0, 1, h.shape[1], device=h.device)
        return h + self.positions.to(h.dtype)


class _Bags(nn.Module):
    """Looks up as many words as a record has positive entries, one record after another."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(6, 6, mode="sum")

    def forward(self, h):
        there = h > 0
        counts, places = there.sum(1), torch.arange(6, device=h.device).expand(h.shape)
        return self.words(places[there], counts.cumsum(0) - counts, h.tanh()[there])


class _Packs(nn.Module):
    """Runs over as many places as a record has positive entries, and one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(1, 6, batch_first=True)

    def forward(self, h):
        lengths = (h > 0).sum(1).clamp(min=1)
        pack = nn.utils.rnn.pack_padded_sequence
        given = pack(h.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
        return self.layer(given)[1][0]


class _PacksAndPads(_Packs):
    """Gives the mean over the places that each record has, both ways."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(1, 3, batch_first=True, bidirectional=True)

    def forward(self, h):
        lengths = (h > 0).sum(1).clamp(min=1)
        pack = nn.utils.rnn.pack_padded_sequence
        given = pack(h.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.layer(given)[0], batch_first=True)
        return out.sum(1) / lengths.unsqueeze(1)


class _PacksInAnotherOrder(_Packs):
    """Gives each record what another one has, by length."""

    def forward(self, h):
        lengths = (h > 0).sum(1).clamp(min=1)
        pack = nn.utils.rnn.pack_padded_sequence
        given = pack(h.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
        return self.layer(given._replace(sorted_indices=None, unsorted_indices=None))[1][0]


class _Checkpointed(nn.Module):
    """Keeps nothing of what is between its input and its output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, h):
        run = lambda h: torch.tanh(self.layer(torch.sin(h)))  # noqa: E731
        return checkpoint(run, h, use_reentrant=False)


class _Counts(nn.Module):
    """Keeps a number that no output depends on."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, h):
        self.calls += 1
        return h


OWN_LOSSES = {
    "squares": squares,
    "absolute": lambda out, y: (squares(out, y) + 1e-3).sqrt(),
    "weighted by the target": lambda out, y: squares(out, y) * (1 + y.abs()),
    "huber": lambda out, y: functional.huber_loss(squares(out, y), y, reduction="none"),
    "padded": lambda out, y: squares(out, y) * (y > -1),
}
RANDOM = {
    f"dropout {p}, {kind}": case(lambda kind=kind, p=p: Net(kind(p)))
    for kind in (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout)
    for p in (0.1, 0.5, 0.9)
}
HONEST = {
    **{
        f"{name} at {place}": case(lambda make=make, place=place: Net(make(), place))
        for name, make in LAYERS.items()
        for place in (0, 1)
    },
    **{
        f"loss: {name}, {kind}": case(lambda w=w: Net(wrap=w), loss)
        for name, loss in OWN_LOSSES.items()
        for kind, w in WRAPS.items()
    },
}
