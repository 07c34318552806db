"""No record moves the sum by more than its clip norm, or the model is refused."""

import contextlib

import pytest
import torch

from apiece import Budgets, Scale, assign
from apiece.errors import InputError
from apiece.training import Trainer, clip_and_sum
from apiece.training.clipping import alone

from .harness import METHODS, PRECISIONS, Refused, filtered, movement
from .zoo import HONEST, MIXING, RANDOM, case

# what rounding of the sum over twelve records may add, in clip norms
ROOM = {"float32": 1e-3, "float64": 1e-6, "bfloat16": 0.05, "autocast": 0.05}
NOT_PROVED = ("checked value", "bags")
NOT_BY_AUTOCAST = ("rms norm", "bilinear", "bags")  # torch itself warns, or fails


def holds(make, precision="float32", method="auto", **options):
    """Return the move, None where the model was refused; fail where it is too large."""
    try:
        moved = movement(make, precision, method, **options)
    except Refused:
        return None
    assert moved <= 1 + ROOM[precision], f"the sum moved by {moved:.3g} of its bound"
    return moved


def test_the_zoo_is_large_enough():
    assert len(HONEST) + len(RANDOM) >= 60
    assert len(MIXING) >= 60


@pytest.mark.parametrize("name", list(HONEST)[::3])
def test_honest(name):
    """Records first in single precision, time first in one of all: the slow test has them all."""
    precision = PRECISIONS[list(HONEST).index(name) // 2 % len(PRECISIONS)]
    if not name.endswith(" at 1") or (precision == "autocast" and name.startswith(NOT_BY_AUTOCAST)):
        precision = "float32"
    assert holds(HONEST[name], precision) is not None


@pytest.mark.parametrize("name", MIXING)
def test_nothing_that_mixes_is_proved(name):
    assert holds(MIXING[name], method="proved") is None


# What a batch shares, what a model keeps from record to record, and a loss over the batch. Alone,
# each record has a process, whose copies take the time: the slow test has all models.
KINDS = ["keeps: attribute", "loss: contrast, dict"]


@pytest.mark.parametrize("name", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow)])
def test_nothing_that_mixes_is_harmful_alone(name):
    holds(MIXING[name])


@pytest.mark.parametrize("name", RANDOM)
def test_random_forwards_are_not_refused(name):
    torch.manual_seed(0)
    model, loss, x, y = RANDOM[name]()
    for _ in range(3):
        clipped = clip_and_sum(model, loss, x, y, 0.01)
        total = torch.cat([g.flatten() for g in clipped.gradients.values()])
        assert float(total.norm()) <= 0.01 * len(x) * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [*HONEST, *MIXING])
def test_every_path_and_precision(name, method, precision):
    if precision == "autocast" and name.startswith(NOT_BY_AUTOCAST):
        pytest.skip("torch does not run it under autocast")
    moved = holds({**HONEST, **MIXING}[name], precision, method)
    if name in HONEST:
        assert moved is not None or (method == "proved" and name.startswith(NOT_PROVED))
    if name in MIXING and method == "proved":
        assert moved is None


def trained(make):
    torch.manual_seed(0)
    model, loss, x, y = make()
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], len(x), 1e-3)
    plan = assign(budgets, Scale(), steps=4, expected_batch_size=8, clip_norm=1.0)
    Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, plan, (x, y), seed=0).fit()


@pytest.mark.parametrize("run", [pytest.param(trained, marks=pytest.mark.slow), filtered])
def test_trainers(run):
    for name in list(HONEST)[::11]:
        run(HONEST[name])
    for name in KINDS:
        with contextlib.suppress(InputError, Refused):
            run(MIXING[name])


# the harness must see what it is for


def test_it_sees_copies_that_are_not_made(monkeypatch):
    fresh = lambda batch: (batch.model, batch.loss_fn, batch.parameters)  # noqa: E731
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: "a test says so")
    monkeypatch.setattr(alone, "_copy_all", fresh)
    monkeypatch.setattr(alone, "readable_state", lambda *_, **__: [])
    assert movement(MIXING["keeps: buffer by data"], method="alone") > 1.1


def test_it_sees_clipping_that_ignores_the_bounds(monkeypatch):
    def careless(model, loss, x, y, clip, **options):
        return clip_and_sum(model, loss, x, y, 3 * clip, **options)

    assert movement(case(), of=careless) > 2


def test_it_sees_a_mean_over_the_batch():
    class Sum:
        def __init__(self, gradients):
            self.gradients = gradients

    def averaged(model, loss, x, y, clip, **options):
        parts = clip_and_sum(model, loss, x, y, clip, **options).gradients
        return Sum({name: 30 * value / len(x) for name, value in parts.items()})

    assert movement(case(), of=averaged) > 1.1
