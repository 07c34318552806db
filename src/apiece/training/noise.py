"""Noise, added once to a sum that knows its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from apiece import _check
from apiece.errors import InputError
from apiece.training.clipping import ClippedSum, guards
from apiece.training.fully_sharded import part_of
from apiece.training.randomness import Generator, normals

_BITS = 20  # of the noise's standard deviation; the grid adds 1e-13 of its variance


def add_noise(
    clipped: ClippedSum, noise_stddev: float, *, generator: Generator
) -> dict[str, torch.Tensor]:
    """Return the sum of clipped gradients plus independent N(0, noise_stddev²), by parameter.

    What is returned lies on a grid that depends on noise_stddev alone: multiples of a power of
    two between 2⁻²¹ and 2⁻²⁰ of it. The low bits of a sum in floating point are bits of the sum
    (Mironov 2012); rounded away after the noise they tell nothing. It has the sum's type, single
    precision or more; a rounding to half precision comes later and is post-processing.

    One draw covers all parameters, in the order of `clipped.gradients`.

    Args:
        clipped: The sum, which knows its bounds.
        noise_stddev: At least 0; 0 adds nothing (and promises nothing).
        generator: A `ChaCha20Stream` for a release: noise, sum and grid are in double precision,
            with some 2³² values of the noise to a cell of the grid. A torch or numpy generator
            for experiments: noise in single precision, with a few values to a cell.

    Raises:
        InputError: Where `clipped` is not a `ClippedSum`, or noise_stddev is negative, NaN or
            infinite.

    Guarantee:
        For record i this is the Gaussian mechanism with noise multiplier
        noise_stddev / clipped.clip_norms[i], add/remove adjacency.

    References:
        Boenisch et al. 2023, §3; Mironov 2012.

    Example:
        >>> one = torch.ones(1)
        >>> total = ClippedSum({"w": torch.zeros(3)}, one, one, one)
        >>> add_noise(total, 2.0, generator=torch.Generator().manual_seed(0))["w"].shape
        torch.Size([3])
    """
    if not isinstance(clipped, ClippedSum):
        raise InputError(
            f"clipped: a {type(clipped).__name__}; noise goes only on the ClippedSum that "
            "clip_and_sum returns, whose bounds are known"
        )
    stddev = _check.finite("noise_stddev", noise_stddev)
    if not stddev >= 0:
        raise InputError(f"noise_stddev = {stddev!r}: must be at least 0")
    sums = clipped.gradients
    if stddev == 0 or not sums:
        return dict(sums)
    totals = list(sums.values())
    sizes = [total.numel() for total in totals]
    flat = normals(generator, sum(sizes), totals[0].device).mul_(stddev)
    noisy = _pieces(flat, sizes, totals)
    if any(guards.is_sharded(total) for total in totals):  # of the same noise in every process
        noisy = [part_of(one, total).add_(total) for one, total in zip(noisy, totals, strict=True)]
        for one in noisy:
            _to_grid(one, stddev)
    else:
        torch._foreach_add_(noisy, totals)
        _to_grid(flat, stddev)
    if any(total.dtype != flat.dtype for total in totals):
        noisy = [one.to(total.dtype) for one, total in zip(noisy, totals, strict=True)]
    return dict(zip(sums, noisy, strict=True))


def _to_grid(values: torch.Tensor, stddev: float) -> None:
    """Round the values to the grid of `stddev`, in place.

    Scaling by a power of two is exact, so that each value goes to the nearest multiple. Where
    noise is below 1e-24 the grid stays at 2⁻¹⁰⁰, within reach of single precision.
    """
    step = 2.0 ** max(math.frexp(stddev)[1] - 1 - _BITS, -100)
    values.mul_(1 / step).round_().mul_(step)


def _pieces(flat: torch.Tensor, sizes: list[int], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of `like`."""
    pieces = flat.split_with_sizes(sizes)
    return [piece.view(one.shape) for piece, one in zip(pieces, like, strict=True)]


def normalise(noisy: Mapping[str, torch.Tensor], expected_batch_size: float) -> None:
    """Divide a noisy sum by the expected batch size, in place: what an optimizer is given.

    The divisor is the plan's and never the realised batch's: how many took part would show.

    Args:
        noisy: The sum with its noise, by parameter name.
        expected_batch_size: Of the step.

    Example:
        >>> noisy = {"w": torch.tensor([8.0, -2.0])}
        >>> normalise(noisy, 4.0)
        >>> noisy["w"].tolist()
        [2.0, -0.5]
    """
    for value in noisy.values():
        value.div_(expected_batch_size)
