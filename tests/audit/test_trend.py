"""Trend tests against permutation and scipy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from apiece.audit.findings import jonckheere_terpstra, share_that_rises, student_t
from apiece.errors import DataError
from refusals import refused


def test_jonckheere_terpstra_by_permutation() -> None:
    """Mean and variance of the statistic over all orders of small samples with ties."""
    values, sizes = np.array([1, 2, 2, 4, 4, 4, 6]), [3, 2, 2]
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
    with refused(DataError, "populations[1]"):
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
    with refused(DataError, "pairs"):
        share_that_rises([1.0], [1.0, 2.0])
