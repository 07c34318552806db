"""What a trained model really leaks, and about whom."""

from typing import TYPE_CHECKING

from apiece import _lazy
from apiece.audit.bounds import LowerBound, lower_bound
from apiece.audit.findings import Findings, GroupDifference, GroupScores
from apiece.audit.likelihood import VARIANTS, PrivacyScores, lira, lira_each, privacy_scores
from apiece.audit.one_run import one_run, one_run_by_group
from apiece.audit.persons import by_person, one_a_person
from apiece.audit.records import ShadowScores, join, read_arrays
from apiece.audit.rmia import loss_scores, rmia
from apiece.audit.roc import Roc, roc, roc_by_group
from apiece.audit.shared_plan import one_plan
from apiece.audit.sides import Side, audit_scores
from apiece.audit.splits import biregular, one_target
from apiece.audit.summary import LEAST_MODELS, shadow_findings
from apiece.audit.trend import (
    Difference,
    Rise,
    Trend,
    jonckheere_terpstra,
    share_that_rises,
    student_t,
)

if TYPE_CHECKING:
    from apiece.audit.models import exported_model, model_confidences
    from apiece.audit.shadows import (
        Arrays,
        Mapper,
        Pool,
        ShadowJob,
        Work,
        claim,
        processes,
        serially,
        train_shadows,
    )
    from apiece.audit.stacked_training import Recipe
    from apiece.audit.tables import half_plan, table_job

__all__ = [
    "LEAST_MODELS",
    "VARIANTS",
    "Arrays",
    "Difference",
    "Findings",
    "GroupDifference",
    "GroupScores",
    "LowerBound",
    "Mapper",
    "Pool",
    "PrivacyScores",
    "Recipe",
    "Rise",
    "Roc",
    "ShadowJob",
    "ShadowScores",
    "Side",
    "Trend",
    "Work",
    "audit_scores",
    "biregular",
    "by_person",
    "claim",
    "exported_model",
    "half_plan",
    "join",
    "jonckheere_terpstra",
    "lira",
    "lira_each",
    "loss_scores",
    "lower_bound",
    "model_confidences",
    "one_a_person",
    "one_plan",
    "one_run",
    "one_run_by_group",
    "one_target",
    "privacy_scores",
    "processes",
    "read_arrays",
    "rmia",
    "roc",
    "roc_by_group",
    "serially",
    "shadow_findings",
    "share_that_rises",
    "student_t",
    "table_job",
    "train_shadows",
]

# Imported on first use: they need torch.
__getattr__ = _lazy.names_of(
    __name__,
    {
        "models": ("exported_model", "model_confidences"),
        "shadows": ("Arrays", "Mapper", "Pool", "ShadowJob", "Work", "claim", "processes",
                    "serially", "train_shadows"),
        "stacked_training": ("Recipe",),
        "tables": ("half_plan", "table_job"),
    },
)  # fmt: skip
