"""How well scores tell members from non-members: ROC, AUC, balanced accuracy, TPR at low FPR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.audit import thresholds
from apiece.errors import DataError

FPRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The curve from (0, 0) to (1, 1), one point a distinct score.

    Equal scores are one step, so ties are worth half in the area.

    Attributes:
        fpr: False positive rates, increasing.
        tpr: True positive rates at them.
        members: How many members the scores were of.
        others: How many non-members.

    Example:
        >>> Roc(np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0]), 5, 5).auc
        1.0
    """

    fpr: Floats
    tpr: Floats
    members: int
    others: int

    @property
    def auc(self) -> float:
        """The area under the curve: the chance that a member scores above a non-member."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The largest (TPR + 1 − FPR)/2 over all thresholds; optimistic on few scores."""
        return float(np.max(self.tpr + 1 - self.fpr) / 2)

    def tpr_at(self, fpr: float) -> float:
        """Return the TPR of the last threshold whose FPR is at most `fpr`; no interpolation.

        Args:
            fpr: In [0, 1].
        """
        return float(self.tpr[np.searchsorted(self.fpr, fpr, side="right") - 1])

    def summary(self) -> dict[str, float | int]:
        """Return the figures by name; a TPR at an FPR below 1/others is that at FPR 0."""
        at = {f"tpr_at_fpr_{fpr:g}": self.tpr_at(fpr) for fpr in FPRS}
        return {
            "auc": self.auc,
            "balanced_accuracy": self.balanced_accuracy,
            **at,
            "members": self.members,
            "others": self.others,
        }


def roc(scores: npt.ArrayLike, member: npt.ArrayLike) -> Roc:
    """Return the ROC of "score above a threshold says member".

    Args:
        scores: Of any one shape.
        member: Truth values of the same shape.

    Raises:
        DataError: For NaN, lengths that differ, or a class without entries.

    Example:
        >>> roc([3, 2, 1, 0], [1, 0, 1, 0]).auc
        0.75
    """
    values = thresholds.scores("scores", np.ravel(np.asarray(scores)))
    truth = np.ravel(np.asarray(member)).astype(bool)
    if truth.shape != values.shape:
        raise DataError(f"member: {truth.size} entries for {values.size} scores")
    members, others = int(truth.sum()), int((~truth).sum())
    if not (members and others):
        raise DataError(f"member: {members} members and {others} others; a ROC needs both")
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.r_[ordered[1:] != ordered[:-1], True]
    tp = np.cumsum(truth[order])[last]
    fp = np.cumsum(~truth[order])[last]
    return Roc(np.r_[0, fp / others], np.r_[0, tp / members], members, others)


def roc_by_group(
    scores: npt.ArrayLike, member: npt.ArrayLike, groups: npt.NDArray[Any]
) -> dict[str, Roc]:
    """Return the ROC of all records ("all") and of each group, by name.

    Args:
        scores: (n,) or (models, n).
        member: Truth values of the same shape.
        groups: (n,), for all models.

    Raises:
        DataError: As `roc`, and for another number of groups.

    Example:
        >>> found = roc_by_group([3, 2, 1, 0], [1, 0, 1, 0], np.array(["a", "a", "b", "b"]))
        >>> {name: curve.auc for name, curve in found.items()}
        {'all': 0.75, 'a': 1.0, 'b': 1.0}
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(member, dtype=bool)
    if values.shape != truth.shape or values.shape[-1:] != groups.shape:
        raise DataError(
            f"scores {values.shape}, member {truth.shape}, groups {groups.shape}: must agree in "
            "the number of records"
        )
    found = {"all": roc(values, truth)}
    for name in np.unique(groups):
        of = groups == name
        found[str(name)] = roc(values[..., of], truth[..., of])
    return found
