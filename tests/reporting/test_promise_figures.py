"""The picture shows the count: a dot a person."""

from collections import Counter

from apiece.contract import explain
from apiece.reporting import promise


def test_a_dot_a_person() -> None:
    explanation = explain(1.0, 1e-5)
    for axes, right in zip(promise(explanation).axes, (500, 732), strict=True):
        (dots,) = axes.collections
        assert len(dots.get_offsets()) == 1000
        colours = Counter(map(tuple, dots.get_facecolors()))
        light = max(colours, key=sum)
        assert 1000 - colours[light] == right
        assert f"{right} of 1,000" in axes.get_title()
