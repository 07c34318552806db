"""Exposure: what one record faces under a plan, whatever the data and whoever attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from apiece.accounting import Bounds
from apiece.errors import InputError
from apiece.plan import Plan, excess_of


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """What the target faces when the others ask as they do in `plan`; data about a person.

    Attributes:
        label: What the others do.
        changed: How many of them ask for something else than in the first plan.
        plan: The plan that follows from it.
        group: The target's group in it.
        epsilon: Bounds on what the target is charged at its δ, at most what it asked.
        advantage: Bounds on the largest TPR − FPR of any membership test.
        forward: Bounds on Δ of the target's curve from the plan's reference at its (ε, δ): by how
            much it is more vulnerable than promised.
        backward: The same for less vulnerable.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> plan = assign(Budgets([2.0] * 50, 1e-5), Scale(), steps=5, expected_batch_size=5,
        ...               clip_norm=1.0)
        >>> 0 < exposure(plan, 0).advantage.upper < 1
        True
    """

    label: str
    changed: int
    plan: Plan = field(repr=False)
    group: int = field(repr=False)
    epsilon: Bounds = field(repr=False)
    advantage: Bounds = field(repr=False)
    forward: Bounds = field(repr=False)
    backward: Bounds = field(repr=False)

    def to_dict(self) -> dict[str, float | str]:
        """Return the figures as JSON types, upper ends."""
        stage = self.plan.stages[0]
        return {
            "others": self.label,
            "epsilon_spent": float(self.epsilon.upper),
            "advantage": float(self.advantage.upper),
            "excess": float(self.forward.upper),
            "excess_backward": float(self.backward.upper),
            "sampling_probability": float(stage.sampling_probability[self.group]),
            "noise_multiplier": float(stage.noise_stddev / stage.clip_norm[self.group]),
        }


def exposure(plan: Plan, group: int, *, label: str = "", changed: int = 0) -> Exposure:
    """Return what a record of `group` faces under `plan`, against the plan's reference.

    ε is by the plan's own method; advantage and Δ, which need a whole curve, by PLD.

    Args:
        plan: Any plan.
        group: The record's group in it.
        label: What the others do.
        changed: How many of them ask for something else than honestly.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> plan = assign(Budgets([2.0] * 50, 1e-5), Scale(), steps=5, expected_batch_size=5,
        ...               clip_norm=1.0)
        >>> exposure(plan, 0, label="as asked")
        Exposure(label='as asked', changed=0)
    """
    curve = plan.curve(group, method="pld")
    charged = curve if plan.method == "pld" else plan.curve(group)
    gap = excess_of(plan, group, curve)
    return Exposure(
        label=label,
        changed=changed,
        plan=plan.public(),
        group=group,
        epsilon=charged.epsilon(float(plan.budget_groups.delta[group])),
        advantage=curve.advantage(),
        forward=gap.forward,
        backward=gap.backward,
    )


def worst(exposures: Sequence[Exposure]) -> Exposure:
    """Return the one in which the target is most vulnerable: by forward Δ, ties by advantage.

    Args:
        exposures: Of one target.

    Raises:
        InputError: Where there is none to choose from.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> plan = assign(Budgets([2.0] * 50, 1e-5), Scale(), steps=5, expected_batch_size=5,
        ...               clip_norm=1.0)
        >>> worst([exposure(plan, 0, label="as asked")]).label
        'as asked'
    """
    if not exposures:
        raise InputError("exposures: none given; give what budget_manipulation or collusion found")
    return max(exposures, key=lambda e: (float(e.forward.upper), float(e.advantage.upper)))
