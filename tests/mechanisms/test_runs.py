"""The law of a number of runs: its rate follows from its mean, or it is refused."""

import pytest

from apiece.errors import RangeError
from apiece.mechanisms import Runs, from_json


@pytest.mark.parametrize("shape", [-0.9, 0.0, 1.0, 1000.0, None])
@pytest.mark.parametrize("mean", [1.01, 40.0, 1000.0])
def test_the_law_has_the_mean(mean: float, shape: float | None) -> None:
    runs = Runs(mean, shape)
    if shape is not None and shape < 0:  # its tail is too heavy to be summed
        assert runs.law(1)[0] < 1
        return
    law = runs.law(400_000)
    assert law.sum() == pytest.approx(1, rel=1e-6)
    assert sum(k * mass for k, mass in enumerate(law.tolist(), 1)) == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(("mean", "shape"), [(3.0, -0.999), (10_000.0, -0.99)])
def test_a_mean_that_takes_a_rate_beyond_numbers_is_refused(mean: float, shape: float) -> None:
    with pytest.raises(RangeError, match="past the numerical range; give a larger shape"):
        Runs(mean, shape)
    text = f'{{"selected": {{"mechanisms": [], "runs": {{"mean": {mean}, "shape": {shape}}}}}}}'
    with pytest.raises(RangeError, match="numerical range"):
        from_json(text)


@pytest.mark.parametrize("shape", [1000.0, None])
def test_of_many_runs_about_the_mean_is_drawn(shape: float | None) -> None:
    assert 9_000 < Runs(10_000, shape).draw(lambda: 0.5) < 11_000


@pytest.mark.parametrize("mean", [2.0, 100.0, 10_000.0])
def test_a_run_is_among_the_best_for_every_shape(mean: float) -> None:
    """The chance grows with the shape towards that of a Poisson number, and never overflows."""
    shapes = (-0.9, 0.0, 1.0, 30.0, 1000.0)
    chances = [Runs(mean, shape).chance_of_top(0.05) for shape in shapes]
    chances.append(Runs(mean, None).chance_of_top(0.05))
    assert chances == sorted(chances)
    assert 0 < chances[0] <= chances[-1] <= 1
