"""The budget that a threshold wastes, and the threshold that wastes least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError

CANDIDATES = 400


def participation(epsilon: Floats, tau: float) -> Floats:
    """Return each record's chance of joining a run at τ: (e^ε − 1)/(e^τ − 1), at most 1.

    Source: Heo et al. 2023 Eq. 4. Written so that no exponential overflows.
    """
    least = np.minimum(epsilon, tau)
    chance = np.exp(least - tau) * np.expm1(-least) / np.expm1(-tau)
    return np.asarray(np.clip(np.where(epsilon >= tau, 1.0, chance), 0.0, 1.0))


def check_loss(name: str, loss: float | str) -> float | str:
    """Return `loss` if it is "adaptive" or a weight in [0, 1]."""
    if loss == "adaptive":
        return loss
    if isinstance(loss, str):
        raise InputError(f"{name} = {loss!r}: must be 'adaptive' or a weight in [0, 1]")
    return _check.probability(name, loss)


def best_threshold(
    epsilon: Floats, records: npt.NDArray[np.int64], loss: float | str, *, least: float = 0.0
) -> float:
    """Return the τ between the smallest and the largest ε that wastes least.

    Two wastes: ε_i·(1 − π_i) of records below τ, which may stay out; ε_i − τ of records above it.
    loss: the weight w1 of the first, the second has 1 − w1 (loss_f, Heo et al. 2023 Eq. 6); or
    "adaptive", each waste weighted by its own share of the total (loss_a; Heo et al. 2023 Eq. 7
    states these weights, and a product formula that does not follow from them and is 0 at both
    ends; the weights count). Entries with ε = 0 have left. The minimum is sought among all distinct
    ε and a fine grid, as far as at least `least` records are expected to join; it is the smallest
    ε where no other would do.
    """
    left = epsilon > 0
    values, counts = epsilon[left], records[left]
    levels = np.unique(values)
    if levels.size > CANDIDATES:
        levels = np.quantile(levels, np.linspace(0, 1, CANDIDATES))
    grid = np.unique(np.concatenate((levels, np.linspace(levels[0], levels[-1], CANDIDATES))))
    joining = np.array([float(counts @ participation(values, tau)) for tau in grid])
    grid = grid[(joining >= least) | (grid == grid[0])]
    below = np.array([_below(values, counts, tau) for tau in grid])
    above = np.array([float(counts @ np.maximum(values - tau, 0)) for tau in grid])
    if isinstance(loss, str):
        total = below + above
        cost = np.divide(below**2 + above**2, total, out=np.zeros_like(total), where=total > 0)
    else:
        cost = loss * below + (1 - loss) * above
    return float(grid[int(np.argmin(cost))])


def _below(values: Floats, counts: npt.NDArray[np.int64], tau: float) -> float:
    return float(counts @ (values * (1 - participation(values, tau))))
