"""A classifier by PATE: teachers on people's rows, a student on declared public rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from apiece import _check
from apiece.adapters.scikit.features import Columns, frame_of
from apiece.budgets import Budgets
from apiece.datasets import encode
from apiece.errors import InputError, unknown
from apiece.jobs import Records, student
from apiece.pate import Lessons, VotePlan, plan_votes

METHODS = ("dp-sgd", "pate")
_OF_PATE = ("public", "teachers", "threshold")


def is_pate(estimator: Any) -> bool:
    """Return whether an estimator trains by PATE, its parameters for that checked.

    Args:
        estimator: A `PrivateClassifier`.

    Raises:
        OptionError: For a method that there is not.
        InputError: For parameters of one method that are given with the other, and missing ones.
    """
    if not hasattr(estimator, "method"):  # of numbers, for which nobody can vote
        return False
    if estimator.method not in METHODS:
        raise unknown("method", estimator.method, METHODS)
    given = [name for name in _OF_PATE if getattr(estimator, name) is not None]
    if estimator.method == "dp-sgd":
        if given:
            raise InputError(f'{given[0]}: is of PATE; give method="pate" too, or leave it out')
        return False
    if estimator.rows_per_person is not None:
        raise InputError(
            'rows_per_person: is of DP-SGD; with method="pate" leave it out (all rows of a person '
            "go to that person's teachers)"
        )
    if estimator.public is None:
        raise InputError('public: missing; with method="pate" give rows that are public')
    if estimator.teachers is None:
        raise InputError("teachers: missing; give a number, some hundred people a teacher")
    return True


def votes_of(estimator: Any, budgets: Budgets, *, persons: bool) -> VotePlan:
    """Return the verified plan of the votes.

    Args:
        estimator: Whose parameters say how.
        budgets: Of the records or persons.
        persons: Whether they are persons.
    """
    return plan_votes(
        budgets,
        "weight" if estimator.strategy is None else estimator.strategy,
        teachers=estimator.teachers,
        questions=estimator.questions,
        threshold=estimator.threshold,
        unit="person" if persons else "record",
    )


def trained(
    estimator: Any, votes: VotePlan, columns: Columns, kept: Records, seed: int | None
) -> nn.Sequential:
    """Return the student.

    Args:
        estimator: Whose parameters say how.
        votes: The plan.
        columns: The declaration of each feature.
        kept: The rows of the people, encoded.
        seed: None for randomness of the operating system.
    """
    size = estimator.batch_size
    lessons = Lessons(
        steps=estimator.steps,
        batch_size=32 if size is None else _check.count("batch_size", size),
        learning_rate=estimator.learning_rate,
        clip_norm=estimator.clip_norm,
    )
    network, _ = student(
        votes,
        kept,
        _public(estimator, columns),
        hidden=tuple(estimator.hidden),
        classes=len(estimator.classes_),
        lessons=lessons,
        semi_supervised=bool(estimator.semi_supervised),
        seed=seed,
    )
    return network


def _public(estimator: Any, columns: Columns) -> npt.NDArray[np.float32]:
    encoded = encode(frame_of(estimator, estimator.public, reset=False), columns)
    return encoded.features[~encoded.faulty]
