"""The average is that of the parameters that were there, and nothing else."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError
from apiece.recipes.recipe import WeightAverage
from apiece.training import Progress


def feed(average: WeightAverage, model: nn.Linear, values: list[float]) -> None:
    for step, value in enumerate(values, 1):
        with torch.no_grad():
            model.weight.fill_(value)
        average(Progress(step=step, steps=99, stage=0, seconds=0.0, learning_rate=1.0))


def test_the_first_steps_are_averaged_evenly_and_later_ones_decay() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.75)
    feed(average, model, [0.0, 4.0, 8.0, 12.0])
    average.put()
    assert model.weight.item() == pytest.approx(6.0)
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.5)
    feed(average, model, [0.0, 4.0, 8.0])
    average.put()
    assert model.weight.item() == pytest.approx(5.0)


def test_without_a_step_nothing_is_put() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    WeightAverage(model, 0.9).put()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_bad_decays_are_refused(decay: float) -> None:
    with pytest.raises(InputError, match="decay"):
        WeightAverage(nn.Linear(1, 1), decay)
