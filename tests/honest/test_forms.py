"""Forms that honest code takes, each against autograd, and beside each a twin that mixes records.

The twin is the honest program with one thing changed, as a mistake would: it must be refused, in
words that name nothing of the capture.
"""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations

from apiece.errors import ApieceError, DataError, InputError
from apiece.training import clip_and_sum
from apiece.training.clipping.capture import PRIMES

from .autograd import Outcome, compared

B = 5


class Of(nn.Module):
    """A model of parts by name, and a function of them."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = forward

    def forward(self, *given):
        return self.run(self, *given)


def squares(outputs, targets):
    return (outputs.flatten(1) - targets).square().mean(1)


def rows(*shape):
    return torch.randn(B, *shape)


def built(forward, inputs, loss=squares, targets=None, **parts):
    return Of(forward, **parts), loss, inputs, rows(3) if targets is None else targets


# ---------------------------------------------------------------- a parameter through a function

ACTIVATIONS = {
    "softplus": functional.softplus, "exp": torch.exp, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "gelu": functional.gelu, "relu": torch.relu, "silu": functional.silu,
    "clamp": lambda p: p.clamp(-0.3, 0.3), "abs": torch.abs, "mish": functional.mish,
    "root of square": lambda p: (p**2 + 1e-3).sqrt(), "elu": functional.elu,
    "normalize": lambda p: functional.normalize(p, dim=-1), "softmax": lambda p: p.softmax(-1),
    "log softmax": lambda p: p.log_softmax(-1), "hardswish": functional.hardswish,
    "leaky": functional.leaky_relu, "softsign": functional.softsign,
    "hardshrink": lambda p: functional.hardshrink(p, 0.1), "celu": functional.celu,
    "maximum": lambda p: torch.maximum(p, p * 0.5), "prelu": lambda p: functional.prelu(
        p, p.new_full((1,), 0.2)), "layer norm": lambda p: functional.layer_norm(p, p.shape[-1:]),
    "standardised": lambda p: (p - p.mean(-1, keepdim=True)) / (p.std(-1, keepdim=True) + 0.1),
    "cumsum": lambda p: p.cumsum(-1), "sorted": lambda p: p.sort(-1).values,
    "spectrum": lambda p: torch.fft.irfft(torch.fft.rfft(p).abs(), n=p.shape[-1]),
    "convolved": lambda p: functional.conv1d(p[None], p.new_ones(4, 4, 3), padding=1)[0],
    "resized": lambda p: functional.interpolate(
        p[None, None, :3, :3], size=(4, 4), mode="bicubic")[0, 0],
    "pooled": lambda p: functional.avg_pool1d(p[None], 3, 1, 1)[0],
    "exponential of a matrix": lambda p: torch.matrix_exp(p - p.mT),
    "solved": lambda p: torch.linalg.solve(3 * torch.eye(4) + 0.1 * p, p),
    "products": lambda p: p @ p.mT @ p, "straight through": lambda p: p + (p.round() - p).detach(),
}  # fmt: skip


def through(activation):
    torch.manual_seed(0)
    weight = nn.Linear(4, 4, bias=False)

    def forward(model, x):
        return model.last(model.first(x) @ activation(model.inner.weight))

    return built(forward, rows(4), first=nn.Linear(4, 4), inner=weight, last=nn.Linear(4, 3))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_parameter_through(name):
    found = compared(*through(ACTIVATIONS[name]))
    assert found.outcome is Outcome.EQUAL, f"{found.outcome.value}: {found.said}"


# ---------------------------------------------------------------- forms, and twins that mix


def rotary(mix):
    def forward(model, x):
        pairs = torch.view_as_complex(model.first(x).reshape(*x.shape[:2], 4, 2))
        angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.5, 0.1, 0.01]))
        if mix:  # turned by the record's place in the batch
            angles = torch.arange(float(len(x)))[:, None, None] * torch.ones(1, 6, 4)
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return model.last(turned.flatten(2)).mean(1)

    return built(forward, rows(6, 5), first=nn.Linear(5, 8), last=nn.Linear(8, 3))


def filtered(mix):
    """A filter of frequencies, as two real parts."""

    def forward(model, x):
        dim = 0 if mix else -1
        waves = torch.fft.rfft(model.first(x), dim=dim)
        waves = waves * (1 if mix else torch.view_as_complex(model.filter.weight))
        return model.last(torch.fft.irfft(waves, n=len(x) if mix else 8, dim=dim))

    parts = {"first": nn.Linear(4, 8), "filter": nn.Embedding(5, 2), "last": nn.Linear(8, 3)}
    return built(forward, rows(4), **parts)


def moved(mix):
    """A spatial transformer."""

    def forward(model, x):
        places = model.first(x.flatten(1)).reshape(-1, 2, 3)
        if mix:
            places = places.mean(0, keepdim=True).expand(len(x), -1, -1)
        grid = functional.affine_grid(places, list(x.shape), align_corners=False)
        return model.last(functional.grid_sample(x, grid, align_corners=False).flatten(1))

    return built(forward, rows(1, 5, 5), first=nn.Linear(25, 6), last=nn.Linear(25, 3))


def larger(mode):
    def make(mix):
        def forward(model, x):
            pictures = model.first(x)
            if mix:  # resized over the records
                pictures = pictures.permute(1, 2, 0, 3)
            out = functional.interpolate(pictures, scale_factor=(1, 2), mode=mode)
            return model.last((out.permute(2, 0, 1, 3) if mix else out).flatten(1))

        first = nn.Conv2d(1, 2, 3, padding=1)
        return built(forward, rows(1, 4, 4), first=first, last=nn.Linear(64, 3))

    return make


def margin(mix):
    def loss(outputs, targets):
        outputs = outputs - outputs.amax(0) if mix else outputs
        return functional.multi_margin_loss(outputs, targets, margin=0.7, reduction="none")

    labels = torch.randint(0, 3, (B,))
    return built(lambda model, x: model.last(x), rows(4), loss, labels, last=nn.Linear(4, 3))


def normal(mix):
    def loss(outputs, targets):
        variance = functional.softplus(outputs[:, 1])
        variance = variance.mean().expand(len(outputs)) if mix else variance
        return nn.GaussianNLLLoss(full=True, reduction="none")(outputs[:, 0], targets, variance)

    return built(lambda model, x: model.last(x), rows(4), loss, rows(), last=nn.Linear(4, 2))


def spoken(mix):
    """Connectionist classification of sequences of their own lengths."""

    def loss(outputs, targets):
        chances = outputs.log_softmax(0 if mix else -1).transpose(0, 1)
        return nn.CTCLoss(reduction="none", zero_infinity=True)(
            chances, targets["labels"], targets["steps"], targets["count"]
        )

    targets = {
        "labels": torch.randint(1, 5, (B, 3)),
        "steps": torch.tensor([8, 7, 8, 6, 2]),
        "count": torch.tensor([3, 2, 1, 0, 3]),
    }
    return built(lambda model, x: model.last(x), rows(8, 4), loss, targets, last=nn.Linear(4, 5))


def bags(mode):
    def make(mix):
        def forward(model, index):
            count, length = index.shape
            begin = torch.arange(count) * (length - 1 if mix else length)
            return model.last(model.bag(index.flatten(), begin))

        bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=0)
        indices = torch.tensor([[1, 2, 3, 1, 0], [0, 0, 0, 0, 0], *[[4, 8, 4, 0, 5]] * 3])
        return built(forward, indices, bag=bag, last=nn.Linear(4, 3))

    return make


def orthogonal(kind, shape):
    def make(mix):
        wide, high = shape
        layer = parametrizations.orthogonal(nn.Linear(wide, high), orthogonal_map=kind)

        def forward(model, x):
            values = model.layer(x)
            if mix:  # turned by what the records have in common
                values = values @ torch.matrix_exp((values.mT @ values).tanh())
            return model.last(values)

        return built(forward, rows(wide), layer=layer, last=nn.Linear(high, 3))

    return make


def spectral(mix):
    layer = parametrizations.spectral_norm(nn.Linear(4, 4)).eval()

    def forward(model, x):
        values = model.layer(x)
        return model.last(values / torch.linalg.matrix_norm(values) if mix else values)

    return built(forward, rows(4), layer=layer, last=nn.Linear(4, 3))


def pooled(size):
    def make(mix):
        def forward(model, x):
            values = model.first(x)
            values = values.permute(1, 2, 0) if mix else values.transpose(1, 2)
            values = model.pool(values)
            if mix:
                values = values.mean((0, 2)).expand(len(x), -1).repeat(1, size)
            return model.last(values.flatten(1))

        pool = nn.AdaptiveAvgPool1d(size)
        return built(forward, rows(7, 5), first=nn.Linear(5, 4), pool=pool,
                     last=nn.Linear(4 * size, 3))  # fmt: skip

    return make


def differentiated(mix):
    """A penalty on each record's Jacobian."""

    def forward(model, x):
        def outputs(z):
            return model.net(z)

        if mix:  # of all records' mean
            values = jacrev(lambda z: outputs(x - z).mean(0))(torch.zeros(4)).expand(len(x), 3, 4)
        else:
            values = vmap(jacrev(outputs))(x)
        return torch.cat([model.net(x), values.flatten(1)], 1)

    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return built(forward, rows(4), targets=rows(15), net=net)


FORMS = {
    "rotary embeddings": rotary, "a filter of frequencies": filtered, "affine grid": moved,
    "bicubic": larger("bicubic"), "bilinear": larger("bilinear"), "area": larger("area"),
    "multi margin": margin, "normal": normal, "ctc": spoken, "bags, sum": bags("sum"),
    "bags, mean": bags("mean"), "bags, max": bags("max"), "spectral norm": spectral,
    "orthogonal, exponential": orthogonal("matrix_exp", (4, 4)),
    "orthogonal, exponential, tall": orthogonal("matrix_exp", (3, 5)),
    "orthogonal, cayley": orthogonal("cayley", (4, 3)),
    "orthogonal, householder": orthogonal("householder", (3, 4)),
    "adaptive mean to one": pooled(1), "adaptive mean to two": pooled(2),
    "jacobians": differentiated,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_proved_and_equal(name):
    torch.manual_seed(1)
    found = compared(*FORMS[name](False))
    assert found.outcome is Outcome.EQUAL, f"{found.outcome.value}: {found.said}"


@pytest.mark.parametrize("name", FORMS)
def test_its_twin_that_mixes_records_is_refused(name):
    torch.manual_seed(1)
    refused(*FORMS[name](True))


def refused(model, loss, inputs, targets):
    """Assert that a program is refused, in words without a number of the capture's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ApieceError) as caught:
            clip_and_sum(model, loss, inputs, targets, 1.0, method="proved")
    message = str(caught.value)
    numbers = [int(number) for number in re.findall(r"\d+", message)]
    assert not [n for n in numbers if n and any(n % prime == 0 for prime in PRIMES)], message
    return message


# ---------------------------------------------------------------- what each form's own rules guard


def test_the_matrix_functions_are_torch_s():
    from apiece.training.clipping.restated import Restated

    torch.manual_seed(2)
    for size in (1e-3, 1.0, 40.0, 0.0):
        for kind in (torch.float32, torch.float64):
            matrix = torch.randn(3, 5, 5, dtype=kind) * size
            matrix = matrix - matrix.mT
            tall = torch.randn(3, 5, 4, dtype=kind)
            scales = torch.rand(3, 3, dtype=kind) * 2
            right = torch.randn(3, 5, 2, dtype=kind)
            regular = matrix + torch.eye(5, dtype=kind)
            calls = (
                lambda: torch.matrix_exp(matrix),  # noqa: B023
                lambda: torch.linalg.householder_product(tall, scales),  # noqa: B023
                lambda: torch.linalg.solve(regular, right),  # noqa: B023
                lambda: torch.linalg.solve(regular, right[..., 0]),  # noqa: B023
                lambda: torch.linalg.solve(regular, right.mT, left=False),  # noqa: B023
            )
            for call in calls:
                with Restated():
                    found = call()
                precision = torch.finfo(kind).eps * 400 * (1 + size)
                torch.testing.assert_close(found, call(), rtol=precision, atol=precision)


def test_an_exponential_beyond_its_series_is_no_number():
    from apiece.training.clipping.restated import Restated

    with Restated():
        found = torch.matrix_exp(torch.full((2, 2), 1e5))
    assert found.isnan().all()


def test_a_variance_below_zero_makes_no_contribution():
    def loss(outputs, targets):
        return functional.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1], reduction="none")

    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    inputs = torch.tensor([[1.0, 2.0], [1.0, -1.0], [0.5, 0.3]])
    found = clip_and_sum(model, loss, inputs, torch.zeros(3), 1e9, method="proved")
    good = clip_and_sum(model, loss, inputs[[0, 2]], torch.zeros(2), 1e9, method="proved")
    torch.testing.assert_close(found.gradients, good.gradients)
    assert found.losses.isnan().tolist() == [False, True, False]
    assert found.norms[1] < 1e-12


@pytest.mark.parametrize(
    ("key", "value"), [("labels", 5), ("labels", -1), ("steps", 9), ("count", 4), ("count", -1)]
)
def test_a_label_or_length_that_there_is_not_is_refused_without_its_value(key, value):
    model, loss, inputs, targets = spoken(False)
    targets[key] = targets[key].clone()
    targets[key][0] = value
    with pytest.raises(DataError) as caught:
        clip_and_sum(model, loss, inputs, targets, 1.0, method="proved")
    assert str(value) not in str(caught.value)


def test_lengths_of_python_s_are_those_of_all_records_or_refused():
    model, _, inputs, targets = spoken(False)
    labels = targets["labels"]

    def uniform(outputs, targets):
        chances = outputs.log_softmax(-1).transpose(0, 1)
        size = len(outputs)
        return functional.ctc_loss(chances, targets, (8,) * size, (3,) * size, reduction="none")

    assert compared(model, uniform, inputs, labels).outcome is Outcome.EQUAL

    def own(outputs, targets):
        chances = outputs.log_softmax(-1).transpose(0, 1)
        steps = [8 - k % 2 for k in range(len(outputs))]
        return functional.ctc_loss(chances, targets, steps, (3,) * len(steps), reduction="none")

    assert "tensor" in refused(model, own, inputs, labels)

    def joined(outputs, targets):
        chances = outputs.log_softmax(-1).transpose(0, 1)
        size = len(outputs)
        return functional.ctc_loss(
            chances, targets.flatten(), (8,) * size, (3,) * size, reduction="none"
        )

    assert "ctc_loss" in refused(model, joined, inputs, labels)


def test_a_second_derivative_of_ctc_is_refused():
    def penalised(outputs, targets):
        chances = outputs.log_softmax(-1).transpose(0, 1)
        size = len(outputs)
        losses = functional.ctc_loss(chances, targets, (8,) * size, (3,) * size, reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
        return losses + slope.square().sum((1, 2))

    model, _, inputs, targets = spoken(False)
    assert "twice" in refused(model, penalised, inputs, targets["labels"])


@pytest.mark.parametrize("kind", [torch.int32, torch.float32])
def test_places_are_scaled_in_long_integers_only(kind):
    model, loss, inputs, targets = bags("sum")(False)

    def forward(model, index):
        begin = torch.arange(len(index), dtype=kind) * index.shape[1]
        return model.last(model.bag(index.flatten().int(), begin.int()))

    model.run = forward
    assert "place" in refused(model, loss, inputs, targets)


def test_a_spectral_norm_that_iterates_is_refused_by_the_name_of_what_it_writes():
    model, loss, inputs, targets = spectral(False)
    assert "layer.parametrizations.weight.0._" in refused(model.train(), loss, inputs, targets)


# ---------------------------------------------------------------- messages


def of_outputs(loss):
    return built(lambda model, x: model.last(x), rows(4), loss, last=nn.Linear(4, 3))


MISTAKES = {
    "a mean over the batch": functional.mse_loss,
    "every pair": lambda o, t: o[:, :1] - t[:, 0],
    "flat pairs": lambda o, t: (o[:, :1] - t[:, 0]).flatten(),
    "shapes that do not fit": lambda o, t: o @ torch.ones(4, 3),
    "twice the batch": lambda o, t: o + torch.ones(2 * len(o), 3),
    "an odd view": lambda o, t: o.reshape(7, -1).sum(1),
    "torn": lambda o, t: o.t().reshape(-1, 3).sum(1),
    "a view over records": lambda o, t: o.reshape(3, -1).sum(0),
    "one more": lambda o, t: torch.cat([o, o[:1]]).sum(1)[:-1],
    "square": lambda o, t: (o @ o.t()).sum(1),
    "cube": lambda o, t: (o @ o.t()).unsqueeze(2).expand(-1, -1, len(o)).reshape(len(o), -1).sum(1),
    "the batch as channels": lambda o, t: functional.layer_norm(o.t(), (len(o),)).t().sum(1),
    "an outer grid": lambda o, t: torch.zeros(len(o), len(o)).fill_diagonal_(1.0).sum(1) + o[:, 0],
    "a range": lambda o, t: o[:, 0] * torch.arange(len(o)),
    "the size": lambda o, t: o[:, 0] / len(o),
    "the size's multiple": lambda o, t: o[:, 0] * o.numel(),
    "a read value": lambda o, t: o[:, 0] * float(o.sum()),
    "a choice": lambda o, t: o[:, 0] if o.sum() > 0 else o[:, 1],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_no_message_names_a_number_of_the_capture(name):
    refused(*of_outputs(MISTAKES[name]))


def test_a_loss_of_pairs_is_told_in_the_number_of_records():
    with pytest.raises(InputError, match=r"returned \(B, B\) for B records"):
        clip_and_sum(*of_outputs(MISTAKES["every pair"]), 1.0, method="proved")


def test_what_torch_cannot_trace_is_not_written_to_its_log(caplog):
    refused(*of_outputs(MISTAKES["shapes that do not fit"]))
    assert not caplog.records
