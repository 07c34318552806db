"""Allocate: everyone takes part in a whole number of steps, and that number carries the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from apiece._text import per_cent
from apiece.accounting import privacy_curve
from apiece.assignment.request import Request, Strategy
from apiece.assignment.sample import batch_noise
from apiece.assignment.solve import require_few
from apiece.errors import InfeasibleError, UnsupportedError
from apiece.numerics.roots import safe_end
from apiece.plan import Plan, Stage
from apiece.plan.parts import allocated_steps

MOST_GROUPS = 40  # each takes some seconds
_NEAR = 1e-3  # of log ε, that the least noise may leave unspent
_LARGE = 1.25  # times the batch asked: said in a note
_FAR = 2.0  # of log z: how far from Sample's noise it is sought


@dataclass(frozen=True, slots=True)
class Allocate(Strategy):
    """Each record takes part in exactly k_g of the T steps, one drawn in each of k_g equal blocks.

    The noise is shared: the least at which every group keeps its budget with about as many steps as
    under `Sample`. At that noise each group gets the most whole steps that its budget allows, so
    the expected batch size comes out near the one asked. `plan.notes` says what a whole number
    leaves unspent. Batches vary in size as Poisson batches do: who takes part in a step is
    independent of all others.

    Raises:
        UnsupportedError: From `plan`, for more than 40 distinct budgets and Rényi accounting.
        InfeasibleError: From `plan`, where a budget does not allow a single step.

    References:
        Feldman and Shenfeld 2025 (random allocation); Boenisch et al. 2023, Algorithm 1.

    Example:
        >>> from apiece import Allocate, Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Allocate(), steps=10, expected_batch_size=20, clip_norm=1.0)
        >>> plan.stages[0].times.tolist()
        [1, 3]
    """

    name: ClassVar[str] = "allocate"

    def plan(self, request: Request) -> Plan:
        """Return the plan with a whole number of steps a group."""
        groups, steps = request.groups, request.steps
        if request.method != "pld":
            raise UnsupportedError(
                f"strategy allocate: method {request.method!r}; takes 'pld' alone, or use Sample"
            )
        require_few("strategy allocate", len(groups), MOST_GROUPS)
        start, rates = batch_noise(request)
        about = np.clip(np.rint(rates * steps), 1, steps).astype(np.int64)
        least = [_least_noise(request, g, int(k), start) for g, k in enumerate(about)]
        z = max(least)
        times = [_most(request, g, int(k), z) for g, k in enumerate(about)]
        q = np.array(times) / steps
        batch, clips = float(q @ groups.records), np.full(len(groups), request.clip_norm)
        stage = Stage(steps, batch, z * request.clip_norm, q, clips, times=np.array(times))
        plan = request.plan(self.name, (stage,))
        return _with_notes(plan, request.expected_batch_size)


def _with_notes(plan: Plan, asked: float) -> Plan:
    """Return the plan with a note for each group, and one on a batch that is far from the asked."""
    times = plan.stages[0].times
    assert times is not None
    told = zip(plan.budget_groups.name, times.tolist(), plan.spent_share, strict=True)
    notes = [
        f"group {name}: each record takes part in exactly {k} of {plan.steps} steps, which leaves "
        f"{per_cent(max(1 - share, 0.0))} of its epsilon unspent"
        for name, k, share in told
    ]
    if plan.expected_batch_size > _LARGE * asked:
        notes.append(
            f"batches of {plan.expected_batch_size:.4g} are expected, not of {asked:g}: nobody "
            "takes part in less than one step; ask for more steps, or use Sample"
        )
    return replace(plan, notes=(*plan.notes, *notes))


def _room(request: Request, group: int, times: int, z: float) -> float:
    """Return the log of a group's ε over what so many steps spend; negative where it is broken."""
    curve = privacy_curve(allocated_steps(z, times, request.steps))
    spent = float(curve.epsilon(float(request.groups.delta[group])).upper)
    return math.log(float(request.target[group]) / max(spent, 1e-15))


def _least_noise(request: Request, group: int, times: int, guess: float) -> float:
    """Return about the least noise multiplier at which a group may take part so many times."""
    at = partial(_room, request, group, times)
    first = math.log(guess)
    end = safe_end(
        lambda x: at(math.exp(x)), first, first + _FAR, first - _FAR, slope=1.5, tolerance=_NEAR
    )
    if math.isnan(end):
        raise InfeasibleError(
            f"group {request.groups.name[group]}: epsilon = {request.groups.epsilon[group]:g} does "
            f"not allow {times} of {request.steps} steps at noise multiplier "
            f"{math.exp(first + _FAR):.4g}; ask for more, or use Scale"
        )
    return math.exp(end)


def _most(request: Request, group: int, low: int, z: float) -> int:
    """Return the most steps that a group's budget allows at z, given a number that it does."""
    # ε grows in the number of steps, since blocks get shorter and more: bisected near a guess.
    high, stride = request.steps + 1, 1
    room = _room(request, group, low, z)
    probe = min(int(low * math.exp(min(1.5 * room, 5.0))) + 1, request.steps)
    while high - low > 1:
        if _room(request, group, probe, z) >= 0:
            low, stride = probe, 2 * stride
            probe = min(low + stride, (low + high) // 2)
        else:
            high, probe = probe, (low + probe) // 2
    return low
