"""Audits: what a trained model really leaks, and about whom."""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.audit.anytime import (
    Claim,
    anytime_bound,
    sequential,
)
from apiece.audit.bounds import LowerBound, lower_bound, one_run, one_run_by_group
from apiece.audit.findings import Findings
from apiece.audit.membership import lira, loss_scores, privacy_scores, rmia, roc_by_group
from apiece.audit.records import ShadowScores

if TYPE_CHECKING:
    from apiece.audit.shadows import Pool, ShadowJob, train_shadows

__all__ = [
    "lower_bound", "LowerBound", "one_run", "one_run_by_group", "lira", "rmia", "loss_scores",
    "privacy_scores", "roc_by_group", "train_shadows", "ShadowJob", "ShadowScores", "Pool",
    "Findings", "sequential", "Claim", "anytime_bound",
]  # fmt: skip

# These need torch, and are imported on first use.
__getattr__ = _lazy.names_of(
    __name__,
    {
        "shadows": ("Pool", "ShadowJob", "train_shadows"),
    },
)
