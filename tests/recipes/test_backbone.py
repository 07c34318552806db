"""Features of a network that public photographs have trained; with the extra `backbone`."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from apiece.errors import DataError, InputError, NotInstalledError
from apiece.recipes import RECIPES, Recipe, backbone
from apiece.recipes.backbone import PublicBackbone
from apiece.sklearn import PrivateImageClassifier

RECIPE = Recipe(transform="public-backbone", groups=1)


@functools.cache
def is_there() -> bool:
    try:
        backbone.load_network()
    except NotInstalledError:
        return False
    return True


def draw_images(count: int, side: int = 32, colours: int = 3) -> np.ndarray:
    draws = np.random.default_rng(0)
    return draws.integers(0, 256, (count, colours, side, side)).astype(np.uint8)


@pytest.mark.parametrize("colours", [1, 3])
def test_a_record_s_features_are_its_own(colours: int) -> None:
    if not is_there():
        pytest.skip("needs the extra backbone")
    images = draw_images(5, colours=colours)
    features = RECIPE.features(images)
    assert features.shape == (5, 1, 1280, 1, 1)
    torch.testing.assert_close(features.norm(dim=2).flatten(), torch.ones(5))
    changed = images.copy()
    changed[1:] = 255 - changed[1:]
    torch.testing.assert_close(RECIPE.features(changed)[0], features[0], atol=1e-5, rtol=0)
    assert not torch.allclose(RECIPE.features(changed)[1], features[1], atol=1e-3)


def test_shades_of_grey_are_three_equal_colours() -> None:
    if not is_there():
        pytest.skip("needs the extra backbone")
    grey = draw_images(2, colours=1)
    torch.testing.assert_close(RECIPE.features(grey), RECIPE.features(grey.repeat(3, axis=1)))


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_there():
        pytest.skip("needs the extra backbone")
    monkeypatch.setattr(backbone, "_WEIGHTS_DIGEST", "0" * 64)
    backbone.load_network.cache_clear()
    with pytest.raises(DataError, match="install"):
        RECIPE.features(draw_images(1))


def test_it_asks_for_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(extra: str, *modules: str) -> None:
        raise NotInstalledError(f"apiece[{extra}]")

    monkeypatch.setattr(backbone, "require", lack)
    backbone.load_network.cache_clear()
    with pytest.raises(NotInstalledError, match="backbone"):
        RECIPE.features(draw_images(1))
    backbone.load_network.cache_clear()


@pytest.mark.parametrize("wrong", [{"colours": 2}, {"side": 0}, {"resolution": 8}])
def test_bounds(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError):
        PublicBackbone(**{"side": 32, **wrong})


def test_papers_say_what_was_public() -> None:
    assert "ImageNet" in RECIPE.public_data
    assert Recipe(beside="wavelets-and-patches").public_data == ""
    assert {name for name, recipe in RECIPES.items() if recipe.public_data} == {"public-backbone"}
    if not is_there():
        pytest.skip("needs the extra backbone")
    images = np.concatenate([draw_images(20), 255 - draw_images(20) // 4])
    labels = np.repeat(["noise", "bright"], 20)
    model = PrivateImageClassifier(["noise", "bright"], RECIPE, delta=1e-3, random_state=0)
    model.fit(images, labels, epsilon=4.0)
    assert "ImageNet" in model.run_.data.source
