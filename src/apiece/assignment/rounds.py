"""Rounds and AdaPDP: a threshold and a coin a round, with every round paid for by everyone."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.assignment.jorgensen import inner_rate
from apiece.assignment.request import Request
from apiece.assignment.solve import crossing, noise_for
from apiece.assignment.waste import best_threshold, check_loss, participation
from apiece.errors import InfeasibleError, unknown
from apiece.plan import Plan, Stage

PACES = ("even", "greedy")
LEVELS = 12  # distinct chances of joining a round
UNSPENT = "this strategy spends in full only the budget that binds first; of what each group allows"


@dataclass(frozen=True, slots=True)
class Rounds:
    """PDP-SGD, sound: one model, several rounds, each with its threshold τ_R and its coins.

    In each round a record joins with π = (e^r − 1)/(e^τ − 1), r its offer, by a coin that stays
    secret. Its budget is charged the amplified cost min(r, τ) whether it joined or not, so the
    whole schedule is known before training. Heo et al. 2023 charges only those who joined, which
    reveals the coins and lets the others try again, so that the true ε exceeds the one asked: see
    `PublishedRounds`.

    The noise of all rounds is lowered by one factor until the first group's budget is used up. The
    other groups do not spend all they allow: a round has one noise for all, a record above its τ
    cannot use the rest, and the coins amplify more for some groups than for others. `plan.notes`
    says how much of its budget each group spends. Sample, Scale and Hybrid spend it.

    Of more than 12 distinct ε, chances of joining are those of 12 levels that they are rounded down
    to. A round's τ is at most such that a batch's worth of records is expected to join. Where
    budgets are used up there are fewer rounds, of more steps. By PLD only, as no Rényi bound is
    known for a coin before a run.

    Attributes:
        rounds: How many; the steps are split among them.
        loss: How thresholds are chosen: the weight, in [0, 1], of budgets that stay out, or
            "adaptive".
        pace: "even" offers each round an equal part of what a record has left, "greedy" all of it,
            as in Heo et al. 2023.

    Raises:
        InputError: For options out of bounds.

    Guarantee:
        Each group's ε of the composition over all rounds, with their coins, is at most what it
        asked.

    References:
        Heo et al. 2023, Algorithm 1.

    Example:
        >>> from apiece import Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Rounds(2), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> len(plan.stages), plan.verify().ok
        (2, True)
    """

    name: ClassVar[str] = "rounds"
    rounds: int = 4
    loss: float | str = 0.7
    pace: str = "even"

    def __post_init__(self) -> None:
        _check_options(self)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a stage a round.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            InfeasibleError: For fewer steps than rounds.
        """
        return _plan(self, request, combine="continue")


@dataclass(frozen=True, slots=True)
class AdaPDP:
    """AdaPDP on DP-SGD, sound: a model a round from scratch, outputs averaged.

    The weight of a round's model is τ_R times the number of records expected to join it.

    Attributes:
        rounds: As for `Rounds`, and so the following.
        loss: How thresholds are chosen.
        pace: "even" or "greedy".

    Raises:
        InputError: For options out of bounds.

    Guarantee:
        As for `Rounds`.

    References:
        Heo et al. 2023, B.2 and Algorithm 2, after Niu et al. 2021.

    Example:
        >>> from apiece import Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, AdaPDP(2), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.combine, plan.verify().ok
        ('average', True)
    """

    name: ClassVar[str] = "adapdp"
    rounds: int = 3
    loss: float | str = 0.2
    pace: str = "even"

    def __post_init__(self) -> None:
        _check_options(self)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a stage, and a model, a round.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            InfeasibleError: For fewer steps than rounds.
        """
        return _plan(self, request, combine="average")


def _check_options(strategy: Rounds | AdaPDP) -> None:
    object.__setattr__(strategy, "rounds", _check.count("rounds", strategy.rounds))
    object.__setattr__(strategy, "loss", check_loss("loss", strategy.loss))
    if strategy.pace not in PACES:
        raise unknown("pace", strategy.pace, PACES)


def _plan(strategy: Rounds | AdaPDP, request: Request, combine: str) -> Plan:
    stages = schedule(strategy, request)
    groups = request.groups
    plan = request.plan(strategy.name, stages, combine=combine)
    plan = _with_least_noise(plan, request.target)
    spent = plan.epsilon_spent / groups.epsilon
    note = ", ".join(
        f"{name} {100 * share:.1f} %" for name, share in zip(groups.name, spent, strict=True)
    )
    return dataclasses.replace(plan, notes=(f"{UNSPENT}: {note}",))


def schedule(strategy: Rounds | AdaPDP, request: Request) -> tuple[Stage, ...]:
    """Return the rounds with noise for each round's own threshold.

    Fewer of them, of more steps each, where budgets are used up or those left are no batch.
    """
    split_steps(request.steps, strategy.rounds)
    for rounds in range(strategy.rounds, 1, -1):
        stages = _schedule(dataclasses.replace(strategy, rounds=rounds), request)
        if len(stages) == rounds:
            return stages
    return _schedule(dataclasses.replace(strategy, rounds=1), request)


def _schedule(strategy: Rounds | AdaPDP, request: Request) -> tuple[Stage, ...]:
    """Return the rounds for as long as budgets and people last."""
    groups = request.groups
    remaining = at_levels(groups.epsilon)
    steps = split_steps(request.steps, strategy.rounds)
    stages = []
    for turn, count in enumerate(steps):
        left = remaining > 1e-9 * groups.epsilon
        if turn and groups.records[left].sum() < request.expected_batch_size:
            break
        offer = remaining / (strategy.rounds - turn) if strategy.pace == "even" else remaining
        offer = np.where(left, offer, 0.0)
        least = request.expected_batch_size
        tau = best_threshold(offer, groups.records, strategy.loss, least=least)
        stages.append(stage_at(request, offer, tau, count))
        remaining = np.maximum(remaining - np.minimum(offer, tau), 0.0)
    return tuple(stages)


def at_levels(epsilon: Floats) -> Floats:
    """Return budgets rounded down to some of them, so that few mechanisms differ.

    >>> at_levels(np.linspace(1, 2, 1001))[[0, 50, 100, 1000]].round(2).tolist()
    [1.0, 1.0, 1.08, 1.92]
    """
    distinct = np.unique(epsilon)
    if distinct.size <= LEVELS:
        return epsilon.copy()
    levels = distinct[np.arange(LEVELS) * distinct.size // LEVELS]
    return np.asarray(levels[np.searchsorted(levels, epsilon, side="right") - 1])


def stage_at(request: Request, offer: Floats, tau: float, steps: int) -> Stage:
    """Return one round at τ, with noise for (τ, the smallest δ)."""
    joins = participation(offer, tau)
    size, q = float(joins @ request.groups.records), inner_rate(request, joins)
    return round_of(request, tau, steps, q, joins, size, request.expected_batch_size)


def round_of(
    request: Request, tau: float, steps: int, q: float, joins: Floats, size: float, batch: float
) -> Stage:
    """Return one round at τ for `size` records, with noise for (τ, the smallest δ)."""
    delta = request.groups.delta.min(keepdims=True)
    z = float(noise_for(request, np.array([tau]), delta, np.array([q]), steps=[steps])[0])
    ones = np.ones(joins.size)
    return Stage(
        steps=steps,
        expected_batch_size=batch,
        noise_stddev=z * request.clip_norm,
        sampling_probability=q * ones,
        clip_norm=request.clip_norm * ones,
        participation=joins,
        weight=tau * size,
    )


def split_steps(steps: int, rounds: int) -> list[int]:
    """Return `steps` in `rounds` nearly equal parts."""
    if steps < rounds:
        raise InfeasibleError(
            f"steps = {steps}: fewer than the {rounds} rounds; give at least {rounds}"
        )
    return [steps // rounds + (turn < steps % rounds) for turn in range(rounds)]


def _with_least_noise(plan: Plan, target: Floats) -> Plan:
    """Return `plan` with the noise of all stages times the least factor that keeps each promise."""
    factor = 1.0
    for _ in range(len(plan.budget_groups) + 1):
        scaled = scaled_noise(plan, factor)
        ratio = scaled.epsilon_spent / target
        binding = int(np.argmax(ratio))
        if 1 - 2e-3 <= ratio[binding] <= 1:
            return scaled
        # with noise far below 1, as here at times, ε falls with its square
        factor = _factor_for(
            plan, binding, float(target[binding]), factor * math.sqrt(ratio[binding])
        )
    return scaled_noise(plan, factor * (1 + 1e-3))


def scaled_noise(plan: Plan, factor: float) -> Plan:
    """Return `plan` with every stage's noise times `factor`."""
    stages = tuple(
        dataclasses.replace(stage, noise_stddev=stage.noise_stddev * factor)
        for stage in plan.stages
    )
    return dataclasses.replace(plan, stages=stages)


def _factor_for(plan: Plan, group: int, target: float, guess: float) -> float:
    """Return the least factor at which `group` spends at most `target`; about `guess`."""
    delta = float(plan.budget_groups.delta[group])

    def room(factor: float) -> float:
        mechanism = scaled_noise(plan, factor).mechanism_for(group)
        spent = privacy_curve(mechanism, method=plan.method).epsilon(delta).upper
        return float(np.log(target * (1 - 5e-4) / max(float(spent), 1e-300)))

    return crossing(room, guess, 0.05, 16.0, tolerance=1e-3)
