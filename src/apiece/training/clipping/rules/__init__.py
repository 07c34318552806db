"""What each layer's parameters give each record: one rule a kind of layer, all in one table."""

from apiece.training.clipping.rules.contributions import (
    Contribution,
    Lookups,
    Outer,
    Products,
    Rows,
    products,
)
from apiece.training.clipping.rules.rule import LayerRule, LayerUse
from apiece.training.clipping.rules.table import RULES, rule_for

__all__ = [
    "RULES",
    "Contribution",
    "LayerRule",
    "LayerUse",
    "Lookups",
    "Outer",
    "Products",
    "Rows",
    "products",
    "rule_for",
]
