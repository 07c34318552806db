"""Partial sensitivity: how fast a record's gradient norm grows with each of its attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.errors import InputError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartialSensitivity:
    """The partial sensitivities of n records; data about people, so the repr shows none of it.

    Attributes:
        raw: (n, ...), one entry an attribute (or input entry): d(norm)/d(attribute), in units of
            the norm per unit of the attribute; its sign says whether more of it costs more privacy.
        norms: (n,), the gradient norm s of each record, from which its loss α s²/(2S²) follows.
        zero: (n,), True where the norm is exactly 0: there the norm has no gradient in general (it
            has a kink), and `raw` is defined as 0.
        relation: What s is the sensitivity to. "add_remove": the record joins or leaves (a model's
            gradient sum). "attribute_change": a small change of the record's attributes, per unit
            of Euclidean distance (a query).
        attributes: Names of the entries of one record, where they have names.

    Example:
        >>> found = PartialSensitivity(np.array([[3.0, -1.0]]), np.array([2.0]), np.array([False]),
        ...                            "add_remove")
        >>> len(found), found.fractions.tolist()
        (1, [[0.75, 0.25]])
    """

    raw: Floats = field(repr=False)
    norms: Floats = field(repr=False)
    zero: npt.NDArray[np.bool_] = field(repr=False)
    relation: str
    attributes: tuple[str, ...] | None = None

    @property
    def fractions(self) -> Floats:
        """|raw| over its sum in each record: non-negative, summing to 1; all 0 where raw is 0."""
        size = np.abs(self.raw)
        axes = tuple(range(1, size.ndim))
        largest = size.max(axis=axes, keepdims=True, initial=0.0)
        scaled = np.divide(size, largest, out=np.zeros_like(size), where=largest > 0)
        total = scaled.sum(axis=axes, keepdims=True)
        fractions: Floats = np.divide(scaled, total, out=np.zeros_like(size), where=total > 0)
        return fractions

    def __len__(self) -> int:
        """How many records."""
        return len(self.norms)


class RecordFunction(Protocol):
    """What `partial_sensitivity` can differentiate: `Query`, `ModelLoss`, or your own."""

    def differentiate(self, *records: Any) -> PartialSensitivity:
        """Return the partial sensitivities at `records`."""
        ...


def partial_sensitivity(function: RecordFunction, *records: Any) -> PartialSensitivity:
    """Return, for every record x, the gradient ∇ₓ s(x) of its own sensitivity s(x).

    `partial_sensitivity(Query(...), records)`: s(x) = ‖∇f(x)‖₂ for f over named attributes, so that
    ∇s = H(x)∇f(x)/‖∇f(x)‖₂. `partial_sensitivity(ModelLoss(model, loss_fn), inputs, targets)`:
    s(x) = ‖∇_θ ℓ(θ; x, y)‖₂, the norm that DP-SGD clips; ∇ over the entries of x.

    Where s(x) = 0 the answer is 0 and `zero` is True. The result describes these records and is as
    private as they are: parameters of a release must not be derived from it unless the records are
    public (`Query.design`).

    Args:
        function: A `Query`, a `ModelLoss`, or anything with a method `differentiate`.
        *records: For a query one thing that maps each attribute to n values (a data frame will do),
            or an (n, d) array in the query's attribute order; for a model its inputs and targets.

    Raises:
        InputError: For what is no such function, records outside the declared ranges, inputs that
            are not finite, or a function that is not differentiable; see `Query` and `ModelLoss`.

    References:
        Mueller et al. 2021, Definition 3 and Eq. 4–6.

    Example:
        >>> from apiece.sensitivity import Query
        >>> query = Query("a**2 + b", {"a": (0, 1), "b": (0, 1)})
        >>> found = partial_sensitivity(query, {"a": [0.0, 1.0], "b": [0.5, 0.5]})
        >>> found.raw.round(4).tolist(), found.norms.round(4).tolist()
        ([[0.0, 0.0], [1.7889, 0.0]], [1.0, 2.2361])
    """
    if not callable(getattr(function, "differentiate", None)):
        raise InputError(
            f"partial_sensitivity: {function!r} is not a function of a record; "
            "give Query(expression, ...) or ModelLoss(model, loss_fn)"
        )
    return function.differentiate(*records)
