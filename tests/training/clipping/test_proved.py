"""The engine by its graph: exact where it proves, and nothing that mixes records is proved."""

import contextlib
import functools
import random
import sys
import warnings

import pytest
import torch
from torch import nn

from apiece.errors import IdleParameterWarning, InputError, SlowPathWarning, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import alone
from apiece.training.clipping.cache import proof_of
from neighbours.harness import movement
from neighbours.zoo import HONEST

from .test_front import assert_same, loss_fn, runs_of

NOT_YET = ("checked value", "bags")


def insisting(model, loss, inputs, targets, clip_norms, *, method):
    assert method == "auto"
    try:
        return clip_and_sum(model, loss, inputs, targets, clip_norms, method="proved")
    except InputError as error:
        raise UnsupportedError(str(error)) from None


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in HONEST if not n.startswith(NOT_YET)])
def test_honest_models_are_proved(name):
    assert movement(HONEST[name], of=insisting) <= 1.001


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(9, 4)


def test_persons_are_clipped_as_one():
    model, inputs = mlp()
    people = [3, 3, 1, 7, 7, 7, 2, 1, 3]
    bounds = torch.tensor([0.1, 0.2, 0.3, 0.4])
    options = {"people": people}
    ours = clip_and_sum(model, loss_fn, inputs, torch.ones(9), bounds, method="proved", **options)
    parts = clip_and_sum(
        model, loss_fn, inputs, torch.ones(9), bounds, method="proved", physical_batch_size=2,
        **options,
    )  # fmt: skip
    by_hand = clip_and_sum(model, loss_fn, inputs, torch.ones(9), bounds, method="alone", **options)
    for other in (parts, by_hand):
        torch.testing.assert_close(ours.norms, other.norms, rtol=1e-4, atol=1e-6)
        for name, value in ours.gradients.items():
            torch.testing.assert_close(value, other.gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_a_row_that_is_not_finite_contributes_nothing(method, bad):
    model, inputs = mlp()
    good = clip_and_sum(model, loss_fn, inputs[1:], torch.ones(8), 0.1, method=method)
    inputs[0, 1] = bad
    loud = lambda o, t: loss_fn(o * (1 + o.abs().sum(1, keepdim=True) * 1e30), t)  # noqa: E731
    clipped = clip_and_sum(model, loss_fn, inputs, torch.ones(9), 0.1, method=method)
    assert clipped.rejected == 1 or bad == 1e38
    if clipped.rejected:
        for name, value in clipped.gradients.items():
            torch.testing.assert_close(value, good.gradients[name], rtol=1e-4, atol=1e-6)
    assert all(torch.isfinite(g).all() for g in clip_and_sum(
        model, loud, inputs, torch.ones(9), 0.1, method=method).gradients.values())  # fmt: skip


def test_what_is_not_proved_runs_alone_and_says_why():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(0))
    options = model, loss_fn, torch.randn(5, 4), torch.ones(5), 0.1
    with pytest.warns(SlowPathWarning, match=r"1: _softmax: softmax over the records.*alone"):
        found = clip_and_sum(*options)
    assert not proof_of(model).proved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = clip_and_sum(*options, method="alone")
    for name, value in alone.gradients.items():
        assert torch.equal(value, found.gradients[name])


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        seen = self.before(x).contiguous(memory_format=torch.channels_last)
        return self.after(nn.functional.adaptive_avg_pool2d(seen, 1).flatten(1))


def test_pictures_with_their_channels_last_are_pooled():
    torch.manual_seed(0)
    model, x, y = ChannelsLast(), torch.randn(9, 3, 6, 6), torch.ones(9)
    clipped = clip_and_sum(model, loss_fn, x, y, 0.1, method="proved")
    assert_same(clipped, model, loss_fn, x, y, tolerance=2e-4)


class Adapted(nn.Module):
    """A frozen layer with an adapter that its forward forgets."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        self.up(self.down(x))
        return self.head(self.base(x))


def test_parameters_that_would_learn_nothing_are_told():
    model = Adapted()
    with pytest.warns(IdleParameterWarning, match=r"down.weight, up.weight \(2 of 4 trained"):
        clip_and_sum(model, loss_fn, torch.randn(9, 4), torch.ones(9), 0.1)
    assert proof_of(model).idle == ("down.weight", "up.weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_and_sum(nn.Linear(4, 3), loss_fn, torch.randn(9, 4), torch.ones(9), 0.1)


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.flag = nn.Linear(4, 3), 1.0, False

    def forward(self, x):
        out = self.layer(x) * self.scale
        return out - out.mean(0) if self.flag else out


def test_nothing_of_python_runs_after_the_capture():
    torch.manual_seed(0)
    model, x, y = Watched(), torch.randn(9, 4), torch.ones(9)
    clip_and_sum(model, loss_fn, x, y, 0.1, method="proved")
    for size in (9, 1, 4):
        call = functools.partial(clip_and_sum, model, loss_fn, x[:size], y[:size], 0.1)
        assert runs_of(Watched.forward, call) == 0


def test_a_value_of_python_s_that_changes_is_captured_again():
    torch.manual_seed(0)
    model, x, y = Watched(), torch.randn(9, 4), torch.ones(9)
    first = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    model.scale = 2.0
    second = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    assert_same(second, model, loss_fn, x, y, tolerance=2e-4)
    assert not torch.allclose(first.gradients["layer.bias"], second.gradients["layer.bias"])
    weight = [1.0]

    def annealed(out, target):
        return weight[0] * loss_fn(out, target)

    for loss in (annealed, functools.partial(annealed)):
        weight[0] = 1.0
        one = clip_and_sum(model, loss, x, y, 1e6, method="proved").gradients["layer.bias"]
        weight[0] = 3.0
        three = clip_and_sum(model, loss, x, y, 1e6, method="proved").gradients["layer.bias"]
        torch.testing.assert_close(three, 3 * one)
    model.flag = True  # and now it mixes
    with pytest.raises(UnsupportedError, match="mean over the records"):
        clip_and_sum(model, loss_fn, x, y, 0.1, method="proved")
    model.flag = False
    model.layer.register_forward_hook(lambda _m, _i, out: out - out.mean(0))
    with pytest.raises(UnsupportedError, match="mean over the records"):
        clip_and_sum(model, loss_fn, x, y, 0.1, method="proved")


layer = 0  # named as an attribute that the model above has


def test_a_global_that_only_shares_an_attribute_s_name_is_no_change(monkeypatch):
    torch.manual_seed(0)
    model, x, y = Watched(), torch.randn(9, 4), torch.ones(9)
    clip_and_sum(model, loss_fn, x, y, 0.1, method="proved")
    for k in range(3):
        monkeypatch.setattr(sys.modules[__name__], "layer", k)
        assert runs_of(Watched.forward, lambda: clip_and_sum(model, loss_fn, x, y, 0.1)) == 0


class Coin(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (2 if random.random() < 0.5 else 1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


class Anneals(Counter):
    def forward(self, x):
        return super().forward(x) / self.calls


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) / len(x)


REFUSED = {
    "a coin of Python's": (Coin, "from one capture to the next"),
    "a counter": (Anneals, "calls: changes in a forward"),
    "a branch on a value": (Branch, r"test_proved.py:\d+ .*a value of a record decides"),
    "the batch's size": (Sized, "from one capture to the next|becomes a value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_capture_would_freeze_is_refused(name):
    make, message = REFUSED[name]
    random.seed(1)
    model = make()
    before = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    with pytest.raises(UnsupportedError, match=message):
        clip_and_sum(model, loss_fn, torch.randn(9, 4), torch.ones(9), 0.1, method="proved")
    assert {k: v for k, v in vars(model).items() if not k.startswith("_")} == before
    assert not proof_of(model).proved


def test_a_refusal_names_the_module_and_the_operator():
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 4))
    model.add_module("normed", nn.LayerNorm(4))
    model.normed.register_forward_hook(lambda _m, _i, out: out.softmax(0))
    with pytest.raises(UnsupportedError, match=r"normed: _softmax: softmax over the records"):
        clip_and_sum(model, loss_fn, torch.randn(9, 4), torch.ones(9), 0.1, method="proved")


def test_alone_leaves_the_model_and_the_streams_as_they_were():
    torch.manual_seed(0)
    model, x, y = Counter(), torch.randn(9, 4), torch.ones(9)
    state = random.getstate()
    clipped = clip_and_sum(model, loss_fn, x, y, 0.1, method="alone")
    assert_same(clipped, model, loss_fn, x, y, tolerance=2e-4)
    assert random.getstate() == state
    assert model.calls == 0


SEEN = []


@pytest.mark.parametrize("reason", ["", "a test says so"])
def test_alone_nothing_is_written_where_others_read(reason, monkeypatch):
    """In a process of its own it is gone; where copies do not reach in one process, refused."""
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: reason)

    def remembers(out, target):
        SEEN.append(float(out.detach().sum()))
        return loss_fn(out, target)

    model, x = mlp()
    refusal = pytest.raises(UnsupportedError, match="changes something outside")
    with refusal if reason else contextlib.nullcontext():
        clip_and_sum(model, remembers, x, torch.ones(9), 0.1, method="alone")
        assert SEEN == []


def test_a_closure_s_own_list_is_each_record_s_own():
    seen = []

    def remembers(out, target):
        seen.append(1.0)
        return loss_fn(out, target) * len(seen)

    model, x = mlp()
    clipped = clip_and_sum(model, remembers, x, torch.ones(9), 0.1, method="alone")
    plain = clip_and_sum(model, loss_fn, x, torch.ones(9), 0.1, method="alone")
    assert seen == []
    torch.testing.assert_close(clipped.norms, plain.norms)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_precisions(precision):
    name = "nothing at 0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert movement(HONEST[name], precision, of=insisting) <= 1.05


WRITES = {
    "into what nothing else knows": lambda x: (x * 2).mul_(3.0).relu_(),
    "where it was read before": lambda x: _twice(x * 2),
    "into a view": lambda x: _column(x * 2),
    "where another type meets it": lambda x: (x * 2).add_(torch.ones(5, dtype=torch.float64)),
    "over what is spread": lambda x: (x.t() * 2).add_(torch.ones(5, 1)).t(),
    "with a view beside": lambda x: _beside(x * 2),
}


def _twice(x):
    before = x + 1
    x.tanh_()
    return before * x


def _column(x):
    x[:, 1].mul_(0.5)
    return x


def _beside(x):
    view = x[:, :2]
    x.exp_()
    return x * view.sum(1, keepdim=True)


class Written(nn.Module):
    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.write, self.last = nn.Linear(4, 5), write, nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.write(self.first(x)))


@pytest.mark.parametrize("name", WRITES)
def test_writes_into_tensors_are_what_they_were(name):
    model, inputs = Written(WRITES[name]), torch.randn(9, 4)
    sums = [
        clip_and_sum(model, loss_fn, inputs, torch.ones(9), 0.1, method=method).gradients
        for method in ("proved", "alone")
    ]
    for key, value in sums[1].items():
        torch.testing.assert_close(sums[0][key], value, rtol=1e-4, atol=1e-6)


def test_a_refusal_of_a_loss_names_the_loss():
    model, inputs = mlp()
    reduced = lambda out, t: loss_fn(out, t) - loss_fn(out, t).mean()  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"\(loss_fn: mean: mean over the records\)"):
        clip_and_sum(model, reduced, inputs, torch.ones(9), 0.1, method="proved")
