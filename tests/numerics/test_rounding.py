"""UNIT: no operation is off by more, relatively."""

from fractions import Fraction

import numpy as np

from apiece.numerics.rounding import UNIT


def test_one_operation_is_off_by_at_most_a_unit() -> None:
    random = np.random.default_rng(0)
    worst = Fraction(0)
    for a, b in random.uniform(1, 2, (2000, 2)).tolist():
        for exact, found in (
            (Fraction(a) * Fraction(b), a * b),
            (Fraction(a) + Fraction(b), a + b),
            (Fraction(a) / Fraction(b), a / b),
        ):
            worst = max(worst, abs(Fraction(found) / exact - 1))
    assert Fraction(UNIT) / 4 < worst <= Fraction(UNIT)
