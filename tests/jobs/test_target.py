"""What a model predicts: declared classes, or a number in a declared range."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from apiece.datasets import Numeric
from apiece.errors import InputError
from apiece.jobs.model import Amount, Classes


@pytest.mark.parametrize("names", [(), ("a",), ("a", "a")])
def test_there_are_two_classes_at_least(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="at least two"):
        Classes(names)


def test_each_record_has_its_own_loss() -> None:
    outputs = torch.randn(5, 3)
    labels = torch.tensor([0, 1, 2, 0, 1])
    found = Classes(("a", "b", "c")).loss(outputs, labels)
    alone = [float(functional.cross_entropy(outputs[i], labels[i])) for i in range(5)]
    assert found.tolist() == pytest.approx(alone)
    one = Amount(Numeric(0, 1)).loss(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]))
    assert one.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (16.0, 90.0), (0.0, 1e5)])
def test_a_number_comes_back(scale: str, lower: float, upper: float) -> None:
    amount = Amount(Numeric(lower, upper, scale))  # type: ignore[arg-type]
    values = np.linspace(lower, upper, 50)
    assert amount.decode(amount.encode(values)) == pytest.approx(values, rel=1e-4, abs=1e-4)


def test_what_lies_outside_is_the_nearest_end() -> None:
    amount = Amount(Numeric(0, 10))
    assert amount.encode(np.array([-1e9, 1e9, 5.0])).flatten().tolist() == [-1, 1, 0]
    assert amount.decode(torch.tensor([[-9.0], [9.0]])).tolist() == [0, 10]
    assert torch.isnan(amount.encode(np.array([np.nan, np.inf, -np.inf]))).all()
