"""The average is that of the parameters that were there, and nothing else."""

import pytest
import torch
from torch import nn

from apiece.recipes.recipe import make_average


def averaged(decay: float, values: list[float]) -> float:
    """The average of a parameter that has these values, one a step."""
    model = nn.Linear(1, 1, bias=False)
    average = make_average(model, decay)
    for value in values:
        with torch.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
    assert model.weight.item() == values[-1]
    return float(average.module.weight.item())


def test_the_first_steps_are_averaged_evenly_and_later_ones_decay() -> None:
    assert averaged(0.75, [0.0, 4.0, 8.0, 12.0]) == pytest.approx(6.0)
    assert averaged(0.5, [0.0, 4.0, 8.0]) == pytest.approx(5.0)


def test_without_a_step_the_average_is_the_model() -> None:
    model = nn.Linear(2, 2)
    assert torch.equal(make_average(model, 0.9).module.weight, model.weight)
