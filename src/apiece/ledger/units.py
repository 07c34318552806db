"""Privacy loss in whole units, so that sums are exact in any order, on any database."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers
from apiece.errors import BudgetError, InputError, unknown
from apiece.filters import gaussian_mu, renyi_budget
from apiece.ledger import codec

UNIT: Final = 2.0**-50
CAP: Final = 2**61  # two of them add up within 64 bits
ULP: Final = 2.0**-52
METHODS: Final = ("gaussian", "renyi")


def limits(method: str, order: float | None, epsilon: Floats, delta: Floats) -> Integers:
    """Return each person's budget in units, rounded down: μ(ε, δ)², or B(ε, δ) at `order`."""
    if method == "gaussian":
        mu = gaussian_mu(epsilon, delta)
        budget = mu * mu
    else:
        budget = renyi_budget(epsilon, delta, checked_order(method, order) or 0.0)
    units = np.floor(budget * (1 - 4 * ULP) / UNIT)
    good = (units >= 1) & (units < CAP)
    if not good.all():
        i = int(np.flatnonzero(~good)[0])
        remedy = "a smaller epsilon"
        if units[i] < 1:
            remedy = (
                "a larger epsilon" if method == "gaussian" else _carries(order or 0.0, delta[i])
            )
        raise BudgetError(
            f"epsilon[{i}] = {float(epsilon[i])!r}, delta = {float(delta[i])!r}: its budget, "
            f"{float(budget[i]):g}, is outside [{UNIT:g}, {CAP * UNIT:g}); give {remedy}"
        )
    return units.astype(np.int64)


def _carries(order: float, delta: float) -> str:
    least = max(-float(renyi_budget(0.0, delta, order)), 0.0)
    return (
        f"a larger epsilon, or a higher order: one of {order:g} carries epsilon above {least:.4g} "
        "at this delta (`suggest_order`, or `apiece ledger init` without --order)"
    )


def terms(
    method: str, order: float | None, ids: codec.Ids, epsilon: Any, delta: Any
) -> codec.Terms:
    """Return each person's ε, δ and limit; raises `BudgetError` for what cannot be a budget."""
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    for label, array in (("epsilon", eps), ("delta", dlt)):
        if array.ndim and array.shape != ids.shape:
            raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
    found = np.zeros(ids.size, dtype=codec.TERMS)
    found["epsilon"], found["delta"] = eps, dlt
    found["limit"] = limits(method, order, found["epsilon"].copy(), found["delta"].copy())
    return found


def settings(method: str | None, order: Any) -> tuple[str, float | None]:
    """Return the filter and its order, as asked or by default; raises as `checked_order`."""
    return (method or "gaussian", checked_order(method or "gaussian", order))


def checked_order(method: str, order: Any) -> float | None:
    """Return the Rényi order of a ledger: one, fixed in advance; none for the Gaussian filter."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "gaussian":
        if order is not None:
            raise InputError(f"order = {order!r}: the Gaussian filter has none; leave it out")
        return None
    number = _check.positive("order", 0 if order is None else order)
    if not number > 1:
        raise InputError(f"order = {order!r}: must be above 1; for instance 16")
    return number


def losses(method: str, order: float | None, norms: Any, noise_stddev: Any) -> Floats:
    """Return the loss of a Gaussian sum: s²/S², or α s²/(2S²); not yet rounded."""
    stddev = _check.positive("noise_stddev", noise_stddev)
    given = nonnegative("norms", norms)
    factor = 1.0 if method == "gaussian" else (order or 0.0) / 2
    with np.errstate(over="ignore", under="ignore"):
        ratio = given / stddev  # 0 for the smallest norms, which are not free for that
        return np.asarray(np.where(given > 0, np.maximum(ratio * ratio * factor, UNIT / 4), 0.0))


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


def to_units(loss: Floats) -> Integers:
    """Return losses in units, rounded up; a loss past every budget becomes the cap."""
    with np.errstate(over="ignore"):
        units = np.ceil(loss * (1 + 16 * ULP) / UNIT)
    return np.minimum(units, CAP).astype(np.int64)
