"""From text to a SymPy expression, by a whitelist: no text is ever evaluated as Python.

`sympy.sympify` calls `eval`; here Python's parser makes a tree, and only arithmetic, numbers,
declared names and the functions of `FUNCTIONS` are built from it. Sizes are bounded, so that a
hostile text can neither run code nor exhaust the machine.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

import sympy

from apiece.errors import AttributeRangeError, ExpressionError, unknown

FUNCTIONS = {
    "exp": sympy.exp,
    "log": sympy.log,
    "sqrt": sympy.sqrt,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "asin": sympy.asin,
    "acos": sympy.acos,
    "atan": sympy.atan,
    "erf": sympy.erf,
    "sigmoid": lambda x: (1 + sympy.tanh(x / 2)) / 2,
    "abs": sympy.Abs,
    "min": sympy.Min,
    "max": sympy.Max,
}
CONSTANTS = {"pi": sympy.pi}
LONGEST_TEXT = 10_000
LARGEST_EXPONENT = 64
DEEPEST_NESTING = 60


def parse(text: str, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """Return the expression that `text` writes over `symbols`.

    Decimal numbers are exact: 0.1 is 1/10. Understood: numbers, the names in `symbols`, pi,
    + - * / **, parentheses, and the functions of `FUNCTIONS`.

    Raises `AttributeRangeError` for a name that is not in `symbols`, `ExpressionError` for
    everything else that is not understood, with the place in the text.

    >>> a = sympy.Symbol("a")
    >>> parse("a**2 + 0.1", {"a": a})
    a**2 + 1/10
    >>> parse("__import__('os')", {})
    Traceback (most recent call last):
    ...
    apiece.errors.OptionError: function at column 1: unknown name '__import__'; (known: abs, ...
    """
    if not text.strip() or len(text) > LONGEST_TEXT:
        raise ExpressionError(
            f"expression: {len(text)} characters; give between 1 and {LONGEST_TEXT}"
        )
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval")
        return _Builder(text, symbols).build(tree.body)
    except SyntaxError as error:
        raise ExpressionError(
            f"expression {_short(text)!r}: {error.msg} at column {error.offset}; "
            "write it as in Python, for example a**2 + exp(2*b - a)"
        ) from None
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, ExpressionError) or type(error).__module__.startswith("apiece"):
            raise
        raise ExpressionError(f"expression {_short(text)!r}: nested too deeply") from None


class _Builder:
    """Builds one expression; knows the text for messages and exact decimals."""

    def __init__(self, text: str, symbols: Mapping[str, sympy.Symbol]) -> None:
        self.text = text
        self.symbols = symbols
        self.depth = 0

    def build(self, node: ast.expr) -> sympy.Expr:
        """Return what `node` writes; nesting is limited, because SymPy recurses too."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self._error(node, f"is nested more than {DEEPEST_NESTING} deep")
        built = self._build(node)
        self.depth -= 1
        return built

    def _build(self, node: ast.expr) -> sympy.Expr:
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._name(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.build(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.build(operand)
            case ast.BinOp():
                return self._binary(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
        raise self._error(node, "is not understood; use numbers, attributes, + - * / ** and calls")

    def _number(self, node: ast.Constant) -> sympy.Expr:
        value: Any = node.value
        if type(value) is int:
            if value.bit_length() > 1024:
                raise self._error(node, "is too large; write it as a decimal below 1e308")
            return sympy.Integer(value)
        if type(value) is float:
            segment = ast.get_source_segment(self.text, node) or repr(value)
            is_zero = not set(segment.lower().split("e")[0]) & set("123456789")
            if not (is_zero or 1e-300 < value < math.inf):
                raise self._error(node, "is outside the range of floating point")
            return sympy.Integer(0) if is_zero else sympy.Rational(segment.replace("_", ""))
        raise self._error(node, "is not a real number")

    def _name(self, node: ast.Name) -> sympy.Expr:
        if node.id in self.symbols:
            return self.symbols[node.id]
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        known = ", ".join(sorted(self.symbols)) or "none"
        raise AttributeRangeError(
            f"attribute {node.id!r} at column {node.col_offset + 1}: it has no range; declare one, "
            f"lower and upper end (declared: {known})"
        )

    def _binary(self, node: ast.BinOp) -> sympy.Expr:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return self._sum(node)
        left, right = self.build(node.left), self.build(node.right)
        match node.op:
            case ast.Mult():
                return left * right
            case ast.Div():
                if right.is_zero:
                    raise self._error(node, "divides by zero")
                return left / right
            case ast.Pow():
                return self._power(node, left, right)
            case ast.BitXor():
                raise self._error(node, "uses ^; write ** for a power")
        raise self._error(node, "uses an operator that is not understood; use + - * / **")

    def _sum(self, node: ast.expr) -> sympy.Expr:
        """Build a chain of + and - in a loop, however long."""
        terms = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            term = self.build(node.right)
            terms.append(term if isinstance(node.op, ast.Add) else -term)
            node = node.left
        return sympy.Add(self.build(node), *reversed(terms))

    def _power(self, node: ast.BinOp, base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
        if exponent.is_number and not abs(float(exponent)) <= LARGEST_EXPONENT:
            raise self._error(node, f"has an exponent above {LARGEST_EXPONENT}; write it as exp")
        if base.is_zero and exponent.is_negative:
            raise self._error(node, "divides by zero")
        return base**exponent

    def _call(self, node: ast.Call, name: str, args: list[ast.expr]) -> sympy.Expr:
        if name not in FUNCTIONS:
            raise unknown(f"function at column {node.col_offset + 1}", name, FUNCTIONS)
        several = name in ("min", "max")
        if not (len(args) >= 2 if several else len(args) == 1):
            count = "two or more arguments" if several else "one argument"
            raise self._error(node, f"has {len(args)} arguments; {name} takes {count}")
        return FUNCTIONS[name](*map(self.build, args))

    def _error(self, node: ast.expr, problem: str) -> ExpressionError:
        segment = _short(ast.get_source_segment(self.text, node) or self.text)
        return ExpressionError(f"expression: {segment!r} at column {node.col_offset + 1} {problem}")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."
