"""Membership tests on models' confidences: LiRA, RMIA, the loss threshold, and their ROC.

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
from apiece._identity import index_of, require_ids, require_rows
from apiece._types import AnyArray, Floats, Mask
from apiece.audit.bounds import flat_scores
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


def world(confidences: Floats, member: Mask | Floats) -> World:
    """Return the moments over the models of a world, (n, augmentations); member: weights (K, n)."""
    values = confidences[..., None] if confidences.ndim == 2 else confidences
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
    if variance not in VARIANCES:
        raise unknown("variance", variance, VARIANCES)
    if not np.isfinite(shadows.confidences).all():
        raise DataError("confidences: some are infinite; LiRA fits normals, clip them first")
    least = (2 if variance == "per-example" else 1) + spare
    _require_models(shadows, variant, least, f"{variant} LiRA with {variance} variance")


def _require_models(shadows: ShadowScores, variant: str, least: int, needed_by: str) -> None:
    """Raise `InputError` where a record has fewer models of a world than the variant needs."""
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    inside = shadows.included.sum(axis=0)
    counts = {"without": shadows.models - inside}
    if variant == "online":
        counts["with"] = inside
    for name, count in counts.items():
        if not count.min() >= least:
            at = int(np.argmin(count))
            raise InputError(
                f"shadow models: {int(count[at])} {name} record {shadows.ids[at]!s}; {needed_by} "
                f"needs at least {least}: train more, or balance"
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
        target: The target model's confidences φ, (n,) or (n, augmentations), by `shadows.ids`.
        shadows: Confidences of the shadow models.
        variant: "online": log N(φ; in) − log N(φ; out); "offline": −log of the upper tail of the
            out-normal, which needs no models with the record.
        variance: "per-example", or "pooled" for one standard deviation over all records.

    Raises:
        DataError: For NaN, infinite or misshapen confidences, and a Series whose index is not
            `shadows.ids`.
        InputError: For too few models of a world.
        OptionError: For an unknown variant.

    References:
        Carlini et al. 2022, Algorithm 1.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import ShadowScores, lira
        >>> generator = np.random.default_rng(0)
        >>> included = np.arange(8)[:, None] % 2 == np.array([0, 1])
        >>> phi = generator.normal(size=(8, 2)) + 3 * included
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, phi)
        >>> lira([3.0, 0.0], shadows)[0] > 0 > lira([3.0, 0.0], shadows)[1]
        np.True_
    """
    _options(shadows, variant, variance, spare=0)
    require_ids("shadows.ids", shadows.ids, target=target)
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


def lira_each(shadows: ShadowScores, *, variant: str = "online") -> Floats:
    """Return (K, n): `lira` of every model in turn, with the K − 1 others as its shadows."""
    _options(shadows, variant, "per-example", spare=1)
    every = np.arange(shadows.models)
    rest = (shadows.of(every != k, slice(None)) for k in every)
    pairs = zip(shadows.confidences, rest, strict=True)
    return np.stack([lira(one, others, variant=variant) for one, others in pairs])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivacyScores:
    """|μ_in − μ_out| / (σ_in + σ_out) of each record, with an interval or None; about people."""

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
    seed: int = 0,
) -> PrivacyScores:
    """Return each record's privacy score: how far its two worlds lie apart.

    It is biased upwards: a record that leaks nothing has about 0.8/√K with K models. Of several
    augmentations the mean counts.

    Args:
        shadows: Confidences of K models.
        resamples: Bootstrap resamples of the models; 0 for no interval, which carries the bias.
        confidence: Of the interval.
        seed: Of the bootstrap, a whole number from 0 on.

    Raises:
        InputError: Where a record has fewer than 2 models in a world, or the seed is negative.

    References:
        Kaiser et al. 2026, §II-D.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import ShadowScores, privacy_scores
        >>> included = np.arange(4)[:, None] % 2 == np.array([0, 1])
        >>> phi = np.array([[5.0, 1.0], [1.0, 5.0], [7.0, 3.0], [3.0, 7.0]])
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, phi)
        >>> privacy_scores(shadows).score.tolist()
        [2.0, 2.0]
    """
    _options(shadows, "online", "per-example", spare=0)
    centred = shadows.confidences - shadows.confidences.mean(axis=0)

    def scores(counts: Floats) -> Floats:
        """Return the scores when model k counts counts[k] times."""
        inside, outside = (
            world(centred, counts[:, None] * member)
            for member in (shadows.included, ~shadows.included)
        )
        gap = np.abs(inside.mean - outside.mean)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(gap == 0, 0.0, gap / (inside.std + outside.std))
        return np.asarray(ratio.mean(axis=-1))

    lower = upper = None
    if resamples:
        generator = np.random.default_rng(_check.count("seed", seed, least=0))
        share = _check.probability("confidence", confidence, low_open=True, high_open=True)
        even = np.full(shadows.models, 1 / shadows.models)
        drawn = generator.multinomial(shadows.models, even, size=resamples).astype(float)
        resampled = np.stack(list(map(scores, drawn)))
        lower, upper = np.nanquantile(resampled, [(1 - share) / 2, (1 + share) / 2], axis=0)
    score = scores(np.ones(shadows.models))
    return PrivacyScores(shadows.ids, shadows.groups, score, lower, upper)


def loss_scores(confidences: npt.ArrayLike) -> Floats:
    """Return minus the cross-entropy of each record from its confidence φ: log σ(φ).

    Args:
        confidences: φ = log(p/(1−p)) of the true class.

    References:
        Yeom et al. 2018.

    Example:
        >>> from apiece.audit import loss_scores
        >>> loss_scores([0.0]).round(4).tolist()
        [-0.6931]
    """
    return np.asarray(special.log_expit(np.asarray(confidences, dtype=np.float64)))


def rmia(
    target: npt.ArrayLike,
    shadows: ShadowScores,
    population_target: npt.ArrayLike,
    population_shadows: npt.ArrayLike,
    *,
    gamma: float = 2.0,
    variant: str = "online",
    offline_weight: float = 0.3,
) -> Floats:
    """Return RMIA's score for each record: the share of the population that it beats by `gamma`.

    A record's ratio is p(x|target)/p(x), p(x) averaged over the reference models; a population
    record z, which no model was trained on, is beaten where ratio(x)/ratio(z) ≥ gamma.

    Args:
        target: (n,), confidences φ of the target model.
        shadows: Confidences of K reference models in the same records.
        population_target: (m,), confidences φ of the target model in the population.
        population_shadows: (K, m), the same of the reference models.
        gamma: Positive.
        variant: "online": p(x) from models with and without x, half each; "offline": from models
            without x only, corrected.
        offline_weight: The correction's a in p(x) = ((1+a)·p_out + 1−a)/2.

    Raises:
        DataError: For shapes that do not fit or NaN, and a Series whose index is not `shadows.ids`.
        InputError: Where a world has no model of a record, or numbers are out of bounds.
        OptionError: For an unknown variant.

    References:
        Zarifzadeh, Liu, Shokri 2024, eq. 4 and §2.3.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import ShadowScores, rmia
        >>> included = np.array([[True, False], [False, True]])
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, 4.0 * included)
        >>> rmia([4.0, -4.0], shadows, np.zeros(5), np.zeros((2, 5)), gamma=1.0).tolist()
        [1.0, 0.0]
    """
    gamma = _check.positive("gamma", gamma)
    _require_models(shadows, variant, 1, f"{variant} RMIA")
    weight = _check.probability("offline_weight", offline_weight)
    require_ids("shadows.ids", shadows.ids, target=target)
    if (own := index_of(population_target)) is not None:
        name = "population_target.index"
        require_ids(name, own, axis=1, population_shadows=population_shadows)
    x, z, z_shadows = (
        np.asarray(a, dtype=np.float64) for a in (target, population_target, population_shadows)
    )
    if shadows.confidences.ndim != 2 or x.shape != (len(shadows),):
        raise DataError(f"target: shape {x.shape} for {len(shadows)} records, one φ each")
    if z.ndim != 1 or z.size == 0 or z_shadows.shape != (shadows.models, z.size):
        raise DataError(
            f"population: shapes {z.shape} and {z_shadows.shape} for {shadows.models} models; "
            "give (m,) and (models, m)"
        )
    if np.isnan(x).any() or np.isnan(z).any() or np.isnan(z_shadows).any():
        raise DataError("target or population: some confidences are NaN")
    p = special.expit(shadows.confidences)
    without = world(p, ~shadows.included).mean[:, 0]
    if variant == "online":
        reference = (without + world(p, shadows.included).mean[:, 0]) / 2
        z_reference = special.expit(z_shadows).mean(axis=0)
    else:
        reference = ((1 + weight) * without + (1 - weight)) / 2
        z_reference = ((1 + weight) * special.expit(z_shadows).mean(axis=0) + (1 - weight)) / 2
    tiny = np.finfo(float).tiny
    ratio = special.expit(x) / np.maximum(reference, tiny)
    z_ratio = np.sort(special.expit(z) / np.maximum(z_reference, tiny))
    return np.searchsorted(z_ratio, ratio / gamma, side="right") / z.size


FPRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The curve from (0, 0) to (1, 1), a point a distinct score: ties are worth half the area."""

    fpr: Floats  # increasing
    tpr: Floats
    members: int
    others: int

    @property
    def auc(self) -> float:
        """The area under the curve: the chance that a member scores above a non-member."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The largest (TPR + 1 − FPR)/2 over all thresholds; optimistic on few scores."""
        return float(np.max(self.tpr + 1 - self.fpr) / 2)

    def tpr_at(self, fpr: float) -> float:
        """Return the TPR of the last threshold whose FPR is at most `fpr`; no interpolation."""
        return float(self.tpr[np.searchsorted(self.fpr, fpr, side="right") - 1])

    def summary(self) -> dict[str, float | int]:
        """Return the figures by name; a TPR at an FPR below 1/others is that at FPR 0."""
        at = {f"tpr_at_fpr_{fpr:g}": self.tpr_at(fpr) for fpr in FPRS}
        area = {"auc": self.auc, "balanced_accuracy": self.balanced_accuracy}
        return {**area, **at, "members": self.members, "others": self.others}


def roc(scores: npt.ArrayLike, member: npt.ArrayLike) -> Roc:
    """Return the ROC of "score above a threshold says member"."""
    require_rows("scores", scores, member=member)
    values = flat_scores("scores", np.ravel(np.asarray(scores)))
    truth = _check.truth_values("member", member).ravel()
    if truth.shape != values.shape:
        raise DataError(f"member: {truth.size} entries for {values.size} scores")
    members, others = int(truth.sum()), int((~truth).sum())
    if not (members and others):
        raise DataError(f"member: {members} members and {others} others; a ROC needs both")
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.r_[ordered[1:] != ordered[:-1], True]
    tp = np.cumsum(truth[order])[last]
    fp = np.cumsum(~truth[order])[last]
    return Roc(np.r_[0, fp / others], np.r_[0, tp / members], members, others)


WHOLE = "all"  # the name of all records together


def group_label(name: object) -> str:
    """Name of a group beside `WHOLE`, from which one that is called "all" is kept apart."""
    return f'group "{name}"' if str(name) == WHOLE else str(name)


def roc_by_group(
    scores: npt.ArrayLike, member: npt.ArrayLike, groups: npt.ArrayLike
) -> dict[str, Roc]:
    """Return the ROC of all records ("all") and of each group, by name.

    A group without members, or without others, has no ROC and is left out. One that is called "all"
    is named 'group "all"'.

    Args:
        scores: (n,) or (models, n).
        member: Truth values of the same shape, as True and False or 1 and 0.
        groups: (n,), for all models.

    Raises:
        DataError: As `roc`, for another number of groups, for a group that is missing, and for a
            Series with another index.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import roc_by_group
        >>> curves = roc_by_group([3, 2, 1, 0], [1, 0, 1, 0], np.array(["a", "a", "b", "b"]))
        >>> {name: curve.auc for name, curve in curves.items()}
        {'all': 0.75, 'a': 1.0, 'b': 1.0}
    """
    require_rows("scores", scores, member=member)
    require_rows("scores", index_of(scores, axis=np.ndim(scores) - 1), groups=groups)
    values = np.asarray(scores, dtype=np.float64)
    truth = _check.truth_values("member", member, shape=values.shape)
    names = _check.group_names("groups", groups, size=values.shape[-1])
    curves = {WHOLE: roc(values, truth)}
    for name in np.unique(names):
        inside = names == name
        members = truth[..., inside]
        if members.any() and not members.all():
            curves[group_label(name)] = roc(values[..., inside], members)
    return curves


def groups_without_roc(member: Mask, groups: AnyArray) -> dict[str, str]:
    """Why a group has no ROC, by its name: it has members alone, or others alone."""
    reasons = {}
    for name in np.unique(groups):
        members = member[..., groups == name]
        if members.all():
            reasons[group_label(name)] = f"{members.size} members and no others"
        elif not members.any():
            reasons[group_label(name)] = f"no members and {members.size} others"
    return reasons
