"""Packed sequences: exact where it is known whose each row is, and refused where it is not.

Without looks, in batches where the number of rows is right whoever they are.
"""

import warnings

import pytest
import torch
from torch import nn

from apiece.training.clipping import clip_and_sum
from apiece.training.clipping.paths import bookkeeping
from apiece.training.clipping.paths.functional import clip_one_by_one
from apiece.training.clipping.paths.packing import Packing
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.rule import NotBookable
from apiece.training.clipping.selection import paths_of

B, T, D, H = 6, 5, 3, 2
ODD, ONES = torch.tensor([2, 5, 1, 3, 5, 4]), torch.ones(B, dtype=torch.long)
FALLING = torch.tensor([5, 4, 4, 2, 1, 1])
utils = nn.utils.rnn


def pack(x, n, **options):
    return utils.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False, **options)


def unpack(rows):
    return utils.pad_packed_sequence(rows, batch_first=True)


def mean(m, x, n):
    out, found = unpack(m.layer(pack(x, n))[0])
    mask = torch.arange(out.shape[1]) < found.unsqueeze(1)
    return (m.head(out).sum(2) * mask).sum(1) / found


def falling(m, x, n):
    n = n.sort(descending=True).values
    return m.layer(utils.pack_padded_sequence(x, n, batch_first=True))[1].sum((0, 2))


def longer(m, x, n):
    out, _ = utils.pad_packed_sequence(m.layer(pack(x, n))[0], batch_first=True, total_length=T + 2)
    return m.head(out).sum((1, 2))


KEPT = {
    "last states": lambda m, x, n: m.layer(pack(x, n))[1].sum((0, 2)),
    "a layer on the last states": lambda m, x, n: m.head(m.layer(pack(x, n))[1][-1]).sum(1),
    "outputs, padded again": lambda m, x, n: unpack(m.layer(pack(x, n))[0])[0].sum((1, 2)),
    "a layer on the outputs": mean,
    "one on the other": lambda m, x, n: m.above(m.layer(pack(x, n))[0])[1].sum((0, 2)),
    "sorted by the caller": falling,
    "padded to a length": longer,
    "used twice": lambda m, x, n: (
        m.layer(pack(x, n))[1].sum((0, 2)) + m.layer(pack(x * 2, n))[1].sum((0, 2))
    ),
    "beside padded ones": lambda m, x, n: (
        m.layer(pack(x, n))[1].sum((0, 2)) + m.layer(x)[0].sum((1, 2))
    ),
}


def in_place(m, x, n):
    rows = pack(x, n)
    rows.data.copy_(rows.data.flip(0))
    return m.layer(rows)[1].sum((0, 2))


def sorted_in_place(m, x, n):
    order = n.argsort(descending=True)
    turned = x.index_select(0, order)
    turned.copy_(x)
    rows = utils.pack_padded_sequence(turned, n[order], batch_first=True)
    back = order.argsort()
    return m.layer(rows._replace(sorted_indices=order, unsorted_indices=back))[1].sum((0, 2))


def turned_twice(m, x, n):
    order = n.argsort(descending=True)
    rows = utils.pack_padded_sequence(x[order][order], n[order], batch_first=True)
    back = order.argsort()
    return m.layer(rows._replace(sorted_indices=order, unsorted_indices=back))[1].sum((0, 2))


def other_sizes(m, x, n):
    rows = pack(x, n)
    return m.layer(rows._replace(batch_sizes=rows.batch_sizes.flip(0)))[1].sum((0, 2))


def turned_before(m, x, n):
    return m.layer(pack(x[n.argsort()], n))[1].sum((0, 2))


def wrongly_back(m, x, n):
    rows = pack(x, n)
    out, _ = unpack(m.layer(rows)[0]._replace(sorted_indices=None, unsorted_indices=None))
    return m.head(out).sum((1, 2))


def without_order(m, x, n):
    rows = pack(x, n)
    return m.layer(rows._replace(sorted_indices=None, unsorted_indices=None))[1].sum((0, 2))


LEFT = {
    "last states of others": without_order,
    "rows in another order": lambda m, x, n: m.layer(
        (lambda p: p._replace(data=p.data.roll(1, 0)))(pack(x, n))
    )[1].sum((0, 2)),
    "a layer on the rows": lambda m, x, n: m.head(m.layer(pack(x, n))[0].data)[:B].sum(1),
    "written in place": in_place,
    "written in place once sorted": sorted_in_place,
    "sorted twice": turned_twice,
    "sorted before": turned_before,
    "outputs of others": wrongly_back,
    "a part of them": lambda m, x, n: m.layer(pack(x[1:], n[1:]))[1].sum((0, 2))[
        torch.arange(B) % (B - 1)
    ],
    "times first": lambda m, x, n: m.layer(
        utils.pack_padded_sequence(x.transpose(0, 1), n, enforce_sorted=False)
    )[1].sum((0, 2)),
    "a state of one's own": lambda m, x, n: m.layer(
        pack(x, n), torch.zeros(1, len(n), H, dtype=x.dtype)
    )[1].sum((0, 2)),
}


class Packs(nn.Module):
    def __init__(self, how, kind=nn.GRU, **options):
        super().__init__()
        self.how, self.layer = how, kind(D, H, batch_first=True, **options)
        wide = H * (1 + bool(options.get("bidirectional")))
        self.head, self.above = nn.Linear(wide, 2), nn.RNN(wide, H)

    def forward(self, x, n):
        return self.how(self, x, n)


def off(model, n):
    """Return by how much the book-kept sum is off the loop's, None where it is refused."""
    x, y = torch.randn(B, T, D).double(), torch.randn(B).double()
    named, bounds = dict(model.named_parameters()), torch.full((B,), 0.1).double()
    batch = Batch(model, named, lambda o, t: (o - t).square(), (x, n), y, bounds)
    try:
        found = bookkeeping.clip_in_parts(batch)
    except NotBookable:
        return None
    wanted = clip_one_by_one(batch)
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-9, atol=0)
    return max(float((found.gradients[k] - g).abs().max()) for k, g in wanted.gradients.items())


@pytest.mark.parametrize("name", KEPT)
def test_what_is_packed_is_book_kept(name):
    torch.manual_seed(0)
    for n in (FALLING,) if name == "sorted by the caller" else (ODD, ONES, FALLING):
        found = off(Packs(KEPT[name]).double(), n)
        assert found is not None
        assert found < 1e-12


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_is_refused(name):
    torch.manual_seed(0)
    for n in (ODD, ONES):
        try:
            found = off(Packs(LEFT[name]).double(), n)
        except (RuntimeError, ValueError):  # torch does not run it
            found = None
        assert found is None or found < 1e-12
    assert found is None or n is ONES


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}, {"bias": False}])
def test_every_kind(kind, options):
    torch.manual_seed(0)
    found = off(Packs(mean, kind, **options).double(), ODD)
    assert found is not None
    assert found < 1e-12


def test_the_front_door_takes_them_without_a_warning():
    torch.manual_seed(0)
    model, loss = Packs(mean, nn.LSTM, bidirectional=True), lambda o, t: (o - t).square()
    x, y = torch.randn(B, T, D), torch.randn(B)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for people in (None, [0, 0, 1, 2, 2, 2]):
            bounds = 0.1 if people is None else torch.full((3,), 0.1)
            found = clip_and_sum(model, loss, (x, ODD), y, bounds, people=people)
            loop = clip_and_sum(model, loss, (x, ODD), y, bounds, people=people, method="loop")
            torch.testing.assert_close(found.norms, loop.norms, rtol=1e-3, atol=1e-6)
    assert "functional" not in {part.path for part in paths_of(model)}


def test_packing_says_whose_each_row_is():
    x = torch.arange(B * T).view(B, T, 1)
    rows = pack(x, ODD)
    found = Packing(rows.batch_sizes, rows.sorted_indices)
    assert torch.equal(found.lengths, ODD)
    there = (torch.arange(T) < ODD.unsqueeze(1)).unsqueeze(2)
    assert torch.equal(found.padded(rows.data), x * there)
    assert found.is_of(rows)
    assert not found.is_of(rows._replace(unsorted_indices=None))
