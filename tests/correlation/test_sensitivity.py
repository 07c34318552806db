"""The sensitivity bound against every schedule and every sign there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from apiece.correlation.optimize import optimize_banded
from apiece.correlation.sensitivity import sensitivity_bound
from apiece.correlation.strategies import Banded, Buffered, NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.errors import InputError


def schedules(steps: int, participations: int, separation: int) -> list[tuple[int, ...]]:
    """Every set of steps that a person may take part in."""
    return [
        chosen
        for size in range(1, participations + 1)
        for chosen in itertools.combinations(range(steps), size)
        if all(later - earlier >= separation for earlier, later in itertools.pairwise(chosen))
    ]


def largest_move(
    strategy: NoiseStrategy, steps: int, participations: int, separation: int
) -> float:
    """The largest ‖C u‖ over all schedules and all signs: with scalars the ends are the worst."""
    matrix = np.tril(toeplitz(strategy.first_column(steps)))
    return max(
        float(np.linalg.norm(matrix[:, list(chosen)] @ np.array(signs)))
        for chosen in schedules(steps, participations, separation)
        for signs in itertools.product((1.0, -1.0), repeat=len(chosen))
    )


coefficients = st.lists(st.floats(-1, 1), min_size=0, max_size=5).map(lambda x: Banded([1.0, *x]))
falling = st.lists(st.floats(0, 1), min_size=0, max_size=5).map(
    lambda x: Banded(np.cumprod([1.0, *x]))
)
buffered = st.lists(st.tuples(st.floats(0, 0.99), st.floats(0, 0.3)), min_size=1, max_size=3).map(
    lambda pairs: Buffered(*np.array(pairs).T)
)


@settings(max_examples=150, deadline=None)
@given(
    strategy=st.one_of(coefficients, falling, buffered),
    steps=st.integers(1, 8),
    participations=st.integers(1, 4),
    separation=st.integers(1, 4),
)
def test_no_schedule_moves_more_than_the_bound(
    strategy: NoiseStrategy, steps: int, participations: int, separation: int
) -> None:
    bound = sensitivity_bound(
        strategy, steps=steps, participations=participations, separation=separation
    )
    assert bound >= largest_move(strategy, steps, participations, separation)


@settings(max_examples=100, deadline=None)
@given(
    strategy=st.one_of(falling, buffered),
    steps=st.integers(1, 8),
    participations=st.integers(1, 4),
    separation=st.integers(1, 4),
)
def test_the_bound_is_attained_where_coefficients_never_increase(
    strategy: NoiseStrategy, steps: int, participations: int, separation: int
) -> None:
    bound = sensitivity_bound(
        strategy, steps=steps, participations=participations, separation=separation
    )
    assert bound == pytest.approx(largest_move(strategy, steps, participations, separation))


@given(strategy=coefficients, participations=st.integers(1, 4))
def test_bands_within_the_separation_do_not_overlap(strategy: Banded, participations: int) -> None:
    bound = sensitivity_bound(
        strategy, steps=40, participations=participations, separation=strategy.bands
    )
    expected = np.sqrt(participations) * np.linalg.norm(strategy.coefficients)
    assert bound == pytest.approx(expected, rel=1e-12)
    assert bound >= expected


def test_vectors_in_many_dimensions_move_no_more() -> None:
    """Directions of a person's vectors are free: coefficients of both signs have the worst ones."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        strategy = Banded([1.0, *generator.uniform(-1, 1, 4)])
        matrix = np.tril(toeplitz(strategy.first_column(9)))
        chosen = [0, 2, 4, 7]
        vectors = generator.normal(size=(4, 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        moved = np.linalg.norm(matrix[:, chosen] @ vectors)
        assert moved <= sensitivity_bound(strategy, steps=9, participations=4, separation=2)


@pytest.mark.parametrize("name", ["steps", "participations", "separation"])
def test_numbers_below_one_are_refused(name: str) -> None:
    numbers = {"steps": 5, "participations": 1, "separation": 1, name: 0}
    with pytest.raises(InputError, match=name):
        sensitivity_bound(Banded([1.0]), **numbers)


# toeplitz.minsep_sensitivity_squared of jax-privacy 2.0.0, in double precision, its root: steps,
# participations, separation and bands of the square root.
JAX_PRIVACY = {
    (10, 2, 3, 3): 1.6677080080157918,
    (10, 3, 3, 8): 2.8468155738498906,
    (64, 4, 16, 16): 2.788461114777662,
    (64, 5, 12, 64): 4.837649162210555,
    (256, 16, 16, 32): 7.153669910370361,
    (1000, 10, 90, 100): 5.387096212033208,
}


@pytest.mark.parametrize("numbers", JAX_PRIVACY)
def test_sensitivities_are_those_of_jax_privacy(numbers: tuple[int, int, int, int]) -> None:
    steps, times, apart, bands = numbers
    bound = sensitivity_bound(
        Banded.square_root(bands), steps=steps, participations=times, separation=apart
    )
    assert bound == pytest.approx(JAX_PRIVACY[numbers], rel=1e-9)


BRUTE = {
    "independent": Banded([1.0]),
    "square root": Banded.square_root(10),
    "few bands": Banded.square_root(3),
    "searched": optimize_banded(Workload(10), bands=5, participations=2, separation=5),
    "flat": Banded([1.0] * 4),
    "buffered": Buffered([0.9, 0.3], [0.3, 0.2]),
    "both signs": Banded([1.0, -0.6, 0.4, -0.2]),
    "rising": Banded([1.0, 0.2, 0.9]),
}


@pytest.mark.parametrize("name", BRUTE)
def test_every_pattern_of_up_to_ten_steps(name: str) -> None:
    """All steps T ≤ 10, all k and b: every pattern of participation with every sign."""
    strategy = BRUTE[name]
    falls = bool((np.diff(strategy.first_column(10), append=0.0) <= 0).all())
    for steps in range(1, 11):
        matrix = np.tril(toeplitz(strategy.first_column(steps)))
        # Each pattern in one row: 0 where the person takes no part, else the sign.
        patterns = np.array(list(itertools.product((0.0, 1.0, -1.0), repeat=steps)))
        moves = np.linalg.norm(patterns @ matrix.T, axis=1)
        counts = np.count_nonzero(patterns, axis=1)
        nearest = find_nearest_steps(patterns != 0)
        for times, apart in itertools.product(range(1, steps + 1), range(1, steps + 1)):
            largest = moves[(counts <= times) & (nearest >= apart)].max()
            bound = sensitivity_bound(strategy, steps=steps, participations=times, separation=apart)
            assert bound >= largest
            if falls:
                assert bound == pytest.approx(largest, rel=1e-9)


def find_nearest_steps(joined: np.ndarray) -> np.ndarray:
    """The least distance of two steps of each pattern; more than there are steps for one alone."""
    patterns, steps = joined.shape
    nearest = np.full(patterns, steps + 1)
    for distance in range(steps - 1, 0, -1):
        meets = (joined[:, distance:] & joined[:, :-distance]).any(axis=1)
        nearest[meets] = distance
    return nearest
