"""Dead leaves: repeatable, in range, with the statistics that they are used for."""

import torch

from apiece.errors import InputError
from apiece.recipes.features import compute_whitening, draw_dead_leaves, draw_patches, scale_to_unit
from refusals import refused


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_images_are_in_range_and_repeatable() -> None:
    images = draw_dead_leaves(20, 16, generator=source())
    assert images.shape == (20, 3, 16, 16)
    assert 0 <= images.min() <= images.max() <= 1
    assert torch.equal(images, draw_dead_leaves(20, 16, generator=source()))
    assert not torch.equal(images, draw_dead_leaves(20, 16, generator=source(1)))


def test_neighbours_are_alike_and_edges_are_sharp() -> None:
    images = draw_dead_leaves(200, 32, channels=1, generator=source())
    step = (images[..., 1:] - images[..., :-1]).flatten()
    assert (step == 0).double().mean() > 0.5  # inside a leaf
    assert step.std() > 0.05
    centred = images - images.mean(dim=(2, 3), keepdim=True)
    near = (centred[..., 1:] * centred[..., :-1]).mean()
    far = (centred[..., 12:] * centred[..., :-12]).mean()
    assert near > 3 * far.abs()


def test_patches_are_parts_of_their_images() -> None:
    image = torch.arange(36.0).view(1, 1, 6, 6)
    patches = draw_patches(image, 2, 50, generator=source())
    assert patches.shape == (50, 1, 2, 2)
    first = patches[:, 0, 0, 0]
    assert torch.equal(patches[:, 0, 0, 1], first + 1)
    assert torch.equal(patches[:, 0, 1, 0], first + 6)
    assert first.unique().numel() > 10


def test_whitened_patches_have_the_identity_as_covariance() -> None:
    patches = draw_patches(
        draw_dead_leaves(300, 16, generator=source()), 3, 4000, generator=source(1)
    )
    mean, matrix = compute_whitening(patches, floor=1e-8)
    white = (patches.flatten(1) - mean) @ matrix
    assert torch.allclose(white.T @ white / len(white), torch.eye(27), atol=1e-2)


def test_rows_have_norm_one_and_zeros_stay() -> None:
    rows = scale_to_unit(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]]))
    assert rows[0].norm() == 1
    assert rows[1].tolist() == [0, 0]
    assert torch.isfinite(rows).all()


def test_no_leaf_is_refused() -> None:
    with refused(InputError, "leaves"):
        draw_dead_leaves(1, 8, leaves=0, generator=source())
