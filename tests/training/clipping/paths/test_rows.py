"""Rows that the records pick, cut, pack or order are not taken for the records, in any batch.

Without looks: the batch is such that the number of rows is right and whose they are is not.
"""

import pytest
import torch
from torch import nn

from apiece.training.clipping.paths import bookkeeping
from apiece.training.clipping.paths.functional import clip_one_by_one
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.rule import NotBookable

B, T, D = 6, 4, 3
ODD = torch.tensor([2, 1, 1, 1, 1, 0])  # rows of each record, B in all
EVEN = torch.ones(B, dtype=torch.long)


def mask_of(counts):
    return torch.arange(T) < counts.unsqueeze(1)


def back(m, flat, counts):
    """Return what a layer gives for flat rows, added up by record."""
    return torch.stack([part.sum() for part in m.layer(flat).split(counts.tolist())])


def by_view(m, x, n):
    h = x.clone()
    rows = h.view(-1, D)
    rows[: int(n.sum())] = x[mask_of(n)]
    return back(m, h.view(-1, D)[: int(n.sum())] + 0, n) + m.layer(h[:, 0])[:, 0]


def packed(m, x, n):
    n = n.clamp(min=1)
    found = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
    out, _ = nn.utils.rnn.pad_packed_sequence(found._replace(data=m.layer(found.data)))
    return out.sum((0, 2))


def sorted_first(m, x, n):
    order = torch.argsort(n, descending=True)
    some = x.new_empty(x.shape)
    some[:] = x.index_select(0, order)
    return m.layer(some).sum((1, 2)).index_select(0, order.argsort())


PICKS = {
    "a mask": lambda m, x, n: back(m, x[mask_of(n)], n),
    "masked_select": lambda m, x, n: back(
        m, x.masked_select(mask_of(n).unsqueeze(2)).view(-1, D), n
    ),
    "nonzero": lambda m, x, n: back(m, x[mask_of(n).nonzero(as_tuple=True)], n),
    "where": lambda m, x, n: back(m, x[torch.where(mask_of(n))], n),
    "lengths": lambda m, x, n: back(
        m, torch.cat([r[:k] for r, k in zip(x, n.tolist(), strict=True)]), n
    ),
    "lengths, one by one": lambda m, x, n: back(
        m, torch.stack([x[i, j] for i in range(len(x)) for j in range(int(n[i]))]), n
    ),
    "pieces": lambda m, x, n: back(
        m, torch.cat([r[0, :k] for r, k in zip(x.split(1), n.tolist(), strict=True)]), n
    ),
    "unbind": lambda m, x, n: back(
        m, torch.cat([r[:k] for r, k in zip(x.unbind(), n.tolist(), strict=True)]), n
    ),
    "repeated": lambda m, x, n: back(m, x[:, 0].repeat_interleave(n, 0), n),
    "written to a view": by_view,
    "by place": lambda m, x, n: m.layer(
        x.new_zeros(len(x), D).index_add(0, n.cumsum(0) % len(x), x[:, 0])
    ).sum(1),
    "scattered": lambda m, x, n: m.layer(
        x.new_zeros(len(x), D).scatter_add(
            0, (n.cumsum(0) % len(x)).unsqueeze(1).expand(len(x), D), x[:, 0]
        )
    ).sum(1),
    "put": lambda m, x, n: m.layer(
        x.new_zeros(len(x), D).index_put((n.argsort(stable=True),), x[:, 0])
    ).sum(1),
    "packed": packed,
    "sorted and copied": sorted_first,
    "sort": lambda m, x, n: m.layer(x[:, :1].sort(0).values).sum((1, 2)),
}
KEPT = {
    "a place": lambda m, x, n: m.layer(x[:, 0]).sum(1),
    "the same places": lambda m, x, n: m.layer(x[:, torch.tensor([2, 0])]).sum((1, 2)),
    "places by a mask of all": lambda m, x, n: m.layer(x[:, torch.arange(T) > 1]).sum((1, 2)),
    "dots": lambda m, x, n: m.layer(x[..., :2, :]).sum((1, 2)),
    "all": lambda m, x, n: m.layer(x[:]).sum((1, 2)),
    "times first": lambda m, x, n: sum(m.layer(h).sum(1) for h in x.transpose(0, 1)),
    "stacked": lambda m, x, n: m.layer(
        torch.stack([h * 2 for h in x.transpose(0, 1)]).transpose(0, 1)
    ).sum((1, 2)),
    "last of each": lambda m, x, n: m.layer(x[torch.arange(len(x)), n]).sum(1),
    "gathered": lambda m, x, n: m.layer(
        x.gather(1, n.view(-1, 1, 1).expand(-1, 1, D))
    ).sum((1, 2)),
    "masked": lambda m, x, n: (m.layer(x).sum(2) * mask_of(n)).sum(1),
    "filled": lambda m, x, n: m.layer(x.masked_fill(mask_of(n).unsqueeze(2), 0)).sum((1, 2)),
    "joined by place": lambda m, x, n: m.layer(torch.cat([x, x[:, :1]], 1)).sum((1, 2)),
}  # fmt: skip


class Picks(nn.Module):
    """A layer, and how it is used."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(D, 2), how

    def forward(self, x, n):
        return self.how(self, x, n)


def batch_of(model, inputs):
    parameters = dict(model.named_parameters())
    bounds = torch.full((B,), 0.1).double()
    y = torch.randn(B).double()
    return Batch(model, parameters, lambda o, t: (o - t).square(), inputs, y, bounds)


def off(batch):
    """Return by how much the book-kept sum is off the loop's, None where it is refused."""
    try:
        found = bookkeeping.clip_in_parts(batch)
    except NotBookable:
        return None
    wanted = clip_one_by_one(batch).gradients
    return max(float((found.gradients[n] - g).abs().max()) for n, g in wanted.items())


def case(how, counts):
    torch.manual_seed(0)
    return batch_of(Picks(how).double(), (torch.randn(B, T, D).double(), counts))


@pytest.mark.parametrize("name", PICKS)
def test_rows_that_records_pick_are_not_taken_for_records(name):
    found = off(case(PICKS[name], ODD if "sort" not in name else EVEN * ODD))
    assert found is None or found < 1e-12


@pytest.mark.parametrize("name", KEPT)
def test_what_picks_no_rows_is_book_kept(name):
    found = off(case(KEPT[name], ODD))
    assert found is not None
    assert found < 1e-12


class Bag(nn.Module):
    """Words of different number, looked up from one row after the other."""

    def __init__(self, mode="sum", how="offsets", **options):
        super().__init__()
        self.bag, self.out, self.how = (
            nn.EmbeddingBag(20, D, mode=mode, **options),
            nn.Linear(D, 1),
            how,
        )

    def forward(self, words, counts):
        mask = mask_of(counts)
        flat, starts = words[mask], counts.cumsum(0) - counts
        if self.bag.include_last_offset:
            starts = torch.cat([starts, counts.sum().unsqueeze(0)])
        if self.how == "weights":
            weights = (words / 20).to(self.out.weight.dtype)
            found = self.bag(flat, starts, weights[mask])
        elif self.how == "table":
            found = self.bag(words, per_sample_weights=mask.to(self.out.weight.dtype))
        elif self.how == "by name":
            found = self.bag(flat.long(), offsets=starts)
        elif self.how == "even":
            found = self.bag(words.reshape(-1), torch.arange(len(words)) * T)
        elif self.how == "shifted":
            found = self.bag(flat, (starts - 1).clamp(min=0))
        elif self.how == "in another order":
            found = self.bag(words[counts.argsort()][mask], starts)
        else:
            found = self.bag(flat, starts)
        return self.out(found)[:, 0]


BAGS = [
    ("sum", "offsets", {}),
    ("mean", "offsets", {}),
    ("mean", "by name", {}),
    ("mean", "offsets", {"padding_idx": 3}),
    ("sum", "offsets", {"include_last_offset": True}),
    ("sum", "weights", {}),
    ("sum", "table", {}),
    ("mean", "even", {}),
]


@pytest.mark.parametrize(("mode", "how", "options"), BAGS)
@pytest.mark.parametrize(
    "counts", [ODD, EVEN, torch.zeros_like(ODD), torch.tensor([4, 0, 0, 3, 4, 1])]
)
def test_bags_with_offsets_are_book_kept(mode, how, options, counts):
    torch.manual_seed(0)
    words = torch.randint(0, 20, (B, T))
    found = off(batch_of(Bag(mode, how, **options).double(), (words, counts)))
    assert found is not None
    assert found < 1e-12


@pytest.mark.parametrize("how", ["shifted", "in another order"])
def test_bags_that_are_not_the_records_are_not(how):
    batch = batch_of(Bag("sum", how).double(), (torch.randint(0, 20, (B, T)), ODD))
    with pytest.raises(NotBookable, match="bag"):
        bookkeeping.clip_in_parts(batch)
