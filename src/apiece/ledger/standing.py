"""How much is left on the accounts: counts for whoever plans what can still be asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from apiece._types import Floats, Integers
from apiece.ledger import codec
from apiece.ledger.ledger import Ledger

SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.1, 0.01)
"""Of an account: how many have at least this left is what is counted."""


def standing(ledger: Ledger) -> dict[str, Integers]:
    """Return how many accounts have at least each of `SHARES` left, for two kinds of analyses.

    "queries" is about the budget alone, which is what Gaussian sums take; "trainings" about the
    budget and the slack, whichever has less left. Data about people: what was charged follows from
    their rows.

    Args:
        ledger: All of its accounts are counted.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [0.2, 3.0], 1e-6)
        ...     _ = ledger.reserve("q", ["ann", "bob"], norms=1.0, noise_stddev=30.0)
        ...     standing(ledger)["queries"].tolist()
        [0, 1, 2, 2, 2, 2]
    """
    bins = sum(
        (binned(codec.limits(terms), spent) for _, terms, spent in ledger.account_blocks()),
        np.zeros((2, len(SHARES) + 1), dtype=np.int64),
    )
    return cumulated(bins)


def binned(limits: Integers, spent: Integers) -> Integers:
    """Return (2, shares + 1) how many accounts lie between which shares; each in one a row.

    Args:
        limits: (people, 2) Of the accounts, in units.
        spent: (people, 2) Of the accounts, in units.

    Example:
        >>> binned(np.array([[100, 10], [100, 10]]), np.array([[0, 0], [40, 8]])).tolist()
        [[1, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0]]
    """
    left = 1 - spent / np.maximum(limits, 1)
    kinds = (left[:, 0], left.min(axis=1))
    return np.array([_counts(each) for each in kinds])


def _counts(left: Floats) -> Integers:
    place = (left[:, None] < np.array(SHARES)).sum(axis=1)
    return np.bincount(place, minlength=len(SHARES) + 1)


def cumulated(bins: Any) -> dict[str, Any]:
    """Return how many have at least each share, from how many lie between which.

    Args:
        bins: As `binned` returns them, or with noise.

    Example:
        >>> cumulated([[1, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0]])["trainings"].tolist()
        [1, 1, 1, 1, 2, 2]
    """
    rows: Iterable[Any] = np.cumsum(np.asarray(bins)[:, :-1], axis=1)
    return dict(zip(("queries", "trainings"), rows, strict=True))
