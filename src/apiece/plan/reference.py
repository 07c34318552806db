"""Reference: what a record's own mechanism is compared with, fixed by the request alone."""

from __future__ import annotations

from dataclasses import dataclass

from apiece import _check
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled


@dataclass(frozen=True, slots=True)
class Reference:
    """The uniform mechanism that `excess` is measured against: its rate and number of steps.

    Its noise is the one that spends a record's own (ε, δ). Nothing in it moves with what others
    ask: not the batch size that a plan arrives at, not the records that it leaves out or adds.

    Attributes:
        sampling_probability: In (0, 1]: the batch size that was *requested* over the number of
            records that it was requested for.
        steps: As requested.

    Raises:
        InputError: For values out of bounds.

    References:
        Kaiser et al. 2026, Def. 8.

    Example:
        >>> Reference(1.0, 5).mechanism(2.0)
        Repeated(mechanism=Gaussian(noise_multiplier=2.0), times=5)
    """

    sampling_probability: float
    steps: int

    def __post_init__(self) -> None:
        q = _check.probability("sampling_probability", self.sampling_probability, low_open=True)
        object.__setattr__(self, "sampling_probability", q)
        object.__setattr__(self, "steps", _check.count("steps", self.steps))

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Return the uniform mechanism with this noise.

        Args:
            noise_multiplier: Above 0.
        """
        step, q = Gaussian(noise_multiplier), self.sampling_probability
        return Repeated(step if q == 1 else Sampled(step, q), self.steps)
