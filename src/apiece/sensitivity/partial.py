"""Partial sensitivity: how fast a record's gradient norm grows with each of its attributes."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import require_ids, require_rows
from apiece._types import AnyArray, Floats
from apiece.errors import DataError, InputError, unknown
from apiece.filters import GaussianFilter, Odometer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartialSensitivity:
    """The partial sensitivities of n records; data about people, so the repr shows none of it.

    Attributes:
        raw: (n, ...), one entry an attribute (or input entry): d(norm)/d(attribute), in units of
            the norm per unit of the attribute; its sign says whether more of it costs more privacy.
        norms: (n,), the gradient norm s of each record, from which its loss α s²/(2S²) follows.
        zero: (n,), True where the norm is exactly 0, which has a kink there: `raw` is defined as 0.
        relation: The change that s is the sensitivity to. "add_remove": the record joins or leaves
            (a model's gradient sum). "attribute_change": a small change of the record's
            attributes, per unit of Euclidean distance (a query).
        attributes: Names of the entries of one record, where they have names.
        index: The records' labels, where they came in a table that has an index; else None.

    Example:
        >>> import numpy as np
        >>> from apiece.sensitivity import PartialSensitivity
        >>> result = PartialSensitivity(np.array([[3.0, -1.0]]), np.array([2.0]), np.array([False]),
        ...                            "add_remove")
        >>> len(result), result.fractions.tolist()
        (1, [[0.75, 0.25]])
    """

    raw: Floats = field(repr=False)
    norms: Floats = field(repr=False)
    zero: npt.NDArray[np.bool_] = field(repr=False)
    relation: str
    attributes: tuple[str, ...] | None = None
    index: Any = field(default=None, repr=False)

    @property
    def fractions(self) -> Floats:
        """|raw| over its sum in each record: non-negative, summing to 1; all 0 where raw is 0."""
        magnitude = np.abs(self.raw)
        axes = tuple(range(1, magnitude.ndim))
        # Divided by the largest first, so that the sum neither over- nor underflows.
        largest = magnitude.max(axis=axes, keepdims=True, initial=0.0)
        scaled = np.divide(magnitude, largest, out=np.zeros_like(magnitude), where=largest > 0)
        total = scaled.sum(axis=axes, keepdims=True)
        fractions = np.divide(scaled, total, out=np.zeros_like(magnitude), where=total > 0)
        return np.asarray(fractions)

    def __len__(self) -> int:
        """Number of records."""
        return len(self.norms)


class RecordFunction(Protocol):
    """A function that `partial_sensitivity` differentiates, as `Expression` and `ModelLoss` are."""

    def differentiate(self, *records: Any) -> PartialSensitivity:
        """Return the partial sensitivities at `records`."""
        ...


def partial_sensitivity(function: RecordFunction, *records: object) -> PartialSensitivity:
    """Return, for every record x, the gradient ∇ₓ s(x) of its own sensitivity s(x).

    Of an `Expression`: s(x) = ‖∇f(x)‖₂ for f over named attributes, so ∇s = H(x)∇f(x)/‖∇f(x)‖₂. Of
    a `ModelLoss`: s(x) = ‖∇_θ ℓ(θ; x, y)‖₂, the norm that DP-SGD clips; ∇ over the entries of x.
    Where s(x) = 0 the answer is 0 and `zero` is True.

    The result is as private as the records: parameters of a release must not be derived from it
    unless they are public (`Expression.design`).

    Args:
        function: An `Expression`, a `ModelLoss`, or anything with a method `differentiate`.
        *records: For a query one thing that maps each attribute to n values (a data frame will do),
            or an (n, d) array in the query's attribute order; for a model its inputs and targets.

    Raises:
        InputError: For what is no such function, no record, records outside the declared ranges,
            inputs that are not finite, or a function that is not differentiable; see `Expression`
            and `ModelLoss`.
        RangeError: Where a norm is not finite.

    References:
        Mueller et al. 2021, Definition 3 and Eq. 4–6.

    Example:
        >>> from apiece import partial_sensitivity
        >>> from apiece.sensitivity import Expression
        >>> query = Expression("a**2 + b", {"a": (0, 1), "b": (0, 1)})
        >>> result = partial_sensitivity(query, {"a": [0.0, 1.0], "b": [0.5, 0.5]})
        >>> result.raw.round(4).tolist(), result.norms.round(4).tolist()
        ([[0.0, 0.0], [1.7889, 0.0]], [1.0, 2.2361])
    """
    if not callable(getattr(function, "differentiate", None)):
        raise InputError(
            f"partial_sensitivity: {function!r} is not a function of a record; "
            "give Expression(expression, ...) or ModelLoss(model, loss_fn)"
        )
    return function.differentiate(*records)


def individual_rdp(sensitivities: npt.ArrayLike, *, order: float, noise_stddev: float) -> Floats:
    """Return each record's Rényi loss ρᵢ = α sᵢ²/(2S²) in one Gaussian release.

    It holds while the order and the noise were fixed beforehand, and is itself data about people.

    Args:
        sensitivities: sᵢ ≥ 0, finite, (n,): `query.contributions(records)` for the record leaving a
            sum; `partial.norms` of a model's unclipped gradients, or per squared unit of
            attributes.
        order: α > 1.
        noise_stddev: S, on the sum.

    Raises:
        InputError: For values out of bounds.

    Guarantee:
        Rounded up.

    References:
        Feldman and Zrnic 2021, Def. 2.7.

    Example:
        >>> from apiece.sensitivity import individual_rdp
        >>> individual_rdp([0.0, 1.0, 2.0], order=2, noise_stddev=1.0).round(12).tolist()
        [0.0, 1.0, 4.0]
    """
    s = np.asarray(sensitivities, dtype=np.float64)
    if not ((s >= 0) & (s < math.inf)).all():
        raise InputError("sensitivities: some are negative or not finite; give norms")
    # One charge to an odometer reads α·s²/(2S²), rounded up; it counts at least one person.
    meter = Odometer(max(s.size, 1), order=_check.finite("order", order))
    meter.add(s.ravel() if s.size else 0.0, noise_stddev)
    return meter.loss[: s.size].reshape(s.shape)


@dataclass(frozen=True, slots=True, eq=False)
class LossShares:
    """The attributes' shares in each group's summed loss; data about people."""

    groups: tuple[Hashable, ...]
    # (groups, ...): of sum 1 in each group, or of 0 where nothing is lost.
    shares: Floats = field(repr=False)
    attributes: tuple[str, ...] | None = None

    def ranking(self, group: Hashable) -> list[tuple[Hashable, float]]:
        """Return (attribute, share) of one group, the largest share first."""
        # An attribute without a name is given by its index within a record.
        if group not in self.groups:
            raise unknown("group", group, map(str, self.groups))
        shares = self.shares[self.groups.index(group)]
        order = np.argsort(-shares, axis=None, kind="stable")
        names = [_name_entry(self.attributes, entry, shares.shape) for entry in order]
        return [(name, float(shares.flat[entry])) for name, entry in zip(names, order, strict=True)]


def loss_shares(
    partial: PartialSensitivity, groups: Sequence[Hashable] | AnyArray | None = None
) -> LossShares:
    """Return each attribute's share in the privacy loss of each group of records.

    A record's loss, proportional to sᵢ², is divided among its attributes by `partial.fractions`.

    Args:
        partial: The partial sensitivities of n records.
        groups: One label a record; None for one group named "all".

    Raises:
        DataError: For another number of labels, and a Series with another index than the records.

    Example:
        >>> from apiece import partial_sensitivity
        >>> from apiece.sensitivity import Expression, loss_shares
        >>> query = Expression("a**2 + b", {"a": (0, 1), "b": (0, 1)})
        >>> partial = partial_sensitivity(query, [[0.5, 0.5], [1.0, 0.2]])
        >>> loss_shares(partial).ranking("all")
        [('a', 1.0), ('b', 0.0)]
    """
    require_rows("partial", partial.index, groups=groups)
    labels = np.zeros(len(partial), dtype=np.int64) if groups is None else np.asarray(groups)
    if labels.shape != (len(partial),):
        raise DataError(f"groups: shape {labels.shape}; give one label for each of {len(partial)}")
    names, index = np.unique(labels, return_inverse=True)
    # Losses in units of the largest, so that no square under- or overflows.
    largest = partial.norms.max(initial=0.0)
    losses = np.square(partial.norms / largest) if largest > 0 else partial.norms
    # (n, entries), each record's loss divided among its attributes.
    divided = partial.fractions.reshape(len(partial), -1) * losses[:, None]
    sums = np.zeros((len(names), divided.shape[1]))
    np.add.at(sums, index, divided)
    total = sums.sum(axis=1, keepdims=True)
    # A group that loses nothing has no shares.
    shares = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
    shares = shares.reshape(len(names), *partial.raw.shape[1:])
    group_names = ("all",) if groups is None else tuple(names.tolist())
    return LossShares(group_names, shares, partial.attributes)


@dataclass(frozen=True, slots=True, eq=False)
class Exhaustion:
    """The number of answers that each record's budget lasts, and the attribute that costs most.

    Data about people; the repr shows none of it.

    Attributes:
        ids: The records.
        answers: Number of releases that each can be part of; `UNLIMITED` where one costs nothing.
        attributes: For each, the attribute with the largest |partial sensitivity|; None where no
            attribute moves the loss.

    Example:
        >>> import numpy as np
        >>> from apiece.sensitivity.partial import Exhaustion
        >>> result = Exhaustion(np.array(["bob"]), np.array([12]), ("income",))
        >>> result.answers.tolist(), result.attributes
        ([12], ('income',))
    """

    ids: AnyArray = field(repr=False)
    answers: npt.NDArray[np.int64] = field(repr=False)
    attributes: tuple[Hashable, ...] = field(repr=False)


# The number of answers of a record that none of them costs anything.
UNLIMITED = np.iinfo(np.int64).max


def exhaustion(
    partial: PartialSensitivity,
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    noise_stddev: float,
    clip_norm: float | None = None,
    ids: Sequence[Hashable] | AnyArray | None = None,
) -> Exhaustion:
    """Return the records in the order in which they run out when a Gaussian release is repeated.

    A `GaussianFilter` charges record i μᵢ² = (min(sᵢ, C)/S)² a release, against the μ² that its own
    (ε, δ) allows; releases that fit are floor(μ²/μᵢ²).

    Args:
        partial: The partial sensitivities of n records.
        epsilon: One for all, or one a record; a Series has the index of the records, or the ids.
        delta: One for all, or one a record, as `epsilon`.
        noise_stddev: S, on the sum.
        clip_norm: C; None for no clipping.
        ids: One a record; None for the records' index, or their positions where they have none.

    Raises:
        InputError: For values out of bounds; `BudgetError` for budgets.
        DataError: For another number of ids, and a Series that cannot be joined to the records.

    Guarantee:
        Counts are rounded down in doubt.

    References:
        Feldman and Zrnic 2021 (filters).

    Example:
        >>> import numpy as np
        >>> from apiece.sensitivity import PartialSensitivity, exhaustion
        >>> partial = PartialSensitivity(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1.0, 2.0]),
        ...                              np.array([False, False]), "add_remove", ("age", "income"))
        >>> result = exhaustion(partial, epsilon=1, delta=1e-5, noise_stddev=20, ids=["ann", "bob"])
        >>> result.ids.tolist(), result.attributes
        (['bob', 'ann'], ('income', 'age'))
    """
    n = len(partial)
    noise = _check.positive("noise_stddev", noise_stddev)
    cap = math.inf if clip_norm is None else _check.positive("clip_norm", clip_norm)
    require_rows("partial", partial.index, ids=ids)
    if ids is None:
        require_rows("partial", partial.index, epsilon=epsilon, delta=delta)
        names = np.arange(n) if partial.index is None else np.asarray(partial.index)
    else:
        require_ids("ids", ids, rows=partial.index, epsilon=epsilon, delta=delta)
        names = _check.record_ids("ids", ids)
    if names.shape != (n,):
        raise DataError(f"ids: {names.size} of them for {n} records; give one a record")
    # As a filter would hold it, so that counts are those of a filter.
    budget = np.broadcast_to(GaussianFilter(epsilon, delta).limit, (n,))
    charge = np.square(np.minimum(partial.norms, cap) / noise)
    # Less 2⁻⁴⁸, many times the rounding error: a count is one lower rather than one too high.
    releases = np.divide(budget, charge, out=np.full(n, math.inf), where=charge > 0)
    releases = np.floor(releases * (1 - 2**-48))
    answers = np.full(n, UNLIMITED)
    # A count beyond this is one that never runs out.
    countable = releases < 2.0**62
    answers[countable] = releases[countable].astype(np.int64)
    # Those who run out first come first; ties stay in the order of the records.
    order = np.argsort(answers, kind="stable")
    magnitude = np.abs(partial.raw).reshape(n, -1)
    largest_entry = magnitude.argmax(axis=1)
    moves = magnitude.max(axis=1, initial=0.0) > 0
    causes: list[Hashable] = []
    # The attribute whose |partial sensitivity| is largest; the first of equal ones.
    for record in order:
        cause = None
        if moves[record]:
            entry = int(largest_entry[record])
            cause = _name_entry(partial.attributes, entry, partial.raw.shape[1:])
        causes.append(cause)
    return Exhaustion(names[order], answers[order], tuple(causes))


def _name_entry(attributes: tuple[str, ...] | None, entry: int, shape: tuple[int, ...]) -> Hashable:
    """Return the name of an entry of a record, or its index where it has none."""
    if attributes is not None:
        return attributes[entry]
    index = tuple(int(position) for position in np.unravel_index(entry, shape))
    return index[0] if len(index) == 1 else index
