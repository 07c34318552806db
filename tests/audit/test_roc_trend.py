"""ROC figures and trend tests against counting, permutation and scipy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from apiece.audit.roc import roc, roc_by_group
from apiece.audit.trend import jonckheere_terpstra, share_that_rises, student_t
from apiece.errors import DataError


def test_auc_is_the_share_of_pairs_in_order() -> None:
    generator = np.random.default_rng(0)
    for digits in (8, 1, 0):
        a, b = generator.normal(0.5, size=40).round(digits), generator.normal(size=60).round(digits)
        curve = roc(np.r_[a, b], np.r_[np.ones(40), np.zeros(60)])
        u = stats.mannwhitneyu(a, b).statistic
        assert curve.auc == pytest.approx(u / 2400, rel=1e-12)


def test_points_and_figures() -> None:
    curve = roc([4, 3, 2, 1, 0], [1, 1, 0, 1, 0])
    assert curve.fpr.tolist() == [0, 0, 0, 0.5, 0.5, 1]
    assert curve.tpr.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    assert curve.tpr_at(0.0) == pytest.approx(2 / 3)
    assert curve.tpr_at(0.49) == pytest.approx(2 / 3)
    assert curve.tpr_at(0.5) == 1
    assert curve.balanced_accuracy == pytest.approx((2 / 3 + 1) / 2)
    assert curve.summary()["tpr_at_fpr_0.01"] == pytest.approx(2 / 3)


def test_order_of_ties_carries_nothing() -> None:
    assert roc(np.zeros(10), np.arange(10) < 5).auc == 0.5


def test_groups_are_told_apart() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], 500)
    member = generator.random((2, 1000)) < 0.5
    scores = generator.normal(size=(2, 1000)) + member * np.where(groups == "a", 0.0, 2.0)
    found = roc_by_group(scores, member, groups)
    assert set(found) == {"all", "a", "b"}
    assert found["a"].auc < 0.6 < found["all"].auc < found["b"].auc


def test_roc_bad_input() -> None:
    with pytest.raises(DataError, match="both"):
        roc([1.0, 2.0], [1, 1])
    with pytest.raises(DataError, match="member"):
        roc([1.0, 2.0], [1])
    with pytest.raises(DataError, match="NaN"):
        roc([1.0, np.nan], [1, 0])
    with pytest.raises(DataError, match="agree"):
        roc_by_group(np.zeros(3), np.zeros(3), np.zeros(2))


def test_jonckheere_terpstra_by_permutation() -> None:
    """Mean and variance of the statistic over all orders of small samples with ties."""
    values, sizes = np.array([1, 2, 2, 3, 4, 4, 4, 6]), [3, 2, 3]
    found = []
    for chosen in set(itertools.permutations(values.tolist())):
        parts = np.split(np.array(chosen), np.cumsum(sizes)[:-1])
        found.append(jonckheere_terpstra(parts).statistic)
    one = jonckheere_terpstra(np.split(values, np.cumsum(sizes)[:-1]))
    assert (one.statistic - np.mean(found)) / np.std(found) == pytest.approx(one.z, rel=1e-9)


def test_jonckheere_terpstra_of_two_is_mann_whitney() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=30).round(1), generator.normal(0.4, size=25).round(1)
    ours = jonckheere_terpstra([a, b])
    theirs = stats.mannwhitneyu(
        b, a, alternative="greater", method="asymptotic", use_continuity=False
    )
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.concordance == pytest.approx(2 * theirs.statistic / 750 - 1, rel=1e-9)


def test_trend_levels_and_ends() -> None:
    generator = np.random.default_rng(1)
    rising = jonckheere_terpstra([generator.normal(m, size=100) for m in (1, 1.3, 1.6, 2)])
    assert rising.stars == "***"
    assert 0.5 < rising.relative_change < 1.5
    falling = jonckheere_terpstra([[3, 4], [1, 2]])
    assert falling.concordance == -1
    assert falling.p_value > 0.9
    assert jonckheere_terpstra([[1, 1], [1, 1]]).p_value == 0.5
    with pytest.raises(DataError, match="at least two"):
        jonckheere_terpstra([[1.0]])
    with pytest.raises(DataError, match=r"populations\[1\]"):
        jonckheere_terpstra([[1.0], [np.nan]])


def test_student_t_is_scipys() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.normal(size=30), generator.normal(0.7, size=20)
    ours, theirs = student_t(a, b), stats.ttest_ind(a, b)
    assert (ours.statistic, ours.p_value) == (theirs.statistic, theirs.pvalue)
    assert ours.effect == pytest.approx(ours.statistic * np.sqrt(1 / 30 + 1 / 20), rel=1e-9)
    with pytest.raises(DataError, match="at least two"):
        student_t([1.0], [1.0, 2.0])


def test_share_that_rises() -> None:
    generator = np.random.default_rng(3)
    before = generator.normal(size=40)
    rise = share_that_rises(before, before + np.where(np.arange(40) < 30, 1.0, -0.1))
    assert rise.share == 0.75
    assert rise.lower < 0.75 < rise.upper
    assert rise.p_value < 1e-4
    assert share_that_rises(before, before).p_value == 1
    with pytest.raises(DataError, match="pairs"):
        share_that_rises([1.0], [1.0, 2.0])
