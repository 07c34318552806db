"""Heo et al.'s rounds as published, for reproduction, with the guarantee that truly holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.assignment.request import Request
from apiece.assignment.rounds import round_of, split_steps
from apiece.assignment.solve import few_groups
from apiece.assignment.waste import best_threshold, check_loss, participation
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import UnsupportedError
from apiece.mechanisms import Composed, Mechanism
from apiece.plan import BoundPlan, Plan, Stage

OBJECTION = (
    "as published, a record is charged only for rounds that it joined, so its coins are revealed "
    "and it may try again: the guarantee is that of its worst path, and thresholds and batch "
    "normalisers depend on realised coins"
)


@dataclass(frozen=True, slots=True)
class PublishedRounds:
    """PDP-SGD as Heo et al. 2023 states it: for comparison only, never for release.

    The coins are tossed when the plan is made, because thresholds, noise and normalisers of later
    rounds depend on them. The plan's groups are the budget groups split by which rounds their
    records joined.

    Attributes:
        rounds: As for `Rounds`.
        loss: As for `Rounds`.
        seed: Of the coins, a whole number from 0 on.

    Raises:
        InputError: For options out of bounds.

    Guarantee:
        What is stated for each group is that of the worst path of its budget, with the coins
        revealed. It exceeds what was asked, and `plan.objections` says so.

    References:
        Heo et al. 2023, Algorithm 1.

    Example:
        >>> from apiece import Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, PublishedRounds(2), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> plan.releasable
        False
    """

    name: ClassVar[str] = "published_rounds"
    rounds: int = 4
    loss: float | str = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self)

    def plan(self, request: Request) -> Plan:
        """Return the plan of the rounds that these coins give.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            InfeasibleError: For fewer steps than rounds.
            UnsupportedError: For more than 500 groups.
        """
        return _plan(self, request, combine="continue")


@dataclass(frozen=True, slots=True)
class PublishedAdaPDP:
    """AdaPDP on DP-SGD as Heo et al. 2023 states it: for comparison only, never for release.

    As `PublishedRounds`, with a model a round, outputs averaged.

    Attributes:
        rounds: As for `Rounds`.
        loss: As for `Rounds`.
        seed: Of the coins, a whole number from 0 on.

    Raises:
        InputError: For options out of bounds.

    Guarantee:
        As for `PublishedRounds`.

    References:
        Heo et al. 2023, Algorithm 2.

    Example:
        >>> from apiece import Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, PublishedAdaPDP(2), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> plan.combine, plan.releasable
        ('average', False)
    """

    name: ClassVar[str] = "published_adapdp"
    rounds: int = 3
    loss: float | str = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self)

    def plan(self, request: Request) -> Plan:
        """Return the plan of the rounds that these coins give.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            InfeasibleError: For fewer steps than rounds.
            UnsupportedError: For more than 500 groups.
        """
        return _plan(self, request, combine="average")


def _check_options(strategy: PublishedRounds | PublishedAdaPDP) -> None:
    object.__setattr__(strategy, "rounds", _check.count("rounds", strategy.rounds))
    object.__setattr__(strategy, "seed", _check.count("seed", strategy.seed, least=0))
    object.__setattr__(strategy, "loss", check_loss("loss", strategy.loss))


def _plan(strategy: PublishedRounds | PublishedAdaPDP, request: Request, combine: str) -> BoundPlan:
    few_groups(request, strategy.name)
    if not isinstance(request.budgets, Budgets):
        raise UnsupportedError(
            f"strategy {strategy.name}: tosses each record's coins, so it needs Budgets, not levels"
        )
    budgets, index = request.groups, request.budgets.group_index
    generator = np.random.default_rng(strategy.seed)
    remaining = request.budgets.epsilon.copy()
    rounds: list[tuple[float, int, int]] = []  # τ, steps, how many joined
    joined = np.zeros((request.records, strategy.rounds), dtype=bool)
    for turn, steps in enumerate(split_steps(request.steps, strategy.rounds)):
        if not remaining.max() > 1e-9:
            break
        values, counts = np.unique(remaining, return_counts=True)
        tau = best_threshold(values, counts, strategy.loss)
        chance = np.where(remaining > 0, participation(remaining, tau), 0.0)
        joined[:, turn] = generator.random(request.records) < chance
        size = int(joined[:, turn].sum())
        if size == 0:
            break
        rounds.append((tau, steps, size))
        remaining = np.where(joined[:, turn], np.maximum(remaining - tau, 0.0), remaining)
    joined = joined[:, : len(rounds)]
    key = np.concatenate((index[:, None], joined), axis=1)
    patterns, group_index, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    group_index = group_index.reshape(-1)
    stages = tuple(
        _stage(request, *each, joins)
        for each, joins in zip(rounds, patterns[:, 1:].astype(float).T, strict=True)
    )
    origin, taus = patterns[:, 0].astype(np.int64), [tau for tau, _, _ in rounds]
    worst = {g: _worst_path(request, stages, taus, int(g)) for g in np.unique(origin)}
    return BoundPlan(
        strategy=strategy.name,
        clip_norm=request.clip_norm,
        budget_groups=BudgetGroups(
            name=np.array([_name(budgets.name[p[0]], p[1:]) for p in patterns]),
            epsilon=budgets.epsilon[origin],
            delta=budgets.delta[origin],
            excess=None if budgets.excess is None else budgets.excess[origin],
            records=counts,
        ),
        stages=stages,
        group_index=group_index,
        consents=request.budgets.consents,
        method=request.method,
        combine=combine,
        objections=(OBJECTION,),
        reference=request.reference,
        worst_paths=np.array([worst[int(g)] for g in origin]),
    )


def _name(name: str, joined: npt.NDArray[np.int64]) -> str:
    turns = ",".join(str(turn + 1) for turn in np.flatnonzero(joined))
    return f"{name} joined {turns or 'none'}"


def _stage(request: Request, tau: float, steps: int, size: int, joins: Floats) -> Stage:
    q = min(1.0, request.expected_batch_size / size)
    return round_of(request, tau, steps, q, joins, size, q * size)


def paths(epsilon: float, taus: list[float]) -> Iterator[tuple[bool, ...]]:
    """Return every way in which a record's coins can fall: which rounds it joins.

    Who has at least τ left joins for certain; who has nothing left never joins.

    >>> list(paths(0.5, [2.0, 2.0]))
    [(True, False), (False, True), (False, False)]
    """

    def walk(left: float, turn: int) -> Iterator[tuple[bool, ...]]:
        if turn == len(taus):
            yield ()
            return
        if left > 0:
            for rest in walk(max(left - taus[turn], 0.0), turn + 1):
                yield (True, *rest)
        if left < taus[turn]:
            for rest in walk(left, turn + 1):
                yield (False, *rest)

    return walk(epsilon, 0)


def _worst_path(
    request: Request, stages: tuple[Stage, ...], taus: list[float], group: int
) -> tuple[bool, ...]:
    """Return the path that costs most, by branch and bound: RDP bounds what PLD will find."""
    epsilon, delta = float(request.groups.epsilon[group]), float(request.groups.delta[group])
    every = set(paths(epsilon, taus))
    maximal = [p for p in every if not any(_below(p, other) for other in every)]

    def cost(path: tuple[bool, ...], method: str) -> float:
        curve = privacy_curve(_mechanism(stages, path), method=method)
        return float(curve.epsilon(delta).upper)

    bounds = sorted(((cost(path, "rdp"), path) for path in maximal), reverse=True)
    if request.method == "rdp":
        return bounds[0][1]
    best, worst = -1.0, bounds[0][1]
    for bound, path in bounds:
        if bound <= best:
            break
        if (exact := cost(path, request.method)) > best:
            best, worst = exact, path
    return worst


def _below(path: tuple[bool, ...], other: tuple[bool, ...]) -> bool:
    return path != other and all(b or not a for a, b in zip(path, other, strict=True))


def _mechanism(stages: tuple[Stage, ...], path: tuple[bool, ...]) -> Mechanism:
    from dataclasses import replace

    parts = [
        replace(s, participation=None).mechanism(0)
        for s, on in zip(stages, path, strict=True)
        if on
    ]
    return Composed(*(part for part in parts if part is not None))
