"""Expressions: read from text by a whitelist, and proven smooth over their ranges, or refused.

`sympy.sympify` calls `eval`. Here Python's parser makes a tree, and only arithmetic, numbers,
declared names and the functions of `FUNCTIONS` are built from it. Sizes are bounded, so that a
hostile text can neither run code nor exhaust the machine.

Partial sensitivity takes two derivatives, so roots, logarithms, quotients and abs, min, max must
keep away from their singular points. Each such argument's sign over the box is decided by
interval arithmetic and subdivision; abs, min and max are then replaced by the branch that holds.
"""

import ast
import math
from collections import deque
from collections.abc import Mapping, Sequence

import sympy

from apiece.errors import (
    AttributeRangeError,
    ComplexValueError,
    ExpressionError,
    NotDifferentiableError,
    UnsupportedError,
    unknown,
)
from apiece.sensitivity.bounds import Box, Objective, cut_in_half, make_value_objective

_SYMPY_NAMES = "exp log sqrt sin cos tan sinh cosh tanh asin acos atan erf Abs Min Max"
FUNCTIONS = {name.lower(): getattr(sympy, name) for name in _SYMPY_NAMES.split()}
FUNCTIONS["sigmoid"] = lambda x: (1 + sympy.tanh(x / 2)) / 2
CONSTANTS = {"pi": sympy.pi}

# Characters of an expression, at most.
LONGEST_TEXT = 10_000

# Absolute value of a power's exponent, at most.
LARGEST_EXPONENT = 64

# Nodes of an expression inside one another, at most.
DEEPEST_NESTING = 60

# Bits of a whole number, at most: what a float can hold.
_MOST_BITS = 1024

# Boxes on which a sign is looked for, at most.
MOST_BOXES = 4000

Ranges = Mapping[sympy.Symbol, tuple[float, float]]


def parse(text: str, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """Return the expression that `text` writes over `symbols`; its decimal numbers are exact.

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
    # Stripped, or a leading blank would be an indentation to the parser.
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval")
        return _Builder(text, symbols).build(tree.body)
    except SyntaxError as error:
        raise ExpressionError(
            f"expression {_shorten(text)!r}: {error.msg} at column {error.offset}; "
            "write it as in Python, for example a**2 + exp(2*b - a)"
        ) from None
    # Python's parser and SymPy raise these for texts that nest too deep.
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, ExpressionError) or type(error).__module__.startswith("apiece"):
            raise
        raise ExpressionError(f"expression {_shorten(text)!r}: nested too deeply") from None


class _Builder:
    """Builds one expression; knows the text for messages and exact decimals."""

    def __init__(self, text: str, symbols: Mapping[str, sympy.Symbol]) -> None:
        self.text = text
        self.symbols = symbols
        # How many nodes are being built inside one another now.
        self.depth = 0

    def build(self, node: ast.expr) -> sympy.Expr:
        """Return the expression of `node`; nesting is limited, because SymPy recurses too."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self._make_error(node, f"is nested more than {DEEPEST_NESTING} deep")
        expression = self._build_node(node)
        self.depth -= 1
        return expression

    def _build_node(self, node: ast.expr) -> sympy.Expr:
        match node:
            case ast.Constant():
                return self._build_number(node)
            # A declared attribute hides a constant of its name.
            case ast.Name(id=name) if name in self.symbols or name in CONSTANTS:
                return self.symbols[name] if name in self.symbols else CONSTANTS[name]
            case ast.Name(id=name):
                declared = ", ".join(sorted(self.symbols)) or "none"
                raise AttributeRangeError(
                    f"attribute {name!r} at column {node.col_offset + 1}: it has no range; declare "
                    f"one, lower and upper end (declared: {declared})"
                )
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.build(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.build(operand)
            case ast.BinOp():
                return self._build_operation(node)
            # Calls by plain names with plain arguments alone: no attribute, star or keyword.
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._build_call(node, name, args)
        raise self._make_error(
            node, "is not understood; use numbers, attributes, + - * / ** and calls"
        )

    def _build_number(self, node: ast.Constant) -> sympy.Expr:
        value: object = node.value
        # Not `isinstance`: True would pass for 1.
        if type(value) is int:
            if value.bit_length() > _MOST_BITS:
                raise self._make_error(node, "is too large; write it as a decimal below 1e308")
            return sympy.Integer(value)
        if type(value) is float:
            # The decimal as it is written, which is exact; the float is rounded.
            segment = ast.get_source_segment(self.text, node) or repr(value)
            mantissa = segment.lower().split("e")[0]
            is_zero = not set(mantissa) & set("123456789")
            if not (is_zero or 1e-300 < value < math.inf):
                raise self._make_error(node, "is outside the range of floating point")
            return sympy.Integer(0) if is_zero else sympy.Rational(segment.replace("_", ""))
        raise self._make_error(node, "is not a real number")

    def _build_operation(self, node: ast.BinOp) -> sympy.Expr:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return self._build_sum(node)
        left = self.build(node.left)
        right = self.build(node.right)
        match node.op:
            case ast.Mult():
                return left * right
            case ast.Div():
                # A quotient by a literal 0; all others are looked at over the ranges
                # (`smooth_form`).
                if right.is_zero:
                    raise self._make_error(node, "divides by zero")
                return left / right
            case ast.Pow():
                return self._build_power(node, left, right)
            case ast.BitXor():
                raise self._make_error(node, "uses ^; write ** for a power")
        raise self._make_error(node, "uses an operator that is not understood; use + - * / **")

    def _build_sum(self, node: ast.expr) -> sympy.Expr:
        """Build a chain of + and - in a loop, however long."""
        # The chain nests to the left, so that a recursion would go as deep as it is long.
        terms = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            term = self.build(node.right)
            terms.append(term if isinstance(node.op, ast.Add) else -term)
            node = node.left
        # Terms were met from the last to the first.
        return sympy.Add(self.build(node), *reversed(terms))

    def _build_power(self, node: ast.BinOp, base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
        # SymPy computes powers of numbers exactly: 2**10**9 would fill the memory.
        if exponent.is_number and not abs(float(exponent)) <= LARGEST_EXPONENT:
            raise self._make_error(
                node, f"has an exponent above {LARGEST_EXPONENT}; write it as exp"
            )
        if base.is_zero and exponent.is_negative:
            raise self._make_error(node, "divides by zero")
        return base**exponent

    def _build_call(self, node: ast.Call, name: str, args: list[ast.expr]) -> sympy.Expr:
        if name not in FUNCTIONS:
            raise unknown(f"function at column {node.col_offset + 1}", name, FUNCTIONS)
        if name in ("min", "max"):
            fits = len(args) >= 2
            count = "two or more arguments"
        else:
            fits = len(args) == 1
            count = "one argument"
        if not fits:
            raise self._make_error(node, f"has {len(args)} arguments; {name} takes {count}")
        return FUNCTIONS[name](*map(self.build, args))

    def _make_error(self, node: ast.expr, problem: str) -> ExpressionError:
        segment = _shorten(ast.get_source_segment(self.text, node) or self.text)
        return ExpressionError(f"expression: {segment!r} at column {node.col_offset + 1} {problem}")


def _shorten(text: str) -> str:
    """Return a text on one line, of 60 characters at most."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


# Functions that are smooth everywhere.
_SMOOTH = {
    sympy.exp,
    sympy.sin,
    sympy.cos,
    sympy.sinh,
    sympy.cosh,
    sympy.tanh,
    sympy.atan,
    sympy.erf,
}
_CONSTANTS = (type(sympy.pi), type(sympy.E))


def smooth_form(expression: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """Return `expression` with abs, min and max resolved, real and C² over the ranges, or raise."""
    # A leaf: a number, a constant or an attribute.
    if not expression.args:
        if expression.is_number and expression.is_finite is not True:
            raise NotDifferentiableError(f"expression: it holds {expression}; divide by no zero")
        if expression.is_number and not expression.is_real:
            raise ComplexValueError(f"expression: it holds {expression}; give a real expression")
        if not isinstance(expression, (sympy.Rational, sympy.Symbol, *_CONSTANTS)):
            raise UnsupportedError(f"expression: {expression!r} is not supported; write a number")
        return expression
    # From the inside out: a kink deep inside is resolved before what holds it is looked at.
    arguments = [smooth_form(argument, ranges) for argument in expression.args]
    if isinstance(expression, (sympy.Max, sympy.Min)):
        return _find_extreme(expression, arguments, ranges)
    node = expression.func(*arguments)
    if node.is_number and node.is_real is False:
        raise ComplexValueError(f"expression: {node} is not real; give a real expression")
    if isinstance(node, sympy.Pow):
        base, exponent = node.args
        # Any other power is a logarithm's exponential, and needs a positive base.
        if not isinstance(exponent, sympy.Integer):
            _find_sign(node, base, ranges, positive=True)
        elif exponent < 0:
            _find_sign(node, base, ranges)
        return _write_logistic_as_tanh(node)
    if isinstance(node, sympy.log):
        _find_sign(node, node.args[0], ranges, positive=True)
    # Where the cosine is 0 the tangent has a pole.
    elif isinstance(node, sympy.tan):
        _find_sign(node, sympy.cos(node.args[0]), ranges)
    # At ±1 the derivative is infinite.
    elif isinstance(node, (sympy.asin, sympy.acos)):
        _find_sign(node, 1 - node.args[0] ** 2, ranges, positive=True)
    elif isinstance(node, sympy.Abs):
        # On a side of 0 where its argument stays, |x| is x or −x.
        return node.args[0] * _find_sign(node, node.args[0], ranges)
    elif node.args and node.func not in _SMOOTH | {sympy.Add, sympy.Mul}:
        raise UnsupportedError(
            f"expression: the function {node.func.__name__} is not supported; "
            f"use {', '.join(sorted(FUNCTIONS))}"
        )
    return node


def _find_extreme(
    expression: sympy.Expr, arguments: Sequence[sympy.Expr], ranges: Ranges
) -> sympy.Expr:
    """Return the one argument of a max (or min) that is the largest (smallest) throughout."""
    # The winner so far meets each rival: its difference keeps one sign over the box, or it raises.
    winning_sign = 1 if isinstance(expression, sympy.Max) else -1
    winner = arguments[0]
    for rival in arguments[1:]:
        if _find_sign(expression, winner - rival, ranges) != winning_sign:
            winner = rival
    return winner


def _write_logistic_as_tanh(node: sympy.Pow) -> sympy.Expr:
    """Write 1/(1 + e^v) as (1 − tanh(v/2))/2: v once, so that enclosures are close."""
    base, exponent = node.args
    terms = [term for term in base.args if isinstance(term, sympy.exp)]
    if exponent.is_negative and len(terms) == 1 and base == 1 + terms[0]:
        (v,) = terms[0].args
        return ((1 - sympy.tanh(v / 2)) / 2) ** -exponent
    return node


def _find_sign(
    node: sympy.Expr, argument: sympy.Expr, ranges: Ranges, *, positive: bool = False
) -> int:
    """Return the constant sign of `argument` over the box; raise for `node` where it has none.

    With `positive` also where the sign is negative: there the node is not real.
    """
    symbols = sorted(argument.free_symbols, key=str)
    # Derivatives make the bounds close, as the mean value form uses them.
    slopes = [sympy.diff(argument, symbol) for symbol in symbols]
    objective = make_value_objective(argument, slopes, symbols, 1)
    box = tuple(ranges[symbol] for symbol in symbols)
    pending = deque([box])
    signs: set[int] = set()
    # Each box either shows the sign all over it or is cut; boxes that are left over decide.
    for _ in range(MOST_BOXES):
        if not pending:
            return signs.pop()
        # A queue: all boxes are cut once before any is cut again.
        part = pending.popleft()
        sign = _prove_sign(objective, part)
        smaller_parts = cut_in_half(part, box) if symbols and not sign else []
        # The two opposite corners, all lower and all upper ends, often show both signs at once.
        corner_signs = [
            _prove_sign(objective, tuple((end, end) for end in corner))
            for corner in zip(*part, strict=True)
        ]
        signs |= {sign, *corner_signs} - {0}
        if positive and -1 in signs:
            raise ComplexValueError(
                f"{node}: not real, because {argument} is negative within the ranges; narrow the "
                "ranges"
            )
        # Nothing more can be shown: both signs occur, or the box has no parts.
        if len(signs) == 2 or not (sign or smaller_parts):
            break
        pending += smaller_parts
    problem = "reaches 0, or cannot be shown to stay away from it,"
    if len(signs) == 2:
        problem = "crosses 0"
    bounds = []
    for symbol in symbols:
        low, high = ranges[symbol]
        bounds.append(f"{symbol} in [{low:g}, {high:g}]")
    raise NotDifferentiableError(
        f"{node}: not twice differentiable, because {argument} {problem} for {', '.join(bounds)}; "
        "narrow the ranges"
    )


def _prove_sign(objective: Objective, box: Box) -> int:
    """Return the sign that the value has all over the box; 0 where that is not shown."""
    low, high = objective.bound_range(box)[0]
    return int(low > 0) - int(high < 0)
