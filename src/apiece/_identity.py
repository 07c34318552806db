"""Identity: values of records or persons are joined by the labels that they carry, or refused.

A value carries labels where it has an index (a pandas Series, and what is made like one). Lists and
arrays, Polars and Arrow columns carry none and are taken by position. An index 0, 1, 2, … is what
a table has to which nobody gave labels: it says no more than the positions do, unless the other
side has the same numbers in another order.

Messages name no label: labels are people's ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apiece import _check
from apiece._types import Ids
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def index_of(value: object, *, axis: int = 0) -> pd.Index[Any] | None:
    """Return the labels that a value carries along an axis; None where it is positional."""
    labels: Any = getattr(value, "index" if axis == 0 else "columns", None)
    # A list, a tuple and a text have a method of this name.
    if isinstance(value, type) or callable(labels):
        return None
    # Libraries that are made like pandas convert their indices to one of pandas.
    if hasattr(labels, "to_pandas"):
        labels = labels.to_pandas()
    return _as_index(labels)


def _as_index(labels: Any) -> pd.Index[Any] | None:
    """Return labels if they are an index of pandas, else None."""
    return labels if hasattr(labels, "get_indexer") else None


def numbers_rows(labels: pd.Index[Any]) -> bool:
    """Return whether labels are 0, 1, 2, … in this order, as in a table that was given none."""
    return bool(labels.equals(make_labels(np.arange(len(labels)))))


def make_labels(ids: object) -> pd.Index[Any]:
    """Return ids as labels that can be compared with an index."""
    import pandas as pd  # imported already, where a value has an index

    labels: pd.Index[Any] = pd.Index(np.asarray(ids))
    return labels


def require_rows(name: str, rows: Any, /, **values: object) -> None:
    """Check values with an entry a row against the rows: equal labels, or none.

    An index beside rows that have none is refused, unless it is 0, 1, 2, …: nobody can tell whether
    both are in the same order.

    Args:
        name: The rows' name in a message.
        rows: The table that the values belong to; its index, where it has one, is the rows'
            identity. Or an index; or None for rows that have none.
        **values: By the name of their parameter; a value without an index is positional.

    Raises:
        DataError: For another index, and for the same labels in another order.
    """
    row_labels = index_of(rows) if _as_index(rows) is None else rows
    for value_name, value in values.items():
        labels = index_of(value)
        if labels is None:
            continue
        if row_labels is not None:
            _require_equal(value_name, labels, name, row_labels, f"{name}.index")
        elif not numbers_rows(labels):
            raise DataError(
                f"{value_name}: has an index, and {name} has none, so that nobody can tell whether "
                f"both are in one order; give {name} with the same index, or "
                f"{value_name}.to_numpy() where it is in the order of {name}"
            )


def require_ids(
    name: str, ids: object, /, *, axis: int = 0, rows: Any = None, **values: object
) -> None:
    """Check values with an entry an id against the ids: the index is theirs, or there is none.

    An index 0, 1, 2, … passes as positions, unless the ids are these numbers in another order.

    Args:
        name: The ids' name in a message.
        ids: Of records or persons, in the order in which the values are taken. If they have an
            index themselves, as a column of a table has, values with that index are theirs too.
        rows: The index of the ids' rows, for ids that have none themselves.
        axis: Along which the values have an entry an id; 1 for tables with a column an id.
        **values: By the name of their parameter; a value without an index is positional.

    Raises:
        DataError: For another index, and for the ids in another order.
    """
    row_labels = index_of(ids) if rows is None else rows
    for value_name, value in values.items():
        labels = index_of(value, axis=axis)
        if labels is None or (row_labels is not None and labels.equals(row_labels)):
            continue
        # Labels are the ids themselves, or those of the ids' rows; numbers 0, 1, 2, … are no
        # labels, unless the ids are the same numbers in another order.
        id_labels = make_labels(ids)
        if labels.equals(id_labels):
            continue
        if row_labels is not None:
            _require_equal(value_name, labels, name, row_labels, f"{name}.index")
        elif not numbers_rows(labels) or _are_permuted(labels, id_labels):
            _require_equal(value_name, labels, name, id_labels, name)


def common_index(**values: object) -> pd.Index[Any] | None:
    """Return the one index of values that belong to the same records; None where none has any.

    Args:
        **values: By the name of their parameter; a value without an index is positional.

    Raises:
        DataError: Where two have different ones.
    """
    common: pd.Index[Any] | None = None
    source = ""  # the name of the value with that index
    for name, value in values.items():
        labels = index_of(value)
        if labels is None:
            continue
        if common is None:
            common = labels
            source = name
        else:
            _require_equal(name, labels, source, common, f"{source}.index")
    return common


def ids_from(name: str, labels: pd.Index[Any] | None) -> Ids | None:
    """Return the ids that an index gives to records; None for one that only numbers them.

    Args:
        name: Name of the value that has the index.
        labels: The index, or None.

    Raises:
        DataError: For labels that cannot be ids: repeated ones, several levels, dates.
    """
    if labels is None or numbers_rows(labels):
        return None
    remedy = f"give ids=, or {name}.to_numpy() where records are in its order and need no ids"
    if not labels.is_unique:
        raise DataError(f"{name}: its index has labels more than once, which are no ids; {remedy}")
    try:
        return _check.ids("ids", labels.to_numpy())
    except DataError:
        raise DataError(
            f"{name}: its index is neither of whole numbers nor of text, which ids are; {remedy}"
        ) from None


def _are_permuted(left: pd.Index[Any], right: pd.Index[Any]) -> bool:
    """Return whether both have the same labels in another order."""
    if len(left) != len(right) or left.equals(right):
        return False
    # Repeated labels cannot be joined, whatever their order.
    if not (left.is_unique and right.is_unique):
        return False
    return bool((right.get_indexer(left) >= 0).all())


def _require_equal(
    name: str,
    labels: pd.Index[Any],
    reference: str,
    reference_labels: pd.Index[Any],
    expression: str,
) -> None:
    """Raise `DataError` unless labels are those of a reference.

    expression: the Python that gives a user the reference's labels.
    """
    if labels.equals(reference_labels):
        return
    positional = f"or {name}.to_numpy() where it is in the order of {reference}"
    if not (labels.is_unique and reference_labels.is_unique):
        raise DataError(
            f"{name}: its index is not that of {reference}, and a label occurs more than once, so "
            f"that they cannot be joined; give both one index without repetition, {positional}"
        )
    if _are_permuted(labels, reference_labels):
        raise DataError(
            f"{name}: its index has the labels of {reference} in another order; give "
            f"{name}.loc[{expression}], {positional}"
        )
    strangers = int((reference_labels.get_indexer(labels) < 0).sum())
    missing = len(reference_labels) - len(labels) + strangers
    raise DataError(
        f"{name}: its index is not that of {reference} ({strangers} of {len(labels)} labels are "
        f"not there, {missing} are missing); give a value of the same records, as "
        f"{name}.loc[{expression}], {positional}"
    )
