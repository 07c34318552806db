"""Discrete noise has the distribution that it claims, and its delta is an upper bound."""

import math
import random
from collections import Counter
from fractions import Fraction

from apiece.budgets import release


def chi_square(sample: list[int], weight: dict[int, float]) -> float:
    total, seen = sum(weight.values()), Counter(sample)
    return sum(
        (seen[x] - len(sample) * w / total) ** 2 / (len(sample) * w / total)
        for x, w in weight.items()
        if len(sample) * w / total > 5
    )


def test_discrete_noise_has_its_distribution() -> None:
    below = random.Random(7).randrange
    size = 4000
    gaussian = [release.discrete_gaussian(Fraction(9, 4), below) for _ in range(size)]
    normal = {x: math.exp(-(x**2) / 4.5) for x in range(-12, 13)}
    laplace = [release.discrete_laplace(Fraction(3, 2), below) for _ in range(size)]
    double = {x: math.exp(-abs(x) / 1.5) for x in range(-25, 26)}
    # about 11 and 15 cells: 99.99 % points are 37 and 45
    assert chi_square(gaussian, normal) < 45
    assert chi_square(laplace, double) < 55
    # a negative control: the same samples against a slightly wrong scale
    assert chi_square(gaussian, {x: math.exp(-(x**2) / 6.0) for x in range(-12, 13)}) > 55
    assert chi_square(laplace, {x: math.exp(-abs(x) / 1.9) for x in range(-25, 26)}) > 55
