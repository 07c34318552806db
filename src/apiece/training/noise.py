"""Noise, added once to a sum that knows its bounds."""

from __future__ import annotations

import torch

from apiece import _check
from apiece.errors import InputError
from apiece.training.clipped import ClippedSum
from apiece.training.randomness import Generator, normals


def add_noise(
    clipped: ClippedSum, noise_stddev: float, *, generator: Generator
) -> dict[str, torch.Tensor]:
    """Return the sum of clipped gradients plus independent N(0, noise_stddev²), by parameter.

    Guarantee: for record i this is the Gaussian mechanism with noise multiplier
    noise_stddev / clipped.clip_norms[i], add/remove adjacency (Boenisch et al. 2023 §3).

    generator: a `ChaCha20Stream` for a release: its noise is in double precision and the sum is
    rounded to the parameters' type only afterwards, which is post-processing; a torch or numpy
    generator for experiments. One draw covers all parameters, in the order of
    `clipped.gradients`. noise_stddev = 0 adds nothing (and promises nothing).

    Raises `InputError` if `clipped` is not a `ClippedSum`, or noise_stddev is negative, NaN or
    infinite.

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
    torch._foreach_add_(noisy, totals)
    if any(total.dtype != flat.dtype for total in totals):
        noisy = [one.to(total.dtype) for one, total in zip(noisy, totals, strict=True)]
    return dict(zip(sums, noisy, strict=True))


def _pieces(flat: torch.Tensor, sizes: list[int], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of `like`."""
    pieces = flat.split_with_sizes(sizes)
    return [piece.view(one.shape) for piece, one in zip(pieces, like, strict=True)]
