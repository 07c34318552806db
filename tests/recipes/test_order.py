"""Loss-ordered weights: no record moves the weighted sum by more than its own clip norm."""

import numpy as np
import pytest
import torch

from apiece.errors import InputError
from apiece.recipes.recipe import loss_ordered_weights


def weighted(losses: np.ndarray, norms: np.ndarray, gradients: np.ndarray, how: str) -> np.ndarray:
    """The sum; how: "ordered", or a way that has no such bound."""
    x, c = torch.from_numpy(losses), torch.from_numpy(norms)
    quiet, ramp = 2.0, 1.5
    if how == "ordered":
        weights = loss_ordered_weights(x, c, quiet, ramp).numpy()
    elif how == "from the top":  # the largest losses first, and weights that fall
        weights = 1 - loss_ordered_weights(-x, c, quiet, ramp).numpy()
    else:  # by share of the batch, so that everybody's weight depends on how many there are
        weights = loss_ordered_weights(x, c, float(c.sum()) / 2, float(c.sum()) / 4).numpy()
        weights = weights / weights.mean()
    return np.asarray(weights @ gradients)


def worst(how: str, *, seeds: int = 600) -> float:
    """The largest movement found, as a multiple of the moved record's clip norm.

    Batches are drawn and then made worse: every gradient points as far as it may along or against
    one direction, as the difference asks.
    """
    found = 0.0
    for seed in range(seeds):
        source = np.random.default_rng(seed)
        size = int(source.integers(2, 9))
        losses = source.integers(0, 4, size) + source.random(size) * source.integers(0, 2)
        norms = source.choice([0.1, 1.0, 3.0], size)
        one = int(source.integers(size))
        rest = np.arange(size) != one
        unit = np.eye(size)  # the sum's weights, and those without the record, by gradients
        moved = weighted(losses, norms, unit, how)
        without = np.zeros(size)
        without[rest] = weighted(losses[rest], norms[rest], unit[rest][:, rest], how)
        signs = np.sign(moved - without)
        found = max(found, float(abs((signs * norms) @ (moved - without))) / norms[one])
    return found


def test_no_record_moves_the_sum_by_more_than_its_clip_norm() -> None:
    assert 0.9 < worst("ordered") <= 1 + 1e-9


def test_the_search_sees_weights_that_have_no_bound() -> None:
    assert worst("from the top") > 1.5
    assert worst("by share") > 1.5


def test_weights_follow_the_losses() -> None:
    weights = loss_ordered_weights(torch.arange(10.0).flip(0), torch.ones(10), 3.0, 4.0)
    assert weights.tolist() == sorted(weights.tolist(), reverse=True)
    assert weights[0] == 1
    assert weights[-3:].tolist() == [0, 0, 0]
    whole = loss_ordered_weights(torch.rand(5), torch.ones(5), -1.0, 1e-9)
    assert whole.tolist() == [1] * 5
    assert loss_ordered_weights(torch.zeros(0), torch.zeros(0), 1.0, 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("shape", "quiet", "ramp"), [((3,), float("nan"), 1.0), ((3,), 0.0, 0.0), ((2,), 0.0, 1.0)]
)
def test_bad_values_are_refused(shape: tuple[int, ...], quiet: float, ramp: float) -> None:
    with pytest.raises(InputError):
        loss_ordered_weights(torch.zeros(3), torch.ones(shape), quiet, ramp)
