"""Federations: their plan, and what it promises to each client and each record.

There are two kinds. In one, coins decide who joins a round. In the other, clients come when they
like, at most so often and so far apart, and the noise is correlated between the rounds.

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
from typing import Any, Final, TypeAlias

import numpy as np

from apiece import _check
from apiece._identity import require_ids
from apiece._types import Floats
from apiece.accounting import Bounds, PrivacyCurve, noise_multipliers, privacy_curve
from apiece.correlation.optimize import optimize_banded, optimize_buffered
from apiece.correlation.strategies import NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.errors import InfeasibleError, InputError
from apiece.filters import Costs, costs_of
from apiece.ledger import Ledger
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from apiece.numerics.roots import bisect
from apiece.plan.correlated import CorrelatedNoise
from apiece.plan.parts import ULP

# Share of δ for joining more often than any number that is counted.
_TAIL: Final = 1e-3

# The least slack, as a share of the accounts' δ, at which the curves of costs are still finite.
_LEAST_SLACK: Final = 1e-4

# Halvings of a bracket of ε.
_HALVINGS: Final = 16

# Rounds up to which each number of joined rounds is counted by itself; of more, the numbers at
# these quantiles of their distribution are.
_LISTED_ROUNDS: Final = 8
_QUANTILES: Final = (0.3, 0.7, 0.95, 0.999, 0.99999)

# Relative round-off of probabilities and of their sum, which is added or taken off.
_CHANCE_ROUNDING: Final = 1e-9
_SUM_ROUNDING: Final = 1e-6

# The least rate that is tried, and the factor within which the largest rate is found.
_LEAST_RATE: Final = 1e-4
_RATE_PRECISION: Final = 1.03


@dataclass(frozen=True, slots=True)
class Federation:
    """The public numbers of a federated training, fixed before the first round.

    Args:
        rounds: The most rounds that are run.
        client_probability: Chance that a client joins a round.
        clip_norm: ℓ2 bound on a record's part of a sum.
        client_clip: ℓ2 bound on a client's part; None where clients as such are promised nothing.
        noise_stddev: Standard deviation of the noise on each round's sum.
        rates: Of each level of budgets, the probability of a record's coin.
        expected_batch_size: The divisor of each round's noisy sum, whoever joined.

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
            level: Its position in `rates`.
            delta: In (0, 1).
        """
        return _compute_epsilon(
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
        # A client's sum moves by at most client_clip, and joins by one coin a round.
        noise = Gaussian(self.noise_stddev / self.client_clip)
        mechanism = Repeated(Sampled(noise, self.client_probability), self.rounds)
        return float(privacy_curve(mechanism).epsilon(delta).upper)

    def costs(self, delta: float) -> Costs:
        """Return the costs of all rounds for a record of each level, client coin known.

        Args:
            delta: The δ of the accounts that pay.

        Raises:
            InputError: For a δ outside (0, 1).
        """
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        return _compute_costs(self, delta)


@dataclass(frozen=True, slots=True)
class UnsampledFederation:
    """The public numbers of a federated training without sampling, fixed before the first round.

    Clients come when they like: each joins at most `participations` rounds, any two of them at
    least `separation` rounds apart, and in these all its records take part.

    Args:
        rounds: The most rounds that are run.
        participations: The most rounds that a client joins.
        noise: How the noise of the rounds is correlated, with the separation.
        clip_norms: Of each level of budgets, the ℓ2 bound on a record's part of a sum.
        noise_stddev: Standard deviation of the independent noise of which that of rounds is made.
        expected_batch_size: The divisor of each round's noisy sum, whoever joined.

    Raises:
        InputError: For values out of bounds, and more rounds a client than fit.

    Guarantee:
        A record of level l meets the Gaussian of `record_epsilon(l, δ)`, against whoever sees every
        round's noisy sum, under its contributions being zero, as long as the rounds that its client
        joins do not depend on its records.

    References:
        Denisov et al. 2022; McMahan et al. 2024.
    """

    rounds: int
    participations: int
    noise: CorrelatedNoise
    clip_norms: tuple[float, ...]
    noise_stddev: float
    expected_batch_size: float

    def __post_init__(self) -> None:
        _check.count("rounds", self.rounds)
        _check.count("participations", self.participations)
        for name in ("noise_stddev", "expected_batch_size"):
            _check.positive(name, getattr(self, name))
        clip_norms = tuple(_check.positive("clip_norm", norm) for norm in self.clip_norms)
        object.__setattr__(self, "clip_norms", clip_norms)
        # More participations than fit, so far apart, are refused.
        self.noise.check_times(self.rounds, self.participations)

    def mechanism(self, level: int) -> Gaussian:
        """Return the one Gaussian that a record of this level meets in all rounds together.

        Args:
            level: Its position in `clip_norms`.
        """
        # How far one record moves the whole sequence of sums at most, per unit of its clip norm.
        moved = self.noise.sensitivity(steps=self.rounds, times=self.participations)
        multiplier = self.noise_stddev / self.clip_norms[level] / moved
        # Rounded down: the divisions are rounded to the nearest.
        return Gaussian(multiplier * (1 - 3 * ULP))

    def record_epsilon(self, level: int, delta: float) -> float:
        """Return an upper bound on the ε of a record of this level at `delta`.

        Args:
            level: Its position in `clip_norms`.
            delta: In (0, 1).
        """
        return float(privacy_curve(self.mechanism(level)).epsilon(delta).upper)

    def costs(self, delta: float) -> Costs:
        """Return the costs of all rounds for a record of each level: μ² without slack.

        Args:
            delta: The δ of the accounts that pay.
        """
        levels = range(len(self.clip_norms))
        return costs_of([self.mechanism(level) for level in levels], delta)


AnyFederation: TypeAlias = Federation | UnsampledFederation


def plan_unsampled_federation(
    epsilon: Sequence[float],
    delta: float,
    records: Sequence[int],
    *,
    rounds: int,
    participations: int,
    separation: int | None = None,
    buffers: int | None = None,
    clip_norm: float = 1.0,
) -> UnsampledFederation:
    """Return the federation in which clients come when they like, and clip norms carry the budgets.

    Args:
        epsilon: The ε of each level of budgets.
        delta: One δ for all levels.
        records: Number of records of each level, over all clients; public or released.
        rounds: As in `UnsampledFederation`.
        participations: As in `UnsampledFederation`.
        separation: The least rounds between two of a client; None for as far apart as they fit.
        buffers: Copies of the model that the server's noise remembers; None for as many as the
            separation has rounds, less one.
        clip_norm: The mean over the records.

    Raises:
        InputError: For values out of bounds.

    Guarantee:
        `record_epsilon(l, delta)` of the result is at most epsilon[l].

    Example:
        >>> from apiece.adapters.federation import plan_unsampled_federation
        >>> federation = plan_unsampled_federation(
        ...     [1.0, 4.0], 1e-5, [300, 100], rounds=20, participations=4)
        >>> federation.clip_norms[0] < federation.clip_norms[1]
        True
        >>> 0.99 < federation.record_epsilon(0, 1e-5) <= 1
        True
    """
    delta = _check.probability("delta", delta, low_open=True, high_open=True)
    if len(records) != len(epsilon) or not len(epsilon):
        raise InputError(
            f"records: {len(records)} counts for {len(epsilon)} levels; give one a level"
        )
    times = _check.count("participations", participations)
    length = _check.count("rounds", rounds)
    # As far apart as the rounds allow.
    apart = max(length // times, 1) if separation is None else separation
    workload = Workload(length)
    strategy: NoiseStrategy
    if buffers is None:
        strategy = optimize_banded(workload, bands=apart, participations=times, separation=apart)
    else:
        strategy = optimize_buffered(
            workload, buffers=buffers, participations=times, separation=apart
        )
    noise = CorrelatedNoise(strategy, apart)
    # How far all rounds of one record move the whole sequence of sums, per unit of its clip norm.
    moved = noise.sensitivity(steps=length, times=times)
    # The noise of one full-batch step at each ε: all rounds together are one Gaussian.
    multipliers = noise_multipliers(
        epsilon=_check.positive_array("epsilon", epsilon),
        delta=delta,
        sampling_probability=1.0,
        steps=1,
    )
    # As for the strategy Scale: c_l = S/(z_l·s), with the mean asked for.
    inverse = 1 / (np.asarray(multipliers) * moved)
    counts = np.asarray(records, dtype=float)
    stddev = _check.positive("clip_norm", clip_norm) * counts.sum() / float(counts @ inverse)
    return UnsampledFederation(
        rounds=length,
        participations=times,
        noise=noise,
        # Rounded down, so that no level's ε is passed by rounding.
        clip_norms=tuple((stddev * inverse * (1 - 8 * ULP)).tolist()),
        noise_stddev=float(stddev),
        # Each record takes part in `times` of `length` rounds.
        expected_batch_size=float(counts.sum() * times / length),
    )


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
        epsilon: The ε of each level of budgets.
        delta: One δ for all levels.
        records: Number of records of each level, over all clients; public or released.
        rounds: As in `Federation`.
        client_probability: As in `Federation`.
        noise_multiplier: The noise's standard deviation over clip_norm.
        clip_norm: As in `Federation`.
        client_clip: As in `Federation`.

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
    # Level by level: the noise is common, and only the rate follows from the budget.
    rates = []
    for budget in epsilon:
        level_epsilon = _check.positive("epsilon", budget)
        rate = _find_rate(multiplier, client_probability, rounds, level_epsilon, delta)
        if rate == 0:
            raise InfeasibleError(
                f"epsilon = {budget:g}: no rate keeps it at noise multiplier {multiplier:g} over "
                f"{rounds} rounds; give more noise or fewer rounds"
            )
        rates.append(rate)
    # Public: counts of levels and rates, never who joined.
    joining = sum(rate * count for rate, count in zip(rates, records, strict=True))
    expected = client_probability * joining
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
    ledger: Ledger, run: str, ids: Any, levels: Any, federation: AnyFederation, *, delta: float
) -> Any:
    """Charge a silo's people for the whole training; return the ids of those who could pay.

    Every silo charges under a run of its own (such as "run/silo 3"), so that whoever is in several
    pays in each, from one account. Who is not returned must be left out: give `FederatedClient`
    rate 0 for them, with `included`.

    Args:
        ledger: With accounts of these people.
        run: The name of the charge in it.
        ids: Ids of the silo's people, each once.
        levels: Each one's level; a Series has the ids as its index.
        federation: The federation that is to be run.
        delta: About the δ of the accounts: the slacks that they may pay are chosen by it.

    Raises:
        AnalysisError: As `Ledger.reserve`.
        DataError: As `Ledger.reserve`, and for levels of other ids, or in another order.
        InputError: For a level that the federation does not have.
    """
    require_ids("ids", ids, levels=levels)
    costs = federation.costs(delta).of(levels)
    # The terms bind the charge to this federation's numbers: another one must have another name.
    terms: Any = asdict(federation)
    if isinstance(federation, UnsampledFederation):
        terms["noise"] = federation.noise.to_json()
    return ledger.reserve_costs(run, ids, costs, terms={"federation": terms})


@functools.lru_cache(maxsize=64)
def _compute_costs(federation: Federation, delta: float) -> Costs:
    """Return the costs of all rounds for a record of each level, client coin known."""
    curves = []
    # A rate of zero is never drawn, and costs nothing.
    for rate in federation.rates:
        if rate == 0:
            curves.append(privacy_curve(Composed()))
            continue
        joined = _Joined.of(
            federation.noise_stddev / federation.clip_norm,
            rate,
            federation.client_probability,
            federation.rounds,
            # The tail beyond the counted numbers must be small even against the least slack of an
            # account.
            delta * _LEAST_SLACK,
        )
        curves.append(PrivacyCurve(joined))
    return costs_of(curves, delta)


@functools.lru_cache(maxsize=4096)
def _compute_curve(multiplier: float, rate: float, times: int) -> PrivacyCurve:
    """Return the curve of a record whose client joins so many times."""
    return privacy_curve(Repeated(Sampled(Gaussian(multiplier), rate), times))


def _compute_epsilon(
    multiplier: float, rate: float, probability: float, rounds: int, delta: float
) -> float:
    """Return the least ε found at which the mean of δ over the times joined is at most `delta`."""
    if rate == 0:
        return 0.0
    joined = _Joined.of(multiplier, rate, probability, rounds, delta)
    return float(joined.epsilon(np.array([delta])).upper[0])


@dataclass(frozen=True)
class _Joined:
    """The mean of δ(ε) over the number of rounds that a client joins, from above.

    share: the chances of the counted numbers, each with those between it and the one before.
    curves: of a record whose client joins so many rounds. beyond: the chance of joining more often
    than any that is counted.
    """

    # Joining up to a number of times costs at most what that number costs; beyond all that are
    # counted everything counts as revealed.

    share: Floats
    curves: list[PrivacyCurve]
    beyond: float

    @classmethod
    def of(
        cls, multiplier: float, rate: float, probability: float, rounds: int, delta: float
    ) -> _Joined:
        from scipy.stats import binom

        # The number of rounds that a client joins is binomial.
        times = binom(rounds, probability)
        # Where the upper tail is small against δ, and some quantiles before it.
        counts = [times.isf(_TAIL * delta), *(times.ppf(p) for p in _QUANTILES)]
        counted = np.unique(np.clip(counts, 1, rounds)).astype(int)
        # Few rounds are counted one by one, without loss.
        if rounds <= _LISTED_ROUNDS:
            counted = np.arange(1, rounds + 1)
        # P(previous < times ≤ count): joining fewer times costs less, so that the count's curve
        # covers them. Nought times costs nothing.
        share = np.diff(times.cdf(counted), prepend=times.cdf(0)) * (1 + _CHANCE_ROUNDING)
        # What lies beyond all counts has δ = 1.
        beyond = float(times.sf(counted[-1])) * (1 + _CHANCE_ROUNDING)
        curves = [_compute_curve(multiplier, rate, int(count)) for count in counted]
        return cls(share, curves, beyond)

    def delta(self, epsilon: Floats) -> Bounds:
        # (counted numbers, epsilons).
        deltas = np.array([np.asarray(curve.delta(epsilon).upper) for curve in self.curves])
        # beyond + Σ share·δ_count(ε), never above 1.
        upper = np.minimum(self.beyond + self.share @ deltas, 1.0)
        return Bounds(np.zeros(epsilon.shape), upper)

    def epsilon(self, delta: Floats) -> Bounds:
        # Where joining beyond all counts alone takes δ up, no ε is enough.
        is_finite = self.beyond < delta
        # What is left of δ for the counted numbers, the rounding of their sum taken off.
        remaining = np.where(is_finite, (delta - self.beyond) / (1 + _SUM_ROUNDING), 0.5)
        # Every counted number costs at most the largest one's δ, `remaining`, and the shares add up
        # to 1 within the rounding taken off: so this ε is enough, and it is not evaluated again.
        # Two roundings of one curve may differ from each other by more than that.
        sufficient = np.asarray(self.curves[-1].epsilon(remaining).upper)
        # From an ε that is enough downwards: each halving keeps the upper end valid.
        least, _ = bisect(
            lambda epsilon: np.asarray(self.delta(epsilon).upper <= delta),
            sufficient,
            0.0,
            rounds=_HALVINGS,
        )
        return Bounds(np.zeros(delta.shape), np.where(is_finite, least, np.inf))


def _find_rate(
    multiplier: float, probability: float, rounds: int, epsilon: float, delta: float
) -> float:
    """Return a rate that keeps (ε, δ), within three hundredths of the largest; 0 for none found."""

    def keeps(rate: float) -> bool:
        return _compute_epsilon(multiplier, rate, probability, rounds, delta) <= epsilon

    # The rate may be 1, or none at all; between them the ε rises with the rate.
    if keeps(1.0):
        return 1.0
    if not keeps(_LEAST_RATE):
        return 0.0
    low = _LEAST_RATE
    high = 1.0
    # Bisected on a log scale, as rates span several powers of ten.
    while high / low > _RATE_PRECISION:
        middle = math.sqrt(low * high)
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
