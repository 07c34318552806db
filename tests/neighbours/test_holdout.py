"""The hold-out: nothing in which records meet is proved, and nothing does harm alone."""

import contextlib

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import table

from .holdout import Net, model, reset, squares, with_loss
from .holdout_more import CLASSES, HOLDOUT, LATER
from .search import SIZE, Refused, alone, believed, bounds_about, careless, harm, proved

pytestmark = pytest.mark.filterwarnings("ignore:model. no record:UserWarning")  # parts left out
pytestmark = pytest.mark.filterwarnings("ignore")  # the models' own
FEW = ["first: weights", "draws: mixup by argsort", "hooks: batch norm of gradients",
       "order: numbers below the diagonal", "sizes: size as an end"]  # fmt: skip
# Alone, each record has a process, whose copies take the time: the slow test has all models.
ALONE = ["first: class attribute"]


@pytest.fixture(autouse=True)
def _as_new():
    yield
    reset()


def batch():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(SIZE, 6, generator=generator), torch.randn(SIZE, generator=generator)


def refused(make):
    reset()
    torch.manual_seed(0)
    net, loss = make()
    with pytest.raises((UnsupportedError, InputError)):
        proved(net, loss, *batch(), torch.full((SIZE,), 0.01))


def _draws(name):
    return name.startswith(("draws", "coins"))


def harmless(make, run, **options):
    with contextlib.suppress(Refused):
        assert harm(make, run, **options) <= 1


def test_the_holdout_is_large_enough():
    assert len(HOLDOUT) >= 200
    assert min(map(len, CLASSES.values())) >= 8
    assert len(CLASSES["first"]) >= 9


@pytest.mark.parametrize("name", FEW)
def test_mixing_is_not_proved(name):
    refused(HOLDOUT[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOLDOUT if name not in FEW])
def test_none_that_mixes_is_proved(name):
    refused(HOLDOUT[name])


@pytest.mark.parametrize("name", ALONE)
def test_alone_it_is_harmless(name):
    harmless(HOLDOUT[name], alone, most=2, bounds=[1e-3], first=not _draws(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HOLDOUT, *LATER])
def test_all_are_harmless_alone(name):
    harmless(HOLDOUT.get(name) or LATER[name], alone, first=not _draws(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LATER)
def test_what_a_coin_decides_is_harmless_for_long(name):
    harmless(LATER[name], proved, calls=40, most=2, first=False)


# what is proved stays so when something changes between two calls


class Switched(nn.Module):
    """Centres the batch once it is told to, by one of several ways."""

    shared = False

    def __init__(self, how):
        super().__init__()
        self.how, self.flag, self.box = how, False, {"on": False}
        self.norm = nn.BatchNorm1d(6).eval()
        self.register_buffer("switch", torch.zeros(()))

    def forward(self, net, h):
        on = {"attribute": self.flag, "dict": self.box["on"], "class": Switched.shared}
        if on.get(self.how):
            return h - h.mean(0)
        if self.how == "mode" and self.training:
            return h - h.mean(0)
        return self.norm(h) if self.how == "layer" else h + self.switch


def _turn_on(net, how):
    part = net.between
    if how == "attribute":
        part.flag = True
    elif how == "dict":
        part.box["on"] = True
    elif how == "class":
        Switched.shared = True
    elif how == "mode":
        part.train()
    elif how == "layer":
        part.norm.train()
    elif how == "hook":
        net.first.register_forward_hook(lambda m, given, out: out - out.mean(0))
    elif how == "backward hook":
        net.last.register_full_backward_hook(
            lambda m, into, out: tuple(None if g is None else g - g.mean(0) for g in into)
        )
    elif how == "forward":
        net.last.forward = lambda h: nn.functional.linear(h - h.mean(0), net.last.weight)
    elif how == "method":
        Switched.forward = lambda self, net, h: h - h.mean(0)
    elif how == "module":
        net.between = nn.Module()
        net.between.forward = lambda net, h: h - h.mean(0)
    else:
        part.switch.fill_(2.0)


WAYS = ["attribute", "dict", "class", "mode", "layer", "hook", "backward hook", "forward", "method",
        "module", "buffer"]  # fmt: skip
QUICK = ("attribute", "hook")


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in WAYS]
)
def test_what_changes_later_is_captured_again_or_refused(how, monkeypatch):
    monkeypatch.setattr(Switched, "shared", False)
    monkeypatch.setattr(Switched, "forward", Switched.forward)
    x, y = batch()
    clip = torch.full((SIZE,), 0.05, dtype=torch.float64)

    def total(rows):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Switched, "shared", False)
            patch.setattr(Switched, "forward", Switched.forward)
            torch.manual_seed(0)
            part = Switched(how)
            net = Net(part.eval() if how == "mode" else part)
            proved(net, squares, x[:3], y[:3], clip[:3])
            _turn_on(net, how)
            found = proved(net, squares, x[rows], y[rows], clip[rows])
        return torch.cat([g.flatten() for g in found.gradients.values()])

    try:
        move = float((total(slice(0, SIZE)) - total(slice(0, SIZE - 1))).norm())
    except InputError:
        assert how != "buffer"
        return
    assert move <= 0.05 * 1.001


# the search must see what it is for


def plain():
    return Net(), squares


def test_it_passes_what_is_honest():
    assert 0.9 < harm(plain, careless, most=4, bad=(1e9,)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("run", [proved, believed, alone])
def test_it_passes_what_is_honest_and_not_finite(run):
    assert 0.9 < harm(plain, run) <= 1


def test_it_sees_what_is_not_clipped():
    def twice(net, loss, x, y, clip):
        return clip_and_sum(net, loss, x, y, 2 * clip, method="proved")

    assert harm(plain, twice, most=1, bounds=[1e-3]) > 1.9


@pytest.mark.parametrize("name", ["draws: mixup by sort", "order: flip", "contrast: CLIP"])
def test_it_sees_harm_without_a_proof(name):
    assert harm(HOLDOUT[name], careless, most=3, bad=(1e9,)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hooks: gradients of the neighbour", "hooks: norm of gradients"])
def test_it_sees_harm_where_a_proof_believes_shapes(name):
    assert harm(HOLDOUT[name], believed) > 1


def does_harm(name):
    """Whether a careless engine, or one that believes shapes, lets a record do harm."""
    options = {"first": not _draws(name)}
    few, about, many = bounds_about(HOLDOUT[name])
    runs = [(careless, bound, {"bad": (1e9,)}) for bound in (few, about, many)]
    for run, bound, more in [*runs, (believed, about, {"most": 6})]:
        with contextlib.suppress(Exception):  # what a believing engine trips over
            if harm(HOLDOUT[name], run, bounds=[bound], **options, **more) > 1:
                return True
    return False


@pytest.mark.slow
def test_without_a_proof_nearly_all_do_harm():
    unseen = [name for name in HOLDOUT if not does_harm(name)]
    assert len(unseen) <= len(HOLDOUT) // 10, unseen


BREAKS = {  # rows of the table made wrong, and a model that goes by them
    "flip": model(lambda net, h: h + 2 * h.flip(0)),
    "roll": model(lambda net, h: h + 2 * h.roll(1, 0)),
    "_softmax": with_loss(lambda v, out, y: v * 12 * v.detach().softmax(0)),
    "sort": model(lambda net, h: h + 2 * h.detach().sort(0).values),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if k else ()) for k, n in enumerate(BREAKS)]
)
def test_it_sees_a_row_of_the_table_made_wrong(name, monkeypatch):
    refused(BREAKS[name])
    monkeypatch.setitem(table.RULES, name, lambda call: call.of(call.argument("self")))
    assert harm(BREAKS[name], proved, most=1 if name == "flip" else 6) > 1
