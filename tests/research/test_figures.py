"""Numbers for pages."""

import numpy as np
from scipy import stats

from research.intervals import format_deviation, format_gain, format_interval, half_width


def test_intervals_are_student_s() -> None:
    values = [1.0, 2.0, 4.0, 7.0]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert np.isclose(half_width(values), (high - low) / 2)
    assert format_interval(values) == f"3.50 ± {(high - low) / 2:.2f} (4)"
    assert format_deviation(values, digits=1) == f"3.5 ± {np.std(values, ddof=1):.1f}"


def test_two_values_have_no_interval_and_none_no_number() -> None:
    assert format_interval([2.0]) == "2.00 (1)"
    assert format_interval([1.0, 3.0]) == "2.00 (2)"
    assert format_deviation([2.0]) == "2.00"
    assert format_interval([]) == format_deviation([]) == format_gain([]) == "–"


def test_signs() -> None:
    assert format_gain([0.5]) == "+0.50 (1)"
    assert format_gain([-0.5]) == "-0.50 (1)"
