"""The budget distributions of the papers, as generators of `Budgets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from apiece import _check
from apiece._types import AnyArray
from apiece.budgets import Budgets
from apiece.errors import BudgetError

ALAGGAN = (0.34, 0.43, 0.23)
NIU = (0.54, 0.37, 0.09)
NAMES = ("strict", "medium", "weak")
SKEWS = {-0.2: (2.098, -1.715), 0.0: (0.0, 1.0), 0.2: (1.554, -1.715)}


def three_groups(
    size: int,
    delta: float,
    *,
    shares: Sequence[float] = ALAGGAN,
    epsilons: Sequence[float] = (1.0, 2.0, 3.0),
    seed: int | None = None,
) -> Budgets:
    """Return the three groups of Boenisch et al. 2023.

    ALAGGAN (34/43/23 %) or NIU (54/37/9 %), at ε = 1, 2, 3.

    With a `seed` the records are shuffled. Source: Boenisch et al. 2023 §5.1.

    >>> three_groups(100, 1e-5, shares=NIU).groups.records.tolist()
    [54, 37, 9]
    """
    rows = list(zip(NAMES, epsilons, shares, strict=True))
    return Budgets.from_groups(rows, size, delta, seed=seed)


def exponential_skew(
    size: int,
    delta: float,
    *,
    skew: float = 0.0,
    low: float = 0.5,
    high: float = 1.0,
    groups: int = 20,
    seed: int | None = None,
) -> Budgets:
    """Return Heo et al.'s distribution: `groups` budgets on [low, high], counts as c₁·e^(kε) + c₂.

    skew: k, one of −0.2 (most are strict), 0 (equal counts), 0.2 (most are loose), with the
    constants that the paper gives for ε on [0.5, 1]; another interval is mapped onto that one.
    The counts are scaled to sum to `size` (the paper's sum to about 1.8 times the data).

    Raises `BudgetError` for another skew. Source: Heo et al. 2023 §5.2, C.1.

    >>> exponential_skew(2000, 1e-5).groups.records.tolist() == [100] * 20
    True
    """
    if skew not in SKEWS:
        raise BudgetError(f"skew = {skew!r}: must be one of {sorted(SKEWS)}, as in the paper")
    number = _check.count("groups", groups, least=2)
    start, end = _check.positive("low", low), _check.positive("high", high)
    if not start < end:
        raise BudgetError(f"low = {low!r}: must be below high = {high!r}")
    scale, shift = SKEWS[skew]
    weight = scale * np.exp(skew * np.linspace(0.5, 1.0, number)) + shift
    shares = weight / weight.sum()
    epsilons = np.linspace(start, end, number)
    rows = [(f"epsilon={e:.6g}", e, s) for s, e in zip(shares, epsilons, strict=True)]
    return Budgets.from_groups(rows, size, delta, seed=seed)


def per_class(
    labels: Sequence[object] | AnyArray, epsilons: Mapping[object, float], delta: float
) -> Budgets:
    """Return budgets that depend on each record's class, as in Boenisch et al. 2023 Table 9.

    labels: each record's class; epsilons: the budget of each. Raises `BudgetError` for a class
    without one. The groups then reveal classes: use it where those are public.

    >>> per_class(["cat", "dog", "cat"], {"cat": 1.0, "dog": 2.0}, 1e-5).epsilon.tolist()
    [1.0, 2.0, 1.0]
    """
    values = np.asarray(labels)
    classes, index = np.unique(values, return_inverse=True)
    missing = [c for c in classes.tolist() if c not in epsilons]
    if missing:
        raise BudgetError(f"epsilons: no budget for class {missing[0]!r}; give one for each class")
    levels = np.array([_check.positive(f"epsilon of {c}", epsilons[c]) for c in classes.tolist()])
    names = np.array([f"class {c}" for c in classes.tolist()])
    return Budgets(levels[index.ravel()], delta, labels=names[index.ravel()])
