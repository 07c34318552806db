"""How the noise of a stage is correlated between its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece._types import Floats, Json
from apiece.correlation.sensitivity import count_participations, sensitivity_bound
from apiece.correlation.strategies import Banded, NoiseStrategy, strategy_from_json
from apiece.errors import InputError

# The distance from 1.0 to the next float64.
_ULP = 2.0**-52
# A chance above one by no more than this comes of rounding in the plan; `rates` takes it for one.
_CHANCE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class CorrelatedNoise:
    """Noise C⁻¹z in place of independent noise, with fixed steps or with parts that take turns.

    A record takes part in a fixed number of steps, any two of them at least `separation` apart, in
    an order that does not depend on who is there. It meets one Gaussian in all steps together.

    With `sampled` each record belongs to one of `separation` parts, which take turns, and joins
    each step of its part by a coin of its own. With no more bands than parts it meets the sampled
    Gaussian once a turn.

    Attributes:
        strategy: C, lower triangular.
        separation: The least distance of two steps of a record, at least 1; with `sampled` the
            number of parts.
        sampled: Whether coins decide who of a part joins its steps.

    Raises:
        InputError: For a separation below 1, and coins with more bands than parts.

    References:
        Denisov et al. 2022; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization",
        Theorem 4.

    Example:
        >>> from apiece.correlation.strategies import Banded
        >>> from apiece.plan.correlated import CorrelatedNoise
        >>> noise = CorrelatedNoise(Banded.square_root(2), 10)
        >>> round(noise.sensitivity(steps=100, times=4), 3)
        2.236
    """

    strategy: NoiseStrategy
    separation: int
    sampled: bool = False

    def __post_init__(self) -> None:
        _check.put(self, separation=_check.count)
        if not self.sampled:
            return
        # Steps of one record's own part lie as many steps apart as there are parts.
        if not isinstance(self.strategy, Banded) or self.strategy.bands > self.separation:
            raise InputError(
                f"correlated: {self.strategy!r} for {self.separation} parts that take turns; a "
                "record's steps must not share noise, so give at most as many bands as parts"
            )

    def turns(self, steps: int) -> int:
        """Return how many of the first steps are of one part, at most.

        Args:
            steps: From the first of the stage on.
        """
        # Rounded up: parts take turns from the first on.
        return -(-steps // self.separation)

    def rates(self, chances: Floats) -> Floats:
        """Return the chances to join a step of one's own part, by those to join any; rounded up.

        Args:
            chances: In [0, 1], each the mean over all steps.
        """
        # Both products are rounded to the nearest, by half a unit: two units more make up for it.
        return np.minimum(chances * self.separation * (1 + 2 * _ULP), 1.0)

    def check_chances(self, chances: Floats) -> None:
        """Raise `InputError` where a record would join its own part's steps more than always.

        Args:
            chances: Each group's chance to join a step, the mean over all steps.
        """
        if not (chances * self.separation <= 1 + _CHANCE_TOLERANCE).all():
            raise InputError(
                f"sampling_probability: up to {chances.max():g}, which is above one in "
                f"{self.separation} parts; give at most {1 / self.separation:g}"
            )

    def sensitivity(self, *, steps: int, times: int) -> float:
        """Return by how much a record moves C x at most, in units of its clip norm; rounded up.

        Args:
            steps: The first steps of the stage, or all of them.
            times: How many steps of the whole stage the record takes part in.
        """
        return sensitivity_bound(
            self.strategy, steps=steps, participations=times, separation=self.separation
        )

    def check_times(self, steps: int, times: int) -> None:
        """Raise `InputError` where a record cannot take part so often.

        Args:
            steps: All steps of the stage.
            times: How many of them a record takes part in, at most.
        """
        possible = count_participations(steps, times, self.separation)
        if possible < times:
            raise InputError(
                f"times = {times}: {steps} steps hold only {possible} that are {self.separation} "
                "apart; take part less often, or with a smaller separation"
            )

    def to_json(self) -> Json:
        """Return the noise as JSON."""
        content: Json = {"strategy": self.strategy.to_json(), "separation": self.separation}
        if self.sampled:
            content["sampled"] = True
        return content


def noise_from_json(fields: Json) -> CorrelatedNoise:
    """Return the noise that `to_json` wrote."""
    return CorrelatedNoise(
        strategy_from_json(fields["strategy"]), fields["separation"], fields.get("sampled", False)
    )
