"""A batch as one graph, compiled: nearly what the engine gives."""

import shutil

import pytest
import torch
from torch import nn

from apiece import Budgets, Scale, Trainer, assign
from apiece.errors import StateError, UnsupportedError
from apiece.training import clip_and_sum

by_a_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)
LOSS = nn.CrossEntropyLoss(reduction="none")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.1), nn.Linear(48, 3)
    )


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layer(self.table((x.abs() * 7).long() % 11)).mean(1))


def batch(size):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 20, generator=generator)
    return x, torch.arange(size) % 3, torch.linspace(0.1, 2, size, dtype=torch.float64)


@pytest.fixture(scope="module")
def settled():
    """Return a model that is compiled once for all tests."""
    return mlp().eval()


@by_a_compiler
@pytest.mark.parametrize(
    "make", [None, pytest.param(Sequence, marks=pytest.mark.slow)], ids=["mlp", "transformer"]
)
def test_what_is_compiled_gives_what_the_engine_gives(settled, make):
    model = make().eval() if make else settled
    for size in (3, 6, 60):
        x, y, bounds = batch(size)
        one = clip_and_sum(model, LOSS, x, y, bounds, compiled=True)
        other = clip_and_sum(model, LOSS, x, y, bounds, method="proved")
        for name, total in other.gradients.items():
            torch.testing.assert_close(one.gradients[name], total, rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(one.norms, other.norms, rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(one.losses, other.losses)


SLOW = pytest.mark.slow


@by_a_compiler
@pytest.mark.parametrize(
    "scale", [1.0, pytest.param(1e-4, marks=SLOW), pytest.param(1e4, marks=SLOW)]
)
def test_no_share_is_above_its_bound(settled, scale):
    x, y, _ = batch(8)
    for record in range(4):
        same = x[record].expand(8, -1) * scale
        total = clip_and_sum(settled, LOSS, same, y[record].expand(8), 0.01, compiled=True)
        squares = [g.to(torch.float64).square().sum() for g in total.gradients.values()]
        assert float(sum(squares).sqrt()) <= 8 * 0.01


@by_a_compiler
@pytest.mark.slow
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_changes_no_other_share(bad):
    model = mlp()  # which drops values: the others' masks stay
    x, y, bounds = batch(30)
    totals = []
    for value in (x[3].clone(), torch.full((20,), bad)):
        given = x.clone()
        given[3] = value
        bounds[3] = 1e-12 if value.isfinite().all() else 1.0
        torch.manual_seed(5)
        totals.append(clip_and_sum(model, LOSS, given, y, bounds, compiled=True))
    assert totals[1].rejected == 1
    for name, total in totals[0].gradients.items():
        torch.testing.assert_close(totals[1].gradients[name], total, rtol=1e-4, atol=1e-5)


@by_a_compiler
@pytest.mark.slow
def test_draws_are_the_seed_s():
    model, (x, y, bounds) = mlp(), batch(30)
    totals = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        totals.append(clip_and_sum(model, LOSS, x, y, bounds, compiled=True).norms)
    assert torch.equal(totals[0], totals[1])
    assert not torch.equal(totals[0], totals[2])


def test_what_cannot_be_compiled_is_refused_with_the_remedy():
    x, y, bounds = batch(30)
    picture = nn.Sequential(nn.Conv2d(1, 9, 3), nn.Flatten(), nn.Linear(9 * 36, 3))
    with pytest.raises(UnsupportedError, match=r"compiled: .*leave it out"):
        clip_and_sum(picture, LOSS, torch.randn(30, 1, 8, 8), y, bounds, compiled=True)
    with pytest.raises(UnsupportedError, match="compiled: rows of one person"):
        clip_and_sum(mlp(), LOSS, x, y, 1.0, people=torch.arange(30) // 2, compiled=True)
    with pytest.raises(UnsupportedError, match="compiled: method='alone'"):
        clip_and_sum(mlp(), LOSS, x, y, bounds, method="alone", compiled=True)


@by_a_compiler
@pytest.mark.slow
def test_a_run_resumes_to_the_bit_and_only_as_it_began(tmp_path):
    budgets = Budgets([1.0] * 40 + [3.0] * 40, 1e-3)
    plan = assign(budgets, Scale(), steps=8, expected_batch_size=30, clip_norm=1.0)
    x, y, _ = batch(80)

    def trainer(make, *where, **options):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return make(*where, model, optimizer, LOSS, plan, (x, y), **options)

    whole = trainer(Trainer, seed=3, compiled=True)
    whole.fit()
    trainer(Trainer, seed=3, compiled=True, checkpoint=tmp_path, save_every=1).fit(5)
    resumed = trainer(Trainer.resume, tmp_path, compiled=True)
    resumed.fit()
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    trainer(Trainer, seed=3, compiled=True, checkpoint=tmp_path / "other", save_every=1).fit(2)
    with pytest.raises(StateError, match="compiled"):
        trainer(Trainer.resume, tmp_path / "other")
