"""What the others' budgets can do to one record: what its own (ε, δ) does not protect it from.

With Sample, everyone else's budget moves the shared noise, and with it a record's whole privacy
curve, though (ε, δ) stays as promised. Whoever assigns budgets (manipulation) or other
contributors (collusion) ask for less than they would, and the target leaks more. All of it
follows from plans alone; `apiece.audit` measures it on trained models.

**One shared budget is as bad as any mixture**, under Sample and Hybrid. There the others act on
the target through one number only, the common noise multiplier ζ: the target's rate is q(ζ), in
Hybrid clipped to an interval of its own. Mean q = q̄ fixes ζ, and each record's rate grows with
its ε and with ζ; so ζ falls as any member's ε grows, and whatever the members ask within an
interval, ζ lies between its values where all ask the one end and all the other. It moves
continuously from one to the other with a shared ε (or a shared cap), so some shared ε gives that
same ζ, and the target the same mechanism. What is left to a search is one dimension. Under Scale
nothing moves. For other strategies what is found is a lower bound on the worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.assignment import Sample, Strategy, assign
from apiece.budgets import Budgets
from apiece.contract.exposure import Exposure, exposure
from apiece.errors import DataError

LEAST, MOST = 0.1, 100.0  # ε between which others are taken to choose
CAPS, CHOICES = 5, 9  # how many of them are tried


def budget_manipulation(
    budgets: Budgets,
    target: Any,
    *,
    decoys: Sequence[float] | None = None,
    strategy: Strategy | str | None = None,
    steps: int,
    expected_batch_size: float,
    clip_norm: float = 1.0,
    method: str = "pld",
) -> list[Exposure]:
    """Return the target's exposure when all others are given smaller budgets than they asked.

    The adversary keeps every promise: the target keeps its own budget, everyone else gets the
    smaller of what they asked and each of `decoys` in turn. The first entry is the honest plan;
    `worst` finds the worst of them.

    Args:
        budgets: What the records ask, bounds Δ̄ included (a strategy that keeps them is not moved
            past them).
        target: A record's id.
        decoys: Caps on ε. Unless given, four from 0.1 (or a tenth of the largest budget, where that
            is less) to below the largest, evenly in log ε.
        strategy: Sample unless given.
        steps: As of `assign`.
        expected_batch_size: As of `assign`.
        clip_norm: As of `assign`.
        method: As of `assign`.

    Raises:
        DataError: For an unknown target.
        InfeasibleError: As `assign`.

    Guarantee:
        The figures bound every attack of any strength; they hold for the plan, whatever the data.

    References:
        Kaiser et al. 2026, Def. 5 and §V-A.

    Example:
        >>> budgets = Budgets([2.0] * 100, 1e-5)
        >>> settings = {"steps": 5, "expected_batch_size": 10}
        >>> found = budget_manipulation(budgets, 7, decoys=[0.5], strategy="scale", **settings)
        >>> [one.label for one in found]
        ['as asked', 'at most 0.5']
    """
    at = _position(budgets, target)
    if decoys is None:
        highest = float(budgets.epsilon.max())
        decoys = np.geomspace(min(LEAST, highest / 10), highest, CAPS)[:-1].tolist()
    asked = [("as asked", budgets.epsilon)]
    for decoy in decoys:
        value = _check.positive("decoy", decoy)
        epsilon = np.minimum(budgets.epsilon, value)
        epsilon[at] = budgets.epsilon[at]
        asked.append((f"at most {value:g}", epsilon))
    return _exposures(budgets, at, asked, strategy, steps, expected_batch_size, clip_norm, method)


def collusion(
    budgets: Budgets,
    target: Any,
    *,
    shares: Sequence[float],
    epsilons: Sequence[float] | None = None,
    strategy: Strategy | str | None = None,
    steps: int,
    expected_batch_size: float,
    clip_norm: float = 1.0,
    generator: np.random.Generator | None = None,
    method: str = "pld",
) -> list[Exposure]:
    """Return the target's exposure when a share of the others ask for the same ε together.

    The colluders grow with the share and may ask for any budget, smaller or larger than their own;
    the target and the rest stay as they are. The first entry is the honest plan, then come all
    shares of the first of `epsilons`, of the second, and so on; `worst` finds the worst.

    Args:
        budgets: What the records ask.
        target: A record's id.
        shares: Of the others, in [0, 1].
        epsilons: What they ask. Unless given, nine from 0.1 to 100, evenly in log ε.
        strategy: Sample unless given.
        steps: As of `assign`.
        expected_batch_size: As of `assign`.
        clip_norm: As of `assign`.
        generator: Draws the colluders; without one they are those with the largest budgets, who
            have most to withhold.
        method: As of `assign`.

    Raises:
        DataError: For an unknown target.
        InfeasibleError: As `assign`.

    Guarantee:
        As of `budget_manipulation`.

    References:
        Kaiser et al. 2026, Def. 6 and §V-B.

    Example:
        >>> budgets = Budgets([2.0] * 100, 1e-5)
        >>> settings = {"steps": 5, "expected_batch_size": 10, "strategy": "scale"}
        >>> found = collusion(budgets, 7, shares=[0.5], epsilons=[0.5], **settings)
        >>> [one.label for one in found]
        ['as asked', '50% ask 0.5']
    """
    at = _position(budgets, target)
    if epsilons is None:
        epsilons = np.geomspace(LEAST, MOST, CHOICES).tolist()
    members = np.delete(np.arange(len(budgets)), at)
    if generator is None:
        members = members[np.argsort(-budgets.epsilon[members], kind="stable")]
    else:
        members = generator.permutation(members)
    asked = [("as asked", budgets.epsilon)]
    for epsilon in epsilons:
        value = _check.positive("epsilon", epsilon)
        for share in shares:
            share = _check.probability("share", share)
            changed = budgets.epsilon.copy()
            changed[members[: round(share * members.size)]] = value
            asked.append((f"{share:.0%} ask {value:g}", changed))
    return _exposures(budgets, at, asked, strategy, steps, expected_batch_size, clip_norm, method)


def _position(budgets: Budgets, target: Any) -> int:
    """Return where the record with this id stands."""
    if len(budgets) < 2:
        raise DataError("budgets: 1 record; an attack needs others beside the target")
    found = np.flatnonzero(np.asarray(budgets.ids) == target)
    if found.size != 1:
        raise DataError(
            f"target = {target!r}: not among the ids of the {len(budgets)} records; give one of "
            "budgets.ids"
        )
    return int(found[0])


def _exposures(
    budgets: Budgets,
    at: int,
    asked: list[tuple[str, Floats]],
    strategy: Strategy | str | None,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str,
) -> list[Exposure]:
    found = []
    for label, epsilon in asked:
        changed = Budgets(epsilon, budgets.delta, excess=budgets.excess, ids=budgets.ids)
        plan = assign(
            changed,
            Sample() if strategy is None else strategy,
            steps=steps,
            expected_batch_size=expected_batch_size,
            clip_norm=clip_norm,
            method=method,
        )
        group = int(changed.group_index[at])
        count = int((epsilon != budgets.epsilon).sum())
        found.append(exposure(plan, group, label=label, changed=count))
    return found
