"""What a trained model really leaks, and about whom."""

from apiece.audit.bounds import LowerBound, lower_bound
from apiece.audit.one_run import one_run

__all__ = ["LowerBound", "lower_bound", "one_run"]
