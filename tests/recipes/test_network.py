"""The network of dead leaves: from a seed alone, of one record alone, and it learns something."""

import pytest
import torch

from apiece.errors import InputError
from apiece.recipes.features import (
    LeafNetwork,
    compute_spread_loss,
    draw_dead_leaves,
    draw_view,
    train_network,
)
from refusals import refused

SMALL = LeafNetwork(side=8, steps=3, batch=8, places=2)


def images(size: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.rand(size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_features_come_from_the_seed_and_the_record_alone() -> None:
    state = torch.get_rng_state()
    together = SMALL(images())
    assert torch.equal(torch.get_rng_state(), state)
    assert together.shape == (5, 256, 2, 2)
    assert torch.isfinite(SMALL(torch.zeros(1, 3, 8, 8))).all()
    changed = images()
    changed[0] = 0.25
    assert torch.equal(SMALL(changed)[1:], together[1:])
    alone = torch.cat([SMALL(image[None]) for image in images()])
    assert torch.allclose(together, alone, atol=1e-5)
    train_network.cache_clear()
    assert torch.equal(SMALL(images()), together)
    assert not torch.equal(
        LeafNetwork(side=8, steps=3, batch=8, places=2, seed=1)(images()), together
    )


def test_training_brings_views_of_an_image_together_and_spreads_the_others() -> None:
    source = torch.Generator().manual_seed(5)
    leaves = draw_dead_leaves(64, 16, generator=source)
    pair = [draw_view(leaves, source), draw_view(leaves, source)]
    losses = []
    for steps in (1, 20):
        layers = train_network(LeafNetwork(side=16, steps=steps, batch=32))
        losses.append(float(compute_spread_loss(*(layers(x).mean(dim=(2, 3)) for x in pair))))
    assert losses[1] < losses[0] - 0.1


def test_views_are_images_in_range_and_differ() -> None:
    source = torch.Generator().manual_seed(0)
    first, second = draw_view(images(40), source), draw_view(images(40), source)
    assert first.shape == (40, 3, 8, 8)
    assert 0 <= first.min() <= first.max() <= 1
    assert ((first - second).abs().amax(dim=(1, 2, 3)) > 0).all()


def test_bad_shapes_and_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="must be"):
        SMALL(torch.rand(2, 1, 8, 8))
    with pytest.raises(InputError, match="at least"):
        LeafNetwork(side=4)
    with refused(InputError, "steps"):
        LeafNetwork(side=8, steps=0)
