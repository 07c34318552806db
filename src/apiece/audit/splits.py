"""Splits into shadow models: half of every budget group, and every record in half the models.

A split that is not balanced within the groups would change the distribution of budgets from
model to model, and with it what is measured (Kaiser et al. 2026 App. A-B).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import AnyArray, Mask
from apiece.errors import DataError, InputError
from apiece.plan import BoundPlan, Plan


def biregular(
    models: int, groups: npt.ArrayLike, *, generator: np.random.Generator, trades: int = 5
) -> Mask:
    """Return membership (models, n): each row half of each group, each column half of the models.

    Halves of odd numbers are rounded either way. Starts from complementary pairs of rows and mixes
    them with curveball trades, which keep all sums.

    Args:
        models: How many, at least 2.
        groups: (n,), the group of each record, as a number.
        generator: Of the split.
        trades: How many a row.

    Raises:
        InputError: For fewer than 2 models.
        DataError: For groups of another shape.

    References:
        Kaiser et al. 2026, App. A-B; Strona et al. 2014 (trades).

    Example:
        >>> import numpy as np
        >>> from apiece.audit.splits import biregular
        >>> split = biregular(4, [0, 0, 0, 0, 1, 1], generator=np.random.default_rng(0))
        >>> split[:, :4].sum(axis=1).tolist(), split.sum(axis=0).tolist()
        ([2, 2, 2, 2], [2, 2, 2, 2, 2, 2])
    """
    models = _check.count("models", models, least=2)
    index = np.array(groups, dtype=np.int64)
    if index.ndim != 1 or index.size == 0:
        raise DataError(f"groups: shape {index.shape}; give one group a record")
    result = np.empty((models, index.size), dtype=bool)
    for group in np.unique(index):
        records = np.flatnonzero(index == group)
        # Group by group, so that each is split in half by itself.
        membership = _draw_complementary_rows(models, records.size, generator)
        _trade_members(membership, trades * models, generator)
        result[:, records] = membership
    return result


def _draw_complementary_rows(models: int, size: int, generator: np.random.Generator) -> Mask:
    """Return pairs of rows that complete each other; an odd last row is a random half."""
    rows = np.zeros((models, size), dtype=bool)
    for row in range(0, models, 2):
        # Of an odd size the smaller and the larger half alternate.
        half = size // 2 if row % 4 == 0 else (size + 1) // 2
        members = generator.permutation(size)[:half]
        rows[row, members] = True
        if row + 1 < models:
            rows[row + 1] = ~rows[row]
    return rows


def _trade_members(rows: Mask, trades: int, generator: np.random.Generator) -> None:
    """Deal the records that just one of two rows has afresh between the two, `trades` times.

    Every such record goes to one of the two, and each row gets as many as it had: all sums stay.
    """
    for _ in range(trades):
        a, b = generator.choice(rows.shape[0], 2, replace=False)
        differing = np.flatnonzero(rows[a] != rows[b])
        # Of the records that just one of two rows has, row a keeps as many as it had.
        dealt = generator.permutation(rows[a, differing])
        rows[a, differing] = dealt
        rows[b, differing] = ~dealt


def check_half_full(included: Mask, groups: AnyArray) -> None:
    """Raise `DataError` unless every row holds half of every group, give or take one record."""
    for group in np.unique(groups):
        counts = included[:, groups == group].sum(axis=1)
        size = int((groups == group).sum())
        bad = np.flatnonzero(np.abs(2 * counts - size) > 1)
        if bad.size:
            raise DataError(
                f"included, model {bad[0]}: {counts[bad[0]]} of the {size} records of group "
                f"{group}; a split is half full within each group (make it with biregular)"
            )


def one_plan(*plans: Plan) -> Plan:
    """Return the plan that all worlds of an audit share.

    A plan made again without the target shows by itself whether the target took part.

    Args:
        *plans: Of each world.

    Raises:
        InputError: If they differ, or there are none.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.audit.splits import one_plan
        >>> from apiece.budgets import Budgets
        >>> budgets = Budgets([1.0] * 50, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=5, clip_norm=1.0)
        >>> one_plan(plan, plan) is plan
        True
    """
    if not plans:
        raise InputError("plans: none given")
    shared = plans[0]
    for world, plan in enumerate(plans[1:], start=1):
        if plan.hash() != shared.hash():
            raise InputError(
                f"plan of world {world}: differs from that of world 0; make one plan with the "
                "target and use it in every world, or the plan itself gives the target away"
            )
        # The same public numbers can be bound to other people.
        if (
            isinstance(plan, BoundPlan)
            and isinstance(shared, BoundPlan)
            and not np.array_equal(plan.group_index, shared.group_index)
        ):
            raise InputError(
                f"plan of world {world}: its records are in other groups than in world 0; bind one "
                "plan to one table of budgets"
            )
    return shared
