"""Products by tensor cores: emulated on a processor, with all that such cores may lose."""

import pytest
import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping import narrow
from apiece.training.clipping.contributions import Products
from apiece.training.clipping.narrow import NarrowProducts

LOST = 2.0**-22


def narrow_rows(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def truncate(left, right):
    """Multiply as the worst of tensor cores: each sum loses a unit of 2⁻²² of what it has."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    sizes = torch.zeros_like(total)
    for k in range(left.shape[-1]):
        term = left[..., :, k : k + 1].double() * right[..., k : k + 1, :].double()
        sizes += term.abs()
        total += term
        total -= LOST * total.abs() * total.sign()  # toward zero
    return total.float()


@pytest.fixture
def cores(monkeypatch):
    """Let processors be tensor cores that truncate."""

    def are_narrow(*tensors):
        return all(tensor.dtype == torch.bfloat16 for tensor in tensors)

    monkeypatch.setattr(narrow, "on_tensor_cores", are_narrow)
    monkeypatch.setattr(narrow, "multiply", truncate)


def test_three_parts_are_the_number():
    values = torch.randn(1000) * torch.logspace(-20, 20, 1000)
    parts = narrow.split(values)
    total = sum(part.double() for part in parts)
    assert [part.dtype for part in parts] == [torch.bfloat16] * 3
    assert bool(((total - values.double()).abs() <= 2.0**-24 * values.double().abs()).all())
    two = sum(part.double() for part in parts[:2])  # would not do
    assert not bool(((two - values.double()).abs() <= 2.0**-24 * values.double().abs()).all())


@pytest.mark.parametrize("sizes", [(40, 6, 5), (3, 40, 40), (1, 8, 8)])
def test_norms_are_never_below_the_true_ones(cores, sizes):
    positions, out, into = sizes
    left = narrow_rows(6, positions, out)
    right = narrow_rows(6, positions, into, seed=1)
    right[0, 1:] = right[0, :1]  # positions that cancel: the norm is small, and what is lost is not
    left[0, 1:] = -left[0, :1] / max(1, positions - 1)
    true = (left.double().mT @ right.double()).flatten(1).norm(dim=1)
    found = NarrowProducts(left, right).squares().double().sqrt()
    assert bool((found >= true * (1 - 2.0**-22)).all())
    assert bool((found[1:] <= true[1:] * (1 + 2.0**-10)).all())


def test_norms_without_room_would_lie_below(cores, monkeypatch):
    """The planted twin: what cores lose is seen where no room is left for it."""
    left, right = narrow_rows(6, 400, 6).abs(), narrow_rows(6, 400, 5, seed=1).abs()
    true = (left.double().mT @ right.double()).flatten(1).norm(dim=1)
    monkeypatch.setattr(narrow, "_TRUNCATION", 0.0)
    found = NarrowProducts(left, right).squares().double().sqrt()
    assert bool((found < true * (1 - 2.0**-17)).all())  # more than the room under a bound


@pytest.mark.parametrize("sizes", [(32, 6, 5), (32, 5, 6), (1, 6, 5)])
def test_sums_are_as_near_as_in_single_precision(cores, sizes):
    positions, out, into = sizes
    left, right = narrow_rows(24, positions, out), narrow_rows(24, positions, into, seed=1)
    weights = torch.rand(24)
    found = NarrowProducts(left, right).weighted_sum(weights).double()
    scaled = left.double() * weights.double().view(-1, 1, 1)
    true = torch.einsum("bto,bti->oi", scaled, right.double())
    sizes = torch.einsum("bto,bti->oi", scaled.abs(), right.double().abs())
    terms = 24 * positions
    assert bool(((found - true).abs() <= (terms / 8 * LOST + 26 * 2.0**-24) * sizes).all())
    assert terms <= 52 or terms / 8 * LOST + 26 * 2.0**-24 <= terms * 2.0**-24


def test_records_that_are_left_out_and_gradients_one_by_one():
    left, right = narrow_rows(4, 3, 5), narrow_rows(4, 3, 2, seed=1)
    part, wide = NarrowProducts(left, right), Products(left.float(), right.float())
    assert part.shape == wide.shape
    assert torch.equal(part.per_record(), wide.per_record())
    left[1] = torch.nan
    dropped = part.without(torch.tensor([False, True, False, False]))
    total = dropped.weighted_sum(torch.ones(4))
    assert torch.allclose(total, wide.per_record()[[0, 2, 3]].sum(0), atol=1e-5)


class Sequence(nn.Module):
    """Layers over positions, one of them used twice, and a readout of one position a record."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(6, 8)
        self.between = nn.Linear(8, 8)
        self.readout = nn.Linear(8, 1)

    def forward(self, x):
        x = self.between(self.into(x).tanh()).tanh()
        return self.readout(self.between(x).mean(1))


def squares(out, y):
    return (out.squeeze(1) - y).float().square()


@pytest.mark.parametrize("people", [None, torch.tensor([0, 0, 1, 2, 2, 2, 3, 4])])
def test_a_model_in_bf16_is_clipped_as_ever(cores, monkeypatch, people):
    torch.manual_seed(3)
    model = Sequence().bfloat16()
    x, y = torch.randn(8, 12, 6).bfloat16(), torch.randn(8).bfloat16()
    used = []
    real = NarrowProducts.weighted_sum
    monkeypatch.setattr(NarrowProducts, "weighted_sum", lambda *args: used.append(1) or real(*args))
    found = clip_and_sum(model, squares, x, y, 0.05, method="proved", people=people)
    assert bool(used) == (people is None)  # the products between a person's rows are made wide
    monkeypatch.setattr(narrow, "on_tensor_cores", lambda *_: False)
    wide = clip_and_sum(model, squares, x, y, 0.05, method="proved", people=people)
    for name, gradient in found.gradients.items():
        assert torch.allclose(gradient, wide.gradients[name], rtol=1e-3, atol=1e-5), name
    assert bool((found.norms >= wide.norms * (1 - 1e-5)).all())
