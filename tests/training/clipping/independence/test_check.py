"""What double precision sees that single does not, on batches of which it takes a part."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping.independence import check
from apiece.training.clipping.independence.compare import Finding
from apiece.training.clipping.paths import pace
from apiece.training.clipping.selection import chosen

RECORDS = 100
FAINT = 2e-5  # of a typical record: fifty times less than single precision is asked to tell


class Faintly(nn.Module):
    """Lets records meet by very little, as `how` says."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 8), nn.Linear(8, 1), how

    def forward(self, x):
        return self.last(self.how(self.first(x).tanh()))


def mean(h):
    return h + FAINT * h.mean(0)


def neighbours(h):
    whole = len(h) // 2 * 2
    pairs = h[:whole].view(-1, 2, h.shape[1]).flip(1).reshape(whole, h.shape[1])
    return torch.cat([h[:whole] + FAINT * pairs, h[whole:]])


def first(h):
    return h + FAINT * h[:1]


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + FAINT * gradient.roll(1, 0)


def backwards(h):
    return _Backwards.apply(h)


def apart(h):
    return h + FAINT * h.flip(1)


def squares(out, y):
    return (out[:, 0] - y).square()


def faint_mean(out, y):
    losses = squares(out, y)
    return losses + FAINT * losses.mean()


def clipped(how, loss=squares, size=RECORDS, **options):
    torch.manual_seed(0)
    return clip_and_sum(Faintly(how), loss, torch.randn(size, 4), torch.randn(size), 0.1, **options)


@pytest.mark.parametrize("size", [20, RECORDS, 512])
@pytest.mark.parametrize("how", [mean, neighbours, first, backwards])
def test_faint_mixing_is_refused(how, size):
    with pytest.raises(UnsupportedError, match="depends on"):
        clipped(how, size=size)


@pytest.mark.parametrize("size", [20, RECORDS])
def test_faint_mixing_in_the_loss_is_refused(size):
    with pytest.raises(InputError, match="loss_fn"):
        clipped(apart, faint_mean, size=size)


@pytest.mark.parametrize("how", [mean, neighbours, first, backwards])
def test_it_is_the_close_look_that_sees_it(how, monkeypatch):
    monkeypatch.setattr(check, "_sampled", lambda *_: Finding.SAME)
    monkeypatch.setattr("apiece.training.clipping.selection.enlarged", lambda size: size)
    assert len(clipped(how)) == RECORDS


def test_of_losses_alone_a_backward_says_nothing(monkeypatch):
    """So gradients are looked at too: a few records' is enough to see one that mixes all."""
    plain = check._Look.at

    def single_only(self, batch, tolerance):
        return plain(self, batch, tolerance) if tolerance.relative > 1e-6 else (SAME, 0)

    SAME = Finding.SAME
    monkeypatch.setattr(check._Look, "at", single_only)
    monkeypatch.setattr("apiece.training.clipping.selection.enlarged", lambda size: size)
    assert len(clipped(backwards)) == RECORDS
    with pytest.raises(UnsupportedError):
        clipped(neighbours)


def test_honest_models_are_accepted():
    assert len(clipped(apart)) == RECORDS
    assert len(clipped(lambda h: nn.functional.dropout(h, 0.3))) == RECORDS


def test_gradients_in_double_are_of_a_few_records(monkeypatch):
    sizes, plain = [], check._Look.at

    def watched(self, batch, tolerance):
        sizes.append((len(batch), next(iter(batch.parameters.values())).dtype))
        return plain(self, batch, tolerance)

    monkeypatch.setattr(check._Look, "at", watched)
    clipped(apart)
    assert {size for size, dtype in sizes if dtype == torch.float64} == {check._CLOSELY}


def test_a_batch_that_is_taken_in_parts_has_no_larger_company(monkeypatch):
    """What counts is how many records are run together, and not how many there are."""
    sizes, plain = [], check._Look.at

    def watched(self, batch, tolerance):
        sizes.append(len(batch))
        return plain(self, batch, tolerance)

    monkeypatch.setattr(check._Look, "at", watched)
    monkeypatch.setattr(pace, "_CACHE", 9 * 20)  # parts of up to twenty records
    monkeypatch.setattr(pace, "_WORTH", 0)
    monkeypatch.setattr(pace, "_EACH", 0)
    clipped(apart, size=60)
    assert sizes == [60, check._CLOSELY]
    sizes.clear()
    clipped(apart, size=30)  # two parts of fifteen, and larger batches have parts of twenty
    assert sizes == [30, 30, 20]
    with pytest.raises(UnsupportedError):
        clipped(lambda h: h - h.mean(0) if len(h) > 19 else h, size=30)


def test_what_is_drawn_is_given_again_to_every_part(monkeypatch):
    """Else a model with dropout would leave book-keeping where its batch is taken in parts."""
    monkeypatch.setattr(pace, "_CACHE", 9 * 4)
    monkeypatch.setattr(pace, "_WORTH", 0)
    monkeypatch.setattr(pace, "_EACH", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.GELU(), nn.Linear(3, 3))
    batch = torch.randn(30, 3), torch.randint(0, 3, (30,))
    clip_and_sum(model, nn.CrossEntropyLoss(reduction="none"), *batch, 1.0)
    assert {path for _, path in chosen(model)} == {"book-keeping"}
