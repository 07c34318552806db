"""Rare large losses, taken out of a composition before it is convolved.

Where losses have heavy tails no exponential tilt makes δ(ε) large against round-off. So a step's
loss is cut at c, and a composition splits into disjoint events: no loss exceeds c, which is
convolved as ever; or some loss does (J), and then the total exceeds ε all but surely if c is above
ε by more than the other steps ever take back. With L the total loss,

    P(J) − e^ε·Q(J) ≤ sup over A ⊂ J of P(A) − e^ε·Q(A) ≤ P(J) − e^ε·Q(J) + e^ε·Q(J, L ≤ ε),
    Q(J, L ≤ ε) ≤ Σ_steps Q(loss > c)·e^{θ(ε − c)}·Π E_Q[r^{−θ}]      for every θ > 0.

In the add direction, where losses are −L, J adds at most Q(J, L ≤ −ε) and at least 0. The moment of
order −θ is that of the dominating lattice: r^{−θ} is convex, so it is no smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.lattice.cells import Lattice
from apiece.accounting.lattice.convolution import log_moment, side
from apiece.numerics import UNIT


class Jumps(NamedTuple):
    """What losses above `cut` add to δ(ε): probabilities of J in both worlds, each [low, high].

    log_fall: log of the bound on Q(J, L ≤ 0), which grows as e^{rate·ε}.
    """

    p: tuple[float, float]
    q: tuple[float, float]
    rate: float
    log_fall: float

    def above(self, epsilon: npt.NDArray[np.floating[Any]], *, reverse: bool) -> Floats:
        """Return an upper bound on what J adds at each ε, convex in e^ε where it is below P(J)."""
        with np.errstate(over="ignore", invalid="ignore"):
            back = np.exp(self.log_fall + self.rate * (-epsilon if reverse else epsilon))
            if reverse:
                return np.asarray(np.minimum(back, self.q[1]))
            grow = np.exp(epsilon)
            added = self.p[1] - grow * self.q[0] * (1 - 4 * UNIT) + grow * back
        # past the range of e^ε, P(J) alone
        return np.asarray(np.minimum(np.where(np.isfinite(added), added, np.inf), self.p[1]))

    def below(self, epsilon: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return a lower bound on what J adds at consecutive ε, valid in chords between them too.

        It is linear in e^ε, and 0 from the last ε at which it is positive on.
        """
        with np.errstate(over="ignore"):
            added = self.p[0] - np.exp(epsilon) * self.q[1] * (1 + 4 * UNIT)
        return np.asarray(np.where(np.append(added[1:], -1.0) >= 0, added, 0.0))


def jumps(
    lattices: Sequence[tuple[Lattice, int]],
    rate: float,
    below: Sequence[tuple[Lattice, int]] | None = None,
) -> Jumps | None:
    """Return what the jumps of dominating lattice pairs, so many times each, add to δ.

    None where no loss is cut. rate: the θ of the bound; any positive number gives one. below: the
    dominated lattice pairs, where their jumps are others.
    """
    cuts = [(lattice, times) for lattice, times in lattices if lattice.jump.q > 0]
    if not cuts:
        return None
    under = cuts if below is None else below
    slack = max(lattice.rounding for lattice, _ in (*cuts, *under)) + 16 * UNIT
    # J is meant without what the pairs tell apart outright.
    inside_p = max(1 - sum(times * lattice.outside_p for lattice, times in lattices), 0.0)
    inside_q = max(1 - sum(times * lattice.outside_q for lattice, times in lattices), 0.0)
    fall = math.log(sum(times * lattice.jump.q for lattice, times in cuts) * (1 + slack))
    fall -= rate * min(lattice.jump.loss for lattice, _ in cuts)
    for lattice, times in lattices:
        body = log_moment([side(lattice, times, reverse=False)], lattice.step, -rate)
        rest = lattice.jump.q * math.exp(-rate * lattice.jump.loss) * (1 + slack)
        fall += max(times * np.logaddexp(body / times, math.log(rest) if rest else -math.inf), 0.0)
    p, q = ([(lattice.jump[index], times) for lattice, times in cuts] for index in (0, 1))
    under_p, under_q = (
        [(lattice.jump[index], times) for lattice, times in under] for index in (0, 1)
    )
    return Jumps(
        (inside_p * _some(under_p, 1 - slack), _some(p, 1 + slack)),
        (inside_q * _some(q, 1 - slack), max(_some(q, 1 + slack), _some(under_q, 1 + slack))),
        rate,
        fall + 1e-9,
    )


def _some(chances: Sequence[tuple[float, int]], factor: float) -> float:
    """Return 1 − Π(1 − p·factor)^times, rounded in the direction of the factor."""
    if any(p * factor >= 1 for p, _ in chances):
        return 1.0
    spared = math.fsum(times * math.log1p(-p * factor) for p, times in chances)
    return -math.expm1(spared) * (1 + math.copysign(8 * UNIT, factor - 1))
