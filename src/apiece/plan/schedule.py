"""Schedule: a public factor for every step, declared before training."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass

from apiece import _check
from apiece.errors import InputError, unknown

BETWEEN = ("hold", "linear", "cosine", "exponential")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A factor for every step: fixed points, and a way to go from each to the next.

    Before the first and after the last point the factor stays. It depends on the number of the step
    and on nothing else.

    Attributes:
        points: (step, factor) pairs, steps rising from 0 or later, factors at least 0 and finite.
        between: "hold" keeps each point's factor up to the next, "linear" and "cosine" (half a
            wave) go over to it, "exponential" does so by a constant ratio.

    Raises:
        InputError: For no points, steps that do not rise and factors out of bounds.

    Example:
        >>> warm_up_and_down = Schedule(((0, 0.0), (10, 1.0), (110, 0.0)))
        >>> [warm_up_and_down.at(step) for step in (0, 5, 10, 60, 200)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        >>> Schedule(((0, 1.0), (100, 0.1)), between="hold").at(99)
        1.0
    """

    points: tuple[tuple[int, float], ...]
    between: str = "linear"

    def __post_init__(self) -> None:
        if self.between not in BETWEEN:
            raise unknown("between", self.between, BETWEEN)
        try:
            pairs = [(step, factor) for step, factor in self.points]
        except (TypeError, ValueError):
            raise InputError(f"points = {self.points!r}: must be (step, factor) pairs") from None
        points = tuple(
            (_check.count("step", step, least=0), _check.finite("factor", factor))
            for step, factor in pairs
        )
        object.__setattr__(self, "points", points)
        steps = [step for step, _ in points]
        if not steps or any(not a < b for a, b in itertools.pairwise(steps)):
            raise InputError(f"points: at steps {steps}; give at least one, in rising order")
        for step, factor in points:
            if not factor >= 0 or (self.between == "exponential" and factor == 0):
                raise InputError(
                    f"points: factor {factor!r} at step {step} must be at least 0, and above 0 "
                    "for an exponential schedule"
                )

    def at(self, step: int) -> float:
        """Return the factor of a step.

        Args:
            step: Counted from 0.
        """
        after = bisect_right(self.points, step, key=lambda point: point[0])
        if after in (0, len(self.points)):
            return self.points[max(after - 1, 0)][1]
        (start, first), (end, last) = self.points[after - 1 : after + 1]
        share = (step - start) / (end - start)
        if self.between == "hold":
            return first
        if self.between == "exponential":
            return float(first * (last / first) ** share)
        if self.between == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return first + (last - first) * share
