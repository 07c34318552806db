"""Recipe: a head and how it is trained on frozen features, as one value and a TOML file.

A head is a linear layer or a small convolutional network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from apiece import _check
from apiece._json import read_toml
from apiece._types import Json
from apiece.assignment import Strategy, assign
from apiece.assignment.unspent import default_batch
from apiece.budgets import Budgets
from apiece.errors import InputError, unknown
from apiece.plan import BoundPlan
from apiece.recipes.backbone import IMAGENET, PublicBackbone
from apiece.recipes.features import (
    LeafNetwork,
    LeafPatches,
    Pixels,
    Transform,
    apply_transform,
    compute_leaf_whitening,
    make_views,
    normalise,
    scale_to_unit,
    whiten,
)
from apiece.recipes.scattering import Scattering
from apiece.training.randomness import Streams
from apiece.training.trainer import fit_by_sgd

Shape = tuple[int, int, int]  # channels, height, width


class TurnedConvolution(nn.Module):
    """A convolution whose response is the largest over each filter's turns and mirror images."""

    # Turning or mirroring the input turns or mirrors the output, and does nothing else to it.
    # Sources: Cohen and Welling 2016, lifting and pooling over the group; Hölzl et al. 2023 with
    # private training.

    def __init__(self, inputs: int, outputs: int, size: int, *, padding: int = 1) -> None:
        super().__init__()
        # torch's own initialisation of a plain convolution.
        convolution = nn.Conv2d(inputs, outputs, size)
        self.weight = nn.Parameter(convolution.weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, outputs, places, places) of (n, inputs, side, side)."""
        # The group of the square: four quarter turns, of the filter and of its mirror image.
        mirrored = (self.weight, self.weight.flip(3))
        # (8·outputs, inputs, size, size): the turns of all filters, then those of their mirror
        # images.
        filters = torch.cat([torch.rot90(w, turn, (2, 3)) for w in mirrored for turn in range(4)])
        responses = nn.functional.conv2d(x, filters, padding=self.padding)
        # (n, 8, outputs, places, places).
        by_turn = responses.view(len(x), 8, -1, *responses.shape[2:])
        largest: Tensor = by_turn.amax(dim=1)
        return largest + self.bias[:, None, None]


def make_equivariant_cnn(shape: Shape, classes: int, *, width: int = 24) -> nn.Module:
    """Return two turned convolutions, the mean over places, and a linear layer."""
    # Outputs are the same for an image, its quarter turns and its mirror images, where these only
    # move the features: so for "pixels". Channels of wavelets have directions, which turns
    # exchange. The number of places along a side is even.
    return nn.Sequential(
        TurnedConvolution(shape[0], width, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        TurnedConvolution(width, 2 * width, 3),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def make_linear(shape: Shape, classes: int) -> nn.Module:
    """Return a linear layer on all features, which starts from zero."""
    layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def make_small_cnn(shape: Shape, classes: int, *, width: int = 32) -> nn.Module:
    """Return a convolution, pooling and two linear layers, tanh between; for 4×4 places or more."""
    # A smaller form of the networks on scattering features of Tramèr and Boneh 2021.
    channels, height, length = shape
    pooled = (height // 2) * (length // 2)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * pooled, width),
        nn.Tanh(),
        nn.Linear(width, classes),
    )


# Name of a head → what makes it, from the shape of features and the number of classes.
HEADS: MappingProxyType[str, Callable[[Shape, int], nn.Module]] = MappingProxyType(
    {
        "linear": make_linear,
        "small-cnn": make_small_cnn,
        "equivariant-cnn": make_equivariant_cnn,
    }
)


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of a model for the average of its parameters after every step.

    decay: weight of the past in each step, in [0, 1); the first steps are averaged evenly.
    """
    # The plan's promises cover all these parameters together. Sources: Polyak and Juditsky 1992;
    # De et al. 2022 §4 with private training.

    def average(mean: Tensor, current: Tensor, steps: Tensor | int) -> Tensor:
        # 1/(steps + 1) is the even mean; later the past keeps the share `decay`.
        weight = max(1 - decay, 1 / (int(steps) + 1))
        return mean.lerp(current, weight)

    return AveragedModel(model, avg_fn=average)


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
        InputError: For other lengths or shapes, and a ramp that is not positive.

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
        >>> import torch
        >>> from apiece.recipes.recipe import loss_ordered_weights
        >>> loss_ordered_weights(torch.tensor([2.0, 1.0, 3.0]), torch.ones(3), 1.0, 2.0).tolist()
        [0.25, 0.0, 0.75]
    """
    quiet = _check.finite("quiet", quiet)
    ramp = _check.positive("ramp", ramp)
    if losses.ndim != 1 or losses.shape != clip_norms.shape:
        raise InputError(
            f"losses of shape {tuple(losses.shape)}: must be (B,), as clip_norms, which are "
            f"{tuple(clip_norms.shape)}"
        )
    # Stable, as the order of equal losses must not depend on who else is there.
    order = torch.argsort(losses, stable=True)
    lengths = clip_norms.double()[order]
    ends = lengths.cumsum(0)
    # The mean of w over [end − length, end]: a difference of its integral over the length.
    areas = _integrate_weight(ends, quiet, ramp) - _integrate_weight(ends - lengths, quiet, ramp)
    weights = torch.empty_like(lengths)
    weights[order] = (areas / lengths).clamp(0, 1)
    return weights.to(clip_norms.dtype)


def _integrate_weight(t: Tensor, quiet: float, ramp: float) -> Tensor:
    """Return ∫₀ᵗ w, of the weight w in `loss_ordered_weights`."""
    # 0 up to quiet, then a parabola, then a line of slope 1.
    beyond = (t - quiet).clamp_min(0)
    return torch.where(beyond < ramp, beyond**2 / (2 * ramp), beyond - ramp / 2)


# Name of a transform → what makes it, from pixels of a side and channels.
TRANSFORMS: Mapping[str, Callable[[int, int], Transform]] = {
    "scattering": lambda side, colours: Scattering(side),
    "leaf-patches": LeafPatches,
    "leaf-network": LeafNetwork,
    "pixels": lambda side, colours: Pixels(),
    "public-backbone": PublicBackbone,
}

# Of transforms that public photographs have trained: which.
PUBLIC_DATA: Mapping[str, str] = {"public-backbone": IMAGENET}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A transform of images, a head, and the settings of its private training.

    Args:
        transform: "scattering", "leaf-patches", "leaf-network", "pixels" or "public-backbone".
        mirrored: Whether the transform's values of an image and of its mirror image are averaged:
            a head on them cannot tell the two apart.
        turn: Degrees in [0, 180] by which images are turned either way, to average the values of
            these too; 0 for none.
        power: To which the size of each value is raised, in (0, 1]; at 1 it stays.
        groups: By which the features' channels are normalised.
        whiten: By which share channels are then whitened with the covariance that dead leaves give
            them: 0 leaves them as they are, 1 undoes all of it.
        head: "linear", "small-cnn" or "equivariant-cnn".
        batch_size: Expected, at most: of fewer records, and of budgets of which the loosest would
            take part in every step, as many as let each group spend its ε.
        epochs: Expected passes over the records.
        clip_norm: The mean bound on a record's gradient.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        average: Decay of the parameters' average; 0 takes the last ones.
        beside: Name in `RECIPES` of a recipe whose features are set beside these, at equal norms;
            for a linear head, and on neither side with `flips`. Empty for none.
        flips: Whether a record comes with its mirror image too: gradients of both are averaged
            before they are clipped as one, at twice the cost. Not with `mirrored`, which makes
            both the same.

    Raises:
        InputError: For values out of their bounds.
        OptionError: For another transform or head.

    Example:
        >>> from apiece.recipes import Recipe
        >>> Recipe(epochs=10).steps(60_000)
        73
    """

    transform: str = "scattering"
    mirrored: bool = False
    turn: float = 0.0
    power: float = 1.0
    groups: int = 27
    whiten: float = 0.0
    head: str = "linear"
    batch_size: float = 8192.0
    epochs: float = 40.0
    clip_norm: float = 0.1
    learning_rate: float = 100.0
    momentum: float = 0.9
    average: float = 0.0
    beside: str = ""
    flips: bool = False

    def __post_init__(self) -> None:
        for name, known in (("transform", TRANSFORMS), ("head", HEADS)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        _check.count("groups", self.groups)
        for name in ("batch_size", "epochs", "clip_norm", "learning_rate"):
            _check.positive(name, getattr(self, name))
        for name in ("momentum", "average"):
            _check.probability(name, getattr(self, name), high_open=True)
        _check.probability("whiten", self.whiten)
        _check.probability("power", self.power, low_open=True)
        if not 0 <= _check.finite("turn", self.turn) <= 180:
            raise InputError(f"turn = {self.turn!r}: must be in [0, 180]; give degrees")
        for name in ("flips", "mirrored"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} = {getattr(self, name)!r}: must be true or false")
        if self.flips and self.mirrored:
            raise InputError("flips = True with mirrored = True: both views are the same; take one")
        if self.beside and (self.flips or self.head != "linear"):
            raise InputError(
                f"beside = {self.beside!r} with head = {self.head!r}, flips = {self.flips}: joined "
                "features have no places; take a linear head without flips"
            )

    @classmethod
    def from_dict(cls, settings: Json) -> Recipe:
        """Return the recipe of these settings; what is left out is the default.

        Args:
            settings: By name.

        Raises:
            OptionError: For a name that there is not.
            InputError: As the recipe itself.
        """
        known = [entry.name for entry in fields(cls)]
        for name in settings:
            if name not in known:
                raise unknown("setting of a recipe", name, known)
        return cls(**settings)

    def to_dict(self) -> Json:
        """Return all settings by name."""
        return asdict(self)

    def steps(self, records: int) -> int:
        """Return the number of updates.

        Args:
            records: Number of records that are trained on; public.
        """
        return max(1, round(self.epochs * records / self.expected(records)))

    def expected(self, records: int) -> float:
        """Return the expected batch size.

        Args:
            records: Number of records that are trained on.
        """
        return min(self.batch_size, float(records))

    @property
    def public_data(self) -> str:
        """What public photographs have trained the features; empty where nobody's have.

        No promise covers the people on them.
        """
        names = [self.transform]
        if self.beside in RECIPES:
            names.append(RECIPES[self.beside].transform)
        # The first of both that photographs have trained: what is set beside counts, too.
        return next((PUBLIC_DATA[name] for name in names if name in PUBLIC_DATA), "")

    def transform_of(self, colours: int, side: int) -> Transform:
        """Return the transform of images of this shape.

        Args:
            colours: Channels of an image.
            side: Pixels of a side.
        """
        return TRANSFORMS[self.transform](side, colours)

    def features(self, images: npt.ArrayLike, *, cache: str | Path | None = None) -> Tensor:
        """Return features (n, views, channels, places, places), each view at norm 1.

        Args:
            images: (n, colours, side, side), bytes, of at least one image.
            cache: A folder where what the transform gives is kept, and read another time.

        Raises:
            InputError: For images that are not square, or not bytes, and a recipe beside that has
                flips or others beside itself.
            OptionError: For a name beside that there is not.
        """
        pixels = np.asarray(images)
        are_square = pixels.ndim == 4 and pixels.shape[2] == pixels.shape[3]
        if pixels.dtype != np.uint8 or not are_square:
            raise InputError(
                f"images: {pixels.dtype} of shape {pixels.shape}; give bytes (n, colours, side, "
                "side), whose range [0, 255] is public"
            )
        features = self._compute_features(pixels, cache)
        if not self.beside:
            return features
        if self.beside not in RECIPES:
            raise unknown("beside", self.beside, RECIPES)
        beside = RECIPES[self.beside]
        if beside.flips or beside.beside:
            raise InputError(
                f"beside = {self.beside!r}: has flips, or others beside itself; name one without"
            )
        features_beside = beside._compute_features(pixels, cache)
        # (n, views, all features of both), each of norm 1, then at norm 1 together.
        joined = torch.cat([features.flatten(2), features_beside.flatten(2)], dim=2)
        return scale_to_unit(joined.flatten(0, 1)).view(*joined.shape, 1, 1)

    def _compute_features(self, pixels: npt.NDArray[np.uint8], cache: str | Path | None) -> Tensor:
        """Return features without those beside, each view at norm 1."""
        colours, side = pixels.shape[1:3]
        transform = self.transform_of(colours, side)
        images = [pixels]
        if self.flips:
            # The mirror image reverses the last axis.
            images.append(pixels[..., ::-1])
        features = []
        for image in images:
            # Averaged over mirror images and turns, so that the head cannot tell them apart.
            views = make_views(image, mirrored=self.mirrored, turn=self.turn)
            values = apply_transform(transform, views[0], cache)
            for view in views[1:]:
                values += apply_transform(transform, view, cache)
            features.append(normalise(values / len(views), self.groups, self.power))
        if self.whiten:
            whitening = compute_leaf_whitening(
                transform, side, colours, self.groups, self.whiten, self.power
            )
            features = [whiten(part, whitening) for part in features]
        # (n, views, …).
        return torch.stack(features, dim=1)

    def plan(
        self, budgets: Budgets, strategy: Strategy | str = "sample", *, method: str = "pld"
    ) -> BoundPlan:
        """Return the verified plan for these budgets.

        Args:
            budgets: One a record.
            strategy: A strategy, or its name.
            method: Method of the accounting.

        Raises:
            InfeasibleError: Where no plan meets the request.
        """
        # Steps follow from the number of records, which is public.
        steps = self.steps(len(budgets))
        batch_size = default_batch(budgets.groups, strategy, steps=steps, most=self.batch_size)
        return assign(
            budgets,
            strategy,
            steps=steps,
            expected_batch_size=batch_size,
            clip_norm=self.clip_norm,
            method=method,
        )

    def train(
        self, plan: BoundPlan, features: Tensor, targets: Tensor, classes: int, *, seed: int | None
    ) -> nn.Module:
        """Return the head that a plan gives on these features.

        Args:
            plan: As `plan` made it.
            features: (n, views, …), as `features` makes them.
            targets: (n,) Classes, from 0.
            classes: Their number: declared, not read from the targets.
            seed: None for randomness of the operating system, as a release needs.

        Raises:
            InputError: As the trainer does.

        Guarantee:
            Each record's, with all its views, as `plan` states it, where seed is None.
        """
        shape: Shape = tuple(features.shape[2:])  # type: ignore[assignment]
        # The head's first parameters come from the run's key, without moving torch's stream.
        first_seed = Streams.from_seed(seed).initialisation().initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(first_seed % 2**63)
            head = HEADS[self.head](shape, classes)
        views = features.shape[1]
        average = make_average(head, self.average)

        # The gradients of a record's views are added and clipped as one: each counts a part.
        def loss(outputs: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs, y, reduction="none") / views

        fit_by_sgd(
            head,
            loss,
            plan,
            # A record's views are rows of one person: clipped together, so that each counts once.
            (features.flatten(0, 1), targets.repeat_interleave(views)),
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            seed=seed,
            physical_batch_size=4096,
            # Averaged from released parameters: it costs nothing.
            callbacks=[lambda _: average.update_parameters(head)] if self.average else [],
            people=None if views == 1 else np.repeat(plan.ids, views),
        )
        return average.module if self.average else head


@torch.no_grad()
def outputs_of(head: nn.Module, features: Tensor) -> Tensor:
    """Return outputs (n, classes): the mean over a record's views.

    Args:
        head: Trained.
        features: (n, views, …).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece.recipes import outputs_of
        >>> outputs_of(nn.Flatten(), torch.ones(3, 2, 4)).shape
        torch.Size([3, 4])
    """
    parts = []
    for part in torch.split(features, 2000):
        # (n·views, …) through the head, then by record.
        outputs = head(part.flatten(0, 1)).view(len(part), part.shape[1], -1)
        parts.append(outputs.mean(1))
    return torch.cat(parts)


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a TOML file: its settings by name.

    Args:
        path: Path of the file.

    Raises:
        DataError: For a file that cannot be read.
        OptionError: For a setting that there is not.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.recipes import read_recipe
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "mine.toml").write_text("epochs = 5\\naverage = 0.9")
        ...     read_recipe(Path(folder, "mine.toml")).average
        0.9
    """
    return Recipe.from_dict(read_toml(path, "recipe"))


# Recipes by name, as commands and estimators take them.
RECIPES: MappingProxyType[str, Recipe] = MappingProxyType(
    {
        "scattering-linear": Recipe(),
        "scattering-linear-mirrored": Recipe(flips=True),
        "scattering-small-cnn": Recipe(head="small-cnn", learning_rate=4.0),
        "leaf-patches-linear": Recipe(
            transform="leaf-patches", mirrored=True, power=0.5, groups=1, whiten=1.0
        ),
        "wavelets-and-patches": Recipe(mirrored=True, whiten=0.5, beside="leaf-patches-linear"),
        "public-backbone": Recipe(transform="public-backbone", groups=1),
        "pixels-equivariant-cnn": Recipe(
            transform="pixels", groups=1, head="equivariant-cnn", learning_rate=4.0
        ),
    }
)
