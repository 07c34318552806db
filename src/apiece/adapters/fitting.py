"""Rows, labels and budgets as scikit-learn's callers give them, held against what was declared."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils import check_consistent_length, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from apiece import _check
from apiece._identity import index_of, numbers_rows, require_rows
from apiece._types import AnyArray, Floats, Ids, Integers
from apiece.budgets import Budgets
from apiece.budgets.levels import Offered
from apiece.datasets import Categorical, Date, Numeric, Schema, Skip, read_schema
from apiece.datasets.encode import describe_unread, encode, warn_unread
from apiece.datasets.pairs import Pair, append_pairs
from apiece.datasets.schema import Column, Feature
from apiece.errors import BudgetError, DataError, FittedStepWarning, InputError, unknown
from apiece.tables.containers import pandas_of
from apiece.tables.values import Declared

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Columns = dict[str, Feature]


def read_classes(classes: npt.ArrayLike | None) -> npt.NDArray[np.generic]:
    """Return the declared classes, sorted."""
    if classes is None:
        raise InputError(
            "classes: missing; which labels there are is not read from y, where one person's alone "
            "could be seen: declare all that there can be"
        )
    # Sorted by NumPy: the order of the network's outputs, and of `classes_`.
    names: npt.NDArray[np.generic] = np.unique(np.asarray(classes))
    if names.size < 2:
        raise InputError(f"classes = {classes!r}: give at least two different ones")
    return names


def encode_labels(X: object, y: object, classes: npt.NDArray[np.generic]) -> Integers:
    """Return each label's position among the declared classes; one label for each row of X."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(X, labels)
    require_same_index(X, y)
    check_classification_targets(labels)
    # By value and not by text: 1, 1.0 and "1" name one class.
    codes = Declared(classes.tolist()).positions(labels.tolist())
    undeclared = codes < 0
    if undeclared.any():
        raise DataError(
            f"y: {int(undeclared.sum())} of {codes.size} labels are no declared class "
            f"({', '.join(map(repr, classes[:8].tolist()))}); declare all that there are"
        )
    return codes


def require_same_index(X: object, y: object) -> None:
    """Check that y has the index of X, where both have one; an array X says nothing of y's."""
    if index_of(X) is not None:
        require_rows("X", X, y=y)


def require_joined(X: object, y: object, **values: object) -> None:
    """Check values with an entry a row against the rows' index: that of X, or else that of y."""
    # A step before an estimator in a pipeline often makes an array of a table, and y goes through
    # it with its index.
    if index_of(X) is None and hasattr(X, "to_pandas"):
        table = X.to_pandas()
        index = index_of(table)
        # Arrow stores the index of a pandas table.
        if index is not None and not numbers_rows(index):
            X = table
    if index_of(X) is None and index_of(y) is not None:
        require_rows("y", y, **values)
    else:
        require_rows("X", X, **values)


def read_frame(estimator: BaseEstimator, X: object, *, reset: bool) -> pd.DataFrame:
    """Return X as a table with a name for each column, checked as scikit-learn checks it.

    The columns of an array are called x0, x1, … reset: whether the estimator is fitted to X.
    """
    X = pandas_of(X)
    if isinstance(X, pd.DataFrame):
        if len(X) == 0:
            raise DataError(
                "X: Found array with 0 sample(s); a minimum of 1 is required: give rows"
            )
        # Names and number of columns alone: cells are read by their declarations, not by
        # scikit-learn.
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X.set_axis([str(name) for name in X.columns], axis="columns")
    # NaN passes, as a declared column may have missing cells.
    array = validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def read_features(columns: object, names: list[str], knots: int = 0) -> Columns:
    """Return the declarations of those of the columns `names` that make features.

    knots: as of `read_columns`.
    """
    return Schema(read_columns(columns, names, knots), name="columns").features(but=set())


def read_columns(columns: object, names: list[str], knots: int = 0) -> dict[str, Column]:
    """Return the declarations of the columns `names`, in this order.

    columns: a mapping by name, a `Schema` or the path of its file, or one `Numeric` for all.
    knots: of the curves of numbers and dates whose declaration says nothing of knots.
    """
    if isinstance(columns, Numeric):
        columns = dict.fromkeys(names, columns)
    if isinstance(columns, str | Path):
        columns = read_schema(columns)
    if isinstance(columns, Schema):
        # Ids are not to be learned from.
        columns = {
            name: Skip() if name == columns.person else column
            for name, column in columns.columns.items()
        }
    if not isinstance(columns, Mapping) or not all(isinstance(c, Column) for c in columns.values()):
        raise InputError(
            "columns: ranges and categories read from people's rows would leak them; declare them: "
            "Numeric(lower, upper) for all columns, or a mapping of names to Numeric, Categorical, "
            "Date, Boolean or Skip, or a Schema"
        )
    undeclared = [name for name in names if name not in columns]
    # Both ways: an undeclared column would be learned from unbounded, an absent one is a mistake.
    absent = [name for name in columns if name not in names]
    if undeclared or absent:
        problem = "are not declared" if undeclared else "are declared, and not in X"
        examples = ", ".join(map(repr, (undeclared or absent)[:8]))
        raise InputError(
            f"columns: {examples} {problem}; declare each column of X and no other, Skip() for one "
            "that is not to be used"
        )
    return {name: _add_knots(columns[name], knots) for name in names}


def _add_knots(column: Column, knots: int) -> Column:
    """Return a declaration, of numbers or dates without knots with so many of them."""
    if isinstance(column, Numeric | Date) and not column.knots:
        return replace(column, knots=knots)
    return column


def read_pairs(pairs: object, names: list[str], columns: Columns) -> tuple[Pair, ...]:
    """Return pairs of columns by their names.

    names: of all columns of X. columns: those that make features.
    """
    if pairs is None:
        return ()
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise InputError(f'pairs = {pairs!r}: give a sequence of pairs, as [("age", "city")]')
    read: list[Pair] = []
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(
                f'pairs: {pair!r} is no pair; give the names of two columns, as ("age", "city")'
            )
        first = _find_column(pair[0], names, columns)
        second = _find_column(pair[1], names, columns)
        if first == second:
            raise InputError(
                f"pairs: {first!r} is paired with itself; its curve has its effect: name two "
                "different columns"
            )
        # A pair in either order is one surface.
        if (first, second) in read or (second, first) in read:
            raise InputError(
                f"pairs: {first!r} and {second!r} are named twice; name each pair once, in one "
                "order"
            )
        read.append((first, second))
    return tuple(read)


def _find_column(entry: object, names: list[str], columns: Columns) -> str:
    """Return the name of a column that makes features, from its name or its position."""
    # A name may be a number, in tables that have such columns.
    name = str(entry)
    is_position = isinstance(entry, int | np.integer) and not isinstance(entry, bool)
    # The columns of an array have no names but these.
    if is_position and names == [f"x{position}" for position in range(len(names))]:
        name = f"x{entry}"
    if name not in columns:
        if name in names:
            raise InputError(
                f"pairs: column {entry!r} is declared and not used; declare it as Numeric, "
                "Categorical, Date or Boolean, or leave out its pair"
            )
        raise unknown("pairs, column", entry, columns)
    return name


def require_bins(pairs: Sequence[Pair], columns: Columns) -> None:
    """Check that each column of a pair has values or knots, whose products are a surface."""
    # Each column once, in the order of the pairs.
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        kind = columns[name]
        if not isinstance(kind, Categorical) and not kind.knots:
            raise InputError(
                f"pairs: column {name!r} is a straight line in this fit, and has no bins to "
                "pair; give curves=8, or knots=8 in its declaration"
            )


def encode_for_prediction(
    frame: pd.DataFrame, columns: Columns, pairs: Sequence[Pair] = ()
) -> npt.NDArray[np.float32]:
    """Return the features of rows to be predicted; raise `DataError` for one without a number.

    Warns of cells that are no declared value.
    """
    encoded = encode(frame, columns)
    if encoded.faulty.any():
        raise DataError(
            f"X: nothing can be predicted for {int(encoded.faulty.sum())} rows, for a number or "
            f"date that is NaN, infinite or unreadable ({describe_unread(encoded, columns)}); mend "
            "them, or declare missing=True in their columns before training"
        )
    warn_unread(encoded, columns, what="X", do="count for nothing", stacklevel=6)
    return append_pairs(encoded.features, columns, pairs)


def encode_for_training(
    frame: pd.DataFrame, columns: Columns, pairs: Sequence[Pair] = ()
) -> npt.NDArray[np.float32]:
    """Return the features of rows to be trained on, NaN throughout for one without a number.

    Warns the caller of `fit`, who holds the rows, of cells that are not as declared.
    """
    encoded = encode(frame, columns)
    warn_unread(encoded, columns, what="X", do="contribute nothing", stacklevel=4)
    return append_pairs(encoded.features, columns, pairs)


def read_budgets(
    epsilon: npt.ArrayLike | None,
    delta: npt.ArrayLike,
    people: Ids | None,
    rows: int,
    levels: Offered | None = None,
) -> Budgets:
    """Return the budgets of the records, or of the persons, from one for all or one a row.

    people: each row's person; None where each row is a record of its own. Rows of one person must
    agree. levels: where there are some, epsilon has their names.
    """
    if epsilon is None:
        raise BudgetError("epsilon: missing; give fit an ε for all, or one for each row")
    for name, values in (("epsilon", epsilon), ("delta", delta)):
        if np.shape(values) not in ((), (rows,)):
            raise BudgetError(
                f"{name}: shape {np.shape(values)} for {rows} rows; give one number, or one for "
                "each row"
            )
    # One entry a row, so that names of levels become ε and labels here.
    of_rows = Budgets(np.broadcast_to(np.asarray(epsilon), rows), delta, levels=levels)
    if people is None:
        return of_rows
    # A person's first row says their budget; all others are held against it.
    ids, first_rows, person = np.unique(people, return_index=True, return_inverse=True)
    of_persons = of_rows.taken(first_rows)
    for name in ("epsilon", "delta"):
        if (getattr(of_rows, name) != getattr(of_persons, name)[person]).any():
            raise BudgetError(
                f"{name}: rows of one person differ in it; a person has one budget, and each of "
                "their rows must say the same"
            )
    return Budgets(of_persons.epsilon, of_persons.delta, ids=ids, labels=of_persons.labels)


def read_people(people: npt.ArrayLike | None, rows: int) -> Ids | None:
    """Return each row's person as texts or whole numbers; None where nobody is named."""
    if people is None:
        return None
    ids = _check.ids("people", people)
    if ids.shape != (rows,):
        raise DataError(f"people: {ids.size} ids; give one for each of {rows} rows")
    return ids


def read_seed(random_state: object) -> int | None:
    """Return scikit-learn's random_state as a number; None is the system's randomness."""
    if random_state is None:
        return None
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    # A generator of scikit-learn's gives a number, which then stands for it.
    return int(check_random_state(random_state).randint(2**31))


def read_weights(sample_weight: npt.ArrayLike, rows: int) -> Floats:
    """Return the factor on each row's loss, from 0 to 1."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,):
        raise InputError(
            f"sample_weight: shape {weights.shape} for {rows} rows; give one number for each"
        )
    # NaN fails both comparisons, and is refused with them.
    outside = ~((weights >= 0) & (weights <= 1))
    if outside.any():
        raise InputError(
            f"sample_weight: {int(outside.sum())} of {rows} are not in [0, 1]; a weight is a "
            "factor on the row's loss, whose gradient is clipped; give each divided by the largest "
            "that there can be, a public number"
        )
    # With nothing but zeros the fit would release noise alone, and be paid for all the same.
    if not weights.any():
        raise InputError("sample_weight: the weight of every row is zero; give some above zero")
    return weights


def weigh_classes(
    class_weight: object, classes: npt.NDArray[np.generic] | AnyArray
) -> Floats | None:
    """Return the factor on the loss of each class, from 0 to 1; None for 1 throughout."""
    if class_weight is None:
        return None
    if class_weight == "balanced":
        raise InputError(
            'class_weight = "balanced": counts the labels of people, which no ε accounts for; '
            "declare the weights, as {False: 0.3, True: 1.0}"
        )
    names = classes.tolist()
    if not isinstance(class_weight, Mapping) or any(name not in names for name in class_weight):
        raise InputError(
            f"class_weight = {class_weight!r}: give a factor in [0, 1] for some of the declared "
            f"classes ({', '.join(map(repr, names[:8]))}), by name"
        )
    factors = []
    for name in names:
        # A class that is not named weighs 1.
        factor = _check.finite("class_weight", class_weight.get(name, 1.0))
        if not 0 <= factor <= 1:
            raise InputError(
                f"class_weight[{name!r}] = {factor:g}: must be in [0, 1]; "
                "give each divided by the largest"
            )
        factors.append(factor)
    return np.array(factors)


def warn_of_fitted_steps(estimator: BaseEstimator) -> None:
    """Warn where the estimator is fitted as the last step of a pipeline that learned from rows."""
    # A step does not know its pipeline: the callers are searched for one that ends in it.
    caller = sys._getframe(1).f_back
    steps: list[tuple[str, object]] = []
    while caller is not None and not steps:
        # A local `self` whose last step is this estimator is the pipeline that fits it.
        found = getattr(caller.f_locals.get("self"), "steps", None)
        if isinstance(found, list) and found and found[-1][-1] is estimator:
            steps = found
        caller = caller.f_back
    # All steps before the estimator itself.
    learned = [name for name, step in steps[:-1] if _learns(step)]
    if learned:
        warnings.warn(
            f"pipeline: {', '.join(map(repr, learned))} learned from the rows before "
            f"{type(estimator).__name__}, which no ε accounts for; declare ranges and values in "
            "columns, which scale and encode, or take steps that learn nothing",
            FittedStepWarning,
            stacklevel=3,
        )


def _learns(step: object) -> bool:
    """Return whether a step before an estimator learns from rows, as scikit-learn's tags say."""
    if step is None or isinstance(step, str):
        return False  # "passthrough" or "drop"
    for attribute in ("steps", "transformer_list", "transformers"):
        # Composite steps learn if any of their parts does.
        parts = getattr(step, attribute, None)
        if isinstance(parts, Iterable):
            return any(_learns(part[1]) for part in parts)
    try:
        return bool(get_tags(step).requires_fit)
    except (AttributeError, TypeError):
        return True  # not an estimator of scikit-learn: nothing says that it learns nothing
