"""Scale: everyone's rate is the same, the clip norm carries the budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt

from apiece._types import Floats
from apiece.assignment.levels import find_noise_levels, needs_ladder
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import ROUND, solve_noise
from apiece.plan import Plan


@dataclass(frozen=True, slots=True)
class Scale(Strategy):
    """Each record's clip norm is as large as its budget allows; rates and noise are the same.

    With z_g the noise multiplier of (ε_g, δ_g) at q̄ = B/n: S = c̄ / mean(1/z) and c_g = S/z_g, so
    that the mean clip norm is c̄. Each record's privacy curve is that of the uniform mechanism of
    its own budget, so nobody else's choice moves it: Δ = 0.

    References:
        Boenisch et al. 2023, Algorithm 2, with the harmonic mean (the authors' code averages z
        arithmetically).

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].clip_norm.round(2).tolist()
        [0.72, 1.28]
    """

    name: ClassVar[str] = "scale"

    def plan(self, request: Request) -> Plan:
        """Return the plan with a clip norm a group."""
        q = request.mean_probability
        if needs_ladder(request):
            z = find_noise_levels(request, q)
        else:
            z = solve_noise(request, request.target, request.groups.delta, q)
        return make_scaled_plan(request, self.name, q, z)


def make_scaled_plan(request: Request, name: str, q: npt.ArrayLike, z: Floats) -> Plan:
    """Return the plan of rates q and noise multipliers z with the mean clip norm asked."""
    # c_g = S/z_g with mean c̄: S is c̄ times the harmonic mean of z.
    stddev = request.clip_norm / float(request.share @ (1 / z))
    return request.one_stage(name, stddev, q, stddev / z * ROUND)
