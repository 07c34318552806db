"""LiRA, RMIA and privacy scores against their definitions, written out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from apiece import audit
from apiece.audit import membership
from apiece.audit.membership import lira, lira_each, privacy_scores, rmia
from apiece.audit.splits import biregular
from apiece.errors import DataError, InputError, OptionError
from refusals import refused

from .worlds import scores


@pytest.mark.parametrize("augmentations", [None, 3])
def test_online_is_the_log_ratio_of_normals(augmentations: int | None) -> None:
    shadows = scores(size=5)
    if augmentations:
        extra = np.random.default_rng(1).normal(size=(*shadows.included.shape, augmentations))
        shadows = replace(shadows, confidences=shadows.confidences[..., None] + extra)
    target = np.random.default_rng(2).normal(size=shadows.confidences.shape[1:])
    found = lira(target, shadows)
    confidences, x = shadows.confidences.reshape(64, 5, -1), target.reshape(5, -1)
    for i in range(5):
        inside = confidences[shadows.included[:, i], i]
        outside = confidences[~shadows.included[:, i], i]
        ratio = stats.norm.logpdf(x[i], inside.mean(0), inside.std(0)) - stats.norm.logpdf(
            x[i], outside.mean(0), outside.std(0)
        )
        assert found[i] == pytest.approx(ratio.mean(), rel=1e-9)


def test_offline_is_the_upper_tail() -> None:
    shadows, target = scores(size=5), np.linspace(-2, 40, 5)
    found = lira(target, shadows, variant="offline")
    for i in range(5):
        outside = shadows.confidences[~shadows.included[:, i], i]
        tail = stats.norm.logsf(target[i], outside.mean(), outside.std())
        assert found[i] == pytest.approx(-tail, rel=1e-9)


def test_pooled_variance_is_that_of_the_residuals() -> None:
    shadows = scores(size=400, shift=0.0)
    found = lira(np.zeros(400), shadows, variance="pooled", variant="offline")
    means = np.array(
        [c[~m].mean() for c, m in zip(shadows.confidences.T, shadows.included.T, strict=True)]
    )
    residuals = (shadows.confidences - means)[~shadows.included]
    np.testing.assert_allclose(found, -stats.norm.logsf(0, means, residuals.std()), rtol=1e-9)


def test_each_leaves_itself_out() -> None:
    shadows = scores(models=12, size=4)
    found = lira_each(shadows)
    k = 5
    others = np.arange(12) != k
    rest = replace(
        shadows, included=shadows.included[others], confidences=shadows.confidences[others]
    )
    np.testing.assert_array_equal(found[k], lira(shadows.confidences[k], rest))


def test_lira_finds_members_and_is_blind_without_signal() -> None:
    strong, none = scores(size=200, shift=2.0), scores(size=200, shift=0.0)
    assert membership.roc(lira_each(strong), strong.included).auc > 0.85
    assert abs(membership.roc(lira_each(none), none.included).auc - 0.5) < 0.03


def test_privacy_score_and_its_interval() -> None:
    shadows = scores(models=256, size=50, shift=np.linspace(0, 3, 50))
    found = privacy_scores(shadows, resamples=200, seed=0)
    for i in (0, 20, 49):
        inside = shadows.confidences[shadows.included[:, i], i]
        outside = shadows.confidences[~shadows.included[:, i], i]
        expected = abs(inside.mean() - outside.mean()) / (inside.std() + outside.std())
        assert found.score[i] == pytest.approx(expected, rel=1e-9)
    assert found.lower is not None
    assert found.upper is not None
    truth = np.linspace(0, 3, 50) / 2
    covered = (found.lower[10:] <= truth[10:]) & (truth[10:] <= found.upper[10:])
    assert covered.mean() > 0.8
    assert (found.lower <= found.upper).all()


def test_privacy_score_of_constant_worlds() -> None:
    shadows = scores(models=8, size=2)
    constant = replace(shadows, confidences=np.where(shadows.included, [[1.0, 0.0]], 0.0))
    assert privacy_scores(constant).score.tolist() == [np.inf, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: lira(np.zeros(3), s), DataError, "target: shape"),
        (lambda s: lira(np.full(30, np.nan), s), DataError, "finite"),
        (lambda s: lira(np.zeros(30), s, variant="onlin"), OptionError, "online"),
        (lambda s: lira(np.zeros(30), s, variance="pool"), OptionError, "pooled"),
        (lambda s: privacy_scores(s, resamples=5, seed=-1), InputError, "seed"),
        (lambda s: rmia(np.zeros(3), s, [0.0], np.zeros((64, 1))), DataError, "target"),
        (lambda s: rmia(np.zeros(30), s, [0.0], np.zeros((3, 1))), DataError, "population"),
        (lambda s: rmia(np.zeros(30), s, [np.nan], np.zeros((64, 1))), DataError, "NaN"),
        (lambda s: rmia(np.zeros(30), s, [0.0], np.zeros((64, 1)), variant="x"), OptionError, "x"),
    ],
)
def test_bad_input(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(scores())  # type: ignore[operator]


def test_too_few_models_are_refused() -> None:
    few = scores(models=4, size=3)
    with pytest.raises(InputError, match="at least 3"):
        lira_each(few)
    one_sided = replace(few, included=np.ones_like(few.included))
    with refused(InputError, 0, "record 100"):
        lira(np.zeros(3), one_sided, variant="offline")
    with pytest.raises(InputError, match="without"):
        rmia(np.zeros(3), one_sided, [0.0], np.zeros((4, 1)))


def test_infinite_confidences_are_refused() -> None:
    shadows = scores(size=3)
    bad = shadows.confidences.copy()
    bad[0, 0] = np.inf
    with refused(DataError, "infinite"):
        lira(np.zeros(3), replace(shadows, confidences=bad))


def test_agrees_with_sacroml() -> None:
    attack = pytest.importorskip(
        "sacroml.attacks.likelihood_attack", reason="sacroml is not installed"
    )
    shadows = scores(size=40)
    target = np.random.default_rng(5).normal(size=40)
    p = 1 / (1 + np.exp(-target))
    columns = {
        where: {i: list(shadows.confidences[m[:, i], i]) for i in range(40)}
        for where, m in (("in", shadows.included), ("out", ~shadows.included))
    }
    for mode, variant in (("online-carlini", "online"), ("offline", "offline")):
        other = attack.LIRAAttack(mode=mode, write_report=False)
        theirs, _ = other._compute_scores(
            np.ones(40, dtype=int), np.column_stack([1 - p, p]), columns["out"], columns["in"]
        )
        ours = lira(target, shadows, variant=variant)
        if variant == "online":
            np.testing.assert_allclose(ours, np.array(theirs)[:, 1], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_allclose(1 - np.exp(-ours), np.array(theirs)[:, 1], rtol=1e-6)


def test_few_models_put_what_does_not_leak_below_one_half() -> None:
    """The command line says so below 32 models."""
    generator = np.random.default_rng(0)
    areas = {}
    for models in (8, 32):
        split = biregular(models, np.zeros(2000, dtype=np.int64), generator=generator)
        phi = generator.normal(size=split.shape)
        shadows = audit.ShadowScores(np.arange(2000), np.full(2000, "a"), split, phi)
        areas[models] = membership.roc(lira_each(shadows), split).auc
    error = 1 / np.sqrt(12 * 8 * 500)  # of an AUC of 8000 members and as many others
    assert areas[8] < 0.5 - 5 * error
    assert abs(areas[32] - 0.5) < 0.005 + 3 * error / 2
