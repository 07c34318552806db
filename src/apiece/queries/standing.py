"""How much is left on a ledger's accounts, released with noise and charged to who is counted."""

from __future__ import annotations

import math
import secrets
from typing import Final

import numpy as np

from apiece import _check
from apiece._types import Integers, Json
from apiece.errors import AnalysisError
from apiece.ledger import SHARES, Ledger, binned, cumulated
from apiece.queries.noise import BITS, Bits, rounded_gaussians

NORM: Final = math.sqrt(2)  # a person is in one place of each of two histograms


def release_standing(
    ledger: Ledger, analysis_id: str, *, noise_stddev: float, bits: Bits = secrets.randbits
) -> Json:
    """Return how many accounts have at least which share left, with noise; it may be published.

    Those are counted who can pay for it, as they are after they have paid.

    Args:
        ledger: All of its accounts are charged.
        analysis_id: A name that no other analysis has; asked again, the answer is the first one's.
        noise_stddev: On the number of accounts between two shares.
        bits: The noise's randomness, cryptographic by default.

    Returns:
        The shares, and for "queries" and "trainings" the counts (see `ledger.standing`).

    Raises:
        AnalysisError: For a name that stands for another analysis.
        InputError: For noise that is not positive.

    Guarantee:
        A Gaussian mechanism of sensitivity √2 under adding or removing a person, which is what is
        charged: others' accounts do not follow from a person's rows but through what was released.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/p.db", list(range(2000)), 3.0, 1e-6)
        ...     found = release_standing(ledger, "standing in May", noise_stddev=20.0)
        >>> 1700 < found["queries"][1] < 2300
        True
    """
    stddev = _check.positive("noise_stddev", noise_stddev)
    terms = {"standing": list(SHARES), "noise_stddev": stddev}
    if ledger.status(analysis_id, terms) != "committed":
        try:
            ledger.reserve_everyone(analysis_id, NORM, stddev, terms=terms)
            return dict(ledger.commit(analysis_id, _noisy(ledger, analysis_id, stddev, bits)))
        except AnalysisError:  # committed or taken since then
            if ledger.status(analysis_id, terms) != "committed":
                raise
    return dict(ledger.result(analysis_id))


def _noisy(ledger: Ledger, analysis_id: str, stddev: float, bits: Bits) -> Json:
    bins: Integers = np.zeros((2, len(SHARES) + 1), dtype=np.int64)
    for ids in ledger.admitted(analysis_id):
        bins += binned(*ledger.balances(ids))
    grid = math.ldexp(stddev, -BITS)
    one = math.floor(1 / grid)  # whole steps of the grid that a person adds, at most 1 in all
    counts = (bins * one).ravel().tolist()
    drawn = rounded_gaussians(len(counts), bits=bits)
    noisy = [(count + noise) * grid for count, noise in zip(counts, drawn, strict=True)]
    told = cumulated(np.array(noisy).reshape(bins.shape))
    return {"shares": list(SHARES), "noise_stddev": stddev} | {
        kind: [round(count) for count in each] for kind, each in told.items()
    }
