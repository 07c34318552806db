"""Privacy loss in whole units, so that sums are exact in any order, on any database.

A cost is a pair: μ², and a slack. Both are whole numbers of their unit, budgets rounded down and
charges up.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers
from apiece.errors import BudgetError, InputError
from apiece.filters import Costs
from apiece.filters.convert import SHARE, gaussian_budget
from apiece.ledger import codec

UNIT: Final = 2.0**-50  # of μ²
SLACK_UNIT: Final = 2.0**-70
CAP: Final = 2**61  # two of them add up within 64 bits
ULP: Final = 2.0**-52


def limits(epsilon: Floats, delta: Floats, share: Floats | float = SHARE) -> Integers:
    """Return accounts (B, S) in units, (people, 2): S a share of δ, B made from the rest."""
    (eps, dlt, part), place = distinct(epsilon, delta, share)
    told = np.minimum(np.floor(dlt * part / SLACK_UNIT), CAP // 2)
    budget = gaussian_budget(eps, dlt, told * SLACK_UNIT)
    units = np.floor(budget * (1 - 4 * ULP) / UNIT)
    good = (units >= 1) & (units < CAP)
    if not good.all():
        i = int(np.flatnonzero(~good[place])[0])
        kind = place[i]
        remedy = "a larger epsilon" if units[kind] < 1 else "a smaller epsilon"
        raise BudgetError(
            f"epsilon[{i}] = {float(eps[kind])!r}, delta = {float(dlt[kind])!r}: its budget, "
            f"{float(budget[kind]):g}, is outside [{UNIT:g}, {CAP * UNIT:g}); give {remedy}"
        )
    return np.asarray(np.array([units, told]).astype(np.int64)[:, place].T)


def distinct(*columns: Any) -> tuple[list[npt.NDArray[Any]], Integers]:
    """Return the distinct rows of columns, one or one entry a person, and each person's row."""
    kinds, places = zip(*(np.unique(each, return_inverse=True) for each in columns), strict=True)
    sizes, codes = [kind.size for kind in kinds], np.zeros(1, dtype=np.int64)
    for size, place in zip(sizes, places, strict=True):
        codes = codes * size + place.reshape(-1)
    found, place = np.arange(max(sizes)), codes
    if sum(size > 1 for size in sizes) > 1:
        found, place = np.unique(codes, return_inverse=True)
    rows = np.unravel_index(found, sizes)
    return [kind[row] for kind, row in zip(kinds, rows, strict=True)], place


def terms(ids: codec.Ids, epsilon: Any, delta: Any, slack: Any = None) -> codec.Terms:
    """Return each person's ε, δ and account; raises `BudgetError` for what cannot be a budget."""
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    share = nonnegative("slack", SHARE if slack is None else slack)
    if not (share < 1).all():
        raise BudgetError(f"slack = {slack!r}: must be in [0, 1), a share of delta; try {SHARE}")
    for label, array in (("epsilon", eps), ("delta", dlt), ("slack", share)):
        if array.ndim and array.shape != ids.shape:
            raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
    found = np.zeros(ids.size, dtype=codec.TERMS)
    found["epsilon"], found["delta"] = eps, dlt
    found["limit"], found["slack"] = limits(eps, dlt, share).T
    return found


def losses(norms: Any, noise_stddev: Any) -> Floats:
    """Return the μ² of a Gaussian sum, s²/S²; not yet rounded."""
    stddev = _check.positive("noise_stddev", noise_stddev)
    given = nonnegative("norms", norms)
    with np.errstate(over="ignore", under="ignore"):
        ratio = given / stddev  # 0 for the smallest norms, which are not free for that
        return np.asarray(np.where(given > 0, np.maximum(ratio * ratio, UNIT / 4), 0.0))


def nonnegative(name: str, values: Any) -> Floats:
    """Return `values` as floats if all lie in [0, ∞)."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: not numbers; give one number a person") from None
    good = (array >= 0) & (array < np.inf)
    if not good.all():
        i = int(np.flatnonzero(~good.reshape(-1))[0])
        raise InputError(
            f"{name}[{i}] = {float(array.reshape(-1)[i])!r}: must be in [0, inf); a person whose "
            "contribution is not finite must contribute nothing, with 0"
        )
    return array


def to_units(amount: Floats, unit: float = UNIT) -> Integers:
    """Return amounts in units, rounded up; one past every budget becomes the cap."""
    with np.errstate(over="ignore"):
        units = np.ceil(amount * (1 + 16 * ULP) / unit)
    return np.minimum(units, CAP).astype(np.int64)


def whole(loss: Floats) -> Integers:
    """Return the costs (μ², no slack) in units, (people, 1, 2): one pair a person."""
    units = to_units(loss)
    return np.asarray(np.array([units, np.zeros_like(units)]).T[:, None])


def pairs(costs: Costs) -> Integers:
    """Return the pairs of costs in units, (groups, pairs, 2)."""
    told = to_units(costs.slack, SLACK_UNIT)
    return np.stack([to_units(costs.loss), told], axis=-1)
