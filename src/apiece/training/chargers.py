"""Who pays for a step before it is used: a plan that is paid for, or each record's account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.errors import VerificationError
from apiece.training.clipping import ClippedSum, guards
from apiece.training.samplers import Draw

ROOM = 1 + 2.0**-16  # norms are computed in single precision; charges are for a little more
SumOver = Callable[[Integers, Floats], ClippedSum]  # records, their bounds; a pass of its own


class Accounts(Protocol):
    """One account a record: `GaussianFilter`, `RenyiFilter`, or the people of a ledger."""

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Charge all who can pay; return who can."""
        ...

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm that each can still pay for."""
        ...


class Charger(Protocol):
    """What the step loop asks for the sum, so that nothing is summed that nobody paid for."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Charge whom the step concerns; return the sum over those drawn who have paid.

        Args:
            draw: Who is to take part.
            sum_over: Clips and sums over records, each at its bound, in a pass of its own.
        """
        ...


class Prepaid:
    """The plan is what was charged: everyone who is drawn has paid."""

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Return the sum over all who were drawn."""
        return sum_over(draw.records, draw.clip_norms)


class ByBound:
    """Every account pays for its clip bound at every step, drawn or not, while it can.

    `active` says who paid for the last step: data about people.

    Args:
        accounts: One a record.
        clip_norms: (n,) Each record's bound, drawn or not.

    Guarantee:
        The sum holds records whose account has just paid for their whole bound, with no discount
        for sampling.
    """

    def __init__(self, accounts: Accounts, clip_norms: Floats) -> None:
        self._accounts, self._clip_norms = accounts, clip_norms
        self.active: Mask | None = None

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Charge everyone; return the sum over those who were drawn and could pay."""
        active = self.active = self._accounts.admit(self._clip_norms, draw.noise_stddev)
        paid = active[draw.records]
        return sum_over(draw.records[paid], draw.clip_norms[paid])


class ByNorm:
    """Every account pays for its record's present norm, at most its bound; for full batches.

    Whoever can pay for the whole clip bound is summed in one pass; of the others the norms come
    first, and then the sum over those who can pay for them. In that second pass each is clipped
    at what it was charged, whatever the model, which may be random, makes of it now. `active`
    says who paid for the last step: data about people.

    Args:
        accounts: One a record.

    Guarantee:
        Each record's share of the sum is at most what its account has just paid for.

    References:
        Feldman and Zrnic 2021, Alg. 1.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.active: Mask | None = None

    def charge(self, draw: Draw, sum_over: SumOver) -> ClippedSum:
        """Return the sum over all who can pay for their current norm. Everyone must be drawn.

        Raises:
            VerificationError: Where an account refused what it had said it could pay.
        """
        bounds, stddev = draw.clip_norms, draw.noise_stddev
        affordable = self._accounts.affordable(stddev)
        certain = bounds <= affordable
        sure, unsure = np.flatnonzero(certain), np.flatnonzero(~certain & (affordable > 0))
        total = sum_over(sure, bounds[sure])
        charges = bounds.copy()
        charges[sure] = charges_for(total)
        if unsure.size:
            charges[unsure] = charges_for(sum_over(unsure, bounds[unsure]))
        active = self._accounts.admit(charges, stddev)
        if not active[sure].all():
            raise VerificationError("filter: refused a charge that it had said was affordable")
        self.active = active
        late = unsure[active[unsure] & (charges[unsure] > 0)]
        return total + sum_over(late, charges[late]) if late.size else total


def charges_for(clipped: ClippedSum) -> Floats:
    """Return what each record's share can at most be, (B,); 0 for one that was not finite.

    Below the least bound that can be enforced nobody is charged less than that.
    """
    norms = clipped.norms.detach().cpu().numpy().astype(np.float64) * ROOM
    bounds = clipped.clip_norms.cpu().numpy()
    held = np.minimum(np.maximum(norms, guards.LEAST_BOUND), bounds)
    return np.asarray(np.where(np.isfinite(norms), held, 0.0))
