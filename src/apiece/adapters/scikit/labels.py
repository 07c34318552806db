"""Classes are declared, and labels held against them: none is read from y."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from apiece._types import Integers
from apiece.errors import DataError, InputError


def declared_classes(classes: Any) -> tuple[Any, ...]:
    """Return the declared classes, sorted."""
    if classes is None:
        raise InputError(
            "classes: missing; which labels there are is not read from y, where one person's alone "
            "could be seen: declare all that there can be"
        )
    found = np.unique(np.asarray(classes))
    if found.size < 2:
        raise InputError(f"classes = {classes!r}: give at least two different ones")
    return tuple(found.tolist())


def codes_of(X: Any, y: Any, classes: Any) -> Integers:
    """Return each label's place among the declared classes; labels for each row of X."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(X, labels)
    check_classification_targets(labels)
    codes = pd.Index(classes).get_indexer(pd.Index(labels))
    if (codes < 0).any():
        raise DataError(
            f"y: {int((codes < 0).sum())} of {codes.size} labels are no declared class "
            f"({', '.join(map(repr, classes[:8].tolist()))}); declare all that there are"
        )
    return np.asarray(codes, dtype=np.int64)
