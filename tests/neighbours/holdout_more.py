"""Models and losses in which records meet, held out, further: places, sizes, contrast."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .holdout import COINS, DRAWS, FIRST, HOOKS, NOT_FINITE, Net, model, squares, with_loss

# ---------------------------------------------------------------- the order of the records


def _riffled(net, h):
    half = (len(h) + 1) // 2
    return torch.stack([h[:half], functional.pad(h[half:], [0, 0, 0, half * 2 - len(h)])], 1).view(
        -1, 6
    )[: len(h)]


def _packed(net, h):
    lengths = torch.randint(1, 4, (len(h),), generator=torch.Generator().manual_seed(0))
    packed = nn.utils.rnn.pack_padded_sequence(
        h.view(-1, 3, 2), lengths, batch_first=True, enforce_sorted=False
    )
    return torch.cat([packed.data.flatten(), torch.zeros(len(h) * 6)])[: len(h) * 6].view(-1, 6)


ORDER = {
    "flip": model(lambda net, h: h + h.flip(0)),
    "flip of a view": model(lambda net, h: h + h.view(-1, 3, 2).flip(0, 1).reshape(-1, 6)),
    "roll of all entries": model(lambda net, h: h + h.roll(1)),
    "roll of the transpose": model(lambda net, h: h + h.t().roll(1, 1).t()),
    "rotated": model(lambda net, h: h + torch.rot90(h, 2)),
    "sorted by the first entry": model(lambda net, h: h + h[h[:, 0].argsort()]),
    "sorted columns": model(lambda net, h: h.sort(0).values),
    "unsorted gather": model(lambda net, h: h + h.gather(0, h.argsort(0))),
    "taken": model(lambda net, h: h + torch.take_along_dim(h, h.argmax(0, keepdim=True), 0)),
    "swapped halves": model(lambda net, h: h + torch.cat(h.tensor_split(2)[::-1])),
    "riffled": model(_riffled),
    "neighbour by cat": model(lambda net, h: h + torch.cat([h[1:], h[:1]])),
    "neighbour by pad": model(lambda net, h: h + functional.pad(h, [0, 0, 1, -1])),
    "neighbour by circular pad": model(
        lambda net, h: h + functional.pad(h.t()[None], [1, 0], mode="circular")[0, :, :-1].t()
    ),
    "neighbour by unfold": model(
        lambda net, h: functional.pad(h, [0, 0, 1, 0]).unfold(0, 2, 1).sum(2)
    ),
    "neighbour by strides": model(
        lambda net, h: torch.cat([h, h[:1]]).as_strided((len(h), 6), (6, 1), 6) + h
    ),
    "neighbour by a diagonal": model(
        lambda net, h: h + torch.einsum("ij,jd->id", torch.eye(len(h)).roll(1, 0), h)
    ),
    "neighbour by scatter": model(
        lambda net, h: h + torch.zeros_like(h).scatter(0, h.argsort(0), h)
    ),
    "neighbour by index_add": model(
        lambda net, h: h + torch.zeros_like(h).index_add(0, torch.arange(len(h)).flip(0), h)
    ),
    "neighbour by index_copy": model(
        lambda net, h: h + torch.zeros_like(h).index_copy(0, torch.arange(len(h)).flip(0), h)
    ),
    "neighbour by put": model(
        lambda net, h: h + torch.zeros_like(h).index_put((torch.arange(len(h)).flip(0),), h)
    ),
    "numbers below the diagonal": model(
        lambda net, h: h + h[torch.arange(len(h))[None].tril().squeeze(0)]
    ),
    "numbers every other": model(
        lambda net, h: h + h[torch.arange(0, 2 * len(h), 2).remainder(len(h))]
    ),
    "place as a weight": model(lambda net, h: h * torch.linspace(0, 1, len(h)).unsqueeze(1)),
    "place as a count": model(lambda net, h: h * torch.ones(len(h), 1).cumsum(0) / 5),
    "place as a position": model(lambda net, h: h + net.table[torch.arange(len(h))].unsqueeze(1)),
    "packed": model(_packed),
    "repeated": model(lambda net, h: h + h.repeat(2, 1).view(-1, 2, 6)[:, 1]),
    "rows as columns": model(lambda net, h: h + h.t().reshape(-1, 6)),
    "written into the next": model(lambda net, h: torch.cat([h[:1], h[1:] + h[:-1]])),
    "by reference": model(lambda net, h: _in_place(h)),
}


def _in_place(h):
    z = h.clone()
    z[1:] += h[:-1]
    return z


# ---------------------------------------------------------------- places that run out


def _capacity(net, h):
    goes = functional.one_hot(h[:, :3].argmax(1), 3)
    place = goes.cumsum(0) * goes
    return h * (place.sum(1, keepdim=True) <= 2)


def _largest_two(net, h):
    chosen = h[:, 0].detach().topk(min(2, len(h))).indices
    return h * torch.zeros(len(h)).scatter(0, chosen, 1.0).unsqueeze(1)


def _experts_choose(net, h):
    scores = h[:, :2].softmax(1)
    weights, chosen = scores.topk(min(3, len(h)), 0)
    out = torch.zeros_like(h)
    for k in range(2):
        out = out.index_add(0, chosen[:, k], h[chosen[:, k]] * weights[:, k : k + 1])
    return h + out


def _balanced(net, h):
    scores = torch.exp(h[:, :3])
    for _ in range(3):
        scores = scores / scores.sum(0, keepdim=True)
        scores = scores / scores.sum(1, keepdim=True)
    return torch.cat([scores * h[:, :3], h[:, 3:]], 1)


CAPACITY = {
    "capacity of experts": model(_capacity),
    "largest two": model(_largest_two),
    "experts choose": model(_experts_choose),
    "balanced by Sinkhorn": model(_balanced),
    "above the median": model(lambda net, h: h * (h.detach()[:, :1] >= h.detach()[:, :1].median())),
    "below a quantile": with_loss(
        lambda v, out, y: v * (v.detach() <= torch.quantile(v.detach(), 0.8))
    ),
    "hardest half": with_loss(
        lambda v, out, y: torch.zeros_like(v).scatter(
            0,
            v.detach().topk((len(v) + 1) // 2).indices,
            v[v.detach().topk((len(v) + 1) // 2).indices],
        )
    ),
    "balance of experts": with_loss(
        lambda v, out, y: v + 3 * (out.softmax(1).mean(0) * 3).square().sum()
    ),
}

# ---------------------------------------------------------------- contrast


def _cosines(out):
    unit = functional.normalize(out, dim=1)
    return unit @ unit.t()


def _infonce(v, out, y):
    return functional.cross_entropy(_cosines(out) * 3, torch.arange(len(v)), reduction="none") + v


def _clip(v, out, y):
    logits = _cosines(out) * 3
    at = torch.arange(len(v))
    both = functional.cross_entropy(logits, at, reduction="none") + functional.cross_entropy(
        logits.t(), at, reduction="none"
    )
    return v + both


def _triplet(v, out, y):
    return v + functional.triplet_margin_loss(out, out + 0.1, out.roll(1, 0), reduction="none")


def _hard_negative(v, out, y):
    far = torch.cdist(out, out) + 1e6 * torch.eye(len(out))
    return v + (1 - far.amin(1)).clamp(min=0)


def _supervised(v, out, y):
    same = (y[:, None] > 0) == (y[None] > 0)
    logits = _cosines(out).masked_fill(~same, -1e9)
    return v - torch.logsumexp(logits, 1)


def _mmd(v, out, y):
    return v + torch.exp(-torch.cdist(out, out).square()).mean(1)


def _coral(v, out, y):
    around = out - out.mean(0)
    return v + (around.t() @ around / len(out) - torch.eye(3)).square().sum()


def _sigmoid_pairs(v, out, y):
    labels = 2 * torch.eye(len(out)) - 1
    return v - functional.logsigmoid(labels * _cosines(out)).sum(1)


CONTRAST = {
    "InfoNCE": with_loss(_infonce),
    "CLIP": with_loss(_clip),
    "triplets in the batch": with_loss(_triplet),
    "hardest negative": with_loss(_hard_negative),
    "supervised contrast": with_loss(_supervised),
    "pairs by sigmoid": with_loss(_sigmoid_pairs),
    "MMD": with_loss(_mmd),
    "CORAL": with_loss(_coral),
    "distance to the centre": with_loss(lambda v, out, y: v + (out - out.mean(0)).square().sum(1)),
    "distance to the class's centre": with_loss(
        lambda v, out, y: v + (out - out[y > 0].sum(0) / 5).square().sum(1)
    ),
    "Barlow twins": with_loss(
        lambda v, out, y: v + ((out.t() @ out.roll(1, 1)) / len(v) - torch.eye(3)).square().sum()
    ),
    "VICReg": with_loss(
        lambda v, out, y: v + functional.relu(1 - out.std(0) if len(v) > 1 else out)[..., 0]
    ),
    "rank loss": with_loss(
        lambda v, out, y: v + functional.relu(1 - (out[:, :1] - out[:, :1].t())).mean(1)
    ),
    "concordance": with_loss(
        lambda v, out, y: v - ((out[:, 0] - out[:, 0].mean()) * (y - y.mean()))
    ),
    "Cox": with_loss(lambda v, out, y: v + torch.logcumsumexp(out[:, 0], 0) - out[:, 0]),
    "distillation by relations": with_loss(
        lambda v, out, y: v + (_cosines(out) - _cosines(out.detach().roll(1, 0))).square().sum(1)
    ),
}

# ---------------------------------------------------------------- statistics in every disguise


def _unbatched(layer):
    """Return a layer's function on the batch as one record with the records as channels."""
    return lambda net, h: layer(h.unsqueeze(0)).squeeze(0)


def _conv_over(net, h):
    kernel = net.table[:3].view(1, 1, 3, 1)
    return functional.conv2d(h[None, None], kernel, padding=(1, 0))[0, 0]


def _recurrent(net, h):
    steps, state = [], torch.zeros(6)
    for row in h:
        state = torch.tanh(row + 0.5 * state)
        steps.append(state)
    return torch.stack(steps)


class TimeFirst(nn.Module):
    """A recurrent layer that takes the batch for time."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(6, 6)

    def forward(self, net, h):
        return self.layer(h)[0]


class AttentionFirst(nn.Module):
    """Attention that takes the batch for the sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2)

    def forward(self, net, h):
        return self.layer(h, h, h, need_weights=False)[0] + h


STATISTICS = {
    "batch norm by hand": model(
        lambda net, h: (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-3).sqrt()
    ),
    "batch norm": lambda: (Net(_Layer(nn.BatchNorm1d(6))), squares),
    "batch norm without statistics": lambda: (
        Net(_Layer(nn.BatchNorm1d(6, track_running_stats=False).eval())),
        squares,
    ),
    "instance norm that tracks": lambda: (
        Net(_Lines(nn.InstanceNorm1d(3, track_running_stats=True))),
        squares,
    ),
    "instance norm over the batch": model(
        lambda net, h: functional.instance_norm(h.t().unsqueeze(0)).squeeze(0).t()
    ),
    "group norm over the batch": model(
        lambda net, h: functional.group_norm(h.reshape(1, -1, 1), 1).view(-1, 6)
    ),
    "layer norm of the transpose": model(
        lambda net, h: functional.layer_norm(h.t(), (len(h),)).t()
    ),
    "rms norm of the transpose": model(lambda net, h: functional.rms_norm(h.t(), (len(h),)).t()),
    "layer norm of all": model(lambda net, h: functional.layer_norm(h, h.shape)),
    "normalised columns": model(lambda net, h: functional.normalize(h, dim=0)),
    "renormalised columns": model(lambda net, h: torch.renorm(h, 2, 1, 0.5)),
    "cumulative product": model(lambda net, h: h.cumprod(0)),
    "cumulative maximum": model(lambda net, h: h.cummax(0).values),
    "cumulative logarithm": model(lambda net, h: h.logcumsumexp(0)),
    "differences": model(lambda net, h: torch.diff(h, dim=0, prepend=h[-1:])),
    "trapezes": model(lambda net, h: h + torch.cumulative_trapezoid(h, dim=0).sum(0)),
    "einsum of all pairs": model(lambda net, h: h + torch.einsum("id,je->ie", h, h) / 6),
    "Gram matrix": model(lambda net, h: h @ (h.t() @ h) / 6),
    "outer product": model(lambda net, h: torch.outer(h[:, 0], h[:, 1]) @ h),
    "trace": model(lambda net, h: h * (h @ h.t()).diagonal().mean()),
    "diagonal": model(lambda net, h: h + torch.diagonal(h).sum()),
    "triangle": model(lambda net, h: torch.tril(torch.ones(len(h), len(h))) @ h / len(h)),
    "convolution over the batch": model(_conv_over),
    "records as channels": model(
        lambda net, h: (
            h + functional.conv1d(h.t()[None], torch.ones(6, 6, 3) / 18, padding=1)[0].t()
        )
    ),
    "pooled over the batch": model(
        lambda net, h: h + functional.avg_pool1d(h.t()[None], 3, 1, 1)[0].t()
    ),
    "largest of neighbours": model(
        lambda net, h: h + functional.max_pool1d(h.t()[None], 3, 1, 1)[0].t()
    ),
    "pooled to one": model(
        lambda net, h: h + functional.adaptive_avg_pool1d(h.t()[None], 1)[0].t()
    ),
    "interpolated": model(
        lambda net, h: functional.interpolate(
            functional.interpolate(h.t()[None], scale_factor=2, mode="linear"), size=len(h)
        )[0].t()
    ),
    "smoothed by a grid": model(
        lambda net, h: (
            h
            + functional.grid_sample(
                h[None, None], torch.zeros(1, len(h), 6, 2), align_corners=False
            )[0, 0]
        )
    ),
    "fft over the batch": model(lambda net, h: torch.fft.ifft(torch.fft.fft(h, dim=0) * 0.5).real),
    "fft, low pass": model(
        lambda net, h: h + torch.fft.irfft(torch.fft.rfft(h, dim=0)[:1], n=len(h), dim=0)
    ),
    "counts by histc": model(lambda net, h: h * torch.histc(h.detach(), 6) / 6),
    "counts by bincount": model(
        lambda net, h: h * torch.bincount((h[:, 0] > 0).long(), minlength=6) / 6
    ),
    "counts by unique": model(
        lambda net, h: h / (h.detach() * 3).round().unique(return_counts=True)[1].amax()
    ),
    "counts by scatter": model(
        lambda net, h: (
            h * torch.zeros(2).scatter_add(0, (h[:, 0] > 0).long(), torch.ones(len(h)))[0]
        )
    ),
    "counts by one-hot rows": model(
        lambda net, h: h * functional.one_hot((h[:, 0] > 0).long(), 6).sum(0)
    ),
    "counts looked up": model(lambda net, h: h * net.table[(h > 0).sum().clamp(max=63)]),
    "counts searched": model(
        lambda net, h: (
            h + torch.bucketize(h.detach()[:, 0], h.detach()[:, 1].sort().values)[:, None]
        )
    ),
    "boundaries of another column": model(
        lambda net, h: h + torch.bucketize(h.detach()[:, 0], h.detach()[:, 1])[:, None]
    ),
    "columns that a record names": model(
        lambda net, h: h.index_fill(1, (h.detach()[:, 0] > 0).long(), 0.0)
    ),
    "median": model(lambda net, h: h - h.median(0).values),
    "mode": model(lambda net, h: h - h.detach().round().mode(0).values),
    "kth": model(lambda net, h: h - h.kthvalue(1, 0).values),
    "nanquantile": model(lambda net, h: h - h.nanquantile(0.3, 0)),
    "logsumexp": model(lambda net, h: h - h.logsumexp(0)),
    "softmax in columns": model(lambda net, h: h * h.softmax(0)),
    "softmin of the loss": with_loss(lambda v, out, y: v * functional.softmin(v.detach(), 0)),
    "distances": model(lambda net, h: h * torch.cdist(h, h).mean(1, keepdim=True)),
    "pairwise distances": model(lambda net, h: h * (1 + functional.pdist(h).amin())),
    "singular values": model(lambda net, h: h / (0.1 + torch.linalg.matrix_norm(h, 2))),
    "whitened": model(lambda net, h: h @ torch.linalg.inv(h.t() @ h + torch.eye(6))),
    "QR": model(lambda net, h: h + torch.linalg.qr(h.t() @ h)[0].sum()),
    "covariance": model(lambda net, h: h @ torch.cov(h.t())),
    "correlations": model(lambda net, h: h @ torch.corrcoef(h.t() + 1e-3 * torch.eye(6, len(h)))),
    "values as an interval": model(
        lambda net, h: h * torch.linspace(float(h.detach().amin()), 1.0, 6)
    ),
    "values as an interval of tensors": model(
        lambda net, h: h * torch.linspace(h.detach().amin(), h.detach().amax(), 6)
    ),
    "item": model(lambda net, h: h * h.detach().std().item()),
    "branch on a value": model(lambda net, h: h * 2 if h.detach().sum() > 0 else h),
    "torch.cond": model(
        lambda net, h: torch.cond(h.detach().sum() > 0, lambda h: h * 2, lambda h: h.clone(), (h,))
    ),
    "where of a mean": model(lambda net, h: torch.where(h > h.mean(0), h, 0.1 * h)),
    "clamped by all": model(lambda net, h: h.clamp(max=h.detach().mean(0) + 0.2)),
    "recurrent over the batch": model(_recurrent),
    "time first": lambda: (Net(TimeFirst()), squares),
    "attention over the batch": lambda: (Net(AttentionFirst()), squares),
    "attention by unflattened views": model(
        lambda net, h: (
            h
            + functional.scaled_dot_product_attention(*[h.view(1, -1, 2, 3).transpose(1, 2)] * 3)
            .transpose(1, 2)
            .reshape(-1, 6)
        )
    ),
    "bags that overlap": model(
        lambda net, h: (
            h
            + functional.embedding_bag(
                torch.arange(len(h)), h, torch.arange(0, len(h), 1) // 2, mode="sum"
            )
        )
    ),
    "bags of counts": model(
        lambda net, h: (
            h
            + functional.embedding_bag(
                (h > 0).long().flatten(),
                net.table[:12].view(2, 6),
                (h > 0).sum(1).cumsum(0) - (h > 0).sum(1),
            )
        )
    ),
    "message between neighbours": model(
        lambda net, h: (
            torch.zeros_like(h).scatter_reduce(0, h.argsort(0), h, "mean", include_self=False) + h
        )
    ),
    "gradient within": model(
        lambda net, h: (
            h * (1 + torch.autograd.grad(h.mean(0).square().sum(), h, create_graph=True)[0])
            if h.requires_grad
            else h
        )
    ),
    "vmap over columns": model(lambda net, h: torch.func.vmap(lambda c: c - c.mean(), 1, 1)(h)),
    "type of a view": model(
        lambda net, h: (
            h
            + h.detach()
            .t()
            .contiguous()
            .flatten()
            .view(torch.int32)
            .view(torch.float32)
            .view(-1, 6)
        )
    ),
}


class _Layer(nn.Module):
    """A layer between, of the hidden values alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, net, h):
        return self.layer(h)


class _Lines(_Layer):
    """The same, of three channels."""

    def forward(self, net, h):
        return self.layer(h.view(-1, 3, 2)).flatten(1)


# ---------------------------------------------------------------- the number of the records

SIZES = {
    "size as a divisor": model(lambda net, h: h / len(h)),
    "size in a root": model(lambda net, h: h * len(h) ** -0.5),
    "size by shape": model(lambda net, h: h * (h.numel() / 72)),
    "size by a sum of ones": model(lambda net, h: h / torch.ones(len(h)).sum()),
    "size as an order": model(lambda net, h: h * net.table.norm(p=len(h))),
    "size as an end": model(lambda net, h: h * net.table[: len(h)].sum()),
    "size as a shift": model(lambda net, h: h * net.table.roll(len(h))[0]),
    "size as a shift within": model(lambda net, h: h.roll(len(h), 1)),
    "size as a correction": model(lambda net, h: h * net.table.var(correction=len(h)) * 5),
    "size as a constant": model(lambda net, h: h * torch.tensor(len(h) / 12)),
    "size as a filling": model(lambda net, h: h + torch.full((6,), len(h) / 12)),
    "size as an index": model(lambda net, h: h * net.table[len(h)]),
    "size as a rate": with_loss(lambda v, out, y: v * 12 / len(v)),
    "size as a range": with_loss(lambda v, out, y: v * torch.arange(len(v)).amax() / 11),
    "parity": model(lambda net, h: h if len(h) % 2 else -h),
    "mean of losses": with_loss(lambda v, out, y: v.mean().expand(len(v))),
    "sum of weights": with_loss(lambda v, out, y: v * y.abs() / y.abs().sum()),
    "normalised by targets": with_loss(lambda v, out, y: v / (y.std() + 0.1) if len(v) > 1 else v),
}

# ---------------------------------------------------------------- state


class Remembering(nn.Module):
    """A loss that goes by what it has seen."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(()))
        self.number, self.bank = 0.0, []

    def forward(self, out, y):
        v = squares(out, y)
        if self.how == "buffer by data":
            self.mean.data.mul_(0.5).add_(v.detach().mean())
            return v * (1 + self.mean)
        if self.how == "number":
            self.number += float(v.detach().mean())
            return v * (1 + self.number)
        if self.how == "bank":
            self.bank.append(out.detach())
            return v + sum((out - b.mean(0)).square().sum(1) for b in self.bank)
        self.mean = v.detach().mean()
        return v * (1 + self.mean)


def _closing():
    kept = {"mean": 0.0}

    def loss(out, y):
        v = squares(out, y)
        kept["mean"] = 0.5 * kept["mean"] + v.detach().mean()
        return v * (1 + kept["mean"])

    return Net(), loss


def _counting(net, h):
    net.calls += 1
    return h * net.calls


def _bank(net, h):
    old = net.kept
    net.kept = h.detach().mean(0)
    return h if old is None else h - old


def _by_identity(net, h):
    net.buffer = h.detach().mean(0) + 0.5
    return h * net.buffer


def _threshold(net, h):
    net.buffer.data.copy_(torch.maximum(net.buffer, h.detach().abs().amax(0)))
    return h / net.buffer


STATE = {
    "loss's buffer by data": lambda: (Net(), Remembering("buffer by data")),
    "loss's number": lambda: (Net(), Remembering("number")),
    "loss's bank": lambda: (Net(), Remembering("bank")),
    "loss's buffer, another": lambda: (Net(), Remembering("another")),
    "closure of the loss": _closing,
    "counter that counts": model(_counting),
    "memory of the last": model(_bank),
    "buffer, another": model(_by_identity),
    "largest so far": model(_threshold),
    "momentum of a parameter": model(
        lambda net, h: (net.gain.data.lerp_(h.detach().mean(0), 0.1), h * net.gain)[1]
    ),
}

CLASSES = {
    "first": FIRST, "draws": DRAWS, "not finite": NOT_FINITE, "hooks": HOOKS, "order": ORDER,
    "capacity": CAPACITY, "contrast": CONTRAST, "statistics": STATISTICS, "sizes": SIZES,
    "state": STATE,
}  # fmt: skip
HOLDOUT = {
    f"{kind}: {name}": make for kind, cases in CLASSES.items() for name, make in cases.items()
}
LATER = {f"coins: {name}": make for name, make in COINS.items()}
