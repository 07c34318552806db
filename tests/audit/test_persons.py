"""Audits by person: one score a person, and an engine that clips rows instead is found out."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Uniform, assign
from apiece.audit import one_run
from apiece.budgets import Units
from apiece.errors import DataError
from apiece.training import Trainer, clip_and_sum, sums
from refusals import refused

CANARIES, ROWS, EPSILON, DELTA = 600, 20, 1.0, 1e-5
WHOSE = np.array(["c", "a", "c", "b", "a", "c"])


def test_a_score_is_the_mean_over_the_rows() -> None:
    scores = np.array([[1.0, 2, 3, 4, 5, 8], [0, 0, 0, 1, 0, 0]])
    units, found = Units.of(WHOSE), Units.of(WHOSE).mean(scores)
    assert units.ids.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(found, [[3.5, 4, 4], [0, 1, 0]])


def test_what_all_rows_share_is_one_a_person() -> None:
    split = np.array([[1, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0]], bool)
    np.testing.assert_array_equal(
        Units.of(WHOSE).once(split, "included"), [[False, True, True], [True, True, False]]
    )
    split[1, 2] = True
    with refused(DataError, "included", 1, 3):
        Units.of(WHOSE).once(split, "included")


@pytest.mark.parametrize("whose", [[1, 2], [[1, 2, 3]], [1.0, 2.0, 3.0], [None, 1, 2]])
def test_what_are_no_ids_is_refused(whose) -> None:
    for of in (Units.mean, lambda units, values: units.once(values, "x")):
        with refused(DataError, "people"):
            of(Units.of(whose), [1, 2, 3])


# The self-audit: canaries are persons with a coordinate of the model each, as in a gradient audit,
# and many rows that all say the same.


def shown(seed: int) -> float:
    """Return the ε that one run shows of an engine that promises EPSILON to each person."""
    generator = np.random.default_rng(seed)
    budgets = Budgets(np.full(CANARIES, EPSILON), DELTA, ids=np.arange(CANARIES))
    plan = assign(budgets, Uniform(), steps=3, expected_batch_size=CANARIES, clip_norm=1.0)
    assert plan.curve(0).epsilon(DELTA).upper <= EPSILON
    whose = generator.permutation(np.repeat(np.arange(CANARIES), ROWS))
    coins = generator.random(CANARIES) < 0.5
    model = nn.Embedding(CANARIES, 1)
    nn.init.zeros_(model.weight)
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda out, _: out[:, 0],
        plan,
        (torch.from_numpy(whose), torch.zeros(whose.size)),
        seed=seed,
        people=whose,
        included=coins,
        physical_batch_size=2048,
    ).fit()
    with torch.no_grad():
        losses = model(torch.from_numpy(whose))[:, 0].numpy()
    units = Units.of(whose)
    scores = units.mean(-losses)
    assert units.ids.tolist() == list(range(CANARIES))
    return max(one_run(scores, coins, delta=DELTA, method=m).epsilon for m in ("dp", "gdp"))


def clip_rows(model, loss, x, y, clip_norms, *, people, **options):
    """Clip every row at the bound of its person."""
    return clip_and_sum(model, loss, x, y, clip_norms[people - people[0]], **options)


def in_parts(self, width):
    """Put the rows of each person into five physical batches, and clip them in each."""
    for turn in range(5):
        yield slice(None), np.arange(turn, self.owner.size, 5)


def test_the_engine_keeps_what_it_promises_to_persons() -> None:
    assert 0 < shown(0) <= EPSILON  # the audit sees something, and no more than was promised


@pytest.mark.slow
def test_of_many_audits_none_shows_more_than_was_promised() -> None:
    assert max(shown(seed) for seed in range(40)) <= EPSILON


def test_clipping_rows_instead_of_persons_is_found_out(monkeypatch) -> None:
    monkeypatch.setattr(sums, "clip_and_sum", clip_rows)
    assert shown(0) > 5 * EPSILON


def test_clipping_a_person_in_each_physical_batch_is_found_out(monkeypatch) -> None:
    monkeypatch.setattr(sums.Brought, "split", in_parts)
    assert shown(0) > 1.5 * EPSILON
