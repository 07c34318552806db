"""A contribution by person is what its rows' gradients add up to, whatever form they have."""

import pytest
import torch

from apiece.training.clipping.contributions import Lookups, Outer, Products, Rows
from apiece.training.clipping.convolution import Convolution, Kernel
from apiece.training.clipping.joined import Joined, Persons, outer_squares
from apiece.training.clipping.records import clip_factors

COUNTS = torch.tensor([3, 1, 5, 1, 16, 17, 2, 40, 15, 1])
OWNER = torch.repeat_interleave(torch.arange(len(COUNTS)), COUNTS)


def parts():
    torch.manual_seed(0)
    many = len(OWNER)
    yield "rows", Rows(torch.randn(many, 3, 2))
    yield "outer", Outer(torch.randn(many, 3), torch.randn(many, 4))
    yield "products", Products(torch.randn(many, 2, 3), torch.randn(many, 2, 4))
    yield "products made again", Products(torch.randn(many, 9, 3), torch.randn(many, 9, 4))
    conv = Kernel((3, 2, 2, 2), (1, 1), (0, 0), (1, 1), 1)
    images = torch.randn(many, 2, 4, 4), torch.randn(many, 3, 3, 3)
    yield "convolution", Convolution(conv, *images)
    yield "lookups", Lookups(torch.randint(0, 5, (many, 3)), torch.randn(many, 3, 4), 5)
    yield "rare lookups", Lookups(torch.randint(0, 500, (many, 3)), torch.randn(many, 3, 4), 500)


@pytest.mark.parametrize(("name", "part"), list(parts()))
def test_squares_sums_and_what_is_left_out(name: str, part) -> None:
    joined = Joined(part, Persons(OWNER))
    each = part.per_record()
    total = torch.stack([each[p == OWNER].sum(0) for p in range(len(COUNTS))])
    squares = total.flatten(1).square().sum(1)
    assert torch.allclose(joined.squares(), squares, rtol=1e-3)
    assert (joined.squares() >= squares * (1 - 1e-6)).all()
    weights = torch.linspace(0, 2, len(COUNTS))
    asked = (weights.view(-1, *[1] * (total.dim() - 1)) * total).sum(0)
    assert torch.allclose(joined.weighted_sum(weights), asked, atol=1e-4)
    bad = torch.arange(len(COUNTS)) % 3 == 1
    less = joined.without(bad).squares()
    assert (less[bad] < 1e-12).all()
    assert torch.allclose(less[~bad], squares[~bad], rtol=1e-3)


@pytest.mark.parametrize(("name", "part"), list(parts()))
def test_rows_that_cancel_leave_room_for_the_sum(name: str, part) -> None:
    """Twice the rows, each with its negative: the sum is round-off, and below the norm."""
    if name in ("slices", "convolution"):
        pytest.skip("made of others here")
    both = torch.repeat_interleave(torch.arange(len(OWNER)), 2)
    sign = torch.tensor([1.0, -1.0]).repeat(len(OWNER)) * 1e6
    values = {k: getattr(part, k) for k in part.__slots__}
    first = "gradients" if name == "rows" else "left"
    values = {k: v[both] if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    values[first] = values[first] * sign.view(-1, *[1] * (values[first].dim() - 1))
    owner = OWNER[both]
    joined = Joined(type(part)(**values), Persons(owner))
    norms = joined.squares().sqrt()
    for person in range(len(COUNTS)):
        alone = (torch.arange(len(COUNTS)) == person).float() / 3
        assert joined.weighted_sum(alone).norm() * 3 <= norms[person] * (1 + 1e-6)


@pytest.mark.parametrize(("name", "part"), list(parts()))
def test_round_off_of_rows_that_nearly_cancel_is_not_scaled_up(name: str, part) -> None:
    """A row's last bits change with who else is in the batch; nobody's share does by much."""
    if name in ("slices", "convolution"):
        pytest.skip("made of others here")
    both = torch.repeat_interleave(torch.arange(len(OWNER)), 2)
    owner = torch.arange(len(OWNER)).repeat_interleave(2)  # each pair is a person
    sign = torch.tensor([1.0, -1.0 - 2.0**-15]).repeat(len(OWNER))
    first = "gradients" if name == "rows" else "left"
    values = {k: getattr(part, k) for k in part.__slots__}
    values = {k: v[both] if isinstance(v, torch.Tensor) else v for k, v in values.items()}

    def shares(bits: torch.Tensor) -> torch.Tensor:
        """Return each person's part of the clipped sum, with other last bits of the rows."""
        rows = values[first] * (sign * (1 + bits)).view(-1, *[1] * (values[first].dim() - 1))
        joined = Joined(type(part)(**(values | {first: rows})), Persons(owner))
        factors = clip_factors(joined.squares().sqrt(), torch.full((len(OWNER),), 1e-6))
        alone = torch.eye(len(OWNER)) * factors
        return torch.stack([joined.weighted_sum(weights).flatten() for weights in alone])

    torch.manual_seed(1)
    other = 2.0**-22 * torch.randint(-1, 2, (len(both),))
    moved = (shares(other) - shares(torch.zeros(len(both)))).norm(dim=1)
    assert float(moved.max()) <= 2.0**-10 * 1e-6


def test_neighbours_and_persons_of_many_rows_give_the_same() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(len(OWNER), 3).double(), torch.randn(len(OWNER), 4).double()
    each = left.unsqueeze(2) * right.unsqueeze(1)
    alone = torch.stack([each[p == OWNER].sum(0).square().sum() for p in range(len(COUNTS))])
    assert torch.allclose(outer_squares(left, right, Persons(OWNER)), alone)


def test_what_is_not_finite_stays_with_its_person() -> None:
    left, right = torch.ones(len(OWNER), 3), torch.ones(len(OWNER), 4)
    left[4] = torch.nan
    found = outer_squares(left, right, Persons(OWNER))
    assert torch.isnan(found).tolist() == [p == int(OWNER[4]) for p in range(len(COUNTS))]


def test_persons_alike_have_at_most_half_filled_up() -> None:
    owner = torch.repeat_interleave(torch.arange(40), torch.arange(1, 41))
    persons = Persons(owner)
    for groups, least in [(persons.groups, 1), (persons.groups_of_long, 17)]:
        seen = []
        for group in groups:
            assert group.is_row.sum() > group.is_row.numel() / 2
            people = zip(group.persons.tolist(), group.rows, group.is_row, strict=True)
            for person, rows, shown in people:
                assert (owner[rows] == person).all()
                assert rows[shown].tolist() == (owner == person).nonzero().squeeze(1).tolist()
                seen.append(person)
        assert sorted(seen) == list(range(least - 1, 40))
