"""A contribution by person is what its rows' gradients add up to, whatever form they have."""

import pytest
import torch

from apiece.training.clipping.rules.contributions import Lookups, Outer, Products, Rows, Slices
from apiece.training.clipping.rules.joined import Joined, alike

OWNER = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2, 3])


def parts():
    torch.manual_seed(0)
    many = len(OWNER)
    yield "rows", Rows(torch.randn(many, 3, 2))
    yield "slices", Slices((torch.randn(4, 5), torch.randn(many - 4, 5)))
    yield "outer", Outer(torch.randn(many, 3), torch.randn(many, 4))
    yield "products", Products(torch.randn(many, 2, 3), torch.randn(many, 2, 4))
    yield "lookups", Lookups(torch.randint(0, 5, (many, 3)), torch.randn(many, 3, 4), 5)


@pytest.mark.parametrize(("name", "part"), list(parts()))
def test_squares_sums_and_what_is_left_out(name: str, part) -> None:
    joined = Joined(part, OWNER, alike(OWNER))
    each = part.per_record()
    total = torch.stack([each[p == OWNER].sum(0) for p in range(4)])
    squares = total.flatten(1).square().sum(1)
    assert torch.allclose(joined.per_record(), total, atol=1e-5)
    assert torch.allclose(joined.squares(), squares, rtol=1e-3)
    assert (joined.squares() >= squares * (1 - 1e-6)).all()
    assert torch.allclose(joined.smooth_squares(), squares, rtol=1e-5)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0])
    asked = (weights.view(-1, *[1] * (total.dim() - 1)) * total).sum(0)
    assert torch.allclose(joined.weighted(weights), asked, atol=1e-5)
    less = joined.without(torch.tensor([False, True, False, False]))
    assert less.squares()[1] < 1e-12
    assert torch.allclose(less.squares()[[0, 2, 3]], squares[[0, 2, 3]], rtol=1e-3)


def test_persons_alike_have_at_most_half_filled_up() -> None:
    owner = torch.repeat_interleave(torch.arange(40), torch.arange(1, 41))
    seen = []
    for persons, index, there in alike(owner):
        assert there.sum() > there.numel() / 2
        for person, rows, shown in zip(persons.tolist(), index, there, strict=True):
            assert (owner[rows] == person).all()
            assert rows[shown].tolist() == (owner == person).nonzero().squeeze(1).tolist()
            seen.append(person)
    assert sorted(seen) == list(range(40))
