"""Stage: `steps` updates with the same parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """`steps` updates with the same parameters; arrays have one entry a budget group.

    The arrays are read-only copies.

    Attributes:
        steps: The number of updates, at least 1.
        expected_batch_size: What a summed gradient is divided by: the sum of all records' chances
            to be in a batch.
        noise_stddev: The standard deviation of the noise on the sum of clipped gradients.
        sampling_probability: A record's chance of joining a step, in [0, 1]; a group with 0 takes
            no part.
        clip_norm: The bound on a record's ℓ2 gradient norm.
        participation: Each record's chance of joining the stage at all, by one secret coin a stage;
            None where every record takes part.
        weight: Of this stage's model, where outputs of the stages' models are averaged.

    Raises:
        InputError: For values out of bounds and for arrays of different lengths.

    Example:
        >>> stage = Stage(10, 10.0, 2.0, [0.1, 0.1], [0.7, 1.3])
        >>> round(stage.mechanism(0).mechanism.mechanism.noise_multiplier, 2)
        2.86
    """

    steps: int
    expected_batch_size: float
    noise_stddev: float
    sampling_probability: Floats = field(repr=False)
    clip_norm: Floats = field(repr=False)
    participation: Floats | None = field(default=None, repr=False)
    weight: float = 1.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "steps", _check.count("steps", self.steps))
        for name in ("expected_batch_size", "noise_stddev", "weight"):
            put(self, name, _check.positive(name, getattr(self, name)))
        put(self, "clip_norm", _check.positive_array("clip_norm", self.clip_norm))
        put(self, "sampling_probability", _chances("sampling_probability", self))
        if self.participation is not None:
            put(self, "participation", _chances("participation", self))

    def mechanism(self, group: int) -> Mechanism | None:
        """Return what this stage does to a record of `group`; None where it takes no part.

        Args:
            group: A position.
        """
        q, clip = float(self.sampling_probability[group]), float(self.clip_norm[group])
        joins = 1.0 if self.participation is None else float(self.participation[group])
        if q == 0 or joins == 0:
            return None
        step: Mechanism = Gaussian(self.noise_stddev / clip)
        run = Repeated(step if q == 1 else Sampled(step, q), self.steps)
        return run if joins == 1 else Sampled(run, joins)

    def chances(self) -> Floats:
        """Return each group's chance that a record of it is in a given batch."""
        joins = 1.0 if self.participation is None else self.participation
        return np.asarray(self.sampling_probability * joins)


def _chances(name: str, stage: Stage) -> Floats:
    array: npt.NDArray[Any] = np.array(getattr(stage, name), dtype=np.float64)
    if array.shape != stage.clip_norm.shape or array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name}: shape {array.shape}, clip_norm has {stage.clip_norm.shape}; give one entry "
            "a budget group to both"
        )
    good = (array >= 0) & (array <= 1)
    if not good.all():
        where = int(np.flatnonzero(~good)[0])
        raise InputError(f"{name}[{where}] = {float(array[where])!r}: must be in [0, 1]")
    array.flags.writeable = False
    return array
