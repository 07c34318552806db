"""The risk map shows every cell of its table, rounded up."""

import numpy as np

from apiece.contract.exposure import RiskTable
from apiece.reporting.plots import risk_map


def test_every_cell_carries_its_number_rounded_up() -> None:
    advantage, forward = np.array([[0.1001, 0.2], [0.5, 0.9999]]), np.zeros((2, 2))
    shares, epsilons = np.array([0.1, 0.9]), np.array([1.0, 8.0])
    table = RiskTable(2.0, 1e-5, "sample", shares, epsilons, advantage, forward, forward, 0.25)
    figure = risk_map(table)
    left, right = figure.axes[:2]
    assert [text.get_text() for text in left.texts] == ["0.101", "0.200", "0.500", "1.000"]
    assert {text.get_text() for text in right.texts} == {"0.000"}
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "8"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["0.1", "0.9"]
    assert "ε = 2" in left.get_title()
    assert "0.250" in left.get_title()
    np.testing.assert_array_equal(left.images[0].get_array(), advantage)
