"""Recipes for images: frozen features and priors that see no private data, and small heads on them.

from apiece.recipes import RECIPES

recipe = RECIPES["scattering-linear"]
features = recipe.features(pixels)                 # bytes (n, colours, side, side)
head = recipe.train(recipe.plan(budgets), features, labels, classes=10, seed=None)
"""

from apiece._lazy import lacking

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise lacking(error.name) from None

from apiece.recipes.features import soft_bins
from apiece.recipes.recipe import RECIPES, Recipe, outputs_of, read_recipe

__all__ = ["RECIPES", "Recipe", "read_recipe", "outputs_of", "soft_bins"]
