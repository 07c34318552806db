"""Costs: the pairs (μ², slack) that stand for an analysis, of which each account pays one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import common_index
from apiece._types import AnyArray, Floats, Integers
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting.concentrated import concentrated_rho
from apiece.accounting.slack import gaussian_with_slack
from apiece.errors import InputError
from apiece.filters.convert import SHARE, ULP
from apiece.mechanisms import Mechanism
from apiece.numerics.gaussian import gaussian_epsilon_above

# A slack that is a whole share of δ is still in the account when both are whole units.
_BELOW: Final = 1 - 2.0**-12
SHARES: Final = np.append(np.arange(9, 0, -1) / 10, [0.05, 0.025])
"""Shares of δ that are looked at as the slack of accounts (`Costs.shares`)."""
# Shares of δ that are looked at as the slack of a cost.
_HALVINGS: Final = 0.5 ** np.arange(1, 8)
_COST_SHARES: Final = np.concatenate([SHARES, SHARES[-1] * _HALVINGS, [0.0]])


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What an analysis costs each person: some pairs (μ², slack), any one of which pays for it.

    Attributes:
        loss: (groups, pairs) μ² of each pair; ∞ where a pair does not hold.
        slack: (groups, pairs) The slack that belongs to it, in [0, 1).
        group: (people,) Each person's row of both; None where row i is person i's.
        concentrated: (groups,) 2ρ, which accounts promised as ρ pay in place of a pair; ∞ where
            there is none, and None where they pay a pair without slack.

    Raises:
        InputError: For shapes that do not fit, and numbers out of bounds.

    Guarantee:
        An account chooses its pair from its own budget alone, so that what is charged does not
        follow from who else is charged, or from the order of charges.

    Example:
        >>> import numpy as np
        >>> from apiece.filters import Costs
        >>> costs = Costs(np.array([[4.0, 1.0]]), np.array([[0.0, 1e-7]]))
        >>> [each.tolist() for each in costs.chosen(np.array([5.0]), np.array([1e-6]))]
        [[1.0], [1e-07]]
    """

    loss: Floats = field(repr=False)
    slack: Floats = field(repr=False)
    group: Integers | None = field(default=None, repr=False)
    concentrated: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        loss = np.asarray(self.loss, np.float64)
        slack = np.asarray(self.slack, np.float64)
        if loss.ndim != 2 or loss.shape != slack.shape or not loss.shape[1]:
            raise InputError(
                f"costs: loss has shape {loss.shape}, slack {slack.shape}; give (groups, pairs)"
            )
        # Negations of these would let NaN pass.
        has_losses = (loss >= 0).all()
        has_slacks = ((slack >= 0) & (slack < 1)).all()
        if not (has_losses and has_slacks):
            raise InputError("costs: loss must be at least 0 and slack in [0, 1), no NaN")
        # A frozen dataclass is written past its own guard.
        put = object.__setattr__
        put(self, "loss", loss)
        put(self, "slack", slack)
        if self.group is not None:
            put(self, "group", _check_group(self.group, len(loss)))
        if self.concentrated is not None:
            concentrated = np.asarray(self.concentrated, np.float64)
            if concentrated.shape != loss.shape[:1] or not (concentrated >= 0).all():
                raise InputError("costs: concentrated must have one number from 0 on a group")
            put(self, "concentrated", concentrated)

    @classmethod
    def fixed(cls, loss: npt.ArrayLike, slack: npt.ArrayLike = 0.0) -> Costs:
        """Return the costs of one pair a person.

        Args:
            loss: (people,) μ².
            slack: The slack, one or one a person.

        Raises:
            DataError: For Series whose indices differ.

        Example:
            >>> from apiece.filters import Costs
            >>> len(Costs.fixed([0.5, 0.25]))
            2
        """
        common_index(loss=loss, slack=slack)
        losses, slacks = np.broadcast_arrays(np.atleast_1d(loss), np.atleast_1d(slack))
        return cls(losses[:, None], slacks[:, None])

    def __len__(self) -> int:
        return len(self.loss if self.group is None else self.group)

    def of(self, group: npt.ArrayLike) -> Costs:
        """Return the costs of people, each of one group.

        Args:
            group: (people,) Each one's place among these.

        Raises:
            InputError: For a place that is not there.
        """
        rows = _check_group(group, len(self))
        if self.group is not None:
            rows = self.group[rows]
        return Costs(self.loss, self.slack, rows, self.concentrated)

    def epsilon(
        self, delta: npt.ArrayLike, share: npt.ArrayLike = SHARE, *, times: int = 1
    ) -> Floats:
        """Return the ε of the least account that pays, if nothing was charged to it yet.

        Args:
            delta: Of the accounts, one or one a person.
            share: Of δ that the accounts keep as slack, one or one a person.
            times: How often it pays, each time the same pair.

        Guarantee:
            Rounded up.
        """
        loss, slack = self.rows()
        shape = (len(self),)
        delta = np.broadcast_to(np.asarray(delta, np.float64), shape)
        share = np.broadcast_to(np.asarray(share, np.float64), shape)
        account_slack = delta * share
        # Of the pairs whose slack the account has, the one of the least μ².
        # (people, pairs).
        fits = slack * times <= account_slack[:, None]
        least_loss = np.where(fits, loss, np.inf).min(axis=1)
        square = least_loss * times * (1 + ULP)
        # δ = s + (1 − s)·G(ε) leaves the Gaussian (δ − s)/(1 − s), rounded down.
        remaining = (delta - account_slack) / (1 - account_slack)
        gaussian_delta = np.where(account_slack > 0, remaining, delta)
        finite = np.isfinite(square)
        mu = np.sqrt(np.where(finite, square, 0.0)) * (1 + 4 * ULP)
        epsilon = gaussian_epsilon_above(mu, gaussian_delta * (1 - 8 * ULP))
        return np.where(finite, epsilon, np.inf)

    def shares(self, delta: npt.ArrayLike, *, times: int = 1) -> Floats:
        """Return which share of δ, of `SHARES`, lets the least account pay: one a person.

        Args:
            delta: Of the accounts, one or one a person.
            times: How often they are to pay.

        Example:
            >>> from apiece.filters import costs_of
            >>> from apiece.mechanisms import Gaussian, Repeated, Sampled
            >>> rare = costs_of([Repeated(Sampled(Gaussian(0.7), 1e-3), 1000)], 1e-6)
            >>> share = rare.shares(1e-6)
            >>> share.tolist(), rare.epsilon(1e-6, [0.1, share[0]][0]) > rare.epsilon(1e-6, share)
            ([0.7], array([ True]))
        """
        # One δ for all: one look a group, not one a person.
        by_group = self.group is not None and not np.ndim(delta)
        costs = self
        if by_group:
            costs = Costs(self.loss, self.slack)
        # From the least share on: of equal costs the one stays that keeps least of δ back.
        shares = SHARES[::-1]
        epsilon = np.array([costs.epsilon(delta, share, times=times) for share in shares])
        best = shares[epsilon.argmin(axis=0)]
        return np.asarray(best[self.group] if by_group else best)

    def rows(self, part: slice | Integers = slice(None)) -> tuple[Floats, Floats]:
        """Return loss and slack of some people, (people, pairs).

        Args:
            part: Which people: places, or a slice.
        """
        rows = part if self.group is None else self.group[part]
        return self.loss[rows], self.slack[rows]

    def chosen(self, budget: Floats, slack: Floats) -> tuple[Floats, Floats]:
        """Return the pair that each account pays: its larger share of the account is the least.

        Args:
            budget: (people,) Of each account, in μ².
            slack: (people,) Of each account.

        Raises:
            InputError: For another number of accounts than these costs are of.
        """
        if len(budget) != len(self):
            raise InputError(f"costs: of {len(self)} people, and there are {len(budget)} accounts")
        losses, slacks = self.rows()
        # The pair is chosen by the account's limits, never by what it has spent.
        column = cheapest(losses, slacks, budget, slack)[:, None]
        loss = np.take_along_axis(losses, column, 1)[:, 0]
        return loss, np.take_along_axis(slacks, column, 1)[:, 0]


def cheapest(
    loss: AnyArray, slack: AnyArray, budget: npt.ArrayLike, most: npt.ArrayLike
) -> npt.NDArray[np.intp]:
    """Return for each account the number of the pair whose larger share of it is the least.

    `budget` and `most` are the account's limits of μ² and of slack.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        loss_share = loss / np.asarray(budget)[:, None]
        slack_share = slack / np.asarray(most)[:, None]
    # Free, also where the limit is 0.
    loss_share = np.where(loss > 0, loss_share, 0.0)
    slack_share = np.where(slack > 0, slack_share, 0.0)
    return np.asarray(np.maximum(loss_share, slack_share).argmin(axis=1))


def costs_of(curves: Iterable[PrivacyCurve | Mechanism], delta: npt.ArrayLike) -> Costs:
    """Return the costs of mechanisms: the least μ² for slacks from .9·δ down, and for none.

    Args:
        curves: Of what is done to a record of each group; a mechanism stands for its curve.
        delta: Of the accounts that pay, by which the slacks are chosen: one, or one a group.

    Raises:
        InputError: For a δ outside (0, 1).
        RangeError: Past the numerical range.

    Guarantee:
        Each pair holds by itself, with μ rounded up (`gaussian_with_slack`).

    Example:
        >>> from apiece.filters import costs_of
        >>> from apiece.mechanisms import Gaussian, Repeated, Sampled
        >>> costs = costs_of([Repeated(Sampled(Gaussian(2.5), 0.05), 200)], 1e-5)
        >>> [f"{loss:.3g}, {slack:.2g}" for loss, slack in zip(costs.loss[0], costs.slack[0])][::18]
        ['0.0926, 9e-06', '32, 0']
    """
    groups = [
        curve if isinstance(curve, PrivacyCurve) else privacy_curve(curve) for curve in curves
    ]
    deltas = np.broadcast_to(_check.positive_array("delta", delta, below=1.0), (len(groups),))
    # (groups, pairs).
    slack = _COST_SHARES * deltas[:, None] * _BELOW
    loss = np.empty(slack.shape)
    # Rounded up in the square.
    for row, curve in enumerate(groups):
        mu = np.asarray(gaussian_with_slack(curve, slack[row]).upper)
        loss[row] = mu * mu * (1 + 4 * ULP)
    # What a Gaussian without slack stands for has the Gaussian's ρ; many have less.
    concentrated = loss[:, -1].copy()
    for row, curve in enumerate(groups):
        if curve.mechanism is not None:
            concentrated[row] = min(2 * concentrated_rho(curve.mechanism), concentrated[row])
    return Costs(loss, slack, concentrated=concentrated)


def _check_group(group: npt.ArrayLike, groups: int) -> Integers:
    """Return checked places in the rows of costs."""
    rows = np.asarray(group)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError("group: give one whole number a person")
    if rows.size and not (rows.min() >= 0 and rows.max() < groups):
        raise InputError(f"group: must be from 0 to {groups - 1}, a row of the costs")
    return rows.astype(np.int64)
