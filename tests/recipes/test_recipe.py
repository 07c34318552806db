"""Recipes: what they learn, what a record with several views can move, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apiece.assignment import Uniform
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, OptionError
from apiece.recipes import RECIPES, Recipe, outputs_of, read_recipe
from apiece.recipes.features import normalise
from refusals import refused

SMALL = Recipe(batch_size=100.0, epochs=8.0, learning_rate=20.0)


def clouds(size: int, views: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of three classes that differ, each view at norm 1."""
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(size) % 3
    centres = torch.randn(3, 6, 2, 2, generator=source)
    noise = torch.randn(size, views, 6, 2, 2, generator=source)
    rows = centres[labels][:, None] + 0.3 * noise
    return normalise(rows.flatten(0, 1), 2).view(size, views, 6, 2, 2), labels


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_learns_and_keeps_the_plan(views: int, average: float) -> None:
    x, y = clouds(300, views)
    recipe = Recipe(**SMALL.to_dict() | {"average": average})
    budgets = Budgets(np.repeat([1.0, 3.0], 150), 1e-4)
    plan = recipe.plan(budgets)
    assert plan.verify(budgets).ok
    assert plan.steps == 24
    head = recipe.train(plan, x, y, 3, seed=0)
    assert (outputs_of(head, x).argmax(1) == y).double().mean() > 0.9


def moved(views: int, *, apart: bool) -> float:
    """How far one record moves the sum of one step, as a multiple of the clip norm.

    apart: its views are records of their own, as nobody may treat them.
    """
    recipe = Recipe(batch_size=50.0, epochs=1.0, learning_rate=1.0, momentum=0.0, clip_norm=1e-3)
    x, y = clouds(50, views)
    other = x.clone()
    other[0] = 50 * torch.randn(x[0].shape, generator=torch.Generator().manual_seed(3))
    weights = []
    for rows in (x, other):
        given, labels = (
            (rows.flatten(0, 1)[:, None], y.repeat_interleave(views)) if apart else (rows, y)
        )
        setting = Recipe(**recipe.to_dict() | {"batch_size": float(len(labels))})
        plan = setting.plan(Budgets(np.full(len(labels), 1.0), 1e-4), Uniform())
        head = setting.train(plan, given, labels, 3, seed=0)
        weights.append(torch.cat([p.detach().flatten() * len(labels) for p in head.parameters()]))
    return float((weights[0] - weights[1]).norm() / recipe.clip_norm)


def test_a_record_s_views_are_clipped_as_one() -> None:
    assert 0 < moved(4, apart=False) <= 2 * (1 + 1e-3)  # one taken away, one added
    assert moved(4, apart=True) > 2.5  # the control sees what four records can do


def test_the_same_seed_gives_the_same_head_and_leaves_torch_s_stream() -> None:
    x, y = clouds(120)
    recipe = Recipe(**SMALL.to_dict() | {"head": "small-cnn", "epochs": 2.0})
    x = torch.nn.functional.interpolate(x[:, 0], scale_factor=2)[:, None]
    plan = recipe.plan(Budgets(np.full(120, 2.0), 1e-4))
    state = torch.get_rng_state()
    first, second = (recipe.train(plan, x, y, 3, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_images_become_features_with_their_mirror_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 12, 12), dtype=np.uint8)
    recipe = Recipe(transform="leaf-patches", groups=32, flips=True)
    found = recipe.features(pixels)
    assert found.shape == (3, 2, 512, 3, 3)
    mirrored = recipe.features(np.ascontiguousarray(pixels[..., ::-1]))
    assert torch.allclose(found[:, 0], mirrored[:, 1], atol=1e-6)
    for bad in (pixels / 255, pixels[0], pixels[..., :-1]):
        with refused(InputError, "images"):
            recipe.features(bad)


def test_whitened_features_are_of_the_record_alone_and_at_norm_one() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 12, 12), dtype=np.uint8)
    recipe = Recipe(transform="pixels", groups=1, whiten=1.0)
    found = recipe.features(pixels)
    assert torch.allclose(found.flatten(1).norm(dim=1), torch.ones(3))
    assert torch.allclose(recipe.features(pixels[1:2])[0], found[1], atol=1e-6)
    plain = Recipe(transform="pixels", groups=1).features(pixels)
    assert not torch.allclose(found, plain, atol=1e-3)


def test_mirrored_features_are_the_same_for_both_and_of_the_record_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 12, 12), dtype=np.uint8)
    recipe = Recipe(transform="leaf-patches", mirrored=True, power=0.5, groups=1, whiten=1.0)
    found = recipe.features(pixels)
    assert found.shape == (3, 1, 512, 3, 3)
    assert torch.allclose(found.flatten(1).norm(dim=1), torch.ones(3))
    other = recipe.features(np.ascontiguousarray(pixels[..., ::-1]))
    assert torch.allclose(found, other, atol=1e-5)
    one_way = Recipe(transform="leaf-patches", power=0.5, groups=1, whiten=1.0)
    assert not torch.allclose(found, one_way.features(pixels), atol=1e-3)
    assert torch.allclose(recipe.features(pixels[1:2])[0], found[1], atol=1e-5)
    with refused(InputError, "mirrored"):
        Recipe(flips=True, mirrored=True)


def test_turned_features_are_the_mean_over_the_turned() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 12, 12), dtype=np.uint8)
    recipe = Recipe(transform="pixels", turn=90, groups=1)
    both = [np.rot90(pixels, k, axes=(2, 3)) for k in (0, 1, 3)]
    mean = np.mean(np.stack(both), axis=0) / 255
    expected = normalise(torch.from_numpy(mean).float(), 1)
    assert torch.allclose(recipe.features(pixels)[:, 0], expected, atol=1e-5)


def test_features_beside_are_both_at_equal_norms() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 12, 12), dtype=np.uint8)
    own = Recipe(transform="pixels", groups=1)
    both = Recipe(transform="pixels", groups=1, beside="leaf-patches-linear").features(pixels)
    other = RECIPES["leaf-patches-linear"].features(pixels)
    assert both.shape == (3, 1, 144 + other[0, 0].numel(), 1, 1)
    half = torch.full((3,), 0.5**0.5)
    assert torch.allclose(both[:, 0, :144].flatten(1).norm(dim=1), half)
    assert torch.allclose(both[:, 0, 144:, 0, 0] / half[0], other[:, 0].flatten(1), atol=1e-6)
    assert torch.allclose(both[:, 0, :144, 0, 0] / half[0], own.features(pixels)[:, 0].flatten(1))
    with pytest.raises(OptionError, match="leaf-patches-linear"):
        Recipe(beside="leaf-patches").features(pixels)
    for name in ("scattering-linear-mirrored", "wavelets-and-patches"):
        with refused(InputError, "beside"):
            Recipe(transform="pixels", groups=1, beside=name).features(pixels)
    for other_settings in ({"flips": True}, {"head": "small-cnn"}):
        with refused(InputError, "beside"):
            Recipe(beside="leaf-patches-linear", **other_settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", 0),
        ("power", 0.0),
        ("power", 1.5),
        ("mirrored", "yes"),
        ("turn", 181),
        ("turn", float("inf")),
        ("clip_norm", float("nan")),
        ("momentum", 1.0),
        ("average", -1),
        ("average", 1.0),
        ("average", float("nan")),
        ("flips", 1),
        ("whiten", 2),
    ],
)
def test_bad_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InputError, match=setting):
        Recipe(**{setting: value})  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with refused(OptionError, "scattering"):
        Recipe(transform="scatering")
    with refused(OptionError, "momentum"):
        Recipe.from_dict({"momentun": 0.5})


def test_configs_go_both_ways(tmp_path: Path) -> None:
    for recipe in RECIPES.values():
        assert Recipe.from_dict(recipe.to_dict()) == recipe
    path = tmp_path / "mine.toml"
    path.write_text('head = "small-cnn"\nflips = true\n')
    assert read_recipe(path) == Recipe(head="small-cnn", flips=True)
    path.write_text("head = ")
    with refused(DataError, "TOML"):
        read_recipe(path)
