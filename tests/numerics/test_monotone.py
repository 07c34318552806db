"""The end that is returned is safe, whatever the function does between the ends given."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apiece.numerics.roots import log_room, safe_end, safe_ends

Floats = npt.NDArray[np.float64]
LAWS = settings(max_examples=150, deadline=None, derandomize=True)
NARROW, JUMP = 1e-6, 2e-5


class Falling:
    """A function that falls in steps, slopes, plateaus and jumps, to −∞ and from ∞ at times."""

    def __init__(self, seed: int) -> None:
        r = np.random.default_rng(seed)
        count = int(r.integers(1, 9))
        self.at = np.sort(r.uniform(-3, 3, count))
        self.slopes = np.where(r.random(count + 1) < 0.3, 0.0, np.exp(r.uniform(-6, 4, count + 1)))
        self.jumps = np.where(r.random(count) < 0.5, 0.0, np.exp(r.uniform(-8, 2, count)))
        self.start = float(r.normal(0, 3)) if r.random() < 0.8 else 0.0
        self.infinite = r.random(2) < 0.25
        self.looks: list[float] = []

    def __call__(self, x: float) -> float:
        self.looks.append(x)
        if self.infinite[0] and x < self.at[0]:
            return math.inf
        if self.infinite[1] and x > self.at[-1]:
            return -math.inf
        edges = np.concatenate(([-4.0], self.at, [4.0]))
        fallen = float(self.slopes @ np.clip(x - edges[:-1], 0.0, np.diff(edges)))
        return self.start - fallen - float(self.jumps[self.at < x].sum())


def ended(f: Falling, x: float, *, safe: float, unsafe: float, tolerance: float) -> bool:
    """Whether x is as far as it may be: no room is left, or none just beyond it."""
    if x == unsafe or f(x) <= tolerance:
        return True
    width = JUMP * max(1.0, abs(x)) * 1.01
    return f(x + width * np.sign(unsafe - safe)) < 0


@LAWS
@given(
    seed=st.integers(0, 10**6),
    slope=st.floats(1e-3, 1e3),
    guess=st.floats(-4, 4) | st.just(math.nan),
    tolerance=st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
    mirrored=st.booleans(),
)
@example(seed=0, slope=1.0, guess=4.0, tolerance=1e-3, mirrored=False)
@example(seed=0, slope=1.0, guess=-4.0, tolerance=1e-3, mirrored=True)
def test_the_end_is_safe_and_near_the_crossing(
    seed: int, slope: float, guess: float, tolerance: float, mirrored: bool
) -> None:
    f, sign = Falling(seed), -1 if mirrored else 1

    def room(x: float) -> float:
        return f(sign * x)

    safe, unsafe = -4.0 * sign, 4.0 * sign
    found = safe_end(room, guess, safe, unsafe, slope=slope, tolerance=tolerance, narrow=NARROW)
    looks = [sign * x for x in f.looks]
    assert len(looks) <= 80
    assert all(-4 <= x <= 4 for x in looks)
    if math.isnan(found):
        assert room(safe) < 0
        return
    assert room(found) >= 0
    assert found in looks
    assert ended(f, sign * found, safe=-4.0, unsafe=4.0, tolerance=tolerance)


@LAWS
@given(seed=st.integers(0, 10**6), tolerance=st.sampled_from([0.0, 1e-3]))
def test_without_monotony_it_is_still_safe(seed: int, tolerance: float) -> None:
    r = np.random.default_rng(seed)
    waves, phase = r.uniform(1, 30, 3), r.uniform(0, 7, 3)
    broken = r.random() < 0.3

    def room(x: float) -> float:
        if broken and 1 < x < 2:
            return math.nan
        return float(np.sin(waves * x + phase).sum())

    found = safe_end(room, 0.3, -1.0, 3.0, slope=1.0, tolerance=tolerance)
    assert room(found) >= 0 if not math.isnan(found) else room(-1.0) < 0


@LAWS
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=6))
def test_searches_in_step_are_those_one_by_one(seeds: list[int]) -> None:
    some = [Falling(seed) for seed in seeds]

    def room(x: Floats, entry: npt.NDArray[np.intp]) -> Floats:
        return np.array([some[k](float(at)) for at, k in zip(x, entry, strict=True)])

    size = len(some)
    guess = np.linspace(-3, 3, size)
    ends = {"slope": 1.0, "tolerance": 1e-3}
    found = safe_ends(room, guess, np.full(size, -4.0), np.full(size, 4.0), **ends)
    for f, first, x in zip(some, guess, found, strict=True):
        alone = safe_end(f, float(first), -4.0, 4.0, **ends)
        assert x == alone or (math.isnan(x) and math.isnan(alone))


def test_a_line_takes_few_looks() -> None:
    for slope, root in itertools.product((0.5, 1.0, 2.0), (-3.0, 0.0, 2.5)):
        looks: list[float] = []

        def room(
            x: float, slope: float = slope, root: float = root, looks: list[float] = looks
        ) -> float:
            looks.append(x)
            return slope * (root - x) + 0.01 * (root - x) ** 2

        found = safe_end(room, 0.1, -4.0, 4.0, slope=1.0, tolerance=1e-3)
        assert 0 <= room(found) <= 1e-3
        assert len(looks) <= 7


@pytest.mark.parametrize("top", [3.0, math.inf])
@pytest.mark.parametrize("off", [-0.03, -0.002, 0.002, 0.03])
def test_a_close_guess_takes_few_looks_at_a_jump(top: float, off: float) -> None:
    """The line from beyond a jump leads far away: most of the range was bisected."""
    looks: list[float] = []

    def room(x: float) -> float:
        looks.append(x)
        return top if x <= -7.0 else -4.0

    ends = {"slope": 1.0, "tolerance": 1e-3, "narrow": 1e-4, "stride": 0.05}
    found = safe_end(room, -7.0 + off, -20.0, 0.0, **ends)
    assert -7.0 - 1.5e-2 <= found <= -7.0
    assert len(looks) <= 7


def test_a_steep_line_is_followed() -> None:
    """Its slope, thirty times the one expected, was taken for noise."""
    looks: list[float] = []

    def room(x: float) -> float:
        looks.append(x)
        return -30.0 * (x + 6.3)

    found = safe_end(room, -6.29, -20.0, 0.0, slope=1.0, tolerance=1e-3)
    assert 0 <= room(found) <= 1e-3
    assert len(looks) <= 6


@pytest.mark.parametrize("value", [1.0, 0.3, 1e-300, 1e300])
def test_the_sign_of_the_room_is_exact(value: float) -> None:
    """A logarithm may round a number above the limit down to it."""
    limits = value * (1 + np.arange(-40, 41) * 2.0**-52)
    for limit in limits:
        assert ((log_room(limit, limits) >= 0) == (limits <= limit)).all()
    assert log_room(1.0, [math.inf, math.nan]).tolist() == [-math.inf] * 2


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_room_is_in_double_precision_whatever_is_given(kind: type) -> None:
    limit, spent = kind(0.1), 0.0999999
    wide = float(limit)
    room = log_room(np.array([limit]), spent)
    assert room[0] == pytest.approx(math.log(wide / spent), rel=1e-8)
    assert log_room(spent, np.array([limit]))[0] == pytest.approx(math.log(spent / wide), rel=1e-8)
