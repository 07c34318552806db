"""Each model of a stack learns from its own rows: as one at a time, and from nobody else's."""

import numpy as np
import pytest
import torch

from apiece.errors import DataError, InputError
from apiece.pate import Lessons
from apiece.pate.teaching import Shares, learn, predict_classes, require_classes
from apiece.training.randomness import Streams
from apiece.training.stacked import StackedMlp

from .worlds import MODEL, people, public

INPUTS, TARGETS = people()
SHARES = Shares(np.arange(60), np.array([0, 20, 40, 60]))
LESSONS = Lessons(steps=40, batch_size=8)


def test_models_learn() -> None:
    flat = learn(MODEL, INPUTS, TARGETS, SHARES, LESSONS, Streams.from_seed(0))
    right = predict_classes(MODEL, flat, public(200)) == public(200)[:, :3].argmax(dim=1).numpy()
    assert (right.mean(axis=1) > 0.7).all()


def test_a_stack_learns_what_each_model_learns_alone() -> None:
    """By plain autograd, from the same rows and the same beginning."""
    lessons, streams = Lessons(steps=5, batch_size=8, momentum=0.5), Streams.from_seed(1)
    flat = learn(MODEL, INPUTS, TARGETS, SHARES, lessons, streams)
    begin = MODEL.initial(3, Streams.from_seed(1).initialisation())
    for k in range(3):
        own = torch.nn.Linear(4, 3)
        torch.nn.utils.vector_to_parameters(begin[k].clone(), own.parameters())
        speed = torch.zeros(15)
        for step in range(5):
            coins = streams.sampling(step).uniform(24).reshape(3, 8)
            total = torch.zeros(15)
            for row in SHARES.draw_rows(coins)[k].tolist():
                loss = torch.nn.functional.cross_entropy(own(INPUTS[row]), TARGETS[row])
                g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, own.parameters())])
                total += g * min(1.0, 1.0 / float(g.norm()))
            speed = 0.5 * speed + total / 8
            new = torch.nn.utils.parameters_to_vector(own.parameters()).detach()
            torch.nn.utils.vector_to_parameters(new - lessons.rate(step) * speed, own.parameters())
        found = torch.nn.utils.parameters_to_vector(own.parameters()).detach()
        torch.testing.assert_close(flat[k], found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("value", [1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("model", [MODEL, StackedMlp((4, 5, 3))], ids=["linear", "hidden"])
def test_a_row_changes_not_one_bit_of_another_model(value: float, model: StackedMlp) -> None:
    before = learn(model, INPUTS, TARGETS, SHARES, LESSONS, Streams.from_seed(0))
    moved, labels = INPUTS.clone(), TARGETS.clone()
    moved[25], labels[25] = value, (labels[25] + 1) % 3
    after = learn(model, moved, labels, SHARES, LESSONS, Streams.from_seed(0))
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
    assert bool(torch.isfinite(after).all())


def test_a_model_without_rows_stays_as_it_began() -> None:
    shares = Shares(np.arange(60), np.array([0, 60, 60]))
    flat = learn(MODEL, INPUTS, TARGETS, shares, LESSONS, Streams.from_seed(0))
    begin = MODEL.initial(2, Streams.from_seed(0).initialisation())
    assert torch.equal(flat[1], begin[1])
    assert not torch.equal(flat[0], begin[0])


@pytest.mark.parametrize(
    "bad",
    [{"steps": 0}, {"batch_size": 1.5}, {"learning_rate": 0.0}, {"learning_rate": float("nan")},
     {"clip_norm": -1.0}, {"momentum": 1.0}],
)  # fmt: skip
def test_bad_lessons(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Lessons(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [[0, 3], [-1, 0], [0, 10**6]])
def test_labels_out_of_range(targets: list[int]) -> None:
    with pytest.raises(DataError, match="1 labels are not in 0 to 2"):
        require_classes(torch.tensor(targets), 3)


def test_labels_that_are_no_whole_numbers() -> None:
    with pytest.raises(DataError, match="whole numbers"):
        require_classes(torch.tensor([0.0, 1.0]), 3)


def test_votes_do_not_depend_on_the_block() -> None:
    flat = learn(MODEL, INPUTS, TARGETS, SHARES, LESSONS, Streams.from_seed(0))
    whole = predict_classes(MODEL, flat, public(50), block=50)
    assert (predict_classes(MODEL, flat, public(50), block=7) == whole).all()
