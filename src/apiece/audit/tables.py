"""Shadow models for a table of people: the pool, the plan of each half, and the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apiece.assignment import Strategy, assign
from apiece.audit.shadows import Pool, ShadowJob
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import Recipe
from apiece.budgets import Budgets, Units
from apiece.errors import DataError
from apiece.plan import Plan
from apiece.training import StackedMlp

HIDDEN = (128, 64)


def half_plan(
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
) -> Plan:
    """Return the one plan for all shadow models, each trained on half of every budget group.

    Its groups have half of the records, the odd one more, whoever is in which model.

    Args:
        budgets: Of all n records.
        strategy: As for `assign`.
        steps: How many.
        expected_batch_size: In records of a half, or persons.
        clip_norm: As for `assign`.

    Raises:
        InfeasibleError: Where no plan meets the budgets; further errors as `assign`.

    Guarantee:
        For each group, that of the plan: it holds for every record whose budget is its group's,
        whichever model it is in.

    Example:
        >>> plan = half_plan(
        ...     Budgets([1.0] * 5 + [3.0] * 4, 1e-5), "scale", steps=2, expected_batch_size=2.0,
        ...     clip_norm=1.0,
        ... )
        >>> plan.budget_groups.records.tolist()
        [3, 2]
    """
    groups = budgets.groups
    count = (groups.records + 1) // 2
    excess = None if groups.excess is None else np.repeat(groups.excess, count)
    half = Budgets(
        np.repeat(groups.epsilon, count),
        np.repeat(groups.delta, count),
        excess=excess,
        labels=np.repeat(groups.name, count),
    )
    return assign(
        half, strategy, steps=steps, expected_batch_size=expected_batch_size, clip_norm=clip_norm
    )


def table_job(
    features: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
    budgets: Budgets,
    plan: Plan,
    *,
    models: int,
    seed: int,
    recipe: Recipe | None = None,
    people: npt.NDArray[Any] | None = None,
    rows_per_person: int | None = None,
) -> ShadowJob:
    """Return the job of `models` MLPs (features, 128, 64, classes) on biregular halves.

    With `people` the halves are of persons.

    Args:
        features: (n, d).
        targets: (n,) classes.
        budgets: Of the same n records in the same order; with `people`, of the persons.
        plan: As from `half_plan`.
        models: How many, at least 2.
        seed: Of the halves and of the training.
        recipe: How a model is updated.
        people: (n,), the id of each row's person.
        rows_per_person: How many rows a person brings in a step at most, None for all.

    Raises:
        DataError: Where they differ in length or in their persons.

    Example:
        >>> budgets = Budgets([1.0] * 4 + [3.0] * 4, 1e-5)
        >>> plan = half_plan(budgets, "scale", steps=2, expected_batch_size=2.0, clip_norm=1.0)
        >>> x, y = np.ones((8, 3), np.float32), np.arange(8) % 2
        >>> table_job(x, y, budgets, plan, models=4, seed=0).included.sum(axis=1)
        array([4, 4, 4, 4])
    """
    if not len(features) == len(targets) == len(budgets if people is None else people):
        raise DataError(
            f"table: {len(features)} rows of features, {len(targets)} labels, {len(budgets)} "
            "budgets; give one of each a record, or a person's id with each row"
        )
    own = None if people is None else Units.of(people, budgets.ids)
    if own is not None:
        own = replace(own, most=rows_per_person)
    pool = Pool(
        budgets.ids, torch.from_numpy(features), torch.from_numpy(targets), budgets.group_index, own
    )
    generator = np.random.default_rng((seed, 1))
    included = biregular(models, budgets.group_index, generator=generator)
    model = StackedMlp((features.shape[1], *HIDDEN, int(targets.max()) + 1))
    return ShadowJob(pool, plan, model, included, recipe or Recipe(), seed=seed, block=16)
