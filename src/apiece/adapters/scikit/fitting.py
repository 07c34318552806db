"""From what `fit` is given to a fitted estimator, for classes and for numbers alike."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.utils import check_random_state

from apiece.adapters.scikit.account import Account
from apiece.adapters.scikit.budgets import budgets_of, ids_of
from apiece.adapters.scikit.features import Columns, declared, features_of, frame_of
from apiece.adapters.scikit.training import Recipe, say_doubts
from apiece.adapters.scikit.voting import is_pate, trained, votes_of
from apiece.budgets import Budgets
from apiece.datasets import Categorical, encode
from apiece.errors import InputError, StewardWarning
from apiece.jobs import Records, Target


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Given:
    """The rows that an estimator is fitted to, with whose they are and at what price.

    Args:
        frame: The rows.
        columns: The declaration of each feature.
        budgets: Of the records, or of the persons.
        people: Each row's person, or None.
    """

    frame: pd.DataFrame = field(repr=False)
    columns: Columns
    budgets: Budgets = field(repr=False)
    people: npt.NDArray[Any] | None = field(repr=False)

    @classmethod
    def of(cls, estimator: Any, X: Any, *, epsilon: Any, delta: Any, people: Any) -> Given:
        """Return the rows and budgets, checked; the estimator's budget where none is given.

        Args:
            estimator: That is fitted.
            X: The rows.
            epsilon: One for all or for each row, or None.
            delta: The same.
            people: Whose each row is, or None.

        Raises:
            InputError: For what is not declared, or is no budget.
        """
        frame = frame_of(estimator, X, reset=True)
        ids = ids_of(people, len(frame))
        budgets = budgets_of(
            estimator.epsilon if epsilon is None else epsilon,
            estimator.delta if delta is None else delta,
            ids,
            len(frame),
        )
        return cls(frame, declared(estimator.columns, list(frame.columns)), budgets, ids)


def fit(estimator: Any, given: Given, target: Target, targets: torch.Tensor) -> None:
    """Train, and put what came of it on the estimator.

    Args:
        estimator: Whose parameters say how.
        given: The rows.
        target: What is predicted.
        targets: Of the rows, encoded.

    Raises:
        InputError: For an account that is none.
    """
    if not isinstance(estimator.account, Account | None):
        raise InputError(f"account = {estimator.account!r}: give an apiece.sklearn.Account or None")
    by_votes, kept = is_pate(estimator), _kept(given)
    if by_votes:
        _fit_by_votes(estimator, given, kept, targets)
        return
    recipe = Recipe(
        strategy="sample" if estimator.strategy is None else estimator.strategy,
        batch_size=estimator.batch_size,
        steps=estimator.steps,
        clip_norm=estimator.clip_norm,
        learning_rate=estimator.learning_rate,
        hidden=tuple(estimator.hidden),
        rows_per_person=estimator.rows_per_person,
    )
    plan = recipe.plan(given.budgets)
    if given.people is not None:
        plan = replace(plan, unit="person")
    if estimator.account is not None:
        estimator.account.note(plan, named=given.people is not None)
    network = recipe.train(
        plan,
        target,
        kept.features,
        targets[torch.from_numpy(kept.labels)],
        people=kept.person,
        seed=seed_of(estimator.random_state),
    )
    estimator.network_ = network
    estimator.plan_ = plan.public()


def _fit_by_votes(estimator: Any, given: Given, kept: Records, targets: torch.Tensor) -> None:
    """Train by PATE, and put what came of it on the estimator."""
    votes = votes_of(estimator, given.budgets, persons=given.people is not None)
    say_doubts(votes.plan)
    records = Records(kept.features, targets.numpy()[kept.labels], kept.person)
    if estimator.account is not None:
        estimator.account.note(votes.plan, named=given.people is not None)
    estimator.network_ = trained(
        estimator, votes, given.columns, records, seed_of(estimator.random_state)
    )
    estimator.plan_ = votes.plan.public()


def _kept(given: Given) -> Records:
    """Return the rows with their positions; of a person with faulty rows the others stay.

    Warns the caller of `fit`, who holds the rows, of those that contribute nothing.
    """
    encoded = encode(given.frame, given.columns)
    faulty, size = int(encoded.faulty.sum()), len(encoded.faulty)
    if faulty:
        cells = ", ".join(
            f"{count} in {name!r}"
            for name, count in encoded.unread.items()
            if count and not isinstance(given.columns[name], Categorical)
        )
        warnings.warn(
            f"X: {faulty} of {size} rows contribute nothing, for a number or date that is NaN, "
            f'infinite or unreadable ({cells}); mend them, or declare missing=("",) in their '
            "columns to learn from them; these counts are data about people: show them to nobody "
            "else",
            StewardWarning,
            stacklevel=4,
        )
    return Records(encoded.features, np.arange(size), given.people).without_faulty()


@torch.no_grad()
def outputs(estimator: Any, X: Any) -> torch.Tensor:
    """Return what a fitted estimator's network puts out for each row.

    Args:
        estimator: Fitted.
        X: The rows.

    Raises:
        DataError: For a row that cannot be read.
    """
    frame = frame_of(estimator, X, reset=False)
    features = features_of(frame, declared(estimator.columns, list(frame.columns)))
    found: torch.Tensor = estimator.network_(torch.from_numpy(features))
    return found


def seed_of(random_state: Any) -> int | None:
    """Return scikit-learn's random_state as a number; None stays None, for the system's randomness.

    Args:
        random_state: None, a whole number, or a generator.

    Example:
        >>> seed_of(3), seed_of(None)
        (3, None)
    """
    if random_state is None:
        return None
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
