"""Recipes: frozen features of images and small heads on them; a public language model's adapters.

from apiece.recipes import RECIPES

recipe = RECIPES["scattering-linear"]
features = recipe.features(pixels)                 # bytes (n, colours, side, side)
head = recipe.train(recipe.plan(budgets), features, labels, classes=10, seed=None)
"""

# Imports stand behind the check that what they need is installed.
# ruff: noqa: E402

from apiece._lazy import require

require("train", "torch")

from apiece.recipes.features import soft_bins
from apiece.recipes.language import LanguageRecipe, load_language_model
from apiece.recipes.recipe import RECIPES, Recipe, outputs_of, read_recipe

__all__ = [
    "RECIPES",
    "Recipe",
    "read_recipe",
    "outputs_of",
    "soft_bins",
    "LanguageRecipe",
    "load_language_model",
]
