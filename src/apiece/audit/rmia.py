"""RMIA and the loss threshold: membership tests that need few shadow models, or none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

from apiece import _check
from apiece._types import Floats
from apiece.audit.records import ShadowScores
from apiece.errors import DataError, InputError, unknown


def loss_scores(confidences: npt.ArrayLike) -> Floats:
    """Return minus the cross-entropy of each record from its confidence φ: log σ(φ).

    Args:
        confidences: φ = log(p/(1−p)) of the true class.

    References:
        Yeom et al. 2018.

    Example:
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

    A record's ratio is p(x|target)/p(x), p(x) averaged over the reference models. Its score is the
    share of population records z, which no model was trained on, with ratio(x)/ratio(z) ≥ gamma.

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
        DataError: For shapes that do not fit or NaN.
        InputError: Where a record has no model of a world that is needed, or numbers are out of
            bounds.
        OptionError: For an unknown variant.

    References:
        Zarifzadeh, Liu, Shokri 2024, eq. 4 and §2.3.

    Example:
        >>> included = np.array([[True, False], [False, True]])
        >>> shadows = ShadowScores(np.array([7, 9]), np.array(["a", "a"]), included, 4.0 * included)
        >>> rmia([4.0, -4.0], shadows, np.zeros(5), np.zeros((2, 5)), gamma=1.0).tolist()
        [1.0, 0.0]
    """
    gamma = _check.positive("gamma", gamma)
    if variant not in ("online", "offline"):
        raise unknown("variant", variant, ["online", "offline"])
    weight = _check.probability("offline_weight", offline_weight)
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
    without = _mean("without", p, ~shadows.included)
    if variant == "online":
        reference = (without + _mean("with", p, shadows.included)) / 2
        z_reference = special.expit(z_shadows).mean(axis=0)
    else:
        reference = ((1 + weight) * without + (1 - weight)) / 2
        z_reference = ((1 + weight) * special.expit(z_shadows).mean(axis=0) + (1 - weight)) / 2
    tiny = np.finfo(float).tiny
    ratio = special.expit(x) / np.maximum(reference, tiny)
    z_ratio = np.sort(special.expit(z) / np.maximum(z_reference, tiny))
    return np.searchsorted(z_ratio, ratio / gamma, side="right") / z.size


def _mean(name: str, p: Floats, member: npt.NDArray[np.bool_]) -> Floats:
    count = member.sum(axis=0)
    if not count.min() >= 1:
        raise InputError(f"shadow models: some record has none {name} it; train at least one")
    return np.asarray((p * member).sum(axis=0) / count)
