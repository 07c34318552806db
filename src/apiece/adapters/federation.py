"""Federations: their plan, and what it promises to each client and each record.

In a round each client joins by a coin of the server's, and each of its records by a coin of its
own. Two nested coins are not one coin of the product for a record: the client's other records join
by the same client coin, and a large sum of theirs shows how it fell. So for records the client's
coin counts as known. The number of rounds that a client joins is then binomial, and a record's
δ(ε) is the mean of those of so many rounds of the record's own coin: exact for known coins, and an
upper bound for unknown ones. A client as a whole has one coin, which is `Sampled` as it stands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from apiece import _check
from apiece._identity import require_ids
from apiece._types import Floats
from apiece.accounting import Bounds, PrivacyCurve, privacy_curve
from apiece.errors import InfeasibleError, InputError
from apiece.filters import Costs, costs_of
from apiece.ledger import Ledger
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from apiece.numerics.roots import bisect

_TAIL: Final = 1e-3  # of δ, given to joining more often than is counted
_FINEST: Final = 1e-4  # of δ, the slack that is still told from what is beyond
_CUTS: Final = 16  # of a bracket of ε
_LISTED_ROUNDS: Final = 8  # rounds, of which each number joined is counted by itself
_QUANTILES: Final = (0.3, 0.7, 0.95, 0.999, 0.99999)


@dataclass(frozen=True, slots=True)
class Federation:
    """The public numbers of a federated training, fixed before the first round.

    Args:
        rounds: How many, at most.
        client_probability: Of each client's coin in each round.
        clip_norm: ℓ2 bound on what a record adds.
        client_clip: The same on what a client adds; None where clients as such are promised
            nothing.
        noise_stddev: Of the noise on each round's sum.
        rates: Of each level of budgets, the probability of a record's coin.
        expected_batch_size: What each round's noisy sum is divided by, whoever joined.

    Raises:
        InputError: For values out of bounds.

    Guarantee:
        A record of level l is (ε, δ)-DP with ε = `record_epsilon(l, δ)`, and a client
        (`client_epsilon(δ)`, δ)-DP, under adding or removing it, against whoever sees every
        round's noisy sum. Clients may drop out for reasons that do not depend on records.
    """

    rounds: int
    client_probability: float
    clip_norm: float
    noise_stddev: float
    rates: tuple[float, ...]
    expected_batch_size: float
    client_clip: float | None = None

    def __post_init__(self) -> None:
        _check.count("rounds", self.rounds)
        _check.probability("client_probability", self.client_probability, low_open=True)
        for name in ("clip_norm", "noise_stddev", "expected_batch_size"):
            _check.positive(name, getattr(self, name))
        if self.client_clip is not None:
            _check.positive("client_clip", self.client_clip)
        rates = tuple(_check.probability("rate", rate) for rate in self.rates)
        object.__setattr__(self, "rates", rates)

    def record_epsilon(self, level: int, delta: float) -> float:
        """Return an upper bound on the ε of a record of this level at `delta`.

        Args:
            level: Its place in `rates`.
            delta: In (0, 1).
        """
        return _epsilon(
            self.noise_stddev / self.clip_norm,
            self.rates[level],
            self.client_probability,
            self.rounds,
            _check.probability("delta", delta, low_open=True, high_open=True),
        )

    def client_epsilon(self, delta: float) -> float:
        """Return an upper bound on the ε of a client, all its records together, at `delta`.

        Args:
            delta: In (0, 1).

        Raises:
            InputError: Without a client_clip.
        """
        if self.client_clip is None:
            raise InputError(
                "client_epsilon: no client_clip bounds what a client adds; give plan_federation "
                "client_clip="
            )
        one = Sampled(Gaussian(self.noise_stddev / self.client_clip), self.client_probability)
        return float(privacy_curve(Repeated(one, self.rounds)).epsilon(delta).upper)

    def costs(self, delta: float) -> Costs:
        """Return what all rounds cost a record of each level, client coin known.

        Args:
            delta: Of the accounts that pay.

        Raises:
            InputError: For a δ outside (0, 1).
        """
        return _costs(self, _check.probability("delta", delta, low_open=True, high_open=True))


def plan_federation(
    epsilon: Sequence[float],
    delta: float,
    records: Sequence[int],
    *,
    rounds: int,
    client_probability: float,
    noise_multiplier: float,
    clip_norm: float = 1.0,
    client_clip: float | None = None,
) -> Federation:
    """Return the federation in which records of each level join as often as their ε allows.

    Args:
        epsilon: Of each level of budgets.
        delta: For all.
        records: How many records, over all clients, have each level; public or released.
        rounds: As of `Federation`.
        client_probability: As of `Federation`.
        noise_multiplier: The noise's standard deviation over clip_norm.
        clip_norm: As of `Federation`.
        client_clip: As of `Federation`.

    Raises:
        InfeasibleError: Where a level's ε allows no rate at this noise.
        InputError: For values out of bounds.

    Guarantee:
        `record_epsilon(l, delta)` of the result is at most epsilon[l].

    Example:
        >>> from apiece.adapters.federation import plan_federation
        >>> federation = plan_federation(
        ...     [1.0, 4.0], 1e-5, [300, 100], rounds=5, client_probability=1.0,
        ...     noise_multiplier=3.0)
        >>> federation.rates[0] < federation.rates[1]
        True
        >>> 0.9 < federation.record_epsilon(0, 1e-5) <= 1
        True
    """
    delta = _check.probability("delta", delta, low_open=True, high_open=True)
    multiplier = _check.positive("noise_multiplier", noise_multiplier)
    if len(records) != len(epsilon) or not len(epsilon):
        raise InputError(
            f"records: {len(records)} counts for {len(epsilon)} levels; give one a level"
        )
    rates = []
    for asked in epsilon:
        rate = _rate(
            multiplier, client_probability, rounds, _check.positive("epsilon", asked), delta
        )
        if rate == 0:
            raise InfeasibleError(
                f"epsilon = {asked:g}: no rate keeps it at noise multiplier {multiplier:g} over "
                f"{rounds} rounds; give more noise or fewer rounds"
            )
        rates.append(rate)
    expected = client_probability * sum(q * n for q, n in zip(rates, records, strict=True))
    return Federation(
        rounds=rounds,
        client_probability=client_probability,
        clip_norm=clip_norm,
        noise_stddev=multiplier * clip_norm,
        rates=tuple(rates),
        expected_batch_size=expected,
        client_clip=client_clip,
    )


def charge(
    ledger: Ledger, run: str, ids: Any, levels: Any, federation: Federation, *, delta: float
) -> Any:
    """Charge a silo's people for the whole training; return the ids of those who could pay.

    Every silo charges under a run of its own (such as "run/silo 3"), so that whoever is in several
    pays in each, from one account. Who is not returned must be left out: give `FederatedClient`
    rate 0 for them, with `included`.

    Args:
        ledger: With accounts of these people.
        run: The name of the charge in it.
        ids: Of the silo's people, each once.
        levels: Each one's level; a Series has the ids as its index.
        federation: What is to be run.
        delta: Of the accounts, about: the slacks that they may pay are chosen by it.

    Raises:
        AnalysisError: As `Ledger.reserve`.
        DataError: As `Ledger.reserve`, and for levels of other ids, or in another order.
        InputError: For a level that the federation does not have.
    """
    require_ids("ids", ids, levels=levels)
    costs = federation.costs(delta).of(levels)
    return ledger.reserve_costs(run, ids, costs, terms={"federation": asdict(federation)})


@functools.lru_cache(maxsize=64)
def _costs(federation: Federation, delta: float) -> Costs:
    multiplier, coin = federation.noise_stddev / federation.clip_norm, federation.client_probability
    curves = [
        privacy_curve(Composed())
        if rate == 0
        else PrivacyCurve(_Joined.of(multiplier, rate, coin, federation.rounds, delta * _FINEST))
        for rate in federation.rates
    ]
    return costs_of(curves, delta)


@functools.lru_cache(maxsize=4096)
def _curve(multiplier: float, rate: float, times: int) -> PrivacyCurve:
    return privacy_curve(Repeated(Sampled(Gaussian(multiplier), rate), times))


def _epsilon(
    multiplier: float, rate: float, probability: float, rounds: int, delta: float
) -> float:
    """Return the least ε found at which the mean of δ over the times joined is at most `delta`."""
    if rate == 0:
        return 0.0
    joined = _Joined.of(multiplier, rate, probability, rounds, delta)
    return float(joined.epsilon(np.array([delta])).upper[0])


@dataclass(frozen=True)
class _Joined:
    """The mean of δ(ε) over how often a client joins, from above."""

    # Joining up to a number of times costs at most what that number costs; `beyond` is the chance
    # of joining more often than any that is counted, which then tells everything.

    share: Floats
    curves: list[PrivacyCurve]
    beyond: float

    @classmethod
    def of(
        cls, multiplier: float, rate: float, probability: float, rounds: int, delta: float
    ) -> _Joined:
        from scipy.stats import binom

        times = binom(rounds, probability)
        counts = [times.isf(_TAIL * delta), *(times.ppf(p) for p in _QUANTILES)]
        at = np.unique(np.clip(counts, 1, rounds)).astype(int)
        if rounds <= _LISTED_ROUNDS:
            at = np.arange(1, rounds + 1)
        share = np.diff(times.cdf(at), prepend=times.cdf(0)) * (1 + 1e-9)
        beyond = float(times.sf(at[-1])) * (1 + 1e-9)
        return cls(share, [_curve(multiplier, rate, int(k)) for k in at], beyond)

    def delta(self, epsilon: Floats) -> Bounds:
        deltas = np.array([np.asarray(curve.delta(epsilon).upper) for curve in self.curves])
        upper = np.minimum(self.beyond + self.share @ deltas, 1.0)
        return Bounds(np.zeros(epsilon.shape), upper)

    def epsilon(self, delta: Floats) -> Bounds:
        within = self.beyond < delta
        rest = np.where(within, (delta - self.beyond) / (1 + 1e-6), 0.5)
        enough = np.asarray(self.curves[-1].epsilon(rest).upper)
        least, _ = bisect(
            lambda epsilon: np.asarray(self.delta(epsilon).upper <= delta),
            enough,
            0.0,
            rounds=_CUTS,
        )
        # `enough` needs no look: every count joined costs at most the largest one's δ, `rest`, and
        # the shares add up to 1 within the 1e-6 taken off. What two roundings of one curve say of
        # each other may differ by more than that.
        return Bounds(np.zeros(delta.shape), np.where(within, least, np.inf))


def _rate(
    multiplier: float, probability: float, rounds: int, epsilon: float, delta: float
) -> float:
    """Return a rate that keeps (ε, δ), within three hundredths of the largest; 0 for none found."""
    if _epsilon(multiplier, 1.0, probability, rounds, delta) <= epsilon:
        return 1.0
    low, high = 1e-4, 1.0
    if not _epsilon(multiplier, low, probability, rounds, delta) <= epsilon:
        return 0.0
    while high / low > 1.03:
        middle = math.sqrt(low * high)
        kept = _epsilon(multiplier, middle, probability, rounds, delta) <= epsilon
        low, high = (middle, high) if kept else (low, middle)
    return low
