"""Whitening by dead leaves: theirs becomes even, no record's features depend on another."""

import torch

from apiece.recipes.features import (
    LeafPatches,
    compute_leaf_whitening,
    draw_dead_leaves,
    normalise,
    whiten,
)

PATCHES = LeafPatches(side=8, filters=8, size=3, places=2)


def leaves(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalise(PATCHES(draw_dead_leaves(size, 8, generator=generator)), 2)


def share_of_the_first(features: torch.Tensor) -> float:
    """Of all variance of the channels, how much lies in one direction."""
    rows = features.movedim(1, -1).flatten(0, 2)
    values = torch.linalg.eigvalsh(torch.cov(rows.T))
    return float(values[-1] / values.sum())


def test_the_variance_of_fresh_leaves_is_spread_over_directions() -> None:
    like = compute_leaf_whitening(PATCHES, 8, 3, 2)
    before = leaves(500, 5)
    after = whiten(before, like)
    half = whiten(before, compute_leaf_whitening(PATCHES, 8, 3, 2, 0.5))
    assert share_of_the_first(after) < 0.7 * share_of_the_first(before)
    assert share_of_the_first(after) < share_of_the_first(half) < share_of_the_first(before)
    assert torch.allclose(after.flatten(1).norm(dim=1), torch.ones(500))


def test_the_whitening_is_of_values_to_the_same_power() -> None:
    images = draw_dead_leaves(500, 8, generator=torch.Generator().manual_seed(5))
    values = normalise(PATCHES(images), 1, 0.5)
    own = whiten(values, compute_leaf_whitening(PATCHES, 8, 3, 1, 1.0, 0.5))
    other = whiten(values, compute_leaf_whitening(PATCHES, 8, 3, 1))
    assert share_of_the_first(own) < 0.95 * share_of_the_first(other)


def test_a_record_s_features_are_its_own() -> None:
    like = compute_leaf_whitening(PATCHES, 8, 3, 2)
    features = leaves(4, 6)
    changed = features.clone()
    changed[0] *= -3
    assert torch.equal(whiten(changed, like)[1:], whiten(features, like)[1:])
    again = compute_leaf_whitening(PATCHES, 8, 3, 2)
    assert all(torch.equal(a, b) for a, b in zip(like, again, strict=True))
