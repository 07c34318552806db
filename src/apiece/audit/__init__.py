"""Audits: what a trained model really leaks, and about whom."""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.audit.anytime import (
    Claim,
    EProcess,
    Stopped,
    Watched,
    anytime_bound,
    engine_rounds,
    sequential,
    step_claims,
)
from apiece.audit.bounds import LowerBound, lower_bound, one_run, one_run_by_group
from apiece.audit.findings import Findings, jonckheere_terpstra, share_that_rises, student_t
from apiece.audit.membership import lira, loss_scores, privacy_scores, rmia, roc_by_group
from apiece.audit.records import ShadowScores
from apiece.audit.splits import biregular, one_plan

if TYPE_CHECKING:
    from apiece.audit.shadows import Pool, ShadowJob, processes, train_shadows
    from apiece.audit.stacked_training import UpdateRule

__all__ = [
    "Claim", "EProcess", "Findings", "LowerBound", "Pool", "ShadowJob", "ShadowScores", "Stopped",
    "UpdateRule", "Watched", "anytime_bound", "biregular", "engine_rounds", "jonckheere_terpstra",
    "lira", "loss_scores", "lower_bound", "one_plan", "one_run", "one_run_by_group",
    "privacy_scores", "processes", "rmia", "roc_by_group", "sequential", "share_that_rises",
    "step_claims", "student_t", "train_shadows",
]  # fmt: skip

# These need torch, and are imported on first use.
__getattr__ = _lazy.names_of(
    __name__,
    {
        "shadows": ("Pool", "ShadowJob", "processes", "train_shadows"),
        "stacked_training": ("UpdateRule",),
    },
)
