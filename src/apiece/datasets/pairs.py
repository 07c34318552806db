"""Pairs of columns: the products of their features, from which a linear model learns a surface.

A row's products depend on that row and the schema alone, as its features do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from apiece.datasets.encode import Features, name_features
from apiece.datasets.schema import Feature

# The names of two columns.
Pair: TypeAlias = tuple[str, str]


def locate_features(columns: Mapping[str, Feature]) -> dict[str, slice]:
    """Return where the features of each column lie among all."""
    places: dict[str, slice] = {}
    start = 0
    for name, kind in columns.items():
        # Counted as `name_features` names them, indicator of missing cells included.
        stop = start + len(name_features({name: kind}))
        places[name] = slice(start, stop)
        start = stop
    return places


def count_features(columns: Mapping[str, Feature], pairs: Sequence[Pair] = ()) -> int:
    """Return how many features columns and pairs have."""
    widths = {name: len(name_features({name: kind})) for name, kind in columns.items()}
    return sum(widths.values()) + sum(widths[first] * widths[second] for first, second in pairs)


def append_pairs(
    features: Features, columns: Mapping[str, Feature], pairs: Sequence[Pair]
) -> Features:
    """Return features (n, d), and after them those of pairs.

    A pair has the product of each feature of its first column with each of its second, the second
    changing faster. A column's features have an l2 norm of at most 1: one number in [-1, 1], or
    shares in [0, 1] whose sum is at most 1. The norm of all products of two vectors is the product
    of their norms, so a pair's features have a norm of at most 1 too.
    """
    if not pairs:
        return features
    places = locate_features(columns)
    blocks = [features]
    for first, second in pairs:
        # (n, first features, second features), then flat with the second changing faster.
        products = features[:, places[first], None] * features[:, None, places[second]]
        blocks.append(products.reshape(len(features), -1))
    return np.concatenate(blocks, axis=1)
