"""Findings of a shadow audit, as plain values: what a report and the command line show."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from apiece.audit.likelihood import lira_each, privacy_scores
from apiece.audit.records import ShadowScores
from apiece.audit.roc import roc_by_group
from apiece.audit.splits import check_half_full
from apiece.audit.trend import student_t
from apiece.errors import InputError

LEAST_MODELS = 6  # so that the others of each model hold two with and two without each record


def shadow_findings(
    shadows: ShadowScores, *, variant: str = "online", variance: str = "per-example"
) -> dict[str, Any]:
    """Return the findings of LiRA with every model attacked in turn by all others.

    No figure of a single record is in it.

    Args:
        shadows: Confidences of K models, half full within each group.
        variant: As of `lira`.
        variance: As of `lira`.

    Returns:
        "roc" of all records and by group; "privacy_score": mean, median and 95 % quantile by group;
        "differences": Student's t between the members' mean likelihood scores of each two groups;
        and how many models and records there were.

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
        >>> 0.5 < shadow_findings(shadows)["roc"]["all"]["auc"] < 1
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
    return {
        "attack": f"LiRA, {variant}, {variance} variance",
        "models": shadows.models,
        "records": len(shadows),
        "roc": {name: curve.summary() for name, curve in rocs.items()},
        "privacy_score": {
            name: {
                "mean": float(private[of[name]].mean()),
                "median": float(np.median(private[of[name]])),
                "quantile_95": float(np.quantile(private[of[name]], 0.95)),
                "records": int(of[name].sum()),
            }
            for name in names
        },
        "differences": [
            {"groups": [a, b], **_difference(likelihood[of[a]], likelihood[of[b]])}
            for a, b in combinations(names, 2)
        ],
    }


def _difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> dict[str, float]:
    try:
        found = student_t(first, second)
    except InputError:
        return {}
    return {"statistic": found.statistic, "p_value": found.p_value, "effect": found.effect}
