"""The sensitivity bound against every schedule and every sign there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from apiece.correlation import Banded, Buffered, NoiseStrategy, sensitivity_bound
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
