"""Uniform at a number: kept where nobody asked for less."""

from apiece.assignment import Uniform

from .plans import plan_of


def test_uniform_at_a_number_breaks_or_keeps() -> None:
    assert plan_of(Uniform(0.5)).releasable
    assert not plan_of(Uniform(2.5)).releasable
    assert plan_of(Uniform(2.5)).verify().kept.tolist() == [False, False, True]
