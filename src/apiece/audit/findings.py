"""Findings: what an audit found, of groups and never of one person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from apiece._types import Json
from apiece.audit.bounds import LowerBound
from apiece.audit.roc import Roc
from apiece.audit.trend import Difference


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The privacy scores of a group's records: mean, median and 95 % quantile.

    Attributes:
        mean: Over the records.
        median: Over the records.
        quantile_95: Over the records.
        records: How many there were.

    Example:
        >>> GroupScores(0.2, 0.1, 0.9, 40).records
        40
    """

    mean: float
    median: float
    quantile_95: float
    records: int


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """How the members of two groups differ in their mean scores.

    Attributes:
        groups: Their names.
        test: Student's t; None where a group is too small for it.

    Example:
        >>> GroupDifference(("strict", "weak"), None).to_dict()
        {'groups': ['strict', 'weak']}
    """

    groups: tuple[str, str]
    test: Difference | None

    def to_dict(self) -> Json:
        """Return the difference as JSON types."""
        return {"groups": list(self.groups), **({} if self.test is None else asdict(self.test))}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Findings:
    """What an audit found; what it did not look at is None or empty.

    Attributes:
        audit: What was audited, in words.
        attack: By which test.
        unit: "person" where scores, coins and splits are of persons with any number of rows; None
            where they are of records.
        strategy: Of the plan, where the audit made one.
        steps: Of that plan.
        models: How many models were trained for it.
        records: Of how many records or persons.
        rocs: How well members are told from others, by group.
        bounds: On ε, with a confidence.
        bounds_by_group: The same, by group; they hold together.
        privacy_score: Of each group.
        differences: Of each two groups.
        canaries: How many records or persons the bounds rest on.

    Example:
        >>> Findings(audit="two worlds").to_dict()
        {'audit': 'two worlds'}
    """

    audit: str
    attack: str | None = None
    unit: str | None = None
    strategy: str | None = None
    steps: int | None = None
    models: int | None = None
    records: int | None = None
    rocs: Mapping[str, Roc] = field(default_factory=dict)
    bounds: tuple[LowerBound, ...] = ()
    bounds_by_group: Mapping[str, tuple[LowerBound, ...]] | None = None
    privacy_score: Mapping[str, GroupScores] = field(default_factory=dict)
    differences: tuple[GroupDifference, ...] = ()
    canaries: int | None = None

    def to_dict(self) -> Json:
        """Return the findings as JSON types, without what was not looked at."""
        by_group = self.bounds_by_group
        found: Json = {
            "audit": self.audit,
            "strategy": self.strategy,
            "steps": self.steps,
            "attack": self.attack,
            "unit": self.unit,
            "models": self.models,
            "records": self.records,
            "roc": {name: curve.summary() for name, curve in self.rocs.items()} or None,
            "lower_bounds": [bound.to_dict() for bound in self.bounds] or None,
            "lower_bounds_by_group": None
            if by_group is None
            else {name: [bound.to_dict() for bound in each] for name, each in by_group.items()},
            "privacy_score": {name: asdict(own) for name, own in self.privacy_score.items()}
            or None,
            "differences": [each.to_dict() for each in self.differences] or None,
            "canaries": self.canaries,
        }
        return {name: value for name, value in found.items() if value is not None}
