"""The parser understands arithmetic over declared names and nothing else."""

import pytest
import sympy

from apiece.errors import AttributeRangeError, ExpressionError, OptionError
from apiece.sensitivity.expressions import parse
from refusals import refused

SYMBOLS = {n: sympy.Symbol(n) for n in ("a", "b", "pi_day")}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a**2 + exp(2*b - a)", 4 + sympy.exp(4)),
        ("-a - -b + +a", 3),
        ("a - b - 1 + 2", 0),
        ("0.1 + 2e-1", sympy.Rational(3, 10)),
        ("1_000 / 3", sympy.Rational(1000, 3)),
        ("max(a, b, 1) * min(a, b) - abs(-a)", 4),
        ("sin(pi) + sqrt(b + 1)", 2),
        (" a\t", 2),
    ],
)
def test_text_means_what_python_means(text, value):
    found = parse(text, SYMBOLS).subs({SYMBOLS["a"]: 2, SYMBOLS["b"]: 3})
    assert sympy.simplify(found - value) == 0


HOSTILE = [
    "__import__('os').system('true')",
    "a.__class__",
    "(lambda: 0)()",
    "[x for x in (1,)]",
    "a if a else b",
    "a := 1",
    "open('f')",
    "exp(a, evaluate=False)",
    "exp(*[a])",
    "'a'",
    "True",
    "1j",
    "a @ b",
    "a // b",
    "a < b",
    "a and b",
    "f'{a}'",
    "a[0]",
    "a; b",
    "",
    "a b",
    "9**9**9**9",
    "a**(10**(10**9))",
    "1e999",
    "1e-999999999",
    "1" + "0" * 400,
    "a^2",
    "1/0",
    "0**-1",
    "exp()",
    "max(a)",
    "-" * 5000 + "a",
    "(" * 150 + "a" + ")" * 150 + "a",
    "exp(" * 100 + "a" + ")" * 100,
    "a" * 20_000,
    "a\0",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_a_typed_one_line_error(text):
    with pytest.raises((ExpressionError, OptionError)) as caught:
        parse(text, SYMBOLS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_no_code_runs(tmp_path):
    trap = tmp_path / "trap"
    with pytest.raises((OptionError, ExpressionError)):
        parse(f"__import__('pathlib').Path({str(trap)!r}).touch()", SYMBOLS)
    with pytest.raises((OptionError, ExpressionError)):
        parse(f"open({str(trap)!r}, 'w')", SYMBOLS)
    assert not trap.exists()


def test_a_long_sum_is_no_deep_nesting():
    assert parse(" + ".join(["a"] * 300), SYMBOLS) == 300 * SYMBOLS["a"]


def test_undeclared_attribute_names_the_declared_ones():
    with refused(AttributeRangeError, "'c'", 5, "a, b"):
        parse("a + c", SYMBOLS)


def test_a_declared_attribute_comes_before_a_constant():
    pi = sympy.Symbol("pi")
    assert parse("pi", {"pi": pi}) is pi
