"""Persons with many rows: their gradients are added before the norm, and clipped as one."""

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import InputError
from apiece.training import clip_and_sum
from apiece.training.clipping.front import units_of
from apiece.training.clipping.records import ClippedSum

METHODS = ("proved", "alone")
COUNTS = (1, 5, 1, 2, 17, 3, 1, 8)  # rows of the persons, ragged


def each(names: Iterable[str]) -> list[Any]:
    """Return every model by both methods; alone is slow, and the first model stands for it."""
    first, *_ = names
    return [
        pytest.param(
            name, method, marks=[pytest.mark.slow] if method == "alone" and name != first else []
        )
        for name in names
        for method in METHODS
    ]


class Pooled(nn.Module):
    """A part, its output averaged over all but the records and channels."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*layers), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x)
        found = found[0] if isinstance(found, tuple) else found
        return self.head(found.flatten(2).mean(2) if found.dim() > 2 else found)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x)
        return self.head(self.attention(found, found, found)[0].mean(1))


class Free(nn.Module):
    """A parameter of no layer, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.twice = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(torch.tanh(self.twice(x * self.scale)))


def images(size: int) -> torch.Tensor:
    return torch.randn(size, 2, 6, 6)


def rows(size: int) -> torch.Tensor:
    return torch.randn(size, 4)


def words(size: int) -> torch.Tensor:
    return torch.randint(0, 7, (size, 5))


def series(size: int) -> torch.Tensor:
    return torch.randn(size, 5, 4)


MODELS = {
    "chain": (lambda: nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 3)), rows),
    "wide": (lambda: nn.Sequential(nn.Linear(4, 2), nn.GELU(), nn.Linear(2, 3)), rows),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), rows),
    "group norm": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), images),
    "convolution": (lambda: Pooled(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU()), images),
    "strided": (lambda: Pooled(nn.Conv2d(2, 2, 2, stride=2, groups=2), nn.Tanh()), images),
    "line": (lambda: Pooled(nn.Conv1d(5, 6, 2), nn.ReLU()), series),
    "positions": (lambda: Pooled(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)), series),
    "embedding": (lambda: Pooled(nn.Embedding(7, 6), nn.Linear(6, 4)), words),
    "attention": (Attending, words),
    "recurrent": (lambda: Pooled(nn.LSTM(4, 6, batch_first=True)), series),
    "gru": (lambda: Pooled(nn.GRU(4, 6, batch_first=True)), series),
    "free": (Free, rows),
}


def world(name: str, counts: tuple[int, ...] = COUNTS):
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, size = make(), sum(counts)
    inputs, targets = draw(size), torch.randint(0, 3, (size,))
    with torch.no_grad():
        model(inputs)
    people = np.repeat(np.arange(len(counts)), counts)
    return model, inputs, targets, people


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def in_double(model: nn.Module, inputs, targets, people, clip_norms):
    """The definition: a loop over persons, each one's losses added up, in float64."""
    model = copy.deepcopy(model).double()
    tensors = list(model.parameters())
    total, norms = [torch.zeros_like(p) for p in tensors], []
    for number, person in enumerate(dict.fromkeys(people.tolist())):
        mine = torch.from_numpy(people == person)
        given = inputs[mine].double() if inputs.is_floating_point() else inputs[mine]
        found = torch.autograd.grad(loss(model(given), targets[mine]).sum(), tensors)
        norm = float(torch.stack([g.square().sum() for g in found]).sum().sqrt())
        norms.append(norm)
        for t, g in zip(total, found, strict=True):
            t += g * min(1.0, clip_norms[number] / norm)
    return dict(zip(dict(model.named_parameters()), total, strict=True)), norms


@pytest.mark.parametrize(("name", "method"), each(MODELS))
def test_the_sum_is_that_of_a_loop_over_persons(name: str, method: str) -> None:
    model, inputs, targets, people = world(name)
    bounds = torch.linspace(0.05, 3.0, len(COUNTS), dtype=torch.float64)
    clipped = clip_and_sum(model, loss, inputs, targets, bounds, people=people, method=method)
    total, norms = in_double(model, inputs, targets, people, bounds.tolist())
    assert clipped.norms.tolist() == pytest.approx(norms, rel=2e-3)
    assert (clipped.norms.double() >= torch.tensor(norms) * (1 - 1e-5)).all()
    for key, value in total.items():
        assert torch.allclose(clipped.gradients[key].double(), value, rtol=2e-3, atol=1e-5), key
    assert clipped.losses.shape == (len(people),)
    assert len(clipped) == len(COUNTS)


@cache
def whole_sum_alone() -> ClippedSum:
    """The sum over the persons of one world, in one batch, each row alone."""
    model, inputs, targets, people = world("convolution")
    bounds = torch.linspace(0.05, 3.0, len(COUNTS), dtype=torch.float64)
    return clip_and_sum(model, loss, inputs, targets, bounds, people=people, method="alone")


@pytest.mark.parametrize(
    ("method", "width"),
    [
        *(("proved", width) for width in (3, 10, 1000)),
        ("alone", 3),
        *(pytest.param("alone", width, marks=pytest.mark.slow) for width in (10, 1000)),
    ],
)
def test_persons_may_be_split_and_come_in_any_order(method: str, width: int) -> None:
    model, inputs, targets, people = world("convolution")
    bounds = torch.linspace(0.05, 3.0, len(COUNTS), dtype=torch.float64)
    whole = whole_sum_alone()
    order = torch.from_numpy(np.random.default_rng(0).permutation(people.size))
    mixed = people[order.numpy()]
    first = list(dict.fromkeys(mixed.tolist()))
    names = np.array([f"p{p}" for p in mixed])
    found = clip_and_sum(
        model,
        loss,
        inputs[order],
        targets[order],
        bounds[first],
        people=names,
        method=method,
        physical_batch_size=width,
    )
    assert found.norms.tolist() == pytest.approx(whole.norms[first].tolist(), rel=1e-3)
    assert torch.allclose(found.losses, whole.losses[order], atol=1e-5)
    assert found.clip_norms.tolist() == bounds[first].tolist()
    for key, value in whole.gradients.items():
        assert torch.allclose(found.gradients[key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "method"), each(["chain", "convolution", "embedding", "positions"])
)
def test_a_persons_share_is_at_most_their_bound(name: str, method: str) -> None:
    """Rows that agree, and rows that differ: what is clipped is the person, not the row."""
    # Alone, each row has a process of its own.
    sizes = [(8,), (6, 1)] if method == "alone" else [(500,), (20, 1), (2, 2, 2)]
    for counts in sizes:
        model, inputs, targets, people = world(name, counts)
        for same in (True, False):
            given = inputs[:1].expand_as(inputs).contiguous() if same else inputs
            clipped = clip_and_sum(model, loss, given, targets, 1e-2, people=people, method=method)
            alone = [people == p for p in range(len(counts))]
            for p, mine in enumerate(alone):
                less = torch.from_numpy(~mine)
                if not bool(less.any()):
                    moved = clipped.gradients
                else:
                    rest = clip_and_sum(
                        model, loss, given[less], targets[less], 1e-2,
                        people=people[~mine], method=method,
                    )  # fmt: skip
                    moved = {k: g - rest.gradients[k] for k, g in clipped.gradients.items()}
                size = torch.stack([g.double().square().sum() for g in moved.values()]).sum().sqrt()
                assert size <= 1e-2 * (1 + 2e-6), (counts, same, p)


def test_clipping_rows_instead_of_persons_breaks_the_bound() -> None:
    """The control: the same rows as records move the sum by many times the bound."""
    model, inputs, targets, people = world("chain", (50,))
    given = inputs[:1].expand_as(inputs).contiguous()
    as_rows = clip_and_sum(model, loss, given, targets[:1].expand(50), 1e-2)
    size = torch.stack([g.square().sum() for g in as_rows.gradients.values()]).sum().sqrt()
    assert size > 40 * 1e-2
    assert people.size == 50


@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_is_not_finite_takes_its_person_out_and_nobody_else(method: str) -> None:
    model, inputs, targets, people = world("chain", (1, 5, 1, 2, 3))
    inputs[7] = torch.nan  # of the person with two rows
    who = int(people[7])
    clipped = clip_and_sum(model, loss, inputs, targets, 0.5, people=people, method=method)
    assert clipped.rejected == 1
    assert not torch.isfinite(clipped.norms[who])
    less = torch.from_numpy(people != who)
    rest = clip_and_sum(
        model, loss, inputs[less], targets[less], 0.5, people=people[less.numpy()], method=method
    )
    for key, value in rest.gradients.items():
        assert torch.allclose(clipped.gradients[key], value, rtol=1e-4, atol=1e-6)


def test_one_row_each_is_what_it_is_without_people() -> None:
    model, inputs, targets, _ = world("convolution")
    bounds = torch.linspace(0.1, 2.0, len(inputs), dtype=torch.float64)
    one = clip_and_sum(model, loss, inputs, targets, bounds)
    other = clip_and_sum(model, loss, inputs, targets, bounds, people=np.arange(len(inputs)))
    assert other.norms.tolist() == pytest.approx(one.norms.tolist(), rel=1e-4)
    for key, value in one.gradients.items():
        assert torch.allclose(other.gradients[key], value, rtol=1e-4, atol=1e-6)


def test_numbers_by_first_appearance() -> None:
    units = units_of(["b", "a", "b", "c"], 4)
    assert units is not None
    assert units.ids.tolist() == ["b", "a", "c"]
    assert units.rows.tolist() == [0, 2, 1, 3]
    assert units.owner[units.rows].tolist() == [0, 0, 1, 2]
    for lying in ([5, 5, 2], [2, 5, 5], torch.tensor([2, 2, 5])):
        gathered = units_of(lying, 3)
        assert gathered is not None
        assert gathered.gathered
    assert units_of([7, 3, 5], 3) is None  # a row each, in their order


@pytest.mark.parametrize("people", [[1, 2], [[1, 2, 3]], [1.0, 2.0, 3.0], [None, 1, 2]])
def test_what_are_no_ids_is_refused(people) -> None:
    with pytest.raises(InputError, match="people"):
        units_of(people, 3)


def test_bounds_are_of_persons() -> None:
    model, inputs, targets, people = world("chain")
    with pytest.raises(InputError, match="clip_norms"):
        clip_and_sum(model, loss, inputs, targets, torch.ones(len(inputs)), people=people)
