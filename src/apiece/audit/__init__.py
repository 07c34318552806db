"""What a trained model really leaks, and about whom."""

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

__all__ = [
    "LEAST_MODELS",
    "VARIANTS",
    "Difference",
    "Findings",
    "GroupDifference",
    "GroupScores",
    "LowerBound",
    "PrivacyScores",
    "Rise",
    "Roc",
    "ShadowScores",
    "Side",
    "Trend",
    "audit_scores",
    "biregular",
    "by_person",
    "join",
    "jonckheere_terpstra",
    "lira",
    "lira_each",
    "loss_scores",
    "lower_bound",
    "one_a_person",
    "one_plan",
    "one_run",
    "one_run_by_group",
    "one_target",
    "privacy_scores",
    "read_arrays",
    "rmia",
    "roc",
    "roc_by_group",
    "shadow_findings",
    "share_that_rises",
    "student_t",
]
