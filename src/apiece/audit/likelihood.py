"""LiRA: how likely a model's confidence in a record is with and without that record.

Confidences are φ = log(p/(1−p)) of the true class, which are near normal over models. Standard
deviations are of the population (divided by the count), as in the reference implementations.
Source: Carlini et al. 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from apiece import _check
from apiece._types import Floats, Mask
from apiece.audit.records import ShadowScores
from apiece.errors import DataError, InputError, unknown

VARIANTS = ("online", "offline")
VARIANCES = ("per-example", "pooled")
_LEAST_STD = 1e-16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class World:
    """Mean, standard deviation and count of confidences over the models of one world."""

    mean: Floats
    std: Floats
    count: Floats


def _columns(values: Floats) -> Floats:
    """Return confidences (K, n) or (K, n, A) as (K, n, A)."""
    return values[..., None] if values.ndim == 2 else values


def world(confidences: Floats, member: Mask) -> World:
    """Return the moments over the models where `member` (K, n); arrays of (n, augmentations)."""
    values = _columns(confidences)
    weight = member[..., None].astype(np.float64)
    count = weight.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (weight * values).sum(axis=0) / count
        std = np.sqrt((weight * (values - mean) ** 2).sum(axis=0) / count)
    return World(mean, std, np.broadcast_to(count, mean.shape))


def _pooled(part: World) -> World:
    """Return the world with one standard deviation for all records: that of the residuals."""
    variance = (part.count * part.std**2).sum(axis=0) / part.count.sum(axis=0)
    return World(part.mean, np.broadcast_to(np.sqrt(variance), part.std.shape), part.count)


def _log_density(x: Floats, part: World) -> Floats:
    std = part.std + _LEAST_STD
    return -(((x - part.mean) / std) ** 2) / 2 - np.log(std)


def _score(x: Floats, inside: World, outside: World, variant: str) -> Floats:
    """Return one score a record from confidences (…, n, A), averaged over augmentations."""
    if variant == "online":
        ratio = _log_density(x, inside) - _log_density(x, outside)
    else:
        ratio = -special.log_ndtr(-(x - outside.mean) / (outside.std + _LEAST_STD))
    return np.asarray(ratio.mean(axis=-1))


def _options(shadows: ShadowScores, variant: str, variance: str, spare: int) -> None:
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    if variance not in VARIANCES:
        raise unknown("variance", variance, VARIANCES)
    if not np.isfinite(shadows.confidences).all():
        raise DataError("confidences: some are infinite; LiRA fits normals, clip them first")
    inside = shadows.included.sum(axis=0)
    least = (2 if variance == "per-example" else 1) + spare
    counts = {"without": shadows.models - inside}
    if variant == "online":
        counts["with"] = inside
    for name, count in counts.items():
        if not count.min() >= least:
            at = int(np.argmin(count))
            raise InputError(
                f"shadow models: {int(count[at])} {name} record {shadows.ids[at]!s}; {variant} "
                f"LiRA with {variance} variance needs at least {least}: train more, or balance"
            )


def lira(
    target: npt.ArrayLike,
    shadows: ShadowScores,
    *,
    variant: str = "online",
    variance: str = "per-example",
) -> Floats:
    """Return LiRA's score for each record of `shadows`: higher says that the target trained on it.

    Of several augmentations the mean counts.

    Args:
        target: The target model's confidences φ, (n,) or (n, augmentations), in the order of
            `shadows.ids`.
        shadows: Confidences of the shadow models.
        variant: "online": log N(φ; in) − log N(φ; out); "offline": −log of the upper tail of the
            out-normal, which needs no models with the record.
        variance: "per-example", or "pooled" for one standard deviation over all records.

    Raises:
        DataError: For NaN, infinite or misshapen confidences.
        InputError: For too few models of a world.
        OptionError: For an unknown variant.

    References:
        Carlini et al. 2022, Algorithm 1.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> included = np.arange(8)[:, None] % 2 == np.array([0, 1])
        >>> phi = generator.normal(size=(8, 2)) + 3 * included
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, phi)
        >>> lira([3.0, 0.0], shadows)[0] > 0 > lira([3.0, 0.0], shadows)[1]
        np.True_
    """
    _options(shadows, variant, variance, spare=0)
    x = np.asarray(target, dtype=np.float64)
    if x.shape != shadows.confidences.shape[1:] or not np.isfinite(x).all():
        raise DataError(
            f"target: shape {x.shape} (or not finite) for shadow confidences of "
            f"{shadows.confidences.shape[1:]} a model; give one finite φ a record"
        )
    inside = world(shadows.confidences, shadows.included)
    outside = world(shadows.confidences, ~shadows.included)
    if variance == "pooled":
        inside, outside = _pooled(inside), _pooled(outside)
    return _score(x.reshape(len(shadows), -1), inside, outside, variant)


def lira_each(
    shadows: ShadowScores, *, variant: str = "online", variance: str = "per-example"
) -> Floats:
    """Return (K, n): every model attacked in turn with the K − 1 others as its shadows.

    The score at (k, i) is that of `lira` with model k removed from the shadows.

    Args:
        shadows: Confidences of K models.
        variant: As of `lira`.
        variance: As of `lira`.

    Raises:
        InputError: As `lira`, which then needs one more model of each world.

    Example:
        >>> included = np.arange(8)[:, None] % 2 == np.array([0, 1])
        >>> phi = np.random.default_rng(0).normal(size=(8, 2)) + 5 * included
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, phi)
        >>> scores = lira_each(shadows)
        >>> scores.shape, bool(np.median(scores[included]) > 0 > np.median(scores[~included]))
        ((8, 2), True)
    """
    _options(shadows, variant, variance, spare=1)
    scores = np.empty(shadows.included.shape)
    for k in range(shadows.models):
        others = np.arange(shadows.models) != k
        rest = ShadowScores(
            shadows.ids, shadows.groups, shadows.included[others], shadows.confidences[others]
        )
        scores[k] = lira(shadows.confidences[k], rest, variant=variant, variance=variance)
    return scores


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivacyScores:
    """|μ_in − μ_out| / (σ_in + σ_out) of each record; data about people.

    Attributes:
        ids: The records.
        groups: Their budget groups.
        score: How far each record's two worlds lie apart.
        lower: Of a bootstrap interval, or None where none was asked.
        upper: The same.

    Example:
        >>> found = PrivacyScores(np.array([7]), np.array(["a"]), np.array([0.4]), None, None)
        >>> found.score.tolist()
        [0.4]
    """

    ids: npt.NDArray[np.generic]
    groups: npt.NDArray[np.generic]
    score: Floats
    lower: Floats | None
    upper: Floats | None


def privacy_scores(
    shadows: ShadowScores,
    *,
    resamples: int = 0,
    confidence: float = 0.95,
    generator: np.random.Generator | None = None,
) -> PrivacyScores:
    """Return each record's privacy score: how far its two worlds lie apart.

    The score is never negative, so with few models it is biased upwards: a record that leaks
    nothing has about 0.8/√K with K models. Of several augmentations the mean counts.

    Args:
        shadows: Confidences of K models.
        resamples: Bootstrap resamples of the models; 0 for no interval. The interval is of
            percentiles, and carries the bias.
        confidence: Of the interval.
        generator: For the bootstrap.

    Raises:
        InputError: Where a record has fewer than 2 models in a world, or a bootstrap no generator.

    References:
        Kaiser et al. 2026, §II-D.

    Example:
        >>> included = np.arange(4)[:, None] % 2 == np.array([0, 1])
        >>> phi = np.array([[5.0, 1.0], [1.0, 5.0], [7.0, 3.0], [3.0, 7.0]])
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, phi)
        >>> privacy_scores(shadows).score.tolist()
        [2.0, 2.0]
    """
    _options(shadows, "online", "per-example", spare=0)
    weights = np.ones((1, shadows.models))
    score = _weighted_scores(shadows, weights)[0]
    lower = upper = None
    if resamples:
        if generator is None:
            raise InputError("generator: none given; a bootstrap needs one")
        share = _check.probability("confidence", confidence, low_open=True, high_open=True)
        even = np.full(shadows.models, 1 / shadows.models)
        drawn = generator.multinomial(shadows.models, even, size=resamples).astype(float)
        found = _weighted_scores(shadows, drawn)
        lower, upper = np.nanquantile(found, [(1 - share) / 2, (1 + share) / 2], axis=0)
    return PrivacyScores(shadows.ids, shadows.groups, score, lower, upper)


def _weighted_scores(shadows: ShadowScores, weights: Floats) -> Floats:
    """Return (resamples, n): the scores when model k counts weights[·, k] times."""
    values = _columns(shadows.confidences)
    values = values - values.mean(axis=0)
    parts = []
    for a in range(values.shape[2]):
        moments = []
        for member in (shadows.included, ~shadows.included):
            count = weights @ member
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = weights @ (member * values[..., a]) / count
                square = weights @ (member * values[..., a] ** 2) / count
            moments.append((mean, np.sqrt(np.maximum(square - mean**2, 0.0))))
        (mean_in, std_in), (mean_out, std_out) = moments
        apart = np.abs(mean_in - mean_out)
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(np.where(apart == 0, 0.0, apart / (std_in + std_out)))
    return np.asarray(np.mean(parts, axis=0))
