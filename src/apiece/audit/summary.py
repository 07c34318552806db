"""Findings of a shadow audit."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from apiece._types import Floats
from apiece.audit.findings import Findings, GroupDifference, GroupScores
from apiece.audit.likelihood import lira_each, privacy_scores
from apiece.audit.records import ShadowScores
from apiece.audit.roc import roc_by_group
from apiece.audit.splits import check_half_full
from apiece.audit.trend import Difference, student_t
from apiece.errors import InputError

LEAST_MODELS = 6  # so that the others of each model hold two with and two without each record


def shadow_findings(
    shadows: ShadowScores, *, variant: str = "online", variance: str = "per-example"
) -> Findings:
    """Return the findings of LiRA with every model attacked in turn by all others.

    No figure of a single record is in it.

    Args:
        shadows: Confidences of K models, half full within each group.
        variant: As of `lira`.
        variance: As of `lira`.

    Returns:
        ROCs of all records and by group, privacy scores by group, and Student's t between the
        members' mean likelihood scores of each two groups.

    Raises:
        DataError: For splits that are not half full within each group.
        InputError: For fewer shadow models than LiRA needs.

    References:
        Boenisch et al. 2023, §4.2.

    Example:
        >>> from apiece.audit import biregular
        >>> generator = np.random.default_rng(0)
        >>> included = biregular(8, np.zeros(40, int), generator=generator)
        >>> phi = generator.normal(size=(8, 40)) + included
        >>> shadows = ShadowScores(np.arange(40), np.repeat(["all"], 40), included, phi)
        >>> 0.5 < shadow_findings(shadows).rocs["all"].auc < 1
        True
    """
    check_half_full(shadows.included, shadows.groups)
    scores = lira_each(shadows, variant=variant, variance=variance)
    rocs = roc_by_group(scores, shadows.included, shadows.groups)
    inside = shadows.included.sum(axis=0)
    likelihood = np.where(shadows.included, scores, 0.0).sum(axis=0) / np.maximum(inside, 1)
    names = [str(name) for name in np.unique(shadows.groups)]
    of = {name: shadows.groups.astype(str) == name for name in names}
    private = privacy_scores(shadows).score
    return Findings(
        audit="shadow models",
        attack=f"LiRA, {variant}, {variance} variance",
        models=shadows.models,
        records=len(shadows),
        rocs=rocs,
        privacy_score={name: _group_scores(private[of[name]]) for name in names},
        differences=tuple(
            GroupDifference((a, b), _difference(likelihood[of[a]], likelihood[of[b]]))
            for a, b in combinations(names, 2)
        ),
    )


def _group_scores(scores: Floats) -> GroupScores:
    return GroupScores(
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        quantile_95=float(np.quantile(scores, 0.95)),
        records=scores.size,
    )


def _difference(first: Floats, second: Floats) -> Difference | None:
    try:
        return student_t(first, second)
    except InputError:
        return None
