"""Persons with many rows in an audit: one score and one coin a person.

The bounds and the likelihood tests take any score that is a function of the released model and of
what the adversary knows of a unit; where the unit is a person, that is all of their rows. Taken is
the mean of the rows' scores. What a step releases of a person is the sum of their rows' gradients,
clipped as one, and to first order a step along it changes the sum of the rows' losses most: the
mean says what the sum does, and does not grow with how many rows somebody has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.errors import DataError


def by_person(scores: npt.ArrayLike, people: npt.ArrayLike) -> tuple[npt.NDArray[Any], Floats]:
    """Return the persons in order, and the mean of the scores of each one's rows.

    Args:
        scores: (…, n), one a row; several models' at once.
        people: (n,), the id of each row's person.

    Returns:
        (persons,) ids, each once, and (…, persons) scores.

    Raises:
        DataError: For another number of ids, or ids that are neither integers nor text.

    Example:
        >>> by_person([1.0, 5.0, 3.0], ["ann", "bob", "ann"])
        (array(['ann', 'bob'], dtype='<U3'), array([2., 5.]))
    """
    values, owners = np.asarray(scores, dtype=np.float64), _owners(people, np.shape(scores))
    ids, counts = np.unique(owners, return_counts=True)
    order = np.argsort(owners, kind="stable")
    sums = np.add.reduceat(values[..., order], np.cumsum(counts) - counts, axis=-1)
    return ids, np.asarray(sums / counts)


def one_a_person(name: str, values: npt.ArrayLike, people: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return the value of each person in the order of `by_person`, which all of their rows share.

    Args:
        name: Of the values, for messages.
        values: (…, n), one a row.
        people: (n,), the id of each row's person.

    Raises:
        DataError: Where rows of one person differ, as in a split by rows; and as `by_person`.

    Example:
        >>> one_a_person("included", [True, False, True], ["ann", "bob", "ann"]).tolist()
        [True, False]
    """
    given, owners = np.asarray(values), _owners(people, np.shape(values))
    _, first, place = np.unique(owners, return_index=True, return_inverse=True)
    found: npt.NDArray[Any] = given[..., first]
    split = (found[..., place] != given).reshape(-1, owners.size).any(axis=0)
    if split.any():
        persons = np.unique(place[split]).size
        raise DataError(
            f"{name}: differs between the rows of one person ({persons} such persons); a person "
            "is in or out, and in one group, with all of their rows"
        )
    return found


def _owners(people: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    owners = _check.ids("people", people)
    if owners.size == 0 or shape[-1:] != owners.shape:
        raise DataError(
            f"people: {owners.size} ids for values of shape {shape}; give the id of each row's "
            "person"
        )
    return owners
