"""The worst that others can do to one record by choosing their own budgets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.assignment import Sample, Strategy, assign
from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.plan import Plan, excess_of

CHOICES = 9


@dataclass(frozen=True, slots=True)
class Coalition:
    """What a coalition chose, and what that does to its victim.

    records: how many colluded; epsilon: the budget they asked. advantage, forward, backward:
    the victim's afterwards; honest_advantage, honest_forward: before.
    """

    records: int
    epsilon: float
    advantage: float
    forward: float
    backward: float
    honest_advantage: float
    honest_forward: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)


def worst_coalition(
    budgets: Budgets,
    victim: int,
    share: float,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float = 1.0,
    strategy: Strategy | None = None,
    lowest: float = 0.1,
    highest: float = 100.0,
    choices: int = CHOICES,
    method: str = "pld",
) -> Coalition:
    """Return the budget that a coalition should ask, to make `victim` most vulnerable.

    victim: a position among the records. share: of all records, the coalition's, taken from the
    others with the largest budgets first, who have most to withhold. All its members ask the
    same ε, searched between `lowest` and `highest` at `choices` points (both ends included).
    strategy: what the plan is made by; Sample unless given. "Most vulnerable" is the largest
    forward Δ, ties by advantage.

    Asking different ε's gains the coalition nothing, under Sample and Hybrid. There the others
    act on the victim through one number only, the common noise multiplier ζ: the victim's rate is
    q(ζ), in Hybrid clipped to an interval of its own. Mean q = q̄ fixes ζ, and each record's rate
    grows with its ε and with ζ; so ζ falls as any member's ε grows, and whatever the members ask
    within [lowest, highest], ζ lies between its values where all ask the one end and all the
    other. It moves continuously from one to the other with a shared ε, so some shared ε gives
    that same ζ, and the victim the same mechanism. What is left to the search is one dimension.
    Under Scale nothing moves. For other strategies the result is a lower bound on the worst.
    Source: Kaiser et al. 2026 §V-B, Def. 6.
    """
    place = _check.count("victim", victim, least=0)
    if not place < len(budgets):
        raise InputError(f"victim = {victim}: there are {len(budgets)} records")
    members = int(_check.probability("share", share) * len(budgets))
    if not members < len(budgets):
        raise InputError(f"share = {share!r}: leaves no victim; give less than 1")
    others = np.argsort(-budgets.epsilon, kind="stable")
    chosen = others[others != place][:members]
    settings: dict[str, Any] = {
        "steps": steps,
        "expected_batch_size": expected_batch_size,
        "clip_norm": clip_norm,
        "method": method,
    }
    scheme = Sample() if strategy is None else strategy
    honest = _risk(_with(budgets, place, chosen, None), scheme, settings)
    grid = np.geomspace(lowest, highest, choices)
    found = [
        (*_risk(_with(budgets, place, chosen, float(e)), scheme, settings), float(e)) for e in grid
    ]
    advantage, forward, backward, epsilon = max(found, key=lambda f: (f[1], f[0]))
    return Coalition(members, epsilon, advantage, forward, backward, honest[0], honest[1])


def budget_manipulation(
    budgets: Budgets,
    victim: int,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float = 1.0,
    strategy: Strategy | None = None,
    floor: float = 0.1,
    choices: int = 5,
    method: str = "pld",
) -> Coalition:
    """Return the worst that whoever assigns budgets can do within every record's consent.

    The victim gets all it allows; everyone else any ε between `floor` and what they allow. Under
    Sample and Hybrid the worst lies where all others are lowered to one cap, searched between the
    floor and the largest ε at `choices` points: caps lead continuously from the least to the
    most that the others can be given, and that is all that matters (see `worst_coalition`).
    Nobody is given more than they allow. Source: Kaiser et al. 2026 §V-A, Def. 5.
    """
    place = _check.count("victim", victim, least=0)
    if not place < len(budgets):
        raise InputError(f"victim = {victim}: there are {len(budgets)} records")
    settings: dict[str, Any] = {
        "steps": steps,
        "expected_batch_size": expected_batch_size,
        "clip_norm": clip_norm,
        "method": method,
    }
    scheme = Sample() if strategy is None else strategy
    honest = _risk(_with(budgets, place, np.array([], dtype=np.int64), None), scheme, settings)
    least = _check.positive("floor", floor)
    found = [(*honest, float(budgets.epsilon.max()))]
    for cap in np.geomspace(least, max(least, budgets.epsilon.max()), choices)[:-1]:
        lowered = np.minimum(budgets.epsilon, cap)
        lowered[place] = budgets.epsilon[place]
        found.append((*_risk(_marked(budgets, lowered, place), scheme, settings), float(cap)))
    advantage, forward, backward, epsilon = max(found, key=lambda f: (f[1], f[0]))
    return Coalition(len(budgets) - 1, epsilon, advantage, forward, backward, honest[0], honest[1])


def _with(budgets: Budgets, victim: int, members: Any, epsilon: float | None) -> Budgets:
    values = budgets.epsilon.copy()
    if epsilon is not None:
        values[members] = epsilon
    return _marked(budgets, values, victim)


def _marked(budgets: Budgets, epsilon: Floats, victim: int) -> Budgets:
    """Return budgets in which the victim is a group of its own, called "victim"."""
    labels = np.full(len(budgets), "other", dtype="U6")
    labels[victim] = "victim"
    return Budgets(epsilon, budgets.delta, excess=budgets.excess, labels=labels)


def _risk(
    budgets: Budgets, strategy: Strategy, settings: dict[str, Any]
) -> tuple[float, float, float]:
    plan = assign(budgets, strategy, **settings)
    return victim_risk(plan, "victim")


def victim_risk(plan: Plan, name: str) -> tuple[float, float, float]:
    """Return advantage, forward and backward Δ of the group whose name starts with `name`."""
    names = [str(n) for n in plan.budgets.name]
    g = next(i for i, n in enumerate(names) if n.split(" ")[0] == name)
    curve = privacy_curve(plan.mechanism_for(g), method="pld")
    apart = excess_of(plan, g, curve)
    return (
        float(curve.advantage().upper),
        float(apart.forward.upper),
        float(apart.backward.upper),
    )
