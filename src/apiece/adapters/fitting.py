"""From what `fit` is given to a fitted estimator, for classes and for numbers alike."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import nn

from apiece import _check
from apiece._types import Integers
from apiece.adapters.account import Account
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.budgets.groups import doubts
from apiece.datasets import Categorical, Date, Numeric, Schema, Skip, read_schema
from apiece.datasets.encode import encode
from apiece.datasets.schema import Feature
from apiece.errors import (
    BudgetError,
    DataError,
    InputError,
    StewardWarning,
    UnsupportedError,
    unknown,
)
from apiece.jobs.model import Target, build
from apiece.jobs.people import Records
from apiece.jobs.running import student
from apiece.pate import Lessons, VotePlan, plan_votes
from apiece.plan import BoundPlan
from apiece.training import Trainer
from apiece.training.randomness import Streams

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained; what is None is chosen by the number of records, which is public.

    Args:
        strategy: By which budgets become a plan.
        batch_size: Expected.
        steps: How many updates.
        clip_norm: The mean bound on a record's gradient.
        learning_rate: Of plain SGD.
        hidden: Widths of hidden layers.
        rows_per_person: The most rows that a person brings to a step.
    """

    strategy: Any
    batch_size: float | None
    steps: int
    clip_norm: float
    learning_rate: float
    hidden: tuple[int, ...]
    rows_per_person: int | None

    def plan(self, budgets: Budgets) -> BoundPlan:
        """Return the verified plan for these records or persons.

        Args:
            budgets: Theirs.

        Raises:
            UnsupportedError: For a strategy that trains several models.
            InputError: As `assign` does.
        """
        size = len(budgets)
        plan = assign(
            budgets,
            self.strategy,
            steps=self.steps,
            expected_batch_size=batch_size(size) if self.batch_size is None else self.batch_size,
            clip_norm=self.clip_norm,
        )
        if plan.combine != "continue":
            raise UnsupportedError(
                f"strategy {plan.strategy}: averages the outputs of {len(plan.stages)} models, and "
                "an estimator has one; choose sample, scale or hybrid"
            )
        say_doubts(plan)
        return plan

    def train(
        self,
        plan: BoundPlan,
        target: Target,
        features: npt.NDArray[np.float32],
        targets: torch.Tensor,
        *,
        people: npt.NDArray[Any] | None,
        seed: int | None,
    ) -> nn.Sequential:
        """Return the network that the plan gives on these rows.

        Args:
            plan: As `plan` made it.
            target: What is predicted.
            features: (n, d).
            targets: (n, …), as `target` encodes them.
            people: (n,) Each row's person, or None.
            seed: None for randomness of the operating system.
        """
        network = build(
            features.shape[1], target.outputs, self.hidden, Streams.from_seed(seed).initialisation()
        )
        Trainer(
            network,
            torch.optim.SGD(network.parameters(), lr=self.learning_rate),
            target.loss,
            plan,
            (torch.from_numpy(features), targets),
            seed=seed,
            people=people,
            rows_per_person=self.rows_per_person,
        ).fit()
        return network


def say_doubts(plan: BoundPlan) -> None:
    """Warn of budgets that look like a mistake.

    Args:
        plan: Of these budgets.
    """
    for doubt in doubts(plan.budget_groups):
        warnings.warn(doubt, UserWarning, stacklevel=5)


def batch_size(records: int) -> float:
    """Return the expected batch size that is taken where none is given."""
    return float(min(records, 2048))


def budgets_of(epsilon: Any, delta: Any, people: npt.NDArray[Any] | None, rows: int) -> Budgets:
    """Return the budgets of the records, or of the persons, that are trained on.

    Args:
        epsilon: For all, or one entry a row.
        delta: The same.
        people: (rows,) Each row's person; None where each row is a record of its own.
        rows: How many there are.

    Raises:
        BudgetError: For values that are no budgets, another number of them, or two rows of one
            person that differ.
    """
    if epsilon is None:
        raise BudgetError("epsilon: missing; give fit an ε for all, or one for each row")
    values = [
        _of_rows("epsilon", _check.positive_array("epsilon", epsilon, error=BudgetError), rows),
        _of_rows(
            "delta", _check.positive_array("delta", delta, below=1.0, error=BudgetError), rows
        ),
    ]
    if people is None:
        return Budgets(*values)
    ids, first, person = np.unique(people, return_index=True, return_inverse=True)
    for name, each in zip(("epsilon", "delta"), values, strict=True):
        if (each != each[first][person]).any():
            raise BudgetError(
                f"{name}: rows of one person differ in it; a person has one budget, and each of "
                "their rows must say the same"
            )
    return Budgets(*(each[first] for each in values), ids=ids)


def ids_of(people: Any, rows: int) -> npt.NDArray[Any] | None:
    """Return each row's person as texts or whole numbers; None where nobody is named.

    Args:
        people: (rows,) Ids.
        rows: How many there are.

    Raises:
        DataError: For another number of ids, or ids of another kind.
    """
    if people is None:
        return None
    ids = _check.ids("people", people)
    if ids.shape != (rows,):
        raise DataError(f"people: {ids.size} ids; give one for each of {rows} rows")
    return ids


def _of_rows(name: str, values: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
    if values.shape not in ((), (rows,)):
        raise BudgetError(
            f"{name}: shape {values.shape} for {rows} rows; give one number, or one for each row"
        )
    return np.broadcast_to(values, rows)


Columns = dict[str, Feature]


def frame_of(estimator: Any, X: Any, *, reset: bool) -> pd.DataFrame:
    """Return X as a table with a name for each column, checked as scikit-learn checks it.

    An array is of numbers; its columns are called x0, x1, …

    Args:
        estimator: That is fitted or asked; it keeps the number and the names of the columns.
        X: A table (pandas, or what has `to_pandas`), or an array.
        reset: Whether X is what it is fitted to.

    Raises:
        ValueError: For what is no such table, or has other columns than the one fitted to.
    """
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.DataFrame):
        if len(X) == 0:
            raise DataError("X: Found array with 0 sample(s); a minimum of 1 is required")
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X.set_axis([str(name) for name in X.columns], axis="columns")
    array = validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def declared(columns: Any, names: list[str]) -> Columns:
    """Return the declaration of each feature.

    Args:
        columns: A declaration by name, a `Schema` or the path of its file; or one `Numeric` for
            all columns.
        names: Of the table's columns.

    Raises:
        InputError: Where columns are not declared, or declared ones are not there.
    """
    if isinstance(columns, Numeric):
        return dict.fromkeys(names, columns)
    if isinstance(columns, str | Path):
        columns = read_schema(columns)
    if isinstance(columns, Schema):
        columns = columns.columns
    kinds = (Numeric, Categorical, Date, Skip)
    if not isinstance(columns, Mapping) or not all(isinstance(c, kinds) for c in columns.values()):
        raise InputError(
            "columns: ranges and categories read from people's rows would leak them; declare them: "
            "Numeric(lower, upper) for all columns, or a mapping of names to Numeric, Categorical, "
            "Date or Skip, or a Schema"
        )
    undeclared = [name for name in names if name not in columns]
    absent = [name for name in columns if name not in names]
    if undeclared or absent:
        what = "are not declared" if undeclared else "are declared, and not in X"
        shown = ", ".join(map(repr, (undeclared or absent)[:8]))
        raise InputError(
            f"columns: {shown} {what}; declare each column of X and no other, Skip() for one that "
            "is not to be used"
        )
    return Schema("columns", columns).features(but=set())


def features_of(frame: pd.DataFrame, columns: Columns) -> npt.NDArray[np.float32]:
    """Return the features of rows to be predicted.

    Args:
        frame: The rows.
        columns: As declared.

    Raises:
        DataError: For a row with a number that cannot be read and is no declared missing marker.
    """
    encoded = encode(frame, columns)
    if encoded.faulty.any():
        unread = encoded.unread.items()
        names = [n for n, c in unread if c and not isinstance(columns[n], Categorical)]
        raise DataError(
            f"X: {int(encoded.faulty.sum())} rows have no number or date in {names[0]!r} or a "
            "column like it, and nothing can be predicted for them; mend them, or declare missing="
            '("",) before training'
        )
    return encoded.features


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


def declared_classes(classes: Any) -> tuple[Any, ...]:
    """Return the declared classes, sorted."""
    if classes is None:
        raise InputError(
            "classes: missing; which labels there are is not read from y, where one person's alone "
            "could be seen: declare all that there can be"
        )
    found = np.unique(np.asarray(classes))
    if found.size < 2:
        raise InputError(f"classes = {classes!r}: give at least two different ones")
    return tuple(found.tolist())


def codes_of(X: Any, y: Any, classes: Any) -> Integers:
    """Return each label's place among the declared classes; labels for each row of X."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(X, labels)
    check_classification_targets(labels)
    codes = pd.Index(classes).get_indexer(pd.Index(labels))
    if (codes < 0).any():
        raise DataError(
            f"y: {int((codes < 0).sum())} of {codes.size} labels are no declared class "
            f"({', '.join(map(repr, classes[:8].tolist()))}); declare all that there are"
        )
    return np.asarray(codes, dtype=np.int64)
