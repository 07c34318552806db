"""How the noise of a stage is correlated between its steps."""

from __future__ import annotations

from dataclasses import dataclass

from apiece import _check
from apiece._types import Json
from apiece.correlation.sensitivity import count_participations, sensitivity_bound
from apiece.correlation.strategies import NoiseStrategy, strategy_from_json
from apiece.errors import InputError


@dataclass(frozen=True, slots=True)
class CorrelatedNoise:
    """Noise C⁻¹z in place of independent noise, where nobody's steps are drawn by chance.

    A record takes part in a fixed number of steps, any two of them at least `separation` apart, in
    an order that does not depend on who is there. It meets one Gaussian in all steps together.

    Attributes:
        strategy: C, lower triangular.
        separation: The least distance of two steps of a record, at least 1.

    Raises:
        InputError: For a separation below 1.

    References:
        Denisov et al. 2022; Choquette-Choo et al. 2023.

    Example:
        >>> from apiece.correlation import Banded
        >>> from apiece.plan.correlated import CorrelatedNoise
        >>> noise = CorrelatedNoise(Banded.square_root(2), 10)
        >>> round(noise.sensitivity(steps=100, times=4), 3)
        2.236
    """

    strategy: NoiseStrategy
    separation: int

    def __post_init__(self) -> None:
        _check.put(self, separation=_check.count)

    def sensitivity(self, *, steps: int, times: int) -> float:
        """Return by how much a record moves C x at most, in units of its clip norm; rounded up.

        Args:
            steps: The first steps of the stage, or all of them.
            times: How many steps of the whole stage the record takes part in.
        """
        return sensitivity_bound(
            self.strategy, steps=steps, participations=times, separation=self.separation
        )

    def check_times(self, steps: int, most: int) -> None:
        """Raise `InputError` where a record cannot take part so often."""
        possible = count_participations(steps, most, self.separation)
        if possible < most:
            raise InputError(
                f"times = {most}: {steps} steps hold only {possible} that are {self.separation} "
                "apart; take part less often, or with a smaller separation"
            )

    def to_json(self) -> Json:
        """Return the noise as JSON."""
        return {"strategy": self.strategy.to_json(), "separation": self.separation}


def noise_from_json(fields: Json) -> CorrelatedNoise:
    """Return the noise that `to_json` wrote."""
    return CorrelatedNoise(strategy_from_json(fields["strategy"]), fields["separation"])
