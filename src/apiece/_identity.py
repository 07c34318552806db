"""Identity: what belongs to records or persons is joined by the labels that it carries, or refused.

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
    if isinstance(value, type) or callable(labels):
        return None
    # Indices of libraries that are made like pandas know how to become one of pandas.
    if hasattr(labels, "to_pandas"):
        labels = labels.to_pandas()
    return _as_index(labels)


def _as_index(labels: Any) -> pd.Index[Any] | None:
    """Return labels if they are an index of pandas, else None."""
    return labels if hasattr(labels, "get_indexer") else None


def numbers_rows(labels: pd.Index[Any]) -> bool:
    """Whether labels are 0, 1, 2, … in this order, which is what a table has without any."""
    return bool(labels.equals(labels_of(np.arange(len(labels)))))


def labels_of(ids: object) -> pd.Index[Any]:
    """Return ids as labels that can be compared with an index."""
    import pandas as pd  # there already, where a value has an index

    labels: pd.Index[Any] = pd.Index(np.asarray(ids))
    return labels


def require_rows(name: str, rows: Any, /, **values: object) -> None:
    """Check values with an entry a row against the rows: equal labels, or none.

    An index beside rows that have none is refused, unless it is 0, 1, 2, …: nobody can tell whether
    both are in the same order.

    Args:
        name: What a message calls the rows.
        rows: What the values belong to; its index, where it has one, is the rows' identity. Or
            an index; or None for rows that have none.
        **values: By the name of their parameter; what is no Series is positional.

    Raises:
        DataError: For another index, and for the same labels in another order.
    """
    own = index_of(rows) if _as_index(rows) is None else rows
    for value_name, value in values.items():
        labels = index_of(value)
        if labels is None:
            continue
        if own is not None:
            _require_equal(value_name, labels, name, own, f"{name}.index")
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
        name: What a message calls the ids.
        ids: Of records or persons, in the order in which the values are taken. If they have an
            index themselves, as a column of a table has, values with that index are theirs too.
        rows: The index of the ids' rows, for ids that have none themselves.
        axis: Along which the values have an entry an id; 1 for tables with a column an id.
        **values: By the name of their parameter; what is no Series is positional.

    Raises:
        DataError: For another index, and for the ids in another order.
    """
    column = index_of(ids) if rows is None else rows
    for value_name, value in values.items():
        labels = index_of(value, axis=axis)
        if labels is None or (column is not None and labels.equals(column)):
            continue
        own = labels_of(ids)
        if labels.equals(own):
            continue
        if column is not None:
            _require_equal(value_name, labels, name, column, f"{name}.index")
        elif not numbers_rows(labels) or _permuted(labels, own):
            _require_equal(value_name, labels, name, own, name)


def common_index(**values: object) -> pd.Index[Any] | None:
    """Return the one index of values that belong to the same records; None where none has any.

    Args:
        **values: By the name of their parameter; what is no Series is positional.

    Raises:
        DataError: Where two have different ones.
    """
    first: tuple[str, pd.Index[Any]] | None = None
    for name, value in values.items():
        labels = index_of(value)
        if labels is None:
            continue
        if first is None:
            first = name, labels
        else:
            _require_equal(name, labels, first[0], first[1], f"{first[0]}.index")
    return None if first is None else first[1]


def ids_from(name: str, labels: pd.Index[Any] | None) -> Ids | None:
    """Return the ids that an index gives to records; None for one that only numbers them.

    Args:
        name: Of the value that has the index.
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


def _permuted(labels: pd.Index[Any], own: pd.Index[Any]) -> bool:
    """Whether both have the same labels in another order."""
    if len(labels) != len(own) or labels.equals(own):
        return False
    if not (labels.is_unique and own.is_unique):
        return False
    return bool((own.get_indexer(labels) >= 0).all())


def _require_equal(name: str, labels: pd.Index[Any], of: str, own: pd.Index[Any], by: str) -> None:
    """Raise `DataError` unless labels are those of the other side; `by` is how a user has these."""
    if labels.equals(own):
        return
    positional = f"or {name}.to_numpy() where it is in the order of {of}"
    if not (labels.is_unique and own.is_unique):
        raise DataError(
            f"{name}: its index is not that of {of}, and a label occurs more than once, so that "
            f"they cannot be joined; give both one index without repetition, {positional}"
        )
    if _permuted(labels, own):
        raise DataError(
            f"{name}: its index has the labels of {of} in another order; give {name}.loc[{by}], "
            f"{positional}"
        )
    strangers = int((own.get_indexer(labels) < 0).sum())
    raise DataError(
        f"{name}: its index is not that of {of} ({strangers} of {len(labels)} labels are not "
        f"there, {len(own) - len(labels) + strangers} are missing); give a value of the same "
        f"records, as {name}.loc[{by}], {positional}"
    )
