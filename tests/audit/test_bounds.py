"""Lower bounds: exact counts, the threshold's price, bad input."""

import math

import numpy as np
import pytest
from scipy import stats

from apiece import audit
from apiece.audit import bounds
from apiece.errors import DataError, InputError, OptionError

METHODS = ["clopper-pearson", "gdp"]


def test_fixed_threshold_is_clopper_pearson() -> None:
    ins = np.r_[np.ones(80), np.zeros(20)]
    outs = np.r_[np.ones(5), np.zeros(95)]
    bound = audit.lower_bound(ins, outs, delta=1e-3, threshold=0.5)
    low = stats.binomtest(80, 100).proportion_ci(0.95).low  # two-sided 95 % is 2.5 % a side
    high = stats.binomtest(5, 100).proportion_ci(0.95).high
    accept = math.log((low - 1e-3) / high)
    reject = math.log((1 - high - 1e-3) / (1 - low))
    assert bound.epsilon == pytest.approx(max(accept, reject), rel=1e-9)
    assert bound.candidates == 1


def test_perfect_separation_shows_log_n() -> None:
    n = 1000
    for threshold in ("bonferroni", "split", 0.5):
        bound = audit.lower_bound(np.ones(n), np.zeros(n), delta=0.0, threshold=threshold)
        assert 3.5 < bound.epsilon < math.log(n)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("threshold", ["bonferroni", "split"])
def test_constant_scores_show_nothing(method: str, threshold: str) -> None:
    bound = audit.lower_bound(
        np.zeros(100), np.zeros(100), delta=1e-5, method=method, threshold=threshold
    )
    assert bound.epsilon == 0


def test_scores_that_point_the_wrong_way_show_nothing() -> None:
    assert audit.lower_bound(np.zeros(500), np.ones(500), delta=0.0).epsilon == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(7, 7), (40, 90), (300, 120)])
@pytest.mark.parametrize("shift", [0.5, 2.0, 8.0])
def test_many_looks_show_the_best_of_them_at_its_share_of_the_error(
    method: str, size: tuple[int, int], shift: float
) -> None:
    generator = np.random.default_rng(size[0])
    ins, outs = generator.normal(shift, 1, size[0]), generator.normal(size=size[1])
    together = audit.lower_bound(ins, outs, delta=1e-5, method=method)
    # Each look again, as the only one: from the top of the outs, and from the bottom of the ins.
    ranks = [2 ** np.arange(int(np.log2(n // 2)) + 1) for n in size]
    looks = [*np.sort(outs)[-ranks[1]], *np.nextafter(np.sort(ins)[ranks[0] - 1], -np.inf)]
    share = 1 - 0.05 / len(looks)
    alone = [
        audit.lower_bound(
            ins, outs, delta=1e-5, method=method, threshold=float(look), confidence=share
        ).epsilon
        for look in looks
    ]
    assert together.candidates == len(looks)
    assert together.epsilon == pytest.approx(max(alone), rel=1e-6, abs=1e-9)


def test_a_look_that_is_paid_for_shows_less_than_one_that_is_not() -> None:
    """Everything apart: with one of 18 shares of 5 %, and both rates in it, log n falls short."""
    n, looks = 1000, 18
    found = audit.lower_bound(np.arange(n) + 2.0 * n, np.arange(n), delta=0.0).epsilon
    none_missed = (0.05 / looks / 2) ** (1 / n)
    assert found == pytest.approx(math.log(none_missed / (1 - none_missed)), rel=1e-9)


def test_infinite_scores_are_ordered() -> None:
    bound = audit.lower_bound(np.full(300, np.inf), np.full(300, -np.inf), delta=1e-5)
    assert bound.epsilon > 3
    assert bound.to_dict()["threshold"] is None


def test_gdp_is_tighter_on_gaussian_scores() -> None:
    generator = np.random.default_rng(3)
    outs, ins = generator.normal(size=4000), generator.normal(1.5, size=4000)
    truth = bounds.epsilon_from_mu(1.5, 1e-5)
    plain = audit.lower_bound(ins, outs, delta=1e-5).epsilon
    assumed = audit.lower_bound(ins, outs, delta=1e-5, method="gdp").epsilon
    assert 0.5 < plain < assumed < truth


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scores_in": [0.0, np.nan]}, DataError, "NaN"),
        ({"scores_out": []}, DataError, "at least one"),
        ({"scores_in": [[1.0]]}, DataError, "flat"),
        ({"scores_in": ["a"]}, DataError, "not numbers"),
        ({"delta": 1.0}, InputError, "delta"),
        ({"delta": float("nan")}, InputError, "delta"),
        ({"confidence": 1.0}, InputError, "confidence"),
        ({"method": "gpd"}, OptionError, "did you mean 'gdp'"),
        ({"threshold": "splitt"}, OptionError, "did you mean 'split'"),
        ({"threshold": "split", "scores_in": [1.0]}, DataError, "split"),
    ],
)
def test_bad_input(change: dict[str, object], error: type[Exception], words: str) -> None:
    good: dict[str, object] = {"scores_in": [1.0, 2.0], "scores_out": [0.0, 1.0], "delta": 1e-5}
    with pytest.raises(error, match=words):
        audit.lower_bound(**(good | change))  # type: ignore[arg-type]


def test_a_threshold_that_nobody_or_everybody_passes_says_nothing() -> None:
    """A rate is at least 0 and at most 1 without any error, however few scores there are."""
    tests = bounds.Thresholds(
        np.array([-9.0, 9.0]), np.array([5, 0]), np.array([7, 0]), in_count=5, out_count=7
    )
    tpr, fpr = bounds.bound_rates(tests, 0.05)
    assert fpr[0] == 1.0
    assert tpr[1] == 0.0
    assert 0 < tpr[0] < 1
    assert 0 < fpr[1] < 1


@pytest.mark.parametrize("scores", [["a", "b"], [[1.0], [2.0, 3.0]]])
def test_what_is_no_score_is_refused_with_what_to_give(scores: object) -> None:
    with pytest.raises(DataError, match="one score a model or canary"):
        audit.lower_bound(scores, [0.0, 1.0], delta=1e-5)
