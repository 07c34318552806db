"""Features: of one record alone, at norm 1, the same from a cache."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apiece.errors import InputError
from apiece.recipes.features import LeafPatches, apply_transform, make_patch_filters, normalise
from refusals import refused

PATCHES = LeafPatches(side=8, filters=4, size=3, places=2)


def images(size: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.rand(size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_leaf_patches_are_of_one_record_alone() -> None:
    together = PATCHES(images())
    changed = images()
    changed[0] = 0.25
    assert torch.equal(PATCHES(changed)[1:], together[1:])
    alone = torch.cat([PATCHES(image[None]) for image in images()])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.isfinite(PATCHES(torch.zeros(1, 3, 8, 8))).all()
    with pytest.raises(InputError, match="must be"):
        PATCHES(torch.rand(2, 1, 8, 8))


def test_leaf_patches_know_nothing_of_the_images() -> None:
    first, again = make_patch_filters(PATCHES), make_patch_filters(PATCHES)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.allclose(first[0].norm(dim=1), torch.ones(4))


def test_normalised_by_the_record_s_own_values() -> None:
    features = torch.rand(4, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    found = normalise(features, 3)
    assert torch.allclose(found.flatten(1).norm(dim=1), torch.ones(4))
    assert torch.allclose(found.view(4, 3, -1).mean(dim=2), torch.zeros(4, 3), atol=1e-6)
    changed = features.clone()
    changed[0] *= 7
    assert torch.equal(normalise(changed, 3)[1:], found[1:])
    for groups in (0, 4, 7):
        with refused(InputError, "groups"):
            normalise(features, groups)


def test_a_power_keeps_signs_and_evens_sizes() -> None:
    features = torch.tensor([[[[4.0, -1.0]], [[-9.0, 0.0]]]])
    found = normalise(features, 1, 0.5)
    assert torch.equal(found, normalise(torch.tensor([[[[2.0, -1.0]], [[-3.0, 0.0]]]]), 1))


def test_the_cache_gives_the_same_and_tells_transforms_apart(tmp_path: Path) -> None:
    pixels = (images() * 255).numpy().astype(np.uint8)
    plain = apply_transform(PATCHES, pixels)
    kept = apply_transform(PATCHES, pixels, tmp_path)
    assert torch.allclose(plain, kept, atol=1e-3)
    assert torch.equal(kept, apply_transform(PATCHES, pixels, tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    apply_transform(LeafPatches(side=8, filters=4, size=3, places=2, seed=1), pixels, tmp_path)
    apply_transform(PATCHES, pixels[:2], tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 3
