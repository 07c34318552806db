"""Maxima: the golden value, attained lower ends, proven upper ends, and plain refusals."""

import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import OptionError, RangeError
from apiece.sensitivity import Expression
from apiece.sensitivity.bounds import make_value_objective, maximise
from refusals import refused

GOLDEN = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)})


def test_golden_value_and_place():
    # Mueller et al. 2021 §5.1 and its published notebook: 66.19446391885754 for the mean of five.
    found = GOLDEN.lipschitz_constant()
    assert found.location == {"a": 1.0, "b": 3.0}
    assert found.value == pytest.approx(330.972319594, rel=1e-11)
    assert found.certified
    assert found.value <= found.bounds.upper <= found.value * (1 + 1e-14)
    mean = GOLDEN.mean_of(5).lipschitz_constant()
    assert mean.bounds.upper == pytest.approx(66.19446391885754, rel=1e-14)


def test_golden_value_in_closed_form():
    # At (1, 3): gradient (2 - e^5, 2e^5).
    exact = math.hypot(2 - math.exp(5), 2 * math.exp(5))
    low, high = GOLDEN.lipschitz_constant().bounds
    assert low <= exact * (1 + 1e-15)
    assert high >= exact * (1 - 1e-15)


def test_global_sensitivity_by_relation():
    top, bottom = 1 + math.exp(5), 4 + math.exp(-1)
    assert GOLDEN.global_sensitivity().value == pytest.approx(top, rel=1e-13)
    corners = [1 + math.exp(0), bottom, top, 4 + math.exp(4)]
    replaced = GOLDEN.global_sensitivity("replace")
    assert replaced.value == pytest.approx(max(corners) - min(corners), rel=1e-13)
    with pytest.raises(OptionError, match="did you mean 'replace'"):
        GOLDEN.global_sensitivity("replac")


def test_add_remove_sensitivity_of_a_negative_query():
    found = Expression("-3 - a", {"a": (0, 1)}).global_sensitivity()
    assert found.value == pytest.approx(4)
    assert found.location == {"a": 1.0}


terms = st.sampled_from(
    ["a**2", "a*b", "exp(a - b)", "sin(2*a + b)", "log(4 + a*b)", "tanh(a*b)", "cos(b)**2", "b**3"]
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-3, 3), terms), min_size=1, max_size=3))
def test_certified_bound_holds_at_every_sampled_record(weighted):
    text = " + ".join(f"({w})*{t}" for w, t in weighted)
    query = Expression(text, {"a": (-1, 1.5), "b": (-1.3, 1)})
    found = query.lipschitz_constant()
    sample = query.differentiate(query.design(4000)).norms.max()
    assert found.certified
    assert sample <= found.bounds.upper
    assert sample <= found.value * (1 + 1e-9) + 1e-300  # SHGO with branch and bound misses nothing
    assert found.bounds.upper <= found.value * 1.01 + 1e-12


def test_where_no_bound_is_proven_it_says_so():
    # x/x is 1 everywhere, but no interval division by a box around 0 is bounded.
    x = sympy.Symbol("x", real=True)
    one = sympy.Mul(x, sympy.Pow(x, -1, evaluate=False), evaluate=False)
    objective = make_value_objective(one, [one], [x], 1)
    hard = maximise(objective, lambda x: 1.0, ["x"], ((-1.0, 1.5),))
    assert not hard.certified
    assert hard.bounds.upper == math.inf
    assert hard.reason.startswith("not certified: the enclosure is unbounded")


def test_error_functions_and_arctangents_are_certified_too():
    for text, exact in (("erf(a)*2", 4 / math.sqrt(math.pi)), ("atan(2*a) + b", math.sqrt(5))):
        found = Expression(text, {"a": (-2, 1), "b": (-2, 2)}).lipschitz_constant()
        assert found.certified
        assert found.bounds.lower <= exact <= found.bounds.upper <= exact * (1 + 1e-8)


def test_logistic_maxima_on_a_whole_plane_are_tight():
    ranges = {"a": (-2, 2), "b": (-2, 2), "c": (0, 1)}
    for text in ("1/(1 + exp(c - a - b))", "sigmoid(a + b - c)"):
        found = Expression(text, ranges).lipschitz_constant()
        assert found.bounds.lower <= math.sqrt(3) / 4 <= found.bounds.upper
        assert found.bounds.upper <= math.sqrt(3) / 4 * (1 + 1e-8)


@pytest.mark.parametrize("width", [5, 12])
def test_many_attributes(width):
    names = [f"x{i}" for i in range(width)]
    text = " + ".join(f"{i + 1}*{name}**2" for i, name in enumerate(names))
    query = Expression(text, dict.fromkeys(names, (-1, 1)))
    exact = 2 * math.sqrt(sum((i + 1) ** 2 for i in range(width)))
    assert query.lipschitz_constant().value == pytest.approx(exact)
    assert query.lipschitz_constant().bounds.upper == pytest.approx(exact)
    total = width * (width + 1) / 2
    assert query.global_sensitivity("replace").bounds.upper == pytest.approx(total)
    assert len(query.latex()) == width + 2


def test_values_past_the_floating_point_range():
    query = Expression("exp(exp(a))", {"a": (0, 700)})
    with refused(RangeError, "scale"):
        query.lipschitz_constant()


def test_constant_query_has_no_sensitivity_to_change():
    found = Expression("3", {"a": (0, 1)})
    assert found.lipschitz_constant().bounds == (0.0, 0.0)
    assert found.global_sensitivity().bounds.upper == pytest.approx(3)


def test_interior_maximum():
    found = Expression("exp(-(a - 0.3)**2 - (b - 0.6)**2)", {"a": (0, 1), "b": (0, 1)})
    best = found.global_sensitivity()
    assert best.bounds.lower <= 1 <= best.bounds.upper <= 1 + 1e-8
    np.testing.assert_allclose([best.location["a"], best.location["b"]], [0.3, 0.6], atol=1e-4)
