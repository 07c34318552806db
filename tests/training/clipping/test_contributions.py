"""Every form of contribution against the gradients that it stands for."""

import pytest
import torch
from torch import nn

from apiece.training.clipping import clip_and_sum, contributions, convolution
from apiece.training.clipping.contributions import (
    Lookups,
    Outer,
    Products,
    Rows,
    in_parts,
    join,
    lookups,
    products,
)
from apiece.training.clipping.records import slack

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
    torch.testing.assert_close(part.weighted_sum(weights).double(), total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", forms())
def test_without_records_that_are_not_finite(name):
    part, _ = forms()[name]
    broken = torch.tensor([False, True, False, True, False])
    for field in ("gradients", "left"):
        if hasattr(part, field):
            getattr(part, field)[broken] = torch.nan
    kept = part.without(broken)
    assert bool(torch.isfinite(kept.weighted_sum(torch.ones(B))).all())
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
    torch.testing.assert_close(found.weighted_sum(weights), form.weighted_sum(weights))


ROWS = {
    "constant": lambda n: torch.full((n,), 1.1),
    "one large first": lambda n: torch.cat([torch.full((1,), 1e3), torch.full((n - 1,), 3e-2)]),
    "ramp": lambda n: torch.linspace(1e-3, 1, n),
    "normal": torch.randn,
}


def error(norms, rows):
    return float((norms.double() / rows.double().norm(dim=1) - 1).abs().max())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("width", [1, 128, 257, 36864, 200_003])
def test_norms_are_right_well_within_the_slack(name, width):
    torch.manual_seed(0)
    rows = torch.stack([ROWS[name](width)] * 2)
    assert error(contributions.row_squares(rows).sqrt(), rows) < slack(torch.float32) / 8


def test_the_plain_norm_would_not_do():
    """Negative control: on one of these rows vector_norm loses more than the slack."""
    off = [
        error(torch.linalg.vector_norm(rows, dim=1), rows)
        for rows in (make(n).repeat(2, 1) for make in ROWS.values() for n in (36864, 1_000_000))
    ]
    assert max(off) > slack(torch.float32)


LAYERS = 6


def deep(kind):
    """Return layers of whose per-record gradients the keeping is asked, and records for them."""
    torch.manual_seed(0)
    if kind == "convolutions":
        layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(LAYERS)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 1)), torch.randn(5, 4, 4, 4)
    layers = [nn.Linear(6, 6) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(120, 1)), torch.randn(5, 20, 6)


@pytest.mark.parametrize("kind", ["convolutions", "positions"])
def test_no_more_is_kept_than_the_total_and_the_sum_is_the_same(kind, monkeypatch):
    kept, may_keep = [], contributions.may_keep

    def counted(cells, most):
        found = may_keep(cells, most)
        kept.append(cells if found else 0)
        return found

    monkeypatch.setattr(contributions, "may_keep", counted)
    monkeypatch.setattr(convolution, "may_keep", counted)
    model, x = deep(kind)
    loss = lambda out, y: (out[:, 0] - y).square()  # noqa: E731

    def summed(total):
        monkeypatch.setattr(contributions, "TOTAL", total)
        kept.clear()
        found = clip_and_sum(model, loss, x, torch.ones(5), 0.01)
        return sum(kept[-LAYERS:]), found.gradients

    everything, wanted = summed(1 << 26)
    some, part = summed(everything // 2)
    nothing, none = summed(0)
    assert everything // 2 >= some > nothing == 0
    for name, value in wanted.items():
        assert torch.allclose(part[name], value, rtol=1e-4, atol=1e-7)
        assert torch.allclose(none[name], value, rtol=1e-4, atol=1e-7)


def test_without_a_step_only_a_layer_s_own_limit_counts():
    assert contributions.may_keep(10, 10)
    assert not contributions.may_keep(11, 10)
