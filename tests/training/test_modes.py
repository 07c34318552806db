"""A model is evaluated, and left as it was."""

import pytest
from torch import nn

from apiece.training.modes import evaluating


def test_every_part_goes_back_to_its_own_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    before = [part.training for part in model.modules()]
    assert len(set(before)) == 2
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == before
    with pytest.raises(ZeroDivisionError), evaluating(model):
        raise ZeroDivisionError
    assert [part.training for part in model.modules()] == before
