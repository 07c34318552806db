"""Small gradients side by side have the norms and sums that they have one by one."""

import pytest
import torch

from apiece.training.clipping.paths.beside import ALL, apart, together
from apiece.training.clipping.rules import Outer, Rows

SIZE = 6


def several(**more):
    torch.manual_seed(0)
    return {
        "bias": Rows(torch.randn(SIZE, 3)),
        "large": Rows(torch.randn(SIZE, 5000)),
        "scale": Rows(torch.randn(SIZE)),
        "place": Rows(torch.randn(SIZE, 2, 4)),
        "layer": Outer(torch.randn(SIZE, 3), torch.randn(SIZE, 2)),
    } | more


@pytest.mark.parametrize("left_out", [None, 2])
def test_norms_and_sums_are_those_of_each(left_out):
    named = several()
    found, shapes = together(named)
    assert found.keys() == {"large", "layer", ALL}
    if left_out is not None:
        bad = torch.arange(SIZE) == left_out
        named = {name: part.without(bad) for name, part in named.items()}
        found = {name: part.without(bad) for name, part in found.items()}
    squares = sum(part.squares() for part in named.values())
    torch.testing.assert_close(sum(part.squares() for part in found.values()), squares)
    weights = torch.rand(SIZE)
    for name, total in apart(found[ALL].weighted(weights), shapes).items():
        torch.testing.assert_close(total, named[name].weighted(weights))


def test_one_alone_and_other_types_stay():
    assert together({"bias": several()["bias"]})[1] == {}
    found, shapes = together(several(double=Rows(torch.randn(SIZE, 2).double())))
    assert "double" in found
    assert shapes.keys() == {"bias", "scale", "place"}
