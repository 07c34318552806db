"""What a step releases: noise of its own, in double precision, and no other gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets
from apiece.filters import GaussianFilter
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import ClippedSum, FilteredTrainer, Trainer
from apiece.training import randomness as noise_module
from apiece.training.randomness import ChaCha20Stream, Streams, noisy_mean

LOSS = nn.CrossEntropyLoss(reduction="none")
DATA = (torch.ones(10, 3), torch.zeros(10, dtype=torch.long))
BUDGETS = Budgets(np.full(10, 50.0), 1e-5)


def plan(steps: int, stages: int = 1) -> Plan:
    """Of noise alone: hardly anybody joins."""
    stage = Stage(steps, 1e-8, 1.0, np.array([1e-9]), np.array([1.0]))
    return Plan("test", 1.0, BUDGETS.groups, (stage,) * stages).bind(BUDGETS)


class Seen(torch.optim.SGD):
    """Keeps the gradients that it is given."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.given: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [p.grad for group in self.param_groups for p in group["params"]]
        self.given.append(torch.cat([g.flatten() for g in held if g is not None]))
        super().step()


def run(seed: int | None, the_plan: Plan, **options: Any) -> tuple[Trainer, Seen]:
    model = nn.Linear(3, 2)
    optimizer = Seen(model.parameters())
    return Trainer(model, optimizer, LOSS, the_plan, DATA, seed=seed, **options), optimizer


STEPS = [*range(700), *(2**k for k in range(10, 60)), *(2**k + 1 for k in range(10, 60))]


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("purpose", ["sampling", "participation", "noise"])
def test_no_two_steps_share_a_stream(purpose: str, seed: int | None) -> None:
    streams = Streams.from_seed(seed)
    first: list[float] = []
    for step in STEPS:
        stream = getattr(streams, purpose)(step)
        chacha = isinstance(stream, ChaCha20Stream)
        first.append(float(stream.uniform(1)[0] if chacha else torch.rand(1, generator=stream)))
    near = len(STEPS) if seed is None or purpose != "noise" else len(STEPS) - 3  # single precision
    assert len(set(first)) >= near


@pytest.mark.parametrize(("seed", "stages"), [(None, 1), (0, 1), (0, 2)])
def test_a_run_of_many_steps_repeats_no_noise(seed: int | None, stages: int) -> None:
    steps = 300
    trainer, seen = run(seed, plan(steps // stages, stages))
    trainer.fit()
    rows = torch.stack(seen.given)
    assert rows.shape == (steps, 8)
    assert len({tuple(row.tolist()) for row in rows}) == steps
    apart = torch.corrcoef(rows.double()).fill_diagonal_(0.0)
    assert float(apart.abs().max()) < 0.9999


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stddev", [1e-3, 1.0, 50.0])
def test_noise_of_a_release_is_in_double_precision_until_it_is_on_the_grid(
    dtype: torch.dtype, stddev: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[torch.Tensor] = []
    monkeypatch.setattr(
        noise_module, "_round_to_grid", lambda values, _: noted.append(values.clone())
    )
    one = torch.ones(1)
    total = ClippedSum({"w": torch.full((4000,), 0.1, dtype=dtype)}, one, one, one)
    noisy_mean(total, stddev, 1.0, generator=ChaCha20Stream())
    (values,) = noted
    assert values.dtype == torch.float64
    assert (values.float().double() != values).double().mean() > 0.99
    plain = (values - total.gradients["w"].double()) / stddev
    assert (plain.float().double() != plain).double().mean() > 0.99


@pytest.mark.parametrize("seed", [None, 0])
def test_so_is_that_of_a_trainer(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[torch.Tensor] = []
    monkeypatch.setattr(
        noise_module, "_round_to_grid", lambda values, _: noted.append(values.clone())
    )
    trainer, _ = run(seed, plan(200))
    trainer.fit()
    values = torch.cat(noted)
    fine = bool((values.float().double() != values.double()).double().mean() > 0.9)
    assert fine == (seed is None)  # an experiment's is in single precision: the control


def backward(model: nn.Module) -> None:
    (1e6 * LOSS(model(DATA[0]), DATA[1])).mean().backward()


def written(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e6)


def twice(model: nn.Module) -> None:
    backward(model)
    backward(model)


STALE: dict[str, Callable[[nn.Module], None]] = {
    "a backward": backward,
    "written": written,
    "accumulated": twice,
}


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE)
@pytest.mark.parametrize("when", ["before the first step", "after each step"])
@pytest.mark.parametrize("kind", ["trainer", "unfreezing", "filtered"])
def test_no_gradient_that_is_left_about_is_applied(
    kind: str, when: str, stale: Callable[[nn.Module], None]
) -> None:
    ends = []
    for spoilt in (False, True):
        torch.manual_seed(0)
        model, other = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
        held = [*model.parameters(), other]
        optimizer = torch.optim.SGD(held, lr=1e-9, momentum=0.5)

        def left(_: object = None, model: nn.Module = model, other: Any = other) -> None:
            stale(model)
            other.grad = torch.full((2,), 1e6)

        told = (left,) if spoilt and when == "after each step" else ()
        if spoilt and when == "before the first step":
            left()
        if kind == "filtered":
            accounts = GaussianFilter([1e-9] * 10, 1e-5)
            FilteredTrainer(
                model, optimizer, LOSS, accounts, DATA, clip_norm=1.0, noise_stddev=1.0,
                seed=0, callbacks=told,
            ).fit(4)  # fmt: skip
        else:
            options: Any = {"unfreeze": {0: ["bias"], 2: [""]}} if kind == "unfreezing" else {}
            Trainer(model, optimizer, LOSS, plan(4), DATA, seed=0, callbacks=told, **options).fit()
        assert torch.equal(other.detach(), torch.ones(2))
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)
    assert float(ends[0].abs().max()) < 1e3
