"""Upper bounds on ε for thousands of mechanisms, of a million records.

By losses these are the upper ends of `epsilons`; by Rényi divergences of some orders, sought in
runs of similar mechanisms, instead of the 400 that a single curve takes.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece.accounting import rdp, renyi
from apiece.accounting.batch import distinct, epsilons
from apiece.accounting.bounds import Floats

_RUN = 16  # similar mechanisms that share orders
_SPACING = 0.1  # between orders, of their log
_SOUGHT = 5  # values of δ around whose best orders closer looks are taken
_CLOSER = ((0.1, 16), (0.0133, 12))  # how far around, and how many orders


class _Entry(NamedTuple):
    """One mechanism with the δ's it is asked at."""

    z: float
    q: float
    steps: int
    delta: Floats


def upper_epsilons(
    *,
    noise_multiplier: Floats,
    sampling_probability: Floats,
    steps: npt.NDArray[np.int64],
    delta: Floats,
    method: str = "pld",
) -> Floats:
    """Return upper bounds on ε(δ) of sampled Gaussian steps, for arrays of one length.

    Equal mechanisms share a computation, so there may be millions of entries, with some hundreds
    of distinct mechanisms. The result depends on the arguments only.

    Raises `RangeError` where no finite ε is known to hold.
    """
    if method == "pld":
        bounds = epsilons(
            noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
            steps=steps,
            delta=delta,
        )
        return np.asarray(bounds.upper)
    columns, member = distinct(np.stack([steps, sampling_probability, noise_multiplier]))
    order = np.argsort(member, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(member))[:-1])
    out = np.empty(delta.shape)

    def run(start: int) -> None:
        some = members[start : start + _RUN]
        entries = [
            _Entry(float(z), float(q), int(times), delta[m])
            for (times, q, z), m in zip(columns.T[start : start + _RUN], some, strict=True)
        ]
        for m, found in zip(some, _run(entries), strict=True):
            out[m] = found

    starts = range(0, len(members), _RUN)
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(run, starts))
    return out


def _run(entries: list[_Entry]) -> list[Floats]:
    """Return the bounds by the best of some orders; near the best, of many.

    ε has a sharp least value at the order where the divergence takes off, so a close look pays.
    """
    high = 2 + 2 * max(max(12 * e.z, e.z**2 * math.log(1 / e.q)) for e in entries)
    count = math.ceil(math.log(high / 1e-3) / _SPACING) + 1
    orders = np.tile(1 + np.geomspace(1e-3, high, count), (len(entries), 1))
    z, q, t = (np.array([e[k] for e in entries])[:, None] for k in range(3))
    sought = [np.quantile(e.delta, np.linspace(0, 1, _SOUGHT)) for e in entries]
    tried: list[tuple[Floats, Floats]] = [(orders, t * renyi.sampled_gaussian(z, q, orders))]
    for width, points in _CLOSER:
        rows = zip(*tried[-1], sought, strict=True)
        orders = np.array([_closer(*row, width, points) for row in rows])
        tried.append((orders, t * renyi.sampled_gaussian(z, q, orders)))
    out = []
    for row, entry in enumerate(entries):
        orders, divergence = (np.concatenate([pair[k][row] for pair in tried[1:]]) for k in (0, 1))
        orders, first = np.unique(orders, return_index=True)
        profile = rdp.RenyiProfile(orders, divergence[first])
        out.append(np.asarray(profile.epsilon(entry.delta).upper))
    return out


def _closer(orders: Floats, divergence: Floats, delta: Floats, width: float, points: int) -> Floats:
    """Return orders around the best one at each δ."""
    best = rdp.epsilon_at(divergence, orders, delta[:, None]).argmin(axis=1)
    around = np.log(orders - 1)[best][:, None] + np.linspace(-width, width, points)
    return np.asarray(1 + np.exp(around)).ravel()
