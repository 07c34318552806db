"""Means over seeds as pages print them, with an interval or a standard deviation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def format_interval(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean, half the width of its 95 % interval by Student's t, and the sample's size.

    Two values get no interval: it would be wider than the values differ.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> from research.intervals import format_interval
        >>> format_interval([97.0, 98.0, 99.0]), format_interval([97.0]), format_interval([])
        ('98.00 ± 2.48 (3)', '97.00 (1)', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 2:
        text += f" ± {half_width(values):.{digits}f}"
    return f"{text} ({len(values)})"


def format_gain(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the text of `interval`, with a sign.

    Args:
        values: Differences, one a seed.
        digits: After the point.

    Example:
        >>> from research.intervals import format_gain
        >>> format_gain([0.25, 0.5, 0.75])
        '+0.50 ± 0.62 (3)'
    """
    text = format_interval(values, digits=digits)
    return text if text[:1] in "-–" else f"+{text}"


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean of two values or more."""
    from scipy import stats

    error: float = statistics.stdev(values) / float(len(values)) ** 0.5
    return float(stats.t.ppf(0.975, len(values) - 1)) * error


def format_deviation(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean and the standard deviation over seeds, as papers print them.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> from research.intervals import format_deviation
        >>> format_deviation([97.0, 98.0, 99.0]), format_deviation([])
        ('98.00 ± 1.00', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.{digits}f}"
