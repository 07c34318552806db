"""Weights by the order of losses, which no record can move by more than its own clip norm."""

from __future__ import annotations

import torch
from torch import Tensor

from apiece import _check
from apiece.errors import InputError


def loss_ordered_weights(losses: Tensor, clip_norms: Tensor, quiet: float, ramp: float) -> Tensor:
    """Return a weight in [0, 1] for each record of a batch: the larger the loss, the larger.

    Records lie on a line in the order of their losses, smallest first, each with the length of its
    clip norm C_j. At t on that line w(t) = min(1, max(0, (t − quiet) / ramp)); a record's weight is
    the mean of w over its part.

    Args:
        losses: (B,), finite; of equal ones the earlier record comes first.
        clip_norms: (B,), positive.
        quiet: Length on which records weigh nothing: public, such as a share of Σ q_i·C_i.
        ramp: Length on which weights grow from 0 to 1: public, positive.

    Raises:
        InputError: For other lengths or shapes.

    Guarantee:
        For gradients g_j with ‖g_j‖ ≤ C_j, Σ_j weight_j·g_j changes by at most C_n when record n
        comes or goes, as without weights: a plan's noise keeps its promises. Proof: with
        u(t) = g_j/C_j on j's part the sum is ∫ w(t) u(t) dt. Record n, put in at s where the
        others reach to S, adds ∫ₛ^(s+C_n) w at most, and moves the rest by
        ∫ₛ^S (w(t + C_n) − w(t)) dt = ∫_S^(S+C_n) w − ∫ₛ^(s+C_n) w at most, since w never falls.
        Together that is ∫_S^(S+C_n) w ≤ C_n. Weights that fall along the line have no such bound:
        counted from the largest loss, one record can move the sum by nearly 2·C_n.

    References:
        Tian et al. 2026, for the order and its continuity; the form and the proof are ours.

    Example:
        >>> loss_ordered_weights(torch.tensor([2.0, 1.0, 3.0]), torch.ones(3), 1.0, 2.0).tolist()
        [0.25, 0.0, 0.75]
    """
    start, width = _check.finite("quiet", quiet), _check.positive("ramp", ramp)
    if losses.ndim != 1 or losses.shape != clip_norms.shape:
        raise InputError(
            f"losses of shape {tuple(losses.shape)}: must be (B,), as clip_norms, which are "
            f"{tuple(clip_norms.shape)}"
        )
    order = torch.argsort(losses, stable=True)
    lengths = clip_norms.double()[order]
    ends = lengths.cumsum(0)
    risen = _area(ends, start, width) - _area(ends - lengths, start, width)
    weights = torch.empty_like(lengths)
    weights[order] = (risen / lengths).clamp(0, 1)
    return weights.to(clip_norms.dtype)


def _area(t: Tensor, start: float, width: float) -> Tensor:
    """Return ∫₀ᵗ w."""
    past = (t - start).clamp_min(0)
    return torch.where(past < width, past**2 / (2 * width), past - width / 2)
