"""Sums over any records: the loop's own, whatever the width; randomness of their own, and kept."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import InputError, StateError, UnsupportedError
from apiece.training.sources import source_of
from apiece.training.sums import Sums

N = 11
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
LOSS = nn.CrossEntropyLoss(reduction="none")


def sums(*layers: nn.Module, width: int | None = None) -> Sums:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *layers, nn.Linear(5, 2))
    return Sums(model, LOSS, source_of((X, Y)), width=width)


def one_by_one(model: nn.Module, records: np.ndarray, bounds: np.ndarray) -> list[torch.Tensor]:
    exact = [p.detach().double() for p in model.parameters()]
    double = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    for own, value in zip(double.parameters(), exact, strict=True):
        own.data.copy_(value)
    total = [torch.zeros_like(p) for p in exact]
    for i, bound in zip(records, bounds, strict=True):
        loss = LOSS(double(X[i : i + 1].double()), Y[i : i + 1]).sum()
        found = torch.autograd.grad(loss, list(double.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in found))  # type: ignore[arg-type]
        for part, g in zip(total, found, strict=True):
            part += g * min(1.0, float(bound / norm))
    return total


@pytest.mark.parametrize("width", [1, 3, None])
@pytest.mark.parametrize("records", [[4], [0, 1, 2, 7, 8, 9, 10], [9, 2, 5], list(range(N))])
def test_equals_one_record_at_a_time(width: int | None, records: list[int]) -> None:
    of, index = sums(width=width), np.array(records)
    bounds = np.linspace(0.1, 2.0, index.size)
    found = of.over(index, bounds, seed=0)
    expected = one_by_one(of.model, index, bounds)
    for value, other in zip(found.gradients.values(), expected, strict=True):
        torch.testing.assert_close(value.double(), other, rtol=1e-4, atol=5e-6)
    assert len(found) == index.size
    assert np.array_equal(found.clip_norms.numpy(), bounds)


def test_the_sum_over_nobody_is_zero() -> None:
    nothing = sums().over(np.arange(0), np.ones(0), seed=0)
    assert len(nothing) == 0
    assert all(not bool(value.any()) for value in nothing.gradients.values())


def test_a_pass_is_a_function_of_its_seed_and_leaves_torch_s_generators_alone() -> None:
    of, index, bounds = sums(nn.Dropout(0.5)), np.arange(N), np.ones(N)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    first, again, other = (of.over(index, bounds, seed).gradients["0.weight"] for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_other_parameters_are_noticed() -> None:
    of = sums()
    of.check_parameters()
    of.model[0].bias.requires_grad_(False)  # type: ignore[index]
    with pytest.raises(StateError, match="no longer trainable"):
        of.check_parameters()


def test_models_that_cannot_be_clipped_are_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="mixes the records"):
        sums(nn.BatchNorm1d(5))
    with pytest.raises(InputError, match="no trainable parameter"):
        Sums(nn.ReLU(), LOSS, source_of((X, Y)))
