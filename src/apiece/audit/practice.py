"""Attacks in practice: many targets, each in and out of models that differ in it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.audit.likelihood import PrivacyScores, privacy_scores
from apiece.audit.records import ShadowScores, positions
from apiece.audit.shadows import Pool, ShadowJob
from apiece.audit.shared_plan import one_plan
from apiece.audit.splits import one_target
from apiece.audit.stacked_training import Recipe
from apiece.errors import DataError, InputError
from apiece.plan import Plan
from apiece.training import StackedModel


def target_job(
    pool: Pool,
    plan: Plan | Sequence[Plan],
    targets: Sequence[Any] | npt.NDArray[Any],
    *,
    group: int,
    models: int,
    model: StackedModel,
    recipe: Recipe,
    seed: int,
    block: int = 16,
) -> ShadowJob:
    """Return the shadow models of each target: `models` a target, half with it, half without.

    Everyone else is in all of them. For its own models a target is moved to the plan's `group`;
    the plan must have been made for just those counts. plan: one, or one a world, which must be
    the same. The rows of target t are t·models … (t+1)·models − 1.

    Raises `InputError` for plans that differ between worlds or are made for other counts,
    `DataError` for a target that is not in the pool.
    """
    shared = one_plan(*([plan] if isinstance(plan, Plan) else plan))
    where = positions(pool.ids, np.asarray(targets))
    included = np.concatenate([one_target(models, len(pool), int(t)) for t in where])
    groups = np.repeat(pool.groups[None], where.size * models, axis=0)
    groups[np.arange(len(groups)), np.repeat(where, models)] = group
    expected = shared.budget_groups.records
    for t in range(where.size):
        counts = np.bincount(groups[t * models], minlength=expected.size)
        if not np.array_equal(counts, expected):
            raise InputError(
                f"plan: made for {expected.tolist()} records a group, but with target "
                f"{pool.ids[where[t]]!s} there are {counts.tolist()}; make it with the target in it"
            )
    return ShadowJob(pool, shared, model, included, recipe, seed=seed, block=block, groups=groups)


def target_scores(
    scores: ShadowScores, targets: Sequence[Any] | npt.NDArray[Any], *, models: int
) -> PrivacyScores:
    """Return each target's privacy score from the models that `target_job` made for it.

    Raises `DataError` where the number of models does not fit, or a target's column is not half in.
    """
    wanted = np.asarray(targets)
    where = positions(scores.ids, wanted)
    if scores.models != where.size * models:
        raise DataError(f"scores: {scores.models} models for {where.size} targets of {models} each")
    found = np.empty(where.size)
    for t, column in enumerate(where):
        rows = slice(t * models, (t + 1) * models)
        inside = int(scores.included[rows, column].sum())
        if inside != (models + 1) // 2:
            raise DataError(
                f"target {wanted[t]!s}: in {inside} of its {models} models; must be in half"
            )
        own = ShadowScores(
            scores.ids[[column]],
            scores.groups[[column]],
            scores.included[rows, [column]],
            scores.confidences[rows, [column]],
        )
        found[t] = privacy_scores(own).score[0]
    return PrivacyScores(wanted, np.full(wanted.shape, "target"), found, None, None)
