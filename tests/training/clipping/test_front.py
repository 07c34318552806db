"""clip_and_sum equals a loop of one record at a time in double precision, for every layer."""

import copy
import sys

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import contributions, convolution, engine, records, rewrite
from apiece.training.clipping.cache import proof_of


def one_at_a_time(model, loss_fn, inputs, targets, clip_norms):
    """Return (gradients, norms) of the clipped sum, record by record, in float64."""
    model = copy.deepcopy(model).double()
    wide = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    inputs, targets = records.tree_map(wide, inputs), records.tree_map(wide, targets)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    norms = []
    for i in range(len(clip_norms)):
        one = slice(i, i + 1)
        outputs = records.call(model, records.select(inputs, one))
        loss = loss_fn(outputs, records.select(targets, one)).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        found = [
            torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)
        ]
        norm = torch.sqrt(sum(g.square().sum() for g in found))
        factor = min(1.0, float(clip_norms[i]) / float(norm)) if norm > 0 else 1.0
        norms.append(norm)
        for sum_, g in zip(total, found, strict=True):
            sum_ += factor * g
    return dict(zip(names, total, strict=True)), torch.stack(norms).detach()


def runs_of(function, call):
    """Return how often a call runs the code of a function."""
    count = 0

    def note(frame, event, _argument):
        nonlocal count
        count += event == "call" and frame.f_code is function.__code__

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def assert_same(clipped, model, loss_fn, inputs, targets, tolerance=3e-5):
    """Assert that `clipped` equals the loop, relative to the size of the sum."""
    gradients, norms = one_at_a_time(model, loss_fn, inputs, targets, clipped.clip_norms)
    assert clipped.gradients.keys() == gradients.keys()
    scale = torch.sqrt(sum(g.square().sum() for g in gradients.values()))
    for name, expected in gradients.items():
        assert clipped.gradients[name].shape == expected.shape
        error = (clipped.gradients[name].double() - expected).norm() / scale
        assert error < tolerance, f"{name}: relative error {float(error):.2e}"
    torch.testing.assert_close(clipped.norms.double(), norms, rtol=tolerance, atol=1e-7)


class Wrapped(nn.Module):
    """A layer between others, so that its output gradient is not trivial."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).flatten(1).tanh()


class Tied(nn.Module):
    """An embedding used as the output layer too, and one linear layer used twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        h = self.middle(self.middle(self.table(x)).tanh())
        return self.out(h).flatten(1)


class Direct(nn.Module):
    """A parameter of its own, used outside any layer."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(5, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x + self.position).flatten(1)


class Sneaky(nn.Module):
    """A layer's weight used behind the layer's back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + nn.functional.linear(x, self.layer.weight)


class Lora(nn.Module):
    """A frozen layer with a trainable low-rank adapter."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Recurrent(nn.Module):
    """Read off at the last place, or from the last hidden state of the last layer."""

    def __init__(self, kind=nn.LSTM, *, last=False, **options):
        super().__init__()
        self.cells = kind(4, 5, batch_first=True, **options)
        self.out, self.last = nn.LazyLinear(2), last
        self.forward(torch.zeros(1, 2, 4))

    def forward(self, x):
        out, state = self.cells(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.out(state[-1] if self.last else out[:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0].flatten(1)


class Masked(nn.Module):
    """Attention with a causal mask, and padding that differs from record to record."""

    def __init__(self, **options):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        padding = x[:, :, 0] > 1
        padding[:, 0] = False
        options = {"attn_mask": causal, "key_padding_mask": padding, "need_weights": False}
        return self.attend(x, x, x, **options)[0].flatten(1)


class Crossed(nn.Module):
    """Attention from one half of a record to the other, and its weights in the output."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        out, weights = self.attend(x[:, :2], x[:, 2:], x[:, 2:])
        return torch.cat([out.flatten(1), weights.flatten(1)], 1)


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Wrapped(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2, 1),
        nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 16, 8), nn.Linear(8, 3),
    )  # fmt: skip


def normal(*shape):
    return lambda: torch.randn(9, *shape)


def tokens(*shape):
    return lambda: torch.randint(0, 11, (9, *shape))


BOOKED = {
    "linear": (lambda: Wrapped(nn.Linear(7, 5)), normal(7)),
    "linear, no bias": (lambda: Wrapped(nn.Linear(7, 5, bias=False)), normal(7)),
    "linear, few positions": (lambda: Wrapped(nn.Linear(30, 40)), normal(3, 30)),
    "linear, many positions": (lambda: Wrapped(nn.Linear(3, 4)), normal(20, 3)),
    "linear, grid": (lambda: Wrapped(nn.Linear(3, 4)), normal(4, 5, 3)),
    "conv1d": (lambda: Wrapped(nn.Conv1d(3, 4, 3, padding=1)), normal(3, 10)),
    "conv1d, circular": (
        lambda: Wrapped(nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular")),
        normal(3, 10),
    ),
    "conv2d": (lambda: Wrapped(nn.Conv2d(3, 4, 3)), normal(3, 8, 8)),
    "conv2d, stride leaves a rest": (
        lambda: Wrapped(nn.Conv2d(3, 4, 3, stride=2)),
        normal(3, 8, 9),
    ),
    "conv2d, groups, dilation": (
        lambda: Wrapped(nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=2)),
        normal(4, 9, 9),
    ),
    "conv2d, same": (lambda: Wrapped(nn.Conv2d(3, 4, 3, padding="same")), normal(3, 8, 8)),
    "conv2d, reflect": (
        lambda: Wrapped(nn.Conv2d(3, 4, (3, 2), padding=1, padding_mode="reflect")),
        normal(3, 8, 8),
    ),
    "conv2d, few places": (lambda: Wrapped(nn.Conv2d(20, 30, 3)), normal(20, 4, 4)),
    "conv2d, depthwise": (lambda: Wrapped(nn.Conv2d(6, 6, 3, groups=6)), normal(6, 5, 5)),
    "conv1d, oneDNN": (lambda: Wrapped(nn.Conv1d(8, 9, 3, padding=2, dilation=2)), normal(8, 10)),
    "conv2d, oneDNN, groups": (
        lambda: Wrapped(nn.Conv2d(16, 24, 3, stride=2, padding=1, groups=2)),
        normal(16, 7, 6),
    ),
    "conv2d, oneDNN, circular": (
        lambda: Wrapped(nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
        normal(8, 5, 5),
    ),
    "conv3d, oneDNN": (lambda: Wrapped(nn.Conv3d(8, 8, 2, padding=1)), normal(8, 3, 4, 3)),
    "conv3d": (lambda: Wrapped(nn.Conv3d(2, 3, 2, stride=(1, 2, 1))), normal(2, 4, 5, 4)),
    "embedding": (lambda: Wrapped(nn.Embedding(11, 4, padding_idx=0)), tokens(6)),
    "embedding, one": (lambda: Wrapped(nn.Embedding(11, 4)), tokens()),
    "embedding bag, mean": (lambda: Wrapped(nn.EmbeddingBag(11, 4)), tokens(6)),
    "embedding bag, sum": (
        lambda: Wrapped(nn.EmbeddingBag(11, 4, mode="sum", padding_idx=3)),
        tokens(6),
    ),
    "layer norm": (lambda: Wrapped(nn.Linear(6, 6), nn.LayerNorm(6)), normal(5, 6)),
    "layer norm, two dims": (lambda: Wrapped(nn.LayerNorm((5, 6))), normal(5, 6)),
    "rms norm": (lambda: Wrapped(nn.RMSNorm(6)), normal(5, 6)),
    "group norm": (lambda: Wrapped(nn.GroupNorm(2, 4)), normal(4, 5, 5)),
    "instance norm": (lambda: Wrapped(nn.InstanceNorm2d(4, affine=True)), normal(4, 5, 5)),
    "attention": (Attention, normal(5, 8)),
    "attention, masks": (Masked, normal(5, 8)),
    "attention, no bias": (lambda: Masked(bias=False), normal(5, 8)),
    "attention, other keys": (Crossed, normal(5, 8)),
    "encoder": (encoder, normal(5, 8)),
    "lstm": (Recurrent, normal(6, 4)),
    "lstm, two layers, both ways": (
        lambda: Recurrent(num_layers=2, bidirectional=True),
        normal(6, 4),
    ),
    "lstm, last state": (lambda: Recurrent(last=True, bias=False), normal(6, 4)),
    "gru": (lambda: Recurrent(nn.GRU), normal(6, 4)),
    "rnn, relu": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), normal(6, 4)),
    "cnn": (cnn, normal(1, 14, 14)),
    "tied": (Tied, tokens(6)),
    "adapter": (Lora, normal(6)),
}
OTHERS = {
    "direct parameter": (Direct, normal(5, 4)),
    "used behind the layer's back": (Sneaky, normal(4)),
    "weight norm": (
        lambda: Wrapped(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        normal(4),
    ),
    "batch norm in eval mode": (lambda: Wrapped(nn.BatchNorm2d(3)).eval(), normal(3, 4, 4)),
}


CASES = BOOKED | OTHERS


def share_of(clipped):
    return torch.sqrt(sum(g.double().square().sum() for g in clipped.gradients.values()))


def loss_fn(outputs, targets):
    return (outputs.square() * (1 + targets.unsqueeze(1))).sum(1)


def case(make, draw):
    torch.manual_seed(0)
    model, inputs = make(), draw()
    targets = torch.rand(9)
    _, norms = one_at_a_time(model, loss_fn, inputs, targets, torch.ones(9))
    return model, inputs, targets, norms * torch.linspace(0.3, 1.5, 9)


# Much like another of these, and long to capture: the slow tests have them.
LONG = {"lstm, two layers, both ways", "lstm, last state", "gru"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in CASES]
)
def test_equals_the_loop(name):
    """By the proof; and no record exceeds its bound alone in its batch."""
    model, inputs, targets, clip_norms = case(*CASES[name])
    clipped = clip_and_sum(model, loss_fn, inputs, targets, clip_norms)
    assert_same(clipped, model, loss_fn, inputs, targets, tolerance=2e-4)
    assert proof_of(model).proved
    for i in range(9):
        one = slice(i, i + 1)
        clipped = clip_and_sum(model, loss_fn, inputs[one], targets[one], clip_norms[one])
        assert share_of(clipped) <= clip_norms[i]


# Alone, a layer runs as it is, in a process a record: one of each kind of state and shape.
KINDS = {"conv2d", "embedding", "lstm", "tied", "adapter", "batch norm in eval mode"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in KINDS else [pytest.mark.slow]) for n in CASES]
)
def test_alone_equals_the_loop(name):
    model, inputs, targets, clip_norms = case(*CASES[name])
    clipped = clip_and_sum(model, loss_fn, inputs, targets, clip_norms, method="alone")
    assert_same(clipped, model, loss_fn, inputs, targets, tolerance=2e-4)


@pytest.mark.parametrize("name", ["attention", "attention, masks", "encoder", "lstm", "tied"])
def test_common_layers_need_no_gradient_per_record_by_vmap(name, monkeypatch):
    def refuse(*_):
        raise AssertionError("made per-record gradients")

    monkeypatch.setattr(rewrite, "_rule_by_vmap", refuse)
    model, inputs, targets, clip_norms = case(*BOOKED[name])
    clipped = clip_and_sum(model, loss_fn, inputs, targets, clip_norms, method="proved")
    assert_same(clipped, model, loss_fn, inputs, targets, tolerance=2e-4)


@pytest.mark.parametrize("name", [name for name in BOOKED if name.startswith("conv")])
def test_convolutions_too_large_to_keep(name, monkeypatch):
    monkeypatch.setattr(convolution, "KEEP", 0)
    monkeypatch.setattr(convolution, "_CELLS", 300)
    model, inputs, targets, clip_norms = case(*BOOKED[name])
    clipped = clip_and_sum(model, loss_fn, inputs, targets, clip_norms, method="proved")
    assert_same(clipped, model, loss_fn, inputs, targets, tolerance=2e-4)


@pytest.mark.parametrize(
    "name", [name for name in BOOKED if name.startswith(("conv", "linear, many"))]
)
def test_no_record_exceeds_its_bound_where_gradients_are_made_again(name, monkeypatch):
    """Alone in its batch, a record's share is the whole sum: its norm is at most the bound."""
    monkeypatch.setattr(convolution, "KEEP", 0)
    monkeypatch.setattr(contributions, "KEEP", 0)
    model, inputs, targets, clip_norms = case(*BOOKED[name])
    for i in range(9):
        one = slice(i, i + 1)
        clipped = clip_and_sum(model, loss_fn, inputs[one], targets[one], clip_norms[one])
        assert share_of(clipped) <= clip_norms[i]


def test_cancellation_cannot_lift_a_record_over_its_bound():
    """Positions that cancel almost entirely leave a Gram sum that is mostly round-off."""
    torch.manual_seed(0)
    model = nn.Linear(60, 60, bias=False)
    half = torch.randn(64, 4, 60)
    inputs = torch.cat([half, half + 1e-4 * torch.randn(64, 4, 60)], 1) * 100
    sign = torch.cat([torch.ones(4), -torch.ones(4)])

    def loss(outputs, _targets):
        return (outputs.sum(2) * sign).sum(1)

    for i in range(64):
        one = inputs[i : i + 1]
        clipped = clip_and_sum(model, loss, one, torch.zeros(1), 0.5, method="proved")
        assert clipped.gradients["weight"].double().norm() <= 0.5


@pytest.mark.parametrize("keep", [0, 1 << 24])
def test_cancellation_over_many_places(keep, monkeypatch):
    """The same for gradients that are made for their norms and, not kept, again for the sum."""
    monkeypatch.setattr(contributions, "KEEP", keep)
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False)
    half = torch.randn(32, 50, 4) * 1e3
    inputs = torch.cat([half, half.flip(1)], 1)
    sign = torch.cat([torch.ones(50), -torch.ones(50)])

    def loss(outputs, _targets):
        return (outputs.sum(2) * sign).sum(1)

    for i in range(32):
        one = inputs[i : i + 1]
        clipped = clip_and_sum(model, loss, one, torch.zeros(1), 1e-3, method="proved")
        assert clipped.gradients["weight"].double().norm() <= 1e-3


@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_records_that_are_not_finite_contribute_nothing(method, bad):
    model, inputs, targets, clip_norms = case(*BOOKED["cnn"])
    good = clip_and_sum(model, loss_fn, inputs[1:], targets[1:], clip_norms[1:], method=method)
    inputs[0, 0, 3] = bad
    clipped = clip_and_sum(
        model, lambda o, t: loss_fn(o * 1e3, t) / 1e6, inputs, targets, clip_norms, method=method
    )
    assert clipped.rejected == (1 if bad != 1e38 else clipped.rejected)
    if clipped.rejected:
        for name, gradient in clipped.gradients.items():
            torch.testing.assert_close(gradient, good.gradients[name], rtol=1e-3, atol=1e-6)


def test_parts_add_up():
    model, inputs, targets, clip_norms = case(*BOOKED["cnn"])
    whole = clip_and_sum(model, loss_fn, inputs, targets, clip_norms)
    parts = clip_and_sum(model, loss_fn, inputs, targets, clip_norms, physical_batch_size=2)
    for name in whole.gradients:
        torch.testing.assert_close(whole.gradients[name], parts.gradients[name])
    torch.testing.assert_close(whole.norms, parts.norms)


@pytest.mark.parametrize("name", ["cnn", "encoder", "tied"])
def test_parts_that_stay_in_the_cache_add_up(name, monkeypatch):
    model, inputs, targets, clip_norms = case(*BOOKED[name])
    whole = clip_and_sum(model, loss_fn, inputs, targets, clip_norms)
    for size in ("_VALUES_OF_PART", "_VALUES_PER_PARAMETER", "_VALUES_PER_OPERATOR"):
        monkeypatch.setattr(engine, size, 1)
    parts = clip_and_sum(copy.deepcopy(model), loss_fn, inputs, targets, clip_norms)
    for name, value in whole.gradients.items():
        atol = 1e-6 * float(value.abs().max())
        torch.testing.assert_close(parts.gradients[name], value, rtol=1e-5, atol=atol)
    torch.testing.assert_close(whole.norms, parts.norms)


def test_leaves_no_trace_on_the_model():
    model, inputs, targets, clip_norms = case(*BOOKED["cnn"])
    before = {path: dict(m.__dict__) for path, m in model.named_modules()}
    clip_and_sum(model, loss_fn, inputs, targets, clip_norms)
    for path, module in model.named_modules():
        assert module.__dict__.keys() == before[path].keys()
        assert not module._forward_hooks
    assert all(p.grad is None for p in model.parameters())


def test_several_inputs_and_dicts():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x, y):
            return self.a(x) * self.b(y)

    torch.manual_seed(0)
    model, x, y, targets = Two(), torch.randn(9, 3), torch.randn(9, 2), torch.rand(9)
    for inputs in ((x, y), {"y": y, "x": x}):
        clipped = clip_and_sum(model, loss_fn, inputs, targets, torch.linspace(0.1, 3, 9))
        assert_same(clipped, model, loss_fn, inputs, targets)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_channels_last_and_compiled():
    model, inputs, targets, clip_norms = case(*BOOKED["cnn"])
    want = clip_and_sum(model, loss_fn, inputs, targets, clip_norms).gradients
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    got = clip_and_sum(
        last, loss_fn, inputs.to(memory_format=torch.channels_last), targets, clip_norms
    ).gradients
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)
    compiled = torch.compile(model)
    got = clip_and_sum(compiled, loss_fn, inputs, targets, clip_norms).gradients
    assert all(torch.equal(got["_orig_mod." + name], want[name]) for name in want)


def in_place(module):
    module.compile(backend="eager")


def part_wrapped(module):
    module[0] = torch.compile(module[0], backend="eager")


def part_in_place(module):
    module[0].compile(backend="eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiles", [in_place, part_wrapped, part_in_place])
def test_compiled_before_and_clipped_the_same(compiles):
    model, inputs, targets, clip_norms = case(
        lambda: Wrapped(nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Tanh())), normal(7)
    )
    want = clip_and_sum(model, loss_fn, inputs, targets, clip_norms).gradients
    compiled = copy.deepcopy(model)
    compiles(next(m for m in compiled.modules() if isinstance(m, nn.Sequential)))
    with torch.no_grad():
        compiled(inputs)  # the compiled forward is there, and knows nothing of hooks
    got = clip_and_sum(compiled, loss_fn, inputs, targets, clip_norms, method="proved")
    for found, total in zip(got.gradients.values(), want.values(), strict=True):
        torch.testing.assert_close(found, total)


def test_bfloat16_autocast_keeps_norms_in_single_precision():
    model, inputs, targets, clip_norms = case(*BOOKED["cnn"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clipped = clip_and_sum(model, loss_fn, inputs, targets, clip_norms)
    assert clipped.norms.dtype == torch.float32
    assert_same(clipped, model, loss_fn, inputs, targets, tolerance=5e-2)


def test_an_empty_batch_gives_zeros():
    model = nn.Linear(3, 1)
    clipped = clip_and_sum(model, loss_fn, torch.ones(0, 3), torch.ones(0), torch.ones(0))
    assert len(clipped) == 0
    assert not any(g.any() for g in clipped.gradients.values())


def test_refusals():
    model, inputs, targets = nn.Linear(3, 1), torch.randn(4, 3), torch.rand(4)
    with pytest.raises(InputError, match="one loss a record"):
        clip_and_sum(model, lambda o, t: loss_fn(o, t).mean(), inputs, targets, 1.0)
    with pytest.raises(InputError, match="reduction is 'mean'"):
        clip_and_sum(model, nn.MSELoss(), inputs, targets.unsqueeze(1), 1.0)
    for bad in (0.0, -1.0, float("nan"), float("inf"), 1e-20):
        with pytest.raises(InputError, match=r"clip_norms\[1\]"):
            clip_and_sum(model, loss_fn, inputs, targets, torch.tensor([1.0, bad, 1.0, 1.0]))
    with pytest.raises(InputError, match="4 records; give one bound"):
        clip_and_sum(model, loss_fn, inputs, targets, torch.ones(3))
    with pytest.raises(InputError, match="one record per first dimension"):
        clip_and_sum(model, loss_fn, inputs, targets[:3], 1.0)
    with pytest.raises(InputError, match="no trainable parameter"):
        clip_and_sum(copy.deepcopy(model).requires_grad_(False), loss_fn, inputs, targets, 1.0)
    with pytest.raises(InputError, match="did you mean 'proved'"):
        clip_and_sum(model, loss_fn, inputs, targets, 1.0, method="prooved")


class Centre(nn.Module):
    """Mixes records."""

    def forward(self, x):
        return x - x.mean(0)


def test_what_mixes_records_is_refused_by_path():
    inputs, targets = torch.randn(9, 4), torch.rand(9)
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(UnsupportedError, match=r"model\.1: BatchNorm1d .*replace_batch_norm"):
        clip_and_sum(normed, loss_fn, inputs, targets, 1.0)
    own = nn.Sequential(nn.Linear(4, 4), Centre(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedError, match=r"1: mean: mean over the records"):
        clip_and_sum(own, loss_fn, inputs, targets, 1.0, method="proved")
    tracked = nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4, track_running_stats=True))
    with pytest.raises(UnsupportedError, match="track_running_stats=False"):
        clip_and_sum(tracked, loss_fn, torch.randn(9, 4, 3), targets, 1.0)
