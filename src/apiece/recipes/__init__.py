"""Recipes for images: frozen features and priors that see no private data, and small heads on them.

    from apiece.recipes import RECIPES

    recipe = RECIPES["scattering-linear"]
    features = recipe.features(pixels)                 # bytes (n, colours, side, side)
    head = recipe.train(recipe.plan(budgets), features, labels, classes=10, seed=None)

The wavelets need the `recipes` extra.
"""

from apiece.recipes.features import (
    LeafPatches,
    Pixels,
    Transform,
    leaf_whitening,
    normalised,
    soft_bins,
    transformed,
    turned,
    views,
    whitened,
)
from apiece.recipes.heads import (
    HEADS,
    TurnedConvolution,
    WeightAverage,
    equivariant_cnn,
    linear,
    loss_ordered_weights,
    small_cnn,
)
from apiece.recipes.leaves import LeafNetwork, dead_leaves, patches_of, unit, whitening
from apiece.recipes.recipe import RECIPES, Recipe, outputs_of, read_recipe
from apiece.recipes.scattering import Scattering

__all__ = [
    "HEADS",
    "RECIPES",
    "LeafNetwork",
    "LeafPatches",
    "Pixels",
    "Recipe",
    "Scattering",
    "Transform",
    "TurnedConvolution",
    "WeightAverage",
    "dead_leaves",
    "equivariant_cnn",
    "leaf_whitening",
    "linear",
    "loss_ordered_weights",
    "normalised",
    "outputs_of",
    "patches_of",
    "read_recipe",
    "small_cnn",
    "soft_bins",
    "transformed",
    "turned",
    "unit",
    "views",
    "whitened",
    "whitening",
]
