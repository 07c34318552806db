"""RMIA against its definition."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.audit import ShadowScores, membership
from apiece.audit.membership import loss_scores, rmia
from apiece.errors import InputError

from .worlds import scores


def test_rmia_finds_members_and_is_blind_without_signal() -> None:
    generator = np.random.default_rng(3)
    for shift, low, high in ((2.0, 0.75, 1.0), (0.0, 0.45, 0.55)):
        shadows = scores(models=16, size=600, shift=shift)
        member = generator.random(600) < 0.5
        target = generator.normal(size=600) + shift * member
        population, references = generator.normal(size=500), generator.normal(size=(16, 500))
        for variant in ("online", "offline"):
            found = rmia(target, shadows, population, references, variant=variant, gamma=1.2)
            assert low <= membership.roc(found, member).auc <= high


def test_rmia_counts_the_population_it_beats() -> None:
    shadows = scores(models=4, size=2, shift=0.0)
    flat = replace(shadows, confidences=np.zeros((4, 2)))
    population = np.array([-3.0, 0.0, 3.0])
    found = rmia([0.0, 8.0], flat, population, np.zeros((4, 3)), gamma=1.9)
    assert found.tolist() == [1 / 3, 2 / 3]  # ratios 1 and 2 against .095, 1, 1.905


def test_loss_scores_order_as_losses() -> None:
    np.testing.assert_allclose(loss_scores([-800.0, 0.0, 800.0]), [-800, -np.log(2), 0], atol=1e-9)


@pytest.mark.parametrize(("member", "world"), [(True, "without"), (False, "with")])
def test_a_record_needs_a_model_of_each_world(member: bool, world: str) -> None:
    included = np.array([[True, member], [False, member]])
    shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, 4.0 * included)
    with pytest.raises(InputError, match=f"0 {world} record 9; online RMIA needs at least 1"):
        rmia([4.0, -4.0], shadows, np.zeros(5), np.zeros((2, 5)))
