"""One step of several, drawn at random: what random allocation does to a record."""

from dataclasses import dataclass

from apiece import _check
from apiece.errors import RangeError

MOST_STEPS = 10**7
"""Steps of a block, at most."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """Gaussian steps, in exactly one of which the record takes part: which one, chance decides.

    Each of the `steps` outputs may depend on all before it. Without the record each is N(0, z²) in
    units of the record's bound; with it one of them, drawn uniformly and kept secret, is moved by
    up to 1. Exactly k of T steps, one in each of k blocks, is k of these one after the other.

    Args:
        noise_multiplier: z, positive and finite.
        steps: Of the block, 1 to 10⁷; one step is the plain Gaussian.

    Raises:
        InputError: For values out of bounds.
        RangeError: For more steps.

    Guarantee:
        The pair P = mean of N(e_t, z²·I) over the steps t against Q = N(0, z²·I) dominates the
        interaction, chosen adaptively, in both directions, since the outputs y follow from those of
        the pair: y_t = f_t·x_t + noise of covariance z²·(I − f_t·f_tᵀ) with f_t, of norm at most 1,
        a function of the y before it. More steps never cost more: a mean of n + 1 likelihood
        ratios is the mean of its n + 1 means of n (Jensen).

    References:
        Feldman and Shenfeld 2025; Feldman and Shenfeld 2026.

    Example:
        >>> from apiece.mechanisms import Allocated
        >>> Allocated(1.0, 100)
        Allocated(noise_multiplier=1.0, steps=100)
    """

    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        _check.put(self, noise_multiplier=_check.positive, steps=_check.count)
        if self.steps > MOST_STEPS:
            raise RangeError(
                f"steps = {self.steps}: past the numerical range; allocate over at most "
                f"{MOST_STEPS} steps, as of a block"
            )


def block_sizes(times: int, steps: int) -> tuple[tuple[int, int], ...]:
    """Return (size, how many) of `times` blocks of `steps` steps: sizes differ by one at most.

    >>> block_sizes(3, 10)
    ((3, 2), (4, 1))
    """
    # So many blocks have a step more than the others.
    size, larger = divmod(steps, times)
    kinds = ((size, times - larger), (size + 1, larger))
    return tuple((length, count) for length, count in kinds if count)
