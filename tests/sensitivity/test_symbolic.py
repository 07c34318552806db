"""Queries: symbolic, automatic and finite-difference derivatives agree; bad input is typed."""

import math

import numpy as np
import pandas as pd
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import (
    AttributeRangeError,
    DataError,
    ExpressionError,
    InputError,
    RangeError,
    UnsupportedError,
)
from apiece.sensitivity import Expression, partial_sensitivity
from refusals import refused

RANGES = {"a": (0.5, 2), "b": (-1, 1.5)}


FORMS = [
    *("{} + {}", "{} - {}", "({}) * ({})", "({})**2", "sin({})", "cos({})", "tanh({})", "erf({})"),
    *("exp(tanh({}))", "log(2 + sin({}))", "sqrt(1 + ({})**2)", "({}) / (2 + cos({}))", "atan({})"),
]


@st.composite
def expressions(draw, depth=3):
    """Random smooth expressions over a ∈ [.5, 2] and b ∈ [-1, 1.5]."""
    if depth == 0:
        return draw(st.sampled_from(["a", "b", "a", "b", "2", "0.3", "1.7"]))
    form = draw(st.sampled_from(FORMS))
    return form.format(*(draw(expressions(depth=depth - 1)) for _ in range(form.count("{}"))))


def automatic(query, records):
    """∇ₓ‖∇ₓf‖ by torch: an independent route, by double backward through f itself."""
    names = {
        name: lambda v, name=name: getattr(torch, name)(torch.as_tensor(v, dtype=torch.float64))
        for name in ("erf", "atan", "log", "sqrt", "sin", "cos", "tanh", "exp")
    }
    function = sympy.lambdify(list(query.symbols.values()), query.expression, [names])
    x = torch.tensor(records, requires_grad=True)
    value = torch.as_tensor(function(*x.T)) + 0.0 * x.sum(1)
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    norms = gradient.norm(dim=1)
    if not norms.requires_grad:
        return torch.zeros_like(x).numpy(), norms.detach().numpy()
    return torch.autograd.grad(norms.sum(), x)[0].numpy(), norms.detach().numpy()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(expressions())
def test_symbolic_automatic_and_finite_differences_agree(text):
    query = Expression(text, RANGES)
    records = query.design(7)
    found = partial_sensitivity(query, records)
    raw, norms = automatic(query, records)
    scale = np.maximum(1, np.abs(raw)) / np.minimum(1, np.maximum(norms, 1e-9))[:, None]
    np.testing.assert_allclose(found.norms, norms, rtol=1e-9, atol=1e-12)
    assert (np.abs(found.raw - np.where(found.zero[:, None], 0, raw)) <= 1e-6 * scale).all()
    step = 1e-5
    for j in range(2):
        moved = [records.copy(), records.copy()]
        moved[0][:, j] += step
        moved[1][:, j] -= step
        inside = [m.clip([0.5, -1], [2, 1.5]) for m in moved]
        up, down = (np.linalg.norm(query.gradients(m), axis=1) for m in inside)
        difference = (up - down) / (inside[0] - inside[1])[:, j]
        steady = norms > 1e-3  # near a zero of the gradient the norm has a kink
        assert (np.abs(found.raw[:, j] - difference) <= 2e-6 * scale[:, j] + 1e-6)[steady].all()


def test_matches_the_simplified_symbolic_partial_sensitivities():
    query = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)})
    records = query.design(50)
    found = partial_sensitivity(query, records)
    for j, expression in enumerate(query.partial_sensitivities):
        by_hand = sympy.lambdify(list(query.symbols.values()), expression, "numpy")(*records.T)
        np.testing.assert_allclose(found.raw[:, j], by_hand, rtol=1e-9)
    norm = sympy.lambdify(list(query.symbols.values()), query.gradient_norm, "numpy")
    np.testing.assert_allclose(found.norms, norm(*records.T), rtol=1e-12)


def test_records_as_frame_mapping_or_array_are_the_same():
    query = Expression("a * b", {"a": (0, 1), "b": (0, 1)})
    rows = query.design(5)
    frame = pd.DataFrame(rows, columns=["a", "b"])[["b", "a"]]
    expected = partial_sensitivity(query, rows).raw
    assert np.array_equal(partial_sensitivity(query, frame).raw, expected)
    mapping = {"b": rows[:, 1], "a": rows[:, 0]}
    assert np.array_equal(partial_sensitivity(query, mapping).raw, expected)


def test_zero_gradient_is_defined_and_flagged():
    query = Expression("a**2 + b**2", {"a": (-1, 1), "b": (-1, 1)})
    found = partial_sensitivity(query, [[0.0, 0.0], [0.3, 0.4]])
    assert found.zero.tolist() == [True, False]
    assert found.raw[0].tolist() == [0, 0]
    np.testing.assert_allclose(found.raw[1], [1.2, 1.6])
    assert found.fractions[0].tolist() == [0, 0]
    assert found.fractions[1].sum() == pytest.approx(1)


def test_linear_query_has_a_gradient_but_no_partial_sensitivity():
    found = partial_sensitivity(Expression("3*a", {"a": (0, 1)}), [[0.5]])
    assert found.norms.tolist() == [3]
    assert found.raw.tolist() == [[0]]
    assert not found.zero.any()


def test_tiny_and_huge_gradients_neither_under_nor_overflow():
    for scale in (1e-200, 1e200):
        found = partial_sensitivity(Expression(f"{scale}*a**2", {"a": (1, 2)}), [[1.5]])
        np.testing.assert_allclose(found.norms, [3 * scale])
        np.testing.assert_allclose(found.raw, [[2 * scale]])
    with pytest.raises(RangeError, match="floating point range"):
        partial_sensitivity(Expression("exp(a)", {"a": (1, 2000)}), [[1500]])


def test_chunks_join_seamlessly():
    query = Expression("a**3", {"a": (1, 2)})
    records = query.design(70_000)
    np.testing.assert_allclose(partial_sensitivity(query, records).raw, 6 * records)


@pytest.mark.parametrize(
    "records",
    [[[2.0]], [[math.nan]], [[0.5, 0.5]], [], {"b": [1]}, [["x"]], {"a": [[1.0], [1.0]]}],
    ids=["outside", "nan", "columns", "none", "name", "text", "shape"],
)
def test_bad_records_are_refused_without_their_values(records):
    with pytest.raises(DataError) as caught:
        partial_sensitivity(Expression("a", {"a": (0, 1)}), records)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "ends",
    [
        (-1e308, 1e308),
        (0, math.inf),
        (-math.inf, 0),
        (math.nan, 1),
        (1, 1),
        (2, 1),
        (1,),
        3,
        ("x", 1),
        None,
    ],
)
def test_unbounded_or_empty_ranges_are_refused(ends):
    with pytest.raises(AttributeRangeError, match="range of 'a'"):
        Expression("a", {"a": ends})


def test_attributes_without_a_range_are_refused():
    with pytest.raises(AttributeRangeError, match=r"'b'.*no range"):
        Expression("a + b", {"a": (0, 1)})
    with pytest.raises(AttributeRangeError, match=r"'b'.*no range"):
        Expression(sympy.Symbol("b") + 1, {"a": (0, 1)})
    with pytest.raises(AttributeRangeError):
        Expression("1", {})


def test_sympy_expressions_work_and_unknown_functions_do_not():
    a = sympy.Symbol("a")
    assert Expression(a**2, {"a": (0, 1)}).values([[0.5]]).tolist() == [0.25]
    with refused(UnsupportedError, "gamma"):
        Expression(sympy.gamma(a + 1), {"a": (0, 1)})
    with pytest.raises(ExpressionError):
        Expression(3, {"a": (0, 1)})


def test_attributes_may_have_any_name():
    for name in ("exp", "sqrt", "numpy", "capital gain", "lambda", "__import__('os')"):
        x = sympy.Symbol(name)
        query = Expression(sympy.exp(x) + 0.5 * sympy.sqrt(1 + x), {name: (0, 1)})
        np.testing.assert_allclose(query.values({name: [0.0]}), [1.5])
        slope = 1 + 0.25
        np.testing.assert_allclose(partial_sensitivity(query, {name: [0.0]}).norms, [slope])
        assert query.lipschitz_constant().certified
    assert Expression("exp(exp)", {"exp": (0, 1)}).values([[0.0]]) == [1.0]


def test_unknown_constants_are_refused():
    with refused(UnsupportedError, "EulerGamma"):
        Expression(sympy.Symbol("a") + sympy.EulerGamma, {"a": (0, 1)})


def test_latex_names_every_part():
    parts = Expression("a*b**2", {"a": (1, 2), "b": (1, 2)}).latex()
    assert parts["f"] == "a b^{2}"
    assert len(parts) == 4


def test_design_stays_in_the_ranges_and_fills_them():
    query = Expression("a + b + c", {"a": (0, 1), "b": (-5, -4), "c": (1e3, 2e3)})
    records = query.design(1000)
    low, high = np.array(list(query.ranges.values())).T
    unit = (records - low) / (high - low)
    assert ((unit >= 0) & (unit <= 1)).all()
    np.testing.assert_allclose(unit.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.cov(unit.T), np.eye(3) / 12, atol=0.01)


def test_only_functions_of_a_record_can_be_differentiated():
    with refused(InputError, "Expression"):
        partial_sensitivity("a**2", [[1.0]])


def test_results_do_not_print_people():
    found = partial_sensitivity(Expression("a**2", {"a": (0, 1)}), [[0.123456]])
    assert "0.2" not in repr(found)
