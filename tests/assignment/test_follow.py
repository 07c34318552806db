"""Rates at one noise multiplier after another: what was asked before only saves time."""

import numpy as np
import pytest

from apiece.assignment.request import Request
from apiece.assignment.solve import COARSE, RateCurve, solve_rates
from apiece.budgets import Budgets

REQUEST = Request(Budgets([0.5, 1.0, 60.0], 1e-5), 3, 1.0, 1.0)
EPSILON, DELTA, SHARE = REQUEST.groups.epsilon, REQUEST.groups.delta, REQUEST.share


def test_rates_do_not_depend_on_what_was_asked_before() -> None:
    followed = RateCurve(REQUEST, EPSILON, DELTA, SHARE)
    for z in (1.0, 1.05, 0.3, 1.0):
        alone = solve_rates(REQUEST, EPSILON, DELTA, z)
        assert SHARE @ followed.at(z) == pytest.approx(SHARE @ alone, rel=2e-3)
        assert followed.at(z) == pytest.approx(alone, rel=2 * COARSE)
        assert followed.closely(z) == pytest.approx(alone, rel=2e-3)
        assert followed.at(z)[2] == 1  # allows every step, so no guess is of use


def test_what_was_found_is_remembered_and_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*given: object) -> np.ndarray:
        asked.append(given[-2])
        return solve_rates(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("apiece.assignment.solve.solve_rates", counted)
    followed = RateCurve(REQUEST, EPSILON, DELTA, SHARE)
    first = followed.at(1.0)
    assert followed.at(1.0) is first
    assert len(asked) == 1
    assert np.isnan(asked[0]).all()
    second = followed.at(1.1)
    assert asked[1][:2] == pytest.approx(second[:2], rel=0.25)
    assert np.isnan(asked[1][2])
