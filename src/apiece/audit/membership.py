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
# Added to a standard deviation, so that equal confidences divide by no 0.
_LEAST_STD = 1e-16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class World:
    """Mean, standard deviation and count of confidences over the models of one world."""

    mean: Floats
    std: Floats
    count: Floats


def world(confidences: Floats, member: Mask | Floats) -> World:
    """Return the moments over the models of a world, (n, augmentations); member: weights (K, n)."""
    # (K, n, augmentations), and weights (K, n, 1) against them.
    values = confidences[..., None] if confidences.ndim == 2 else confidences
    weight = member[..., None].astype(np.float64)
    count = weight.sum(axis=0)
    # NaN where a record has no model of this world.
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (weight * values).sum(axis=0) / count
        squares = weight * (values - mean) ** 2
        std = np.sqrt(squares.sum(axis=0) / count)
    return World(mean, std, np.broadcast_to(count, mean.shape))


def _pool_variance(moments: World) -> World:
    """Return a world with one standard deviation for all records: that of the residuals."""
    # Residual variance over all records, (augmentations,), weighted by the models of each.
    squares = moments.count * moments.std**2
    variance = squares.sum(axis=0) / moments.count.sum(axis=0)
    std = np.broadcast_to(np.sqrt(variance), moments.std.shape)
    return World(moments.mean, std, moments.count)


def _log_density(x: Floats, moments: World) -> Floats:
    """Return the logarithm of a normal's density at x, but for the constant."""
    std = moments.std + _LEAST_STD
    standardized = (x - moments.mean) / std
    return -(standardized**2) / 2 - np.log(std)


def _score_records(x: Floats, inside: World, outside: World, variant: str) -> Floats:
    """Return one score a record from confidences (…, n, A), averaged over augmentations."""
    if variant == "online":
        # With and without the record, both normals have one constant, which cancels.
        log_ratio = _log_density(x, inside) - _log_density(x, outside)
    else:
        # −log P(Z > (x − μ)/σ), by the lower tail of the negated argument.
        standardized = -(x - outside.mean) / (outside.std + _LEAST_STD)
        log_ratio = -special.log_ndtr(standardized)
    return np.asarray(log_ratio.mean(axis=-1))


def _check_options(shadows: ShadowScores, variant: str, variance: str, spare: int) -> None:
    """Check the options of LiRA; spare: how many models of a world may be left out."""
    if variance not in VARIANCES:
        raise unknown("variance", variance, VARIANCES)
    if not np.isfinite(shadows.confidences).all():
        raise DataError("confidences: some are infinite; LiRA fits normals, clip them first")
    # A standard deviation of one record takes two models.
    minimum = (2 if variance == "per-example" else 1) + spare
    _require_models(shadows, variant, minimum, f"{variant} LiRA with {variance} variance")


def _require_models(shadows: ShadowScores, variant: str, minimum: int, user: str) -> None:
    """Raise `InputError` where a record has fewer models of a world than the variant needs."""
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    inside = shadows.included.sum(axis=0)
    counts = {"without": shadows.models - inside}
    if variant == "online":
        counts["with"] = inside
    for name, count in counts.items():
        if not count.min() >= minimum:
            record = int(np.argmin(count))
            raise InputError(
                f"shadow models: {int(count[record])} {name} record {shadows.ids[record]!s}; "
                f"{user} needs at least {minimum}: train more, or balance"
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
    _check_options(shadows, variant, variance, spare=0)
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
        inside = _pool_variance(inside)
        outside = _pool_variance(outside)
    return _score_records(x.reshape(len(shadows), -1), inside, outside, variant)


def lira_each(shadows: ShadowScores, *, variant: str = "online") -> Floats:
    """Return (K, n): `lira` of every model in turn, with the K − 1 others as its shadows."""
    _check_options(shadows, variant, "per-example", spare=1)
    models = np.arange(shadows.models)
    scores = []
    for model, confidences in enumerate(shadows.confidences):
        # A model never counts as its own shadow.
        other_models = shadows.of(models != model, slice(None))
        scores.append(lira(confidences, other_models, variant=variant))
    return np.stack(scores)


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
    _check_options(shadows, "online", "per-example", spare=0)
    # The score depends on differences alone; around 0 they lose no digits.
    centred = shadows.confidences - shadows.confidences.mean(axis=0)

    def score_records(counts: Floats) -> Floats:
        """Return the scores when model k counts counts[k] times."""
        inside = world(centred, counts[:, None] * shadows.included)
        outside = world(centred, counts[:, None] * ~shadows.included)
        gap = np.abs(inside.mean - outside.mean)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Equal means are no leak, even where no model varies.
            ratio = np.where(gap == 0, 0.0, gap / (inside.std + outside.std))
        return np.asarray(ratio.mean(axis=-1))

    lower = None
    upper = None
    if resamples:
        generator = np.random.default_rng(_check.count("seed", seed, least=0))
        share = _check.probability("confidence", confidence, low_open=True, high_open=True)
        # How often each model is drawn in each resample, (resamples, K), takes the place of copies.
        chances = np.full(shadows.models, 1 / shadows.models)
        counts = generator.multinomial(shadows.models, chances, size=resamples).astype(float)
        # (resamples, records).
        resampled = np.stack([score_records(row) for row in counts])
        # NaN where a resample holds no model of one world.
        lower, upper = np.nanquantile(resampled, [(1 - share) / 2, (1 + share) / 2], axis=0)
    score = score_records(np.ones(shadows.models))
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
        population_shadows: (K, m), confidences φ of the reference models in the population.
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
    index = index_of(population_target)
    if index is not None:
        name = "population_target.index"
        require_ids(name, index, axis=1, population_shadows=population_shadows)
    x = np.asarray(target, dtype=np.float64)
    z = np.asarray(population_target, dtype=np.float64)
    z_shadows = np.asarray(population_shadows, dtype=np.float64)
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
    # (records,) mean chance of the true class over the models without the record.
    without = world(p, ~shadows.included).mean[:, 0]
    if variant == "online":
        reference = (without + world(p, shadows.included).mean[:, 0]) / 2
        z_reference = special.expit(z_shadows).mean(axis=0)
    else:
        # Zarifzadeh et al.'s correction: with the record, p is taken to be a·p + (1 − a).
        reference = ((1 + weight) * without + (1 - weight)) / 2
        z_mean = special.expit(z_shadows).mean(axis=0)
        z_reference = ((1 + weight) * z_mean + (1 - weight)) / 2
    # No division by 0 where all reference models give the true class no chance.
    tiny = np.finfo(float).tiny
    ratio = special.expit(x) / np.maximum(reference, tiny)
    # ratio(x)/ratio(z) ≥ γ for as many z as have a ratio of at most ratio(x)/γ.
    z_ratio = np.sort(special.expit(z) / np.maximum(z_reference, tiny))
    return np.searchsorted(z_ratio, ratio / gamma, side="right") / z.size


# False-positive rates at which a ROC is summarized.
FPRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The curve from (0, 0) to (1, 1), a point a distinct score: ties are worth half the area."""

    # False-positive rates, increasing, and the true-positive rate at each.
    fpr: Floats
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
        summary: dict[str, float | int] = {
            "auc": self.auc,
            "balanced_accuracy": self.balanced_accuracy,
        }
        for fpr in FPRS:
            summary[f"tpr_at_fpr_{fpr:g}"] = self.tpr_at(fpr)
        summary["members"] = self.members
        summary["others"] = self.others
        return summary


def roc(scores: npt.ArrayLike, member: npt.ArrayLike) -> Roc:
    """Return the ROC of "score above a threshold says member"."""
    require_rows("scores", scores, member=member)
    values = flat_scores("scores", np.ravel(np.asarray(scores)))
    truth = _check.truth_values("member", member).ravel()
    if truth.shape != values.shape:
        raise DataError(f"member: {truth.size} entries for {values.size} scores")
    members = int(truth.sum())
    non_members = int((~truth).sum())
    if not (members and non_members):
        raise DataError(f"member: {members} members and {non_members} others; a ROC needs both")
    # From the highest score down; each prefix is the set that some threshold passes.
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    # Equal scores are one point: a threshold passes them all or none.
    is_last = np.r_[ordered[1:] != ordered[:-1], True]
    tp = np.cumsum(truth[order])[is_last]
    fp = np.cumsum(~truth[order])[is_last]
    return Roc(np.r_[0, fp / non_members], np.r_[0, tp / members], members, non_members)


# The name of all records together.
WHOLE = "all"


def group_label(name: object) -> str:
    """Return a group's name beside `WHOLE`: a group that is called "all" is written otherwise."""
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
        DataError: For NaN, no scores, no members or none but members, another shape, another number
            of groups, a group that is missing, and a Series with another index.

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
    """Return why groups have no ROC, by name: they have members alone, or others alone."""
    reasons = {}
    for name in np.unique(groups):
        members = member[..., groups == name]
        if members.all():
            reasons[group_label(name)] = f"{members.size} members and no others"
        elif not members.any():
            reasons[group_label(name)] = f"no members and {members.size} others"
    return reasons
