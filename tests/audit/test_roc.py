"""ROC figures and trend tests against counting, permutation and scipy."""

import numpy as np
import pytest
from scipy import stats

from apiece.audit.membership import roc, roc_by_group
from apiece.errors import DataError
from refusals import refused


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
    with refused(DataError, "both"):
        roc([1.0, 2.0], [1, 1])
    with refused(DataError, "member"):
        roc([1.0, 2.0], [1])
    with refused(DataError, "NaN"):
        roc([1.0, np.nan], [1, 0])
    with refused(DataError, "groups"):
        roc_by_group(np.zeros(3), np.zeros(3), np.zeros(2))
