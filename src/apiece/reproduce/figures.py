"""Numbers as pages show them: means with intervals, from what was stored."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def interval(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean, half the width of its 95 % interval by Student's t, and how many values.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> interval([97.0, 98.0, 99.0]), interval([97.0]), interval([])
        ('98.00 ± 2.48 (3)', '97.00 (1)', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {reach(values):.{digits}f}"
    return f"{text} ({len(values)})"


def signed(values: Sequence[float], *, digits: int = 2) -> str:
    """Return as `interval`, with a sign.

    Args:
        values: Differences, one a seed.
        digits: After the point.

    Example:
        >>> signed([0.25, 0.75])
        '+0.50 ± 3.18 (2)'
    """
    text = interval(values, digits=digits)
    return text if text[:1] in "-–" else f"+{text}"


def reach(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval.

    Args:
        values: At least two.

    Example:
        >>> round(reach([97.0, 98.0, 99.0]), 2)
        2.48
    """
    from scipy import stats

    error: float = statistics.stdev(values) / float(len(values)) ** 0.5
    return float(stats.t.ppf(0.975, len(values) - 1)) * error


def spread(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean and the standard deviation over seeds, as papers print them.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> spread([97.0, 98.0, 99.0]), spread([])
        ('98.00 ± 1.00', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.{digits}f}"
