"""Models and losses in which records meet, held out: none was looked at when the proof was made.

Each makes a model and a loss, as new as if nothing had run before.
"""

from __future__ import annotations

import collections
import functools
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """Two layers with a function of the model and the hidden values between them."""

    def __init__(self, between=None):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.between, self.kept, self.calls, self.flag = between, None, 0, False
        self.register_buffer("buffer", torch.ones(6))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 64))
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        h = torch.tanh(self.first(x)) * self.gain
        if self.between is not None:
            h = self.between(self, h)
        return self.last(h)


def squares(out, y):
    return (out - y.unsqueeze(1)).square().sum(1)


def model(function):
    return lambda: (Net(function), squares)


def with_loss(reweigh):
    return lambda: (Net(), lambda out, y: reweigh(squares(out, y), out, y))


# ---------------------------------------------------------------- made in the first forward

STORE = {"seen": None}
STREAM = torch.Generator()


class Shelf:
    seen = None


@functools.lru_cache
def shelf():
    return {}


def reset():
    """Let everything that is outside of models be as new."""
    STORE["seen"] = Shelf.seen = None
    shelf.cache_clear()
    QUEUE.clear()
    ARRAY[:] = 0
    GLOBAL[0] = None
    _by_default.__defaults__[0].clear()
    _on_itself.__dict__.clear()
    Remembers.seen = None
    Counted.times = 0
    STREAM.manual_seed(3)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002


def _weights_of_the_first(net, h):
    if not net.flag:
        net.flag = True
        net.gain.data.copy_(1 / (0.1 + h.detach().std(0, unbiased=False)))
    return h * net.gain


def _running_mean(net, h):
    net.buffer.data.mul_(0.5)
    net.buffer.data.add_(h.detach().mean(0))
    return h - net.buffer


def _registered(net, h):
    if "late" not in net._buffers:
        net.register_buffer("late", h.detach().mean(0))
    return h - 4 * net.late


def _lazily_made(net, h):
    if not hasattr(net, "extra"):
        net.extra = nn.Linear(6, 6, bias=False)
        net.extra.weight.data = torch.eye(6) * h.detach().std()
    return net.extra(h)


def _cached_scale(net, h):
    if net.kept is None:
        net.kept = (h.detach().mean(0), h.detach().std(0, unbiased=False) + 0.1)
    return (h - net.kept[0]) / net.kept[1]


def _in_a_closure():
    kept = []

    def between(net, h):
        if not kept:
            kept.append(h.detach().mean(0))
        return h - 4 * kept[0]

    return Net(between), squares


GLOBAL = [None]
QUEUE = collections.deque(maxlen=1)
ARRAY = np.zeros(6)


def _in_a_global(net, h):
    if GLOBAL[0] is None:
        GLOBAL[0] = h.detach().mean(0)
    return h - 4 * GLOBAL[0]


def _in_a_class(net, h):
    if Shelf.seen is None:
        Shelf.seen = h.detach().mean(0)
    return h - 4 * Shelf.seen


def _in_a_cache(net, h):
    kept = shelf()
    if "mean" not in kept:
        kept["mean"] = h.detach().mean(0)
    return h - 4 * kept["mean"]


def _by_default(net, h, kept=[]):  # noqa: B006
    if not kept:
        kept.append(h.detach().mean(0))
    return h - 4 * kept[0]


def _on_itself(net, h):
    if not hasattr(_on_itself, "seen"):
        _on_itself.seen = h.detach().mean(0)
    return h - 4 * _on_itself.seen


def _in_an_array(net, h):
    if not ARRAY.any():
        ARRAY[:] = h.detach().mean(0).numpy()
    return h - 4 * torch.tensor(ARRAY, dtype=h.dtype)


def _in_a_queue(net, h):
    if not QUEUE:
        QUEUE.append(h.detach().mean(0))
    return h - 4 * QUEUE[0]


def _through_a_helper(net, h):
    def helper():
        if STORE["seen"] is None:
            STORE["seen"] = h.detach().mean(0)
        return STORE["seen"]

    return h - 4 * helper()


def _in_the_state(net, h):
    if not net.calls:
        net.calls = float(h.detach().abs().sum())
    return h * net.calls / 10


class Remembers(torch.autograd.Function):
    """Keeps what it was given first."""

    seen = None

    @staticmethod
    def forward(ctx, h):
        if Remembers.seen is None:
            Remembers.seen = h.detach().mean(0)
        return h - 4 * Remembers.seen

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Named(Net):
    """Hooks itself in the first forward by what it sees."""

    def forward(self, x):
        if not self.flag:
            self.flag = True
            mean = self.first(x).detach().mean(0)
            self.first.register_forward_hook(lambda *given: given[-1] - 4 * mean)
        return super().forward(x)


class Replaced(Net):
    """Replaces its own forward after the first."""

    def forward(self, x):
        h = torch.tanh(self.first(x))
        mean = h.detach().mean(0)
        self.forward = lambda x: self.last(torch.tanh(self.first(x)) - 4 * mean)
        return self.last(h - 4 * mean)


FIRST = {
    "weights": model(_weights_of_the_first),
    "running mean by data": model(_running_mean),
    "registered buffer": model(_registered),
    "lazily made module": model(_lazily_made),
    "cached normalisation": model(_cached_scale),
    "closure": _in_a_closure,
    "global list": model(_in_a_global),
    "class attribute": model(_in_a_class),
    "lru_cache": model(_in_a_cache),
    "default argument": model(_by_default),
    "attribute of a function": model(_on_itself),
    "global array": model(_in_an_array),
    "global queue": model(_in_a_queue),
    "helper's global": model(_through_a_helper),
    "plain number": model(_in_the_state),
    "class of a function": model(lambda net, h: Remembers.apply(h)),
    "hook": lambda: (Named(), squares),
    "own forward": lambda: (Replaced(), squares),
}

# ---------------------------------------------------------------- random draws


def _mixed(h, order, share=0.5):
    return share * h + (1 - share) * h[order]


def _cut(net, h):
    order = torch.randperm(len(h))
    mask = torch.arange(6) < torch.randint(1, 6, ())
    return torch.where(mask, h[order], h)


def _by_python(net, h):
    order = list(range(len(h)))
    random.shuffle(order)
    return _mixed(h, torch.tensor(order))


def _by_numpy(net, h):
    return _mixed(h, torch.from_numpy(np.random.permutation(len(h))))  # noqa: NPY002


def _shared_scale(net, h):
    return h + torch.rand(1) * h.mean(0)


class Mixing(nn.Module):
    """Mixes the records in one call of twenty, by a coin."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, net, h):
        return h - h.mean(0) if self.draw() < 0.05 else h


def _coin(draw):
    return lambda: (Net(Mixing(draw)), squares)


DRAWS = {
    "mixup by randperm": model(lambda net, h: _mixed(h, torch.randperm(len(h)))),
    "mixup by argsort": model(lambda net, h: _mixed(h, torch.rand(len(h)).argsort())),
    "mixup by multinomial": model(
        lambda net, h: _mixed(h, torch.multinomial(torch.ones(len(h)), len(h)))
    ),
    "mixup by randint": model(lambda net, h: _mixed(h, torch.randint(len(h), (len(h),)))),
    "mixup by sort": model(lambda net, h: _mixed(h, torch.randn(len(h)).sort().indices)),
    "mixup by topk": model(lambda net, h: _mixed(h, torch.rand(len(h)).topk(len(h)).indices)),
    "mixup by a matrix": model(lambda net, h: torch.rand(len(h), len(h)).softmax(1) @ h),
    "mixup by Python": model(_by_python),
    "mixup by NumPy": model(_by_numpy),
    "mixup by a stream of its own": model(
        lambda net, h: _mixed(h, torch.randperm(len(h), generator=STREAM))
    ),
    "cutmix": model(_cut),
    "neighbour where a coin says": model(
        lambda net, h: torch.where(torch.rand(len(h), 1) < 0.5, h, h.roll(1, 0))
    ),
    "bernoulli": model(lambda net, h: h + torch.bernoulli(h.detach().sum(0).sigmoid())),
    "draws about the mean": model(
        lambda net, h: h + torch.normal(h.detach().sum(0), torch.full_like(h, 1e-3))
    ),
    "draws about the mean, spread": model(
        lambda net, h: h * torch.normal(torch.zeros(6), h.detach().std(0) + 0.1)
    ),
    "uniform up to the maximum": model(
        lambda net, h: h + torch.rand_like(h) * h.detach().abs().amax(0)
    ),
    "mixup of losses": with_loss(lambda v, out, y: 0.7 * v + 0.3 * v[torch.randperm(len(v))]),
    "mixup of losses by argsort": with_loss(
        lambda v, out, y: 0.7 * v + 0.3 * squares(out, y[torch.rand(len(y)).argsort()])
    ),
    "mixup of losses by gather": with_loss(
        lambda v, out, y: v + v.gather(0, torch.randint(len(v), (len(v),)))
    ),
    "one record picked": model(lambda net, h: h + h[torch.randint(len(h), (1,))]),
}
COINS = {
    "coin of Python's": _coin(random.random),
    "coin of NumPy's": _coin(lambda: np.random.rand()),  # noqa: NPY002
    "coin of torch's": _coin(lambda: torch.rand(()).item()),
}

# ---------------------------------------------------------------- records that are not finite


def _experts(net, h):
    """Two experts by a product with one-hot rows: what is not finite reaches all."""
    goes = functional.one_hot((h[:, 0] > 0).long(), 2).to(h.dtype)
    inside = torch.einsum("be,bd->ebd", goes, h)
    outside = torch.stack([inside[0] * 2, inside[1] * 3])
    mixed = torch.einsum("bce,ebd->cbd", torch.eye(len(h)).unsqueeze(2) * goes, outside)
    return mixed.sum(0)


def _graph(net, h):
    near = (torch.cdist(h.detach(), h.detach()) < 1).to(h.dtype)
    return near @ h / near.sum(1, keepdim=True).clamp(min=1)


def _graph_of_zeros(net, h):
    return h + torch.zeros(len(h), len(h)) @ h


NOT_FINITE = {
    "experts by one-hot rows": model(_experts),
    "graph": model(_graph),
    "graph without edges": model(_graph_of_zeros),
    "zero times the sum": model(lambda net, h: h + 0 * h.sum(0)),
    "all finite or nothing": model(lambda net, h: torch.where(torch.isfinite(h).all(), h, 0 * h)),
    "largest of the batch": model(lambda net, h: h / (0.1 + h.detach().abs().amax())),
    "largest by column": model(lambda net, h: h / (0.1 + h.detach().abs().amax(0))),
    "made finite by the mean": model(
        lambda net, h: torch.where(torch.isfinite(h), h, torch.nanmean(h, 0))
    ),
    "scaled by the count of the finite": model(
        lambda net, h: h * len(h) / torch.isfinite(h).all(1).sum().clamp(min=1)
    ),
    "a bad batch is skipped": with_loss(
        lambda v, out, y: torch.where(torch.isfinite(v).all(), v, torch.zeros_like(v))
    ),
    "a bad batch is skipped in Python": with_loss(
        lambda v, out, y: v if torch.isfinite(v).all() else out.sum(1) * 0
    ),
    "scaled like GradScaler": with_loss(
        lambda v, out, y: v * (1 - torch.isinf(v.detach() * 1e30).any().to(v.dtype))
    ),
    "large losses below the largest": with_loss(
        lambda v, out, y: v / v.detach().nan_to_num().amax().clamp(min=1)
    ),
    "a huge loss skips all": with_loss(lambda v, out, y: v * (v.detach().amax() < 1e6)),
}

# ---------------------------------------------------------------- hooks and functions of one's own


def _hooked(register):
    def make():
        net = Net()
        register(net)
        return net, squares

    return make


def _centred(value):
    return value - value.mean(0)


def _tuple_centred(gradients):
    return tuple(None if g is None else _centred(g) for g in gradients)


def _on_output(net, h):
    if h.requires_grad:
        h.register_hook(lambda g: g / (1e-4 + g.std(0, unbiased=False)))
    return h


class _OfGradients(torch.autograd.Function):
    """Does nothing forward; backward is `how`."""

    @staticmethod
    def forward(ctx, h, how):
        ctx.how = how
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.how(gradient), None


class _Lies(torch.autograd.Function):
    """Says under vmap that rows are apart, and centres them otherwise."""

    @staticmethod
    def forward(h):
        return h - h.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, h):
        return h.clone(), in_dims[0]


class _LiesBackward(_Lies):
    """The same in the backward alone."""

    @staticmethod
    def forward(h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return _LiesOfGradient.apply(gradient)


class _LiesOfGradient(_Lies):
    @staticmethod
    def forward(h):
        return h - h.mean(0)


class Counted(torch.autograd.Function):
    """Mixes from its second call on."""

    times = 0

    @staticmethod
    def forward(ctx, h):
        Counted.times += 1
        return h - h.mean(0) if Counted.times > 1 else h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("apiece_holdout::neg", mutates_args=())
def _neg(x: torch.Tensor) -> torch.Tensor:
    """A library's operator with the name of one of torch's."""
    return x.mean(0) - x


@_neg.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("apiece_holdout::tell", mutates_args=())
def _tell(x: torch.Tensor) -> torch.Tensor:
    """A library's operator that centres the batch."""
    return x - x.mean(0)


@_tell.register_fake
def _(x):
    return torch.empty_like(x)


_tell.register_autograd(lambda ctx, g: g)

HOOKS = {
    "forward hook": _hooked(
        lambda net: net.first.register_forward_hook(lambda m, given, out: _centred(out))
    ),
    "pre-hook": _hooked(
        lambda net: net.last.register_forward_pre_hook(lambda m, given: (_centred(given[0]),))
    ),
    "full backward hook": _hooked(
        lambda net: net.last.register_full_backward_hook(lambda m, into, out: _tuple_centred(into))
    ),
    "full backward pre-hook": _hooked(
        lambda net: net.last.register_full_backward_pre_hook(lambda m, out: _tuple_centred(out))
    ),
    "hook of a tensor": model(_on_output),
    "forward on the instance": _hooked(
        lambda net: setattr(
            net.last, "forward", lambda h: functional.linear(_centred(h), net.last.weight)
        )
    ),
    "norm of gradients": model(lambda net, h: _OfGradients.apply(h, lambda g: g / g.norm())),
    "batch norm of gradients": model(
        lambda net, h: _OfGradients.apply(
            h, lambda g: (g - g.mean(0)) / (1e-6 + g.std(0, unbiased=False))
        )
    ),
    "sorted gradients": model(lambda net, h: _OfGradients.apply(h, lambda g: g.sort(0).values)),
    "gradients of the neighbour": model(
        lambda net, h: _OfGradients.apply(h, lambda g: g.roll(1, 0))
    ),
    "gradients below their mean norm": model(
        lambda net, h: _OfGradients.apply(
            h, lambda g: g * (g.norm(dim=1, keepdim=True) < g.norm(dim=1).mean())
        )
    ),
    "gradients by the size": model(lambda net, h: _OfGradients.apply(h, lambda g: g / len(g))),
    "function with a rule that lies": model(lambda net, h: _Lies.apply(h)),
    "backward with a rule that lies": model(lambda net, h: _LiesBackward.apply(h)),
    "operator of a library": model(lambda net, h: h + torch.ops.apiece_holdout.tell(h)),
    "operator with a name of torch's": model(
        lambda net, h: h + torch.ops.apiece_holdout.neg(h.detach())
    ),
    "function that mixes later": model(lambda net, h: Counted.apply(h)),
}  # fmt: skip
