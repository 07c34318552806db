"""Heads on frozen features, which are trained: a linear layer, or small convolutional networks."""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor, nn

from apiece import _check
from apiece.errors import InputError
from apiece.training import Progress


class TurnedConvolution(nn.Module):
    """A convolution with each filter turned by quarters and mirrored; the largest reply is kept."""

    # Turning or mirroring the input turns or mirrors the output, and does nothing else to it.
    # Sources: Cohen and Welling 2016, lifting and pooling over the group; Hölzl et al. 2023 with
    # private training.

    def __init__(self, before: int, after: int, size: int, *, padding: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Conv2d(before, after, size).weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros(after))
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, after, places, places) of (n, before, side, side)."""
        sides = (self.weight, self.weight.flip(3))
        forms = torch.cat([torch.rot90(w, turn, (2, 3)) for w in sides for turn in range(4)])
        replies = nn.functional.conv2d(x, forms, padding=self.padding)
        best: Tensor = replies.view(len(x), 8, -1, *replies.shape[2:]).amax(dim=1)
        return best + self.bias[:, None, None]


def equivariant_cnn(shape: tuple[int, int, int], classes: int, *, width: int = 24) -> nn.Module:
    """Return two turned convolutions, the mean over places, and a linear layer."""
    # Outputs are the same for an image, its quarter turns and its mirror images, where these only
    # move the features: so for "pixels". Channels of wavelets have directions, which turns
    # exchange. The number of places along a side is even.
    return nn.Sequential(
        TurnedConvolution(shape[0], width, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        TurnedConvolution(width, 2 * width, 3), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip


Shape = tuple[int, int, int]  # channels, height, width


def linear(shape: Shape, classes: int) -> nn.Module:
    """Return a linear layer on all features, which starts from zero."""
    layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def small_cnn(shape: Shape, classes: int, *, width: int = 32) -> nn.Module:
    """Return a convolution, pooling and two linear layers, tanh between; for 4×4 places or more."""
    # A smaller form of the networks on scattering features of Tramèr and Boneh 2021.
    side = (shape[1] // 2, shape[2] // 2)
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(width * side[0] * side[1], width), nn.Tanh(),
        nn.Linear(width, classes),
    )  # fmt: skip


HEADS: MappingProxyType[str, Callable[[Shape, int], nn.Module]] = MappingProxyType(
    {"linear": linear, "small-cnn": small_cnn, "equivariant-cnn": equivariant_cnn}
)


class WeightAverage:
    """A callback that keeps the exponential average of a model's parameters."""

    # What is averaged are the parameters after every step, which the plan's promises cover
    # together. decay: weight of the past in each step, in [0, 1); the first steps are averaged
    # evenly. Sources: Polyak and Juditsky 1992; De et al. 2022 §4 with private training.

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = _check.probability("decay", decay, high_open=True)
        self._model = model
        self._mean: list[torch.Tensor] | None = None

    @torch.no_grad()
    def __call__(self, progress: Progress) -> None:
        """Take the parameters after one step into the average."""
        now = list(self._model.parameters())
        if self._mean is None:
            self._mean = [p.detach().clone() for p in now]
            return
        share = max(1 - self.decay, 1 / progress.step)
        for mean, parameter in zip(self._mean, now, strict=True):
            mean.lerp_(parameter, share)

    @torch.no_grad()
    def put(self) -> None:
        """Put the average in the model's place; without a step nothing changes."""
        for parameter, mean in zip(self._model.parameters(), self._mean or [], strict=False):
            parameter.copy_(mean)


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
