"""Objects of torch's, NumPy's and Python's own classes that a model holds: a change is seen."""

import decimal
import hashlib
import logging
import queue
import random
import sqlite3
import threading
import types
import warnings
import zlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import cache

from .test_front import loss_fn

SIZE = 7
LOGGER = logging.getLogger("apiece.tests.objects")
DISTRIBUTION = torch.distributions.Normal(0.0, 1.0)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def forward(self, x):
        return x * self.scale


class Holds(nn.Module):
    """A layer whose outputs are scaled by what an object that it holds says."""

    def __init__(self, read, make):
        super().__init__()
        self.layer, self.read = nn.Linear(4, 3), (read,)
        self.held = make(self)

    def forward(self, x):
        return self.layer(x) * self.read[0](self)


def sgd(model):
    return torch.optim.SGD(model.layer.parameters(), lr=1.0)


def steps(model):
    return lr_scheduler.StepLR(sgd(model), 1)


def scripted(_model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Scripted())


def setting(path, value):
    """Return what sets an attribute of what the model holds, by its path."""
    *path, name = path.split(".")

    def change(model):
        holder = model.held
        for one in path:
            holder = getattr(holder, one)
        setattr(holder, name, value)

    return change


def item(key, value):
    return lambda model: model.held.__setitem__(key, value)


def normal(_model):
    return torch.distributions.Normal(0.0, 1.0)


def rate_of_group(model):
    return model.held.param_groups[0]["lr"]


# what is held, what is read of it, and how that changes
CHANGES = {
    "a distribution's scale": (normal, lambda m: m.held.scale,
                               setting("scale", torch.tensor(3.0))),
    "a distribution's density": (normal, lambda m: m.held.log_prob(torch.tensor(1.0)),
                                 setting("loc", torch.tensor(3.0))),
    "a distribution's number": (lambda _: torch.distributions.Normal(0.0, 1.0),
                                lambda m: m.held.factor if hasattr(m.held, "factor") else 1.0,
                                setting("factor", 3.0)),
    "a distribution in a list": (lambda m: [normal(m)], lambda m: m.held[0].scale,
                                 lambda m: setattr(m.held[0], "scale", torch.tensor(3.0))),
    "a distribution in a dict": (lambda m: {"one": normal(m)},
                                 lambda m: next(iter(m.held.values())).scale,
                                 lambda m: setattr(m.held["one"], "scale", torch.tensor(3.0))),
    "a distribution in an object": (lambda m: types.SimpleNamespace(inner=normal(m)),
                                    lambda m: next(iter(vars(m.held).values())).scale,
                                    setting("inner.scale", torch.tensor(3.0))),
    "a distribution within another": (
        lambda m: torch.distributions.Independent(torch.distributions.Normal(
            torch.zeros(3), torch.ones(3)), 1),
        lambda m: m.held.base_dist.scale, setting("base_dist.scale", 3 * torch.ones(3))),
    "a distribution among globals": (
        lambda m: None, lambda m: DISTRIBUTION.scale,
        lambda m: setattr(DISTRIBUTION, "scale", torch.tensor(3.0))),
    "a distribution by a made-up name": (normal, lambda m: getattr(m, "he" + "ld").scale,
                                         setting("scale", torch.tensor(3.0))),
    "a lazy value of a distribution": (
        lambda m: torch.distributions.Bernoulli(logits=torch.zeros(3)), lambda m: m.held.probs,
        lambda m: m.held.__dict__.update(probs=torch.full((3,), 0.9))),
    "a transform's scale": (lambda m: torch.distributions.transforms.AffineTransform(0.0, 1.0),
                            lambda m: m.held(torch.ones(())), setting("scale", 3.0)),
    "an optimizer's rate": (sgd, rate_of_group,
                            lambda m: m.held.param_groups[0].update(lr=3.0)),
    "an optimizer's group": (sgd, lambda m: len(m.held.param_groups), lambda m:
                             m.held.add_param_group({"params": [nn.Parameter(torch.ones(1))]})),
    "an optimizer's defaults": (sgd, lambda m: m.held.defaults["lr"],
                                lambda m: m.held.defaults.update(lr=3.0)),
    "an optimizer's state": (sgd, lambda m: 1.0 + len(m.held.state),
                             lambda m: m.held.state.update({m.layer.weight: {"step": 1}})),
    "a state within it": (sgd, lambda m: 1.0 + sum(len(s) for s in m.held.state.values()),
                          lambda m: m.held.state[m.layer.weight].update(step=1)),
    "a scheduler's epoch": (steps, lambda m: 1.0 + m.held.last_epoch,
                            lambda m: (m.held.optimizer.step(), m.held.step())),
    "a scheduler's rate": (steps, lambda m: m.held.get_last_lr()[0],
                           lambda m: (m.held.optimizer.step(), m.held.step())),
    "a scheduler's optimizer": (steps, lambda m: m.held.optimizer.param_groups[0]["lr"],
                                lambda m: m.held.optimizer.param_groups[0].update(lr=3.0)),
    "a scheduler's optimizer, by a method": (
        lambda m: lr_scheduler.ExponentialLR(sgd(m), 0.5), lambda m: m.held.get_last_lr()[0],
        lambda m: (m.held.optimizer.step(), m.held.step())),
    "a scheduler's function": (
        lambda m: lr_scheduler.LambdaLR(sgd(m), lambda k: 1.0), lambda m: m.held.lr_lambdas[0](0),
        lambda m: m.held.lr_lambdas.__setitem__(0, lambda k: 3.0)),
    "a scheduler's cosine": (lambda m: lr_scheduler.CosineAnnealingLR(sgd(m), 10),
                             lambda m: m.held.T_max, setting("T_max", 3)),
    "a scaler's factor": (lambda m: torch.amp.GradScaler("cpu", enabled=False),
                          lambda m: m.held._init_scale, setting("_init_scale", 3.0)),
    "an averaged model's count": (lambda m: torch.optim.swa_utils.AveragedModel(nn.Identity()),
                                  lambda m: 1.0 + m.held.n_averaged,
                                  lambda m: m.held.n_averaged.add_(2)),
    "a data set's tensors": (lambda m: torch.utils.data.TensorDataset(torch.ones(1)),
                             lambda m: m.held.tensors[0],
                             setting("tensors", (torch.full((1,), 3.0),))),
    "a data set's part": (lambda m: torch.utils.data.Subset([1.0, 3.0], [0]),
                          lambda m: m.held[0], setting("indices", [1])),
    "a loader's width": (
        lambda m: torch.utils.data.DataLoader([1.0], batch_size=1),
        lambda m: 3.0 if m.held.pin_memory_device else 1.0, setting("pin_memory_device", "cpu")),
    "a layer's settings": (lambda m: nn.LeakyReLU(0.5), lambda m: m.held(torch.tensor(-1.0)),
                           setting("negative_slope", 3.0)),
    "a list of layers": (lambda m: nn.ModuleList([nn.Identity()]), lambda m: len(m.held),
                         lambda m: m.held.append(nn.Identity())),
    "a dict of parameters": (lambda m: nn.ParameterDict(), lambda m: 1 + len(m.held),
                             lambda m: m.held.update({"one": nn.Parameter(torch.ones(1), False)})),
    "a script's attribute": (scripted, lambda m: m.held(torch.ones(())), setting("scale", 3.0)),
    "a traced graph": (lambda m: torch.fx.symbolic_trace(nn.Identity()),
                       lambda m: 3.0 if hasattr(m.held, "mark") else 1.0, setting("mark", 1)),
    "a logger's level": (lambda m: LOGGER, lambda m: 3.0 if m.held.level else 1.0,
                         setting("level", 10)),
    "a logger's parent": (lambda m: LOGGER, lambda m: float(m.held.getEffectiveLevel()),
                          setting("parent.level", 17)),
    "all loggers": (lambda m: LOGGER, lambda m: float(m.held.isEnabledFor(40)) + 1.0,
                    lambda m: logging.disable(40)),
    "a polynomial": (lambda m: np.poly1d([1.0]), lambda m: float(m.held(0.0)),
                     lambda m: m.held.__setitem__(0, 3.0)),
    "an array in a dict": (lambda m: {"one": np.ones(1)}, lambda m: float(m.held["one"][0]),
                           lambda m: m.held["one"].fill(3.0)),
    "a masked array": (lambda m: np.ma.array([1.0, 5.0], mask=[False, True]),
                       lambda m: float(m.held.sum()), lambda m: m.held.mask.fill(False)),
    "a vectorised function": (lambda m: np.vectorize(lambda x: x, otypes=[float]),
                              lambda m: float(m.held(1.0)),
                              setting("pyfunc", lambda x: 3 * x)),
    "a generator's position": (lambda m: np.random.PCG64(0),
                               lambda m: 1.0 + m.held.state["has_uint32"],
                               lambda m: np.random.Generator(m.held).integers(
                                   3, dtype=np.uint32)),
    "a seed's children": (lambda m: np.random.SeedSequence(0),
                          lambda m: 1.0 + m.held.n_children_spawned, lambda m: m.held.spawn(2)),
    "a torch generator's seed": (lambda m: torch.Generator().manual_seed(1),
                                 lambda m: float(m.held.initial_seed()),
                                 lambda m: m.held.manual_seed(3)),
    "a random stream": (lambda m: random.Random(0), lambda m: float(m.held.getstate()[1][-1]),
                        lambda m: m.held.random()),
    "a hash": (lambda m: hashlib.sha256(), lambda m: 1.0 + m.held.digest()[0],
               lambda m: m.held.update(b"1")),
    "another hash": (lambda m: hashlib.blake2b(), lambda m: 1.0 + m.held.digest()[0],
                     lambda m: m.held.update(b"1")),
    "a lock": (lambda m: threading.Lock(), lambda m: 3.0 if m.held.locked() else 1.0,
               lambda m: m.held.acquire()),
    "a lock of one thread": (lambda m: threading.RLock(),
                             lambda m: 3.0 if m.held._is_owned() else 1.0,
                             lambda m: m.held.acquire()),
    "an event": (lambda m: threading.Event(), lambda m: 3.0 if m.held.is_set() else 1.0,
                 lambda m: m.held.set()),
    "a semaphore": (lambda m: threading.Semaphore(1), lambda m: float(m.held._value),
                    lambda m: m.held.release(2)),
    "a script in a list": (lambda m: [scripted(m)], lambda m: m.held[0](torch.ones(())),
                           lambda m: setattr(m.held[0], "scale", 3.0)),
    "a data base": (lambda m: sqlite3.connect(":memory:"),
                    lambda m: float(m.held.execute("select 1").fetchone()[0]),
                    lambda m: m.held.execute("create table one (two)")),
    "a queue in C": (lambda m: queue.SimpleQueue(), lambda m: 1.0 + m.held.qsize(),
                     lambda m: m.held.put(1)),
    "a compressor": (lambda m: zlib.compressobj(), lambda m: float(len(m.held.copy().flush())),
                     lambda m: m.held.compress(b"1")),
    "the precision of decimals": (lambda m: None, lambda m: float(decimal.getcontext().prec),
                                  lambda m: setattr(decimal.getcontext(), "prec", 17)),
    "how NumPy warns": (lambda m: None,
                        lambda m: 3.0 if np.geterr()["over"] == "ignore" else 1.0,
                        lambda m: np.seterr(over="ignore")),
}  # fmt: skip
EARLY = ("a distribution's scale", "an optimizer's rate", "a scheduler's epoch", "a hash",
         "a logger's level", "a script's attribute")  # fmt: skip


@pytest.fixture
def _as_new():
    level, parent = LOGGER.level, LOGGER.parent.level
    DISTRIBUTION.scale = torch.tensor(1.0)
    with decimal.localcontext(), np.errstate():
        yield
    LOGGER.level, LOGGER.parent.level = level, parent
    logging.disable(logging.NOTSET)


HIDDEN = {"a data base", "a queue in C", "a compressor"}  # no look at them shows their state


def stale(name):
    """Return whether a change of what is held goes unseen; None where the model is refused."""
    make, read, change = CHANGES[name]
    torch.manual_seed(0)
    model, x, y = Holds(read, make), torch.randn(SIZE, 4), torch.ones(SIZE)
    try:
        first = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    except UnsupportedError:
        return None
    change(model)
    try:
        second = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    except UnsupportedError:
        return None
    wanted = torch.autograd.grad(loss_fn(model(x), y).sum(), list(model.layer.parameters()))
    for name, value in zip(("layer.weight", "layer.bias"), wanted, strict=True):
        torch.testing.assert_close(second.gradients[name], value, rtol=2e-4, atol=1e-4)
    return torch.allclose(first.gradients["layer.bias"], second.gradients["layer.bias"])


@pytest.mark.usefixtures("_as_new")
@pytest.mark.parametrize(
    "name", [n if n in EARLY else pytest.param(n, marks=pytest.mark.slow) for n in CHANGES]
)
def test_a_change_of_what_is_held_is_seen_or_the_model_refused(name):
    assert not stale(name)


@pytest.mark.usefixtures("_as_new")
@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_what_nothing_shows_is_refused(name):
    make, read, _ = CHANGES[name]
    with pytest.raises(UnsupportedError, match="is held, whose state nothing shows"):
        clip_and_sum(
            Holds(read, make), loss_fn, torch.ones(SIZE, 4), torch.ones(SIZE), 1.0, method="proved"
        )


# ---------------------------------------------------------------- honest models are not slower


class Trains(nn.Module):
    """Holds its optimizer and scheduler, and no code that a forward runs names them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.opt = torch.optim.SGD(self.layer.parameters(), lr=0.1, momentum=0.9)
        self.sched = lr_scheduler.StepLR(self.opt, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self):
        self.opt.step()
        self.sched.step()


def test_an_optimizer_that_no_forward_names_makes_no_captures(monkeypatch):
    model, x, y = Trains(), torch.randn(SIZE, 4), torch.ones(SIZE)
    captures = []
    proved = cache.build_engine
    monkeypatch.setattr(cache, "build_engine", lambda *given: captures.append(1) or proved(*given))
    for _ in range(3):
        total = clip_and_sum(model, loss_fn, x, y, 1.0, method="proved")
        for p, g in zip(model.parameters(), total.gradients.values(), strict=True):
            p.grad = g
        model.training_step()
    assert len(captures) == 1


class Stochastic(nn.Module):
    """Uses a distribution that keeps its logits once they are asked for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.dist = torch.distributions.Bernoulli(probs=torch.full((3,), 0.3), validate_args=False)

    def forward(self, x):
        return self.layer(x) + self.dist.log_prob(torch.ones(3))


def test_a_distribution_that_keeps_what_it_computes_is_proved():
    model, x, y = Stochastic(), torch.randn(SIZE, 4), torch.ones(SIZE)
    total = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    assert "logits" not in vars(model.dist)
    wanted = torch.autograd.grad(loss_fn(model(x), y).sum(), model.layer.bias)[0]
    torch.testing.assert_close(total.gradients["layer.bias"], wanted)
