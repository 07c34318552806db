"""Wavelet features: of one record alone, as kymatio's, refused for other shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from apiece.errors import InputError
from apiece.recipes.scattering import Scattering
from refusals import refused

# Of kymatio 0.3.0 (ScatteringTorch2D, two orders) at one place of the images that `image` draws.
REFERENCE = json.loads(Path(__file__).with_name("scattering.json").read_text())


def image(side: int, colour: int) -> torch.Tensor:
    """Return an image without symmetry, the same everywhere."""
    at = torch.arange(side)
    return (7 * at[:, None] + 13 * at + 3 * at[:, None] * at + 5 * colour) % 31 / 30


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: "side {side}".format(**case))
def test_values_are_kymatio_s(case: dict[str, Any]) -> None:
    transform = Scattering(case["side"], case["scales"], case["angles"])
    found = transform(torch.stack([image(case["side"], colour) for colour in range(2)])[None])
    row, column = case["place"]
    assert found.shape[1:] == (2 * transform.channels, transform.places, transform.places)
    expected = torch.tensor(case["values"])
    assert torch.allclose(found[0, :, row, column].view_as(expected), expected, atol=1e-6)


def test_no_images_give_no_features() -> None:
    transform = Scattering(8, scales=1, angles=2)
    assert transform(torch.zeros(0, 1, 8, 8)).shape == (0, transform.channels, 4, 4)


def test_shape_and_channels() -> None:
    transform = Scattering(8, scales=1, angles=2)
    found = transform(torch.rand(3, 2, 8, 8))
    assert found.shape == (3, 2 * transform.channels, 4, 4)
    assert Scattering(28).channels == 81


def test_a_record_s_features_are_its_own() -> None:
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    transform = Scattering(8, scales=1, angles=2)
    together = transform(images)
    changed = images.clone()
    changed[0] = 0.5
    assert torch.equal(transform(changed)[1:], together[1:])
    alone = torch.cat([transform(images[i : i + 1]) for i in range(5)])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(transform(images, part=2), together, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 1, 8, 9), (2, 1, 7, 7)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="must be"):
        Scattering(8, scales=1)(torch.rand(shape))


def test_bad_settings_are_refused() -> None:
    with refused(InputError, "scales"):
        Scattering(3)
    with refused(InputError, "angles"):
        Scattering(28, angles=0)
