"""One model's scores of members and of others: how well they are told apart, with bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.audit.findings import Findings
from apiece.audit.one_run import one_run
from apiece.audit.persons import by_person, one_a_person
from apiece.audit.rmia import loss_scores
from apiece.audit.roc import roc_by_group
from apiece.errors import DataError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Side:
    """What a model says of those that it was trained on, or of others; data about people.

    Args:
        scores: (n,), one a record or person; higher says trained on.
        groups: (n,), their budget groups, or None.
        people: (n,), the persons' ids, or None where the records are the units.

    Example:
        >>> Side.of([0.0, 2.0, 2.0], people=["ann", "bob", "ann"]).people.tolist()
        ['ann', 'bob']
    """

    scores: Floats
    groups: npt.NDArray[Any] | None = None
    people: npt.NDArray[Any] | None = None

    @classmethod
    def of(
        cls,
        confidences: npt.ArrayLike,
        *,
        groups: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
    ) -> Side:
        """Return the side of confidences φ: the loss of each record, or the mean of a person's.

        Args:
            confidences: (n,), φ = log(p/(1−p)) of the true class, one a row.
            groups: (n,), the budget group of each row.
            people: (n,), the id of each row's person, where persons are the units.

        Raises:
            DataError: As `by_person`, and where a person is in two groups.
        """
        scores = loss_scores(np.asarray(confidences, dtype=np.float64).ravel())
        names = None if groups is None else np.asarray(groups)
        if people is None:
            return cls(scores, names)
        ids, means = by_person(scores, people)
        return cls(means, None if names is None else one_a_person("groups", names, people), ids)


def audit_scores(
    members: Side,
    others: Side,
    *,
    delta: float,
    confidence: float = 0.95,
    generator: np.random.Generator,
) -> Findings:
    """Return what one model's confidences give away about who was in its training set.

    The bounds draw m = min(members, others) canaries, with a Binomial(m, ½) number from the
    members, so that among exchangeable records each is in by a fair coin, as the one-run theorem
    asks. A train/test split that was not drawn at random makes the bounds meaningless.

    Args:
        members: Those who were trained on.
        others: Of the same population, who were not. Where both have groups, there is a ROC a
            group.
        delta: Of the bounds.
        confidence: Of each bound.
        generator: Draws the canaries.

    Raises:
        DataError: Where a person is on both sides, or one side is of persons and one of records.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> members, others = (Side.of(generator.normal(size=50)) for _ in range(2))
        >>> audit_scores(members, others, delta=1e-5, generator=generator).canaries
        50
    """
    _require_apart(members.people, others.people)
    sizes = members.scores.size, others.scores.size
    scores = np.concatenate([members.scores, others.scores])
    truth = np.repeat([True, False], sizes)
    groups = np.full(scores.size, "all")
    if members.groups is not None and others.groups is not None:
        groups = np.concatenate([members.groups, others.groups])
    rocs = roc_by_group(scores, truth, groups)
    size = min(sizes)
    count = int(generator.binomial(size, 0.5))
    chosen = np.concatenate(
        [
            generator.choice(sizes[0], count, replace=False),
            sizes[0] + generator.choice(sizes[1], size - count, replace=False),
        ]
    )
    bounds = tuple(
        one_run(scores[chosen], truth[chosen], delta=delta, confidence=confidence, method=method)
        for method in ("dp", "gdp")
    )
    return Findings(
        audit="torch model",
        attack="loss threshold",
        unit=None if members.people is None else "person",
        rocs=rocs,
        bounds=bounds,
        canaries=size,
    )


def _require_apart(one: npt.NDArray[Any] | None, other: npt.NDArray[Any] | None) -> None:
    if one is None and other is None:
        return
    if one is None or other is None:
        raise DataError("people: of members or of others only; give whose the rows of both are")
    both = np.intersect1d(one, other).size
    if both:
        raise DataError(
            f"people: {both} persons are among members and others; a person is in or out with all "
            "of their rows"
        )
