"""Allocate: everyone takes part in a whole number of steps, and that number carries the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apiece._text import per_cent
from apiece.accounting import privacy_curve
from apiece.assignment.request import Request, Strategy
from apiece.assignment.sample import find_batch_noise
from apiece.assignment.solve import require_few
from apiece.errors import InfeasibleError, UnsupportedError
from apiece.numerics.roots import safe_end
from apiece.plan import Plan
from apiece.plan.parts import Stage, allocated_steps

# The largest number of groups; each takes some seconds.
MAX_GROUPS = 40
# How much of log ε the least noise may leave unspent.
_TOLERANCE = 1e-3
# A batch that is larger than the one asked by this factor is said in a note.
_LARGE_BATCH = 1.25
# How far from Sample's noise the noise is sought, in log z.
_SEARCH_RADIUS = 2.0
# About the growth of log ε in −log z, and of the log of the number of steps in log ε.
_SLOPE = 1.5


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
        groups = request.groups
        steps = request.steps
        if request.method != "pld":
            raise UnsupportedError(
                f"strategy allocate: method {request.method!r}; takes 'pld' alone, or use Sample"
            )
        require_few("strategy allocate", len(groups), MAX_GROUPS)
        # Sample's rates say about how many steps each budget is worth, Sample's noise where to
        # start.
        sample_noise, rates = find_batch_noise(request)
        guesses = np.clip(np.rint(rates * steps), 1, steps).astype(np.int64).tolist()
        # The noise is one for all: the most that any group needs.
        z = max(_find_noise(request, g, guess, sample_noise) for g, guess in enumerate(guesses))
        times = np.array([_find_times(request, g, guess, z) for g, guess in enumerate(guesses)])
        q = times / steps
        stage = Stage(
            steps=steps,
            expected_batch_size=float(q @ groups.records),
            noise_stddev=z * request.clip_norm,
            sampling_probability=q,
            clip_norm=np.full(len(groups), request.clip_norm),
            times=times,
        )
        plan = request.plan(self.name, (stage,))
        return _add_notes(plan, request.expected_batch_size)


def _add_notes(plan: Plan, asked: float) -> Plan:
    """Return the plan with a note for each group, and one on a batch far above the one asked."""
    times = plan.stages[0].times
    assert times is not None
    notes = []
    names = plan.budget_groups.name
    for name, count, share in zip(names, times.tolist(), plan.spent_share, strict=True):
        unspent = per_cent(max(1 - share, 0.0))
        notes.append(
            f"group {name}: each record takes part in exactly {count} of {plan.steps} steps, which "
            f"leaves {unspent} of its epsilon unspent"
        )
    if plan.expected_batch_size > _LARGE_BATCH * asked:
        notes.append(
            f"batches of {plan.expected_batch_size:.4g} are expected, not of {asked:g}: nobody "
            "takes part in less than one step; ask for more steps, or use Sample"
        )
    return replace(plan, notes=(*plan.notes, *notes))


def _measure_room(request: Request, group: int, times: int, z: float) -> float:
    """Return the log of a group's ε over what so many steps spend; negative where it is broken."""
    curve = privacy_curve(allocated_steps(z, times, request.steps))
    spent = float(curve.epsilon(float(request.groups.delta[group])).upper)
    return math.log(float(request.target[group]) / max(spent, 1e-15))


def _find_noise(request: Request, group: int, times: int, guess: float) -> float:
    """Return about the least noise multiplier at which a group may take part so many times."""
    start = math.log(guess)
    end = safe_end(
        lambda log_z: _measure_room(request, group, times, math.exp(log_z)),
        start,
        start + _SEARCH_RADIUS,
        start - _SEARCH_RADIUS,
        slope=_SLOPE,
        tolerance=_TOLERANCE,
    )
    if math.isnan(end):
        groups = request.groups
        raise InfeasibleError(
            f"group {groups.name[group]}: epsilon = {groups.epsilon[group]:g} does "
            f"not allow {times} of {request.steps} steps at noise multiplier "
            f"{math.exp(start + _SEARCH_RADIUS):.4g}; ask for more, or use Scale"
        )
    return math.exp(end)


def _find_times(request: Request, group: int, low: int, z: float) -> int:
    """Return the most steps that a group's budget allows at z; it allows `low`."""
    # ε grows in the number of steps, since blocks get shorter and more. So the number is bisected,
    # from a guess on, with strides that double while the budget allows them.
    high = request.steps + 1
    stride = 1
    room = _measure_room(request, group, low, z)
    probe = min(int(low * math.exp(min(_SLOPE * room, 5.0))) + 1, request.steps)
    while high - low > 1:
        if _measure_room(request, group, probe, z) >= 0:
            low = probe
            stride *= 2
            probe = min(low + stride, (low + high) // 2)
        else:
            high = probe
            probe = (low + high) // 2
    return low
