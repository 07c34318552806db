"""The step loop, whatever is plugged in: in this order, and by the numbers that are drawn."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import SlowPathWarning, StateError
from apiece.training import Progress
from apiece.training.batches import Draw
from apiece.training.clipping import ClippedSum
from apiece.training.loop import Loop, Prepaid, SumOver
from apiece.training.processes import Processes
from apiece.training.randomness import Streams
from apiece.training.sources import source_of
from apiece.training.sums import Sums
from apiece.training.updates import Updates

SIZE = 6
INPUTS = torch.eye(SIZE)  # record i's gradient is in coordinate i alone, and long


class Turns:
    """A sampler that is no plan's: records k and k + 1 in step k."""

    def __init__(self, noise_stddev: float = 1e-12) -> None:
        self.noise_stddev, self.log = noise_stddev, list[str]()

    def draw(self, step: int, streams: Streams) -> Draw:
        self.log.append(f"draw {step}")
        records = np.array([step % SIZE, (step + 1) % SIZE])
        return Draw(records, np.array([0.5, 2.0]), self.noise_stddev, 4.0, stage=step // 2)


class Strict:
    """A charger that lets only records of even positions pay."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        self.log.append("charge")
        paid = draw.records % 2 == 0
        return sum_over(draw.records[paid], draw.clip_norms[paid])


class Logged(Sums):
    """Writes down when it sums."""

    def __init__(self, log: list[str], *given: Any) -> None:
        super().__init__(*given)
        self.log = log

    def over(self, *given: Any) -> ClippedSum:
        self.log.append("sum")
        return super().over(*given)


class Watched(torch.optim.SGD):
    """Writes down its updates."""

    def __init__(self, parameters: Iterable[nn.Parameter], log: list[str]) -> None:
        super().__init__(parameters, lr=1.0)
        self.log, self.seen = log, list[torch.Tensor]()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.log.append("update")
        (weight,) = self.param_groups[0]["params"]
        self.seen.append(weight.grad[0].clone())
        super().step()


def loop(sampler: Turns, *, model: nn.Module | None = None, strict: bool = False) -> Loop:
    model = model or nn.Linear(SIZE, 1, bias=False)
    log = sampler.log

    def loss(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return 100 * outputs[:, 0]

    return Loop(
        sums=Logged(log, model, loss, source_of((INPUTS, torch.zeros(SIZE)))),
        sampler=sampler,
        charger=Strict(log) if strict else Prepaid(),
        updates=Updates(Watched(model.parameters(), log), None, None),
        streams=Streams.from_seed(0),
        processes=Processes(0, 1),
        callbacks=(lambda done: log.append(f"told {done.step} of {done.steps}"),),
        journal=lambda step, update: log.append(f"journal {step}"),
    )


def test_a_step_is_draw_charge_sum_noise_journal_update_and_then_the_callbacks() -> None:
    sampler = Turns()
    run = loop(sampler, strict=True)
    run.step(9)
    kept = [entry for k, entry in enumerate(sampler.log) if entry not in sampler.log[:k]]
    assert kept == ["draw 0", "charge", "sum", "journal 0", "update", "told 1 of 9"]


@pytest.mark.parametrize(("strict", "expected"), [(False, (0.125, 0.5)), (True, (0.125, 0.0))])
def test_who_paid_is_summed_at_the_draw_s_bounds_and_divided_by_its_size(
    strict: bool, expected: tuple[float, float]
) -> None:
    run = loop(Turns(), strict=strict)
    run.step(1)
    (update,) = run.updates.optimizer.seen  # type: ignore[attr-defined]
    assert update[:2].tolist() == pytest.approx(expected, rel=1e-4)
    assert update[2:].abs().max() < 1e-9


def test_the_noise_is_the_draw_s_whoever_takes_part() -> None:
    run = loop(Turns(noise_stddev=400.0))
    for _ in range(200):
        run.step(200)
    seen = torch.stack(run.updates.optimizer.seen)  # type: ignore[attr-defined]
    assert float(seen.std()) == pytest.approx(100.0, rel=5 / (2 * seen.numel()) ** 0.5)


def test_progress_is_public_and_counts_updates() -> None:
    run, told = loop(Turns()), list[Progress]()
    run.callbacks = (told.append,)
    last = [run.step(5) for _ in range(5)]
    assert told == last
    assert [(p.step, p.steps, p.stage) for p in told] == [
        (k + 1, 5, k // 2) for k in range(5)
    ]  # fmt: skip
    assert run.step_number == 5


def test_records_that_are_not_finite_are_counted_and_left_out() -> None:
    run = loop(Turns())
    broken = INPUTS.clone()
    broken[1] = torch.nan
    run.sums.source = source_of((broken, torch.zeros(SIZE)))
    run.step(1)
    assert run.rejected == 1
    assert bool(torch.isfinite(run.sums.model.weight).all())  # type: ignore[arg-type]


def test_after_a_torn_update_nothing_more_is_made() -> None:
    run = loop(Turns())
    step = run.updates.optimizer.step
    run.updates.optimizer.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.step(2)
    run.updates.optimizer.step = step  # type: ignore[method-assign]
    with pytest.raises(StateError, match="interrupted half-way"):
        run.step(2)
    assert run.step_number == 0


def interrupted() -> None:
    raise KeyboardInterrupt


class Hoarder(nn.Linear):
    """A model that keeps what it saw of the records, past clipping and noise."""

    def __init__(self) -> None:
        super().__init__(SIZE, 1, bias=False)
        self.register_buffer("kept", torch.zeros(SIZE))
        self.patient = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.patient:
            self.kept = x.detach().sum(0)
        return super().forward(x)


def test_what_the_model_keeps_of_a_record_goes_with_its_copy() -> None:
    model = Hoarder()
    run = loop(Turns(), model=model)
    run.step(3)
    model.patient = False
    before = model.weight.detach().clone()
    with pytest.warns(SlowPathWarning, match="kept: changes in a forward"):
        run.step(3)
    assert not torch.equal(model.weight, before)
    assert float(model.kept.abs().sum()) == 0  # type: ignore[operator]
