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
from apiece.budgets import Budgets
from apiece.errors import DataError
from apiece.plan import Plan
from apiece.training import PeopleRows, StackedMlp

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

    It is made from public sizes: half of each group, rounded up, whoever is in which model.
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

    features (n, d), targets (n,), budgets: of the same n records in the same order; or, with
    people, the id of each row's person, budgets of the persons. The halves are then of persons,
    and in each step a person brings at most `rows_per_person` rows, None for all.
    Raises `DataError` where they differ in length or in their persons.
    """
    if not len(features) == len(targets) == len(budgets if people is None else people):
        raise DataError(
            f"table: {len(features)} rows of features, {len(targets)} labels, {len(budgets)} "
            "budgets; give one of each a record, or a person's id with each row"
        )
    own = None if people is None else PeopleRows.of(people, budgets.ids)
    if own is not None:
        own = replace(own, most=rows_per_person)
    pool = Pool(
        budgets.ids, torch.from_numpy(features), torch.from_numpy(targets), budgets.group_index, own
    )
    generator = np.random.default_rng((seed, 1))
    included = biregular(models, budgets.group_index, generator=generator)
    model = StackedMlp((features.shape[1], *HIDDEN, int(targets.max()) + 1))
    return ShadowJob(pool, plan, model, included, recipe or Recipe(), seed=seed, block=16)
