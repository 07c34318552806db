"""Every form of contribution against the gradients that it stands for."""

import pytest
import torch

from apiece.training.clipping.contributions import (
    Lookups,
    Outer,
    Products,
    Rows,
    Slices,
    in_parts,
    join,
    lookups,
    products,
)

B = 5


def draw(*shape):
    return torch.randn(B, *shape)


def forms():
    torch.manual_seed(0)
    left, right = draw(3, 4), draw(3, 6)
    many = draw(30, 4), draw(30, 6)
    index = torch.randint(0, 4, (B, 7))
    gradients = draw(3, 4)
    return {
        "rows": (Rows(gradients), gradients),
        "slices": (Slices((gradients[:2], gradients[2:])), gradients),
        "outer": (Outer(left[:, 0], right[:, 0]), left[:, 0, :, None] * right[:, 0, None]),
        "few places": (Products(left, right), torch.einsum("bto,bti->boi", left, right)),
        "many places": (Products(*many), torch.einsum("bto,bti->boi", *many)),
        "lookups": (
            Lookups(index, value := draw(7, 4), 4),
            torch.einsum("btr,btd->brd", torch.eye(4)[index], value),
        ),
    }


@pytest.mark.parametrize("name", forms())
def test_stands_for_its_gradients(name):
    part, exact = forms()[name]
    exact = exact.double()
    squares = exact.flatten(1).square().sum(1)
    torch.testing.assert_close(part.per_record().double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(part.squares().double(), squares, rtol=2e-4, atol=1e-5)
    assert bool((part.squares().double() >= squares * (1 - 2.0**-18)).all())
    weights = torch.rand(B)
    total = torch.einsum("b,b...->...", weights.double(), exact)
    torch.testing.assert_close(part.weighted(weights).double(), total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", forms())
def test_without_records_that_are_not_finite(name):
    part, _ = forms()[name]
    broken = torch.tensor([False, True, False, True, False])
    for field in ("gradients", "parts", "left"):
        if hasattr(part, field):
            tensors = getattr(part, field)
            for tensor in tensors if isinstance(tensors, tuple) else [tensors]:
                tensor[broken[: len(tensor)]] = torch.nan
    if name == "slices":
        part = Slices((part.parts[0], torch.where(broken[2:].view(-1, 1, 1), torch.nan,
                                                  part.parts[1])))  # fmt: skip
    kept = part.without(broken)
    assert bool(torch.isfinite(kept.weighted(torch.ones(B))).all())
    assert not kept.per_record()[1].any()


def test_the_cheaper_form_is_taken():
    assert isinstance(products(draw(3, 40), draw(3, 30)), Products)
    assert isinstance(products(draw(50, 4), draw(50, 3)), Rows)


def test_parts_are_the_whole(monkeypatch):
    left, right = draw(3, 40), draw(3, 30)
    whole = Products(left, right).squares()
    monkeypatch.setattr("apiece.training.clipping.contributions._CELLS", 18)
    torch.testing.assert_close(Products(left, right).squares(), whole)
    assert in_parts(lambda a, b: a.sum((1, 2)), left, right, 9).shape == (B,)


@pytest.mark.parametrize("name", ["outer", "few places", "rows"])
def test_joined_parts_have_their_cross_terms(name):
    part, exact = forms()[name]
    twice = join([part, part])
    torch.testing.assert_close(twice.squares(), (2 * exact).flatten(1).square().sum(1),
                               rtol=2e-4, atol=1e-5)  # fmt: skip
    opposite = Rows(-part.per_record())
    assert float(join([part, opposite]).squares().max()) < 1e-4
    assert join([part]) is part


@pytest.mark.parametrize(
    ("size", "places", "kind"), [(4, 9, Rows), (4, 3, Lookups), (500, 9, Lookups)]
)
def test_a_small_table_looked_up_often_is_made_for_each_record(size, places, kind):
    torch.manual_seed(0)
    index, left = torch.randint(0, size, (B, places)), draw(places, 4)
    found, form = lookups(index, left, size), Lookups(index, left, size)
    assert isinstance(found, kind)
    torch.testing.assert_close(found.per_record(), form.per_record())
    torch.testing.assert_close(found.squares(), form.squares(), rtol=1e-4, atol=1e-5)
    weights = torch.rand(B)
    torch.testing.assert_close(found.weighted(weights), form.weighted(weights))
