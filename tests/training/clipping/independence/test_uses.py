"""How often a model is looked at, and at which sizes."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import selection
from apiece.training.clipping.independence import uses


class Beyond(nn.Module):
    """Does something to batches of more than so many records."""

    def __init__(self, size, does):
        super().__init__()
        self.layer, self.size, self.does = nn.Linear(4, 1), size, does

    def forward(self, x):
        h = self.layer(x)
        return self.does(h) if len(x) > self.size else h


def centred(h):
    return h - h.mean(0)


def no_room(h):
    raise IndexError(f"no room for {len(h)}")


def squares(out, y):
    return (out[:, 0] - y).square()


def sums(model, sizes, **options):
    return [clip_and_sum(model, squares, torch.randn(n, 4), torch.randn(n), 0.1, **options)
            for n in sizes]  # fmt: skip


@pytest.fixture
def looks(monkeypatch):
    """The sizes that are looked at."""
    sizes, examine = [], selection.examine

    def counted(path, batch, **options):
        sizes.append(len(batch))
        return examine(path, batch, **options)

    monkeypatch.setattr(selection, "examine", counted)
    return sizes


class Never:
    def random(self):
        return 1.0


@pytest.mark.parametrize(("first", "beyond"), [(20, 24), (100, 130), (9, 20)])
def test_mixing_beyond_the_first_batch_is_refused_at_once(first, beyond):
    with pytest.raises(UnsupportedError, match="depends on the other records"):
        sums(Beyond(beyond, centred), [first])


def test_sizes_of_poisson_batches_do_not_make_looks(looks, monkeypatch):
    monkeypatch.setattr(uses, "_coin", Never())
    sizes = np.random.default_rng(0).poisson(64, 400)
    sums(nn.Linear(4, 1), sizes)
    assert len(looks) <= 4
    assert max(looks) >= max(sizes)  # and yet none was larger than what was looked at


def test_a_batch_larger_than_those_looked_at_is_looked_at(looks, monkeypatch):
    monkeypatch.setattr(uses, "_coin", Never())
    model = Beyond(150, centred)
    sums(model, [50, 50, 60])
    assert max(looks) < 150
    with pytest.raises(UnsupportedError):
        sums(model, [151])


def test_a_model_without_room_for_more_is_looked_at_as_it_is(looks, monkeypatch):
    monkeypatch.setattr(uses, "_coin", Never())
    sums(Beyond(12, no_room), [10, 10, 11, 12, 12, 12])
    assert looks.count(11) == looks.count(12) == 1


@pytest.mark.parametrize("method", ["functional", "loop"])
def test_paths_that_take_records_one_at_a_time_have_no_larger_batch(method):
    for found in sums(Beyond(24, centred), [20, 30], method=method):
        assert (found.norms > 0).all()


class Late(Beyond):
    calls = 0

    def forward(self, x):
        h = self.layer(x)
        return centred(h) if self.calls > 2 and len(x) > 1 else h


def test_what_fails_later_says_that_the_sums_before_are_not_covered(monkeypatch):
    class Always:
        def random(self):
            return 0.0

    monkeypatch.setattr(uses, "_coin", Always())
    model = Late(0, centred)
    for _ in range(3):
        sums(model, [6])
    model.calls = 3
    with pytest.raises(UnsupportedError, match="does not cover the batches summed before"):
        sums(model, [6])
    model = Late(0, centred)
    model.calls = 3
    with pytest.raises(UnsupportedError) as error:
        sums(model, [6])
    assert "summed before" not in str(error.value)

    with pytest.raises(UnsupportedError) as error:
        sums(Beyond(8, centred), [6])
    assert "summed before" not in str(error.value)


class Often:
    def random(self):
        return 0.5


DIFFER, EQUAL = [torch.arange(5.0)], [torch.ones(5)]


def test_equal_records_settle_nothing():
    kept = uses.Uses([], batches=10**9)
    kept.looked(5, EQUAL)
    assert kept.seen == {1: 5}
    assert kept.due(1, DIFFER)  # records differ for the first time
    kept.looked(5, [*EQUAL, *DIFFER])
    assert (kept.seen, kept.varied) == ({1: 5, 5: 5}, {1})
    assert not kept.due(5, [*EQUAL, *DIFFER])
    assert kept.due(5, [*DIFFER, *EQUAL])


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("over", ["inputs", "targets"])
def test_a_model_that_mixes_is_seen_when_records_differ_at_last(size, over):
    """A mean over equal records takes nothing of one to another."""

    class Off(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, x):
            return self.last(x - x.mean(0) if over == "inputs" else x)

    def loss(out, y):
        return out.sum(1) * (y - y.mean() if over == "targets" else y)

    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.rand(6)
    for _ in range(8):
        model = Off()
        few = x[:1].expand(size, 3) if over == "inputs" else x[:size]
        of = y[:1].expand(size) if over == "targets" else y[:size]
        for _ in range(4):
            clip_and_sum(model, loss, few, of, 1.0)
        with pytest.raises(InputError):
            clip_and_sum(model, loss, x[:5], y[:5], 1.0)


def test_when_a_batch_is_due(monkeypatch):
    monkeypatch.setattr(uses, "_coin", Often())
    kept = uses.Uses([], batches=0)
    assert kept.due(5, DIFFER)
    kept.looked(5, DIFFER)
    kept.batches = 1
    assert kept.due(5, DIFFER)
    kept.batches = 2
    assert not kept.due(5, DIFFER)
    assert kept.due(6, DIFFER)
    monkeypatch.setattr(uses, "_coin", Never())
    kept.batches = 10**6
    assert not kept.due(5, DIFFER)


def test_few_different_records_speak_for_batches_of_no_more(monkeypatch):
    monkeypatch.setattr(uses, "_coin", Never())
    kept = uses.Uses([], batches=10)
    of = {n: [torch.arange(60.0) % n] for n in (1, 2, 3, 9, 20)}
    kept.looked(60, of[2])
    assert not kept.due(60, of[2])
    assert not kept.due(60, of[1])
    assert kept.due(61, of[2])
    assert kept.due(60, of[3])
    kept.looked(60, of[9])
    assert not kept.due(60, of[20])
    assert kept.due(61, of[2])


def test_a_table_of_two_kinds_of_people_is_looked_at_as_seldom_as_any(looks, monkeypatch):
    monkeypatch.setattr(uses, "_coin", Never())
    model, x = nn.Linear(1, 1), torch.arange(60.0)[:, None] % 2
    for _ in range(30):
        clip_and_sum(model, squares, x, x[:, 0], 0.1)
    assert len(looks) <= 4


def test_some_ln_t_looks_in_t_steps():
    counted = []
    for _ in range(20):
        kept = uses.Uses([], batches=0, seen={8: 9})
        for kept.batches in range(2000):
            counted.append(kept.due(9, EQUAL))
    assert 6 < sum(counted) / 20 < 12  # 2 + ln(2000) - 1.5 = 8.1, give or take .6


def test_the_same_loss_is_one_however_it_is_made():
    model, weight = nn.Linear(1, 1), torch.ones(1)

    def made(weight):
        return lambda out, y: weight * squares(out, y)

    first = uses.uses_of(model, ("auto",), made(weight))
    assert uses.uses_of(model, ("auto",), made(weight)) is first
    assert uses.uses_of(model, ("auto",), made(torch.ones(1))) is not first
    assert uses.uses_of(model, ("loop",), made(weight)) is not first
    assert uses.uses_of(nn.Linear(1, 1), ("auto",), made(weight)) is not first
