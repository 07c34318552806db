"""A search for a person whose share exceeds their bound: rows that add up, and rows that cancel."""

import math

import numpy as np
import pytest
import torch

from apiece.training import clip_and_sum
from apiece.training.clipping import contributions, convolution, joined

from .test_share import LAYERS, MODES, draw, norm

OTHERS = 2  # rows of other persons, whose loss does not depend on the parameters
CASES = [(name, mode) for name in LAYERS for mode in ("float32", "float64", "bfloat16 autocast")]


def rows_of_one(dice, shape, dtype, bound):
    """Return 1 to 40 rows, their slopes: alike, or each nearly the negative of the one before."""
    count = int(dice.choice([1, 2, 3, 7, 18, 40]))
    values, outer = draw(dice, shape, dtype, bound)
    rows = values[:1].repeat(count, *[1] * (values.dim() - 1))
    slopes = torch.full((count, 1), outer, dtype=torch.float64)
    kind = dice.choice(["alike", "cancel", "nearly", "any"])
    if kind == "any":
        slopes *= torch.from_numpy(dice.standard_normal((count, 1)))
    elif kind != "alike":
        slopes[1::2] *= -1
        if kind == "nearly" and rows.is_floating_point():
            noise = torch.from_numpy(dice.standard_normal(rows.shape)).to(dtype)
            rows *= 1 + 10.0 ** dice.uniform(-7, -1) * noise
    return rows, slopes, values


def search(name, mode, trials, method="proved", seed=0):
    """Return the largest share over its bound, and how many shares were near their bound."""
    make, shape = LAYERS[name]
    dtype, context = MODES[mode]
    dice = np.random.default_rng([seed, *map(ord, name + mode)])
    torch.manual_seed(seed)
    model = make().to(dtype)
    worst, near = 0.0, 0
    for _ in range(trials):
        bound = 10.0 ** dice.uniform(-11, 3)
        rows, slopes, values = rows_of_one(dice, shape, dtype, bound)
        inputs = torch.cat([values[1 : 1 + OTHERS], rows])
        slopes = torch.cat([torch.zeros(OTHERS, 1, dtype=torch.float64), slopes])
        people = [0] * OTHERS + [1] * len(rows)
        with context():
            total = clip_and_sum(
                model,
                lambda out, slopes: (out.flatten(1) * slopes).sum(1),
                inputs, slopes.to(dtype), bound, people=people, method=method,
            )  # fmt: skip
        share = norm(total.gradients)
        if not math.isfinite(float(total.norms[1])):
            assert share == 0
            continue
        worst = max(worst, share / bound)
        near += share > 0.9 * bound
    return worst, near


@pytest.mark.parametrize("name", LAYERS)
def test_no_persons_share_exceeds_their_bound(name):
    assert search(name, "float32", 4)[0] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_no_persons_share_exceeds_their_bound_in_a_long_search(name, mode, method):
    worst, near = search(name, mode, 60, method, seed=1)
    assert worst <= 1
    assert near


def keep_nothing(monkeypatch):
    """Let gradients by row never be kept, so that they are made again for the sum."""
    for module in (contributions, convolution, joined):
        monkeypatch.setattr(module, "KEEP", 1)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "linear over many places"])
def test_nor_where_rows_are_made_again(name, monkeypatch):
    keep_nothing(monkeypatch)
    assert search(name, "float32", 20)[0] <= 1


# What is broken, by what, and where the search finds it.
PLANTED = {
    "sums in another order": (joined, "_add_room", lambda squares, *_: squares, "conv2d"),
    "cancellation": (joined, "cancellation_of", lambda *_: 0.0, "linear beside another"),
    "cancellation, places": (
        contributions,
        "cancellation_of",
        lambda *_: 0.0,
        "linear over few places",
    ),
    "rows made again": (
        joined,
        "_sizes",
        lambda part: contributions.row_squares(part.per_record()).sqrt(),
        "linear over many places",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_search_finds_what_is_planted(fault, monkeypatch):
    module, function, broken, name = PLANTED[fault]
    monkeypatch.setattr(module, function, broken)
    if fault == "rows made again":
        keep_nothing(monkeypatch)
    assert search(name, "float32", 150)[0] > 1
