"""One normal form for all trees that describe the same steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from apiece.errors import RangeError
from apiece.mechanisms.algebra import Composed, Mechanism, Repeated, Sampled
from apiece.mechanisms.atoms import Atoms, behind_coin
from apiece.mechanisms.gaussian import Gaussian

NormalForm: TypeAlias = tuple[tuple[Mechanism, int], ...]
"""Independent steps in normal form, each so many times."""

MOST_STEPS = 10**15
"""Counts up to here are exact as floating-point numbers."""
_LEAST = math.ulp(0.0)  # a product of coins that underflows is rounded up to it


def flatten(mechanism: Mechanism) -> NormalForm:
    """Return an equivalent multiset of independent steps, as (step, times) pairs.

    Nested `Repeated` and `Composed` are multiplied out; steps that never see the record are
    dropped, coins that always show heads are removed, and equal steps are counted together. All
    plain Gaussians become one (1/z² adds up, exactly), also below a coin. What is left under
    `Sampled` is in the same form. The order of composition does not change a privacy curve, so
    every accountant may read this form instead of the tree.

    Args:
        mechanism: Any tree of mechanisms.

    Raises:
        RangeError: For more than 10¹⁵ steps in all.

    Example:
        >>> from apiece.mechanisms import Laplace
        >>> flatten(Repeated(Composed(Sampled(Gaussian(1.0), 0.1), Laplace(2.0)), 3))
        ((Sampled(mechanism=Gaussian(noise_multiplier=1.0), probability=0.1), 3),
         (Laplace(noise_multiplier=2.0), 3))
        >>> flatten(Repeated(Gaussian(10.0), 100))
        ((Gaussian(noise_multiplier=1.0), 1),)
    """
    counts: dict[Mechanism, int] = {}
    precision: list[tuple[float, int]] = []
    for step, times in _steps(mechanism, 1):
        if isinstance(step, Gaussian):
            precision.append((step.noise_multiplier, times))
        else:
            counts[step] = counts.get(step, 0) + times
    if not sum(counts.values()) + sum(times for _, times in precision) <= MOST_STEPS:
        raise RangeError(f"mechanism: more than {MOST_STEPS:g} steps in all; use fewer")
    if len(precision) == 1 and precision[0][1] == 1:
        return (Gaussian(precision[0][0]), 1), *counts.items()
    if precision:
        smallest = min(z for z, _ in precision)
        total = math.fsum(times * (smallest / z) ** 2 for z, times in precision)
        return (Gaussian(smallest / math.sqrt(total)), 1), *counts.items()
    return tuple(counts.items())


def _steps(mechanism: Mechanism, times: int) -> Iterator[tuple[Mechanism, int]]:
    match mechanism:
        case Composed(mechanisms):
            for part in mechanisms:
                yield from _steps(part, times)
        case Repeated(inner, repeats):
            yield from _steps(inner, times * repeats)
        case Sampled(inner, probability):
            if probability == 1:
                yield from _steps(inner, times)
            elif probability > 0 and (steps := flatten(inner)):
                yield _sampled(steps, probability), times
        case _:
            yield mechanism, times


def _sampled(steps: NormalForm, probability: float) -> Mechanism:
    """Put a coin before flattened steps; a coin before one other coin is one coin."""
    (first, once), *rest = steps
    if not rest and once == 1:
        if isinstance(first, Sampled):
            return Sampled(first.mechanism, max(probability * first.probability, _LEAST))
        return Sampled(first, probability)
    parts = [step if times == 1 else Repeated(step, times) for step, times in steps]
    return Sampled(parts[0] if not rest else Composed(*parts), probability)


def atoms_of(step: Mechanism) -> Atoms | None:
    """Return the atoms of a discrete step, its coin included; None for any other step.

    Args:
        step: One of the steps that `flatten` returns.

    Example:
        >>> from apiece.mechanisms import Finite
        >>> atoms_of(Finite([0.75, 0.25], [0.5, 0.5])).mass.tolist()
        [0.5, 0.5]
        >>> atoms_of(Gaussian(1.0)) is None
        True
    """
    inner, probability = (
        (step.mechanism, step.probability) if isinstance(step, Sampled) else (step, 1.0)
    )
    # `Discrete`, asked for once a step; to ask a protocol would take longer than all the rest
    return behind_coin(inner.atoms(), probability) if hasattr(inner, "atoms") else None
