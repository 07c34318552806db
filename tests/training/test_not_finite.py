"""Rows that are not finite cost no more than others: values decide nothing."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from apiece import Budgets, Scale, Trainer, assign
from apiece.training import clip_and_sum

from .clipping.test_front import runs_of

SIZE, STEPS = 16, 20
LOSS = nn.CrossEntropyLoss(reduction="none")
PLAN = assign(Budgets([8.0] * 40, 1e-3), Scale(), steps=STEPS, expected_batch_size=16, clip_norm=1)


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x)
        return out


def batch(seed: int, size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def one_nan(x: torch.Tensor) -> None:
    x[7, 2] = torch.nan


def a_fifth(x: torch.Tensor) -> None:
    x[::5] = torch.nan


def most(x: torch.Tensor) -> None:
    x[3:] = torch.nan


def all_nan(x: torch.Tensor) -> None:
    x[:] = torch.nan


def infinite(x: torch.Tensor) -> None:
    x[1::4, 0] = torch.inf


def past_the_range(x: torch.Tensor) -> None:
    x[::3] = 3e38  # finite, and its gradient is not


SPOILS: dict[str, Callable[[torch.Tensor], None]] = {
    "one": one_nan,
    "a fifth": a_fifth,
    "most": most,
    "all": all_nan,
    "infinite": infinite,
    "past the range": past_the_range,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_after_the_first_batches_a_spoilt_one_is_run_no_oftener_than_a_clean_one(
    spoil: Callable[[torch.Tensor], None],
) -> None:
    runs = []
    for spoilt in (False, True):
        torch.manual_seed(0)
        model = Network()
        count = 0
        for seed in range(STEPS):
            x, y = batch(seed)
            if spoilt:
                spoil(x)
            count += runs_of(Network.forward, functools.partial(clip_and_sum, model, LOSS, x, y, 1))
        runs.append(count)
    clean, with_them = runs
    assert with_them == clean == 2  # for the captures


# Nightly the others; persons' rows are joined before the same comparison.
QUICK = {False: ("one", "infinite", "most"), True: ("one", "past the range")}
CASES = [
    pytest.param(
        name,
        persons,
        marks=[] if name in QUICK[persons] else [pytest.mark.slow],
        id=f"{'persons' if persons else 'rows'}-{name}",
    )
    for persons in (False, True)
    for name in SPOILS
]


@pytest.mark.parametrize(("name", "persons"), CASES)
def test_the_others_are_summed_as_if_alone(name: str, persons: bool) -> None:
    spoil = SPOILS[name]
    people = torch.arange(SIZE) // 2 if persons else None
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    for seed in range(2):
        x, y = batch(seed)
        spoil(x)
        total = clip_and_sum(model, LOSS, x, y, 0.5, people=people)
        good = torch.isfinite(total.norms)
        rows = good if people is None else good[people]
        assert total.rejected == int((~good).sum()) > 0
        if not bool(rows.any()):
            assert all(not g.any() for g in total.gradients.values())
            continue
        whose = None if people is None else people[rows]
        alone = clip_and_sum(model, LOSS, x[rows], y[rows], 0.5, method="alone", people=whose)
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(total.gradients[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spoil", [a_fifth, most])
def test_a_trainer_does_as_with_finite_rows(
    spoil: Callable[[torch.Tensor], None],
) -> None:
    proofs = []
    for spoilt in (False, True):
        torch.manual_seed(0)
        model, (x, y) = Network(), batch(0, 40)
        if spoilt:
            spoil(x)
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = Trainer(model, sgd, LOSS, PLAN, (x, y), seed=3)
        trainer.fit()
        proofs.append(trainer.proof)
        assert (trainer.rejected > 0) == spoilt
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert proofs[0] == proofs[1]


class Spreads(nn.Module):
    """A network in which one record's NaN reaches all others, and nothing else does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + 0 * x.sum()
        return out


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
def test_a_model_in_which_one_nan_reaches_the_others_is_no_way_around() -> None:
    torch.manual_seed(0)
    model = Spreads()
    x, y = batch(0)
    one_nan(x)
    try:
        total = clip_and_sum(model, LOSS, x, y, 1.0)
    except ValueError:
        return  # refused; or each record was alone:
    assert total.rejected == 1
