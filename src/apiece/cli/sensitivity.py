"""apiece sensitivity: which attribute drives a query's sensitivity, and how large it can be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from apiece.cli._command import (
    Command,
    emit,
    make_dict,
    make_form_error,
    option,
    parse_assignment,
    parse_interval,
    parse_numbers,
    refuse_given,
)
from apiece.errors import InputError, unknown

if TYPE_CHECKING:
    from apiece._types import Json
    from apiece.sensitivity import Expression
    from apiece.sensitivity.bounds import Maximum

# How many evenly spread records the shares are computed from.
DESIGN = 4096
# How many values of each attribute a surface has.
GRID = 81

EXAMPLE = """
\b
Example:
  apiece sensitivity "a**2 + exp(2*b - a)" --range a=1:2 --range b=.5:3
  apiece sensitivity "a**2 + exp(2*b - a)" --range a=1:2 --range b=.5:3 --mean-of 5 \\
                     --noise-stddev 100 --order 8 --at a=1,b=3 --figure surface.png --json
"""


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("expression")
@option("--range", "ranges", multiple=True, help="Range of an attribute, as name=lower:upper.")
@option("--mean-of", type=int, help="Number of records; the query is the mean over them.")
@option("--at", multiple=True, help="Record to evaluate, as a=1,b=3; repeatable.")
@option(
    "--noise-stddev",
    type=float,
    help="Standard deviation of Gaussian noise on the sum: adds the Rényi loss.",
)
@option("--order", type=float, default=2.0, help="Rényi order; with --noise-stddev.")
@option("--figure", help="Draw surface and contour here, for two attributes.")
@option("--json")
def command(
    expression: str,
    ranges: tuple[str, ...],
    mean_of: int | None,
    at: tuple[str, ...],
    noise_stddev: float | None,
    order: float,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Differentiate a query: how each attribute drives its sensitivity over the given ranges.

    EXPRESSION is one record's contribution, as in Python, over named attributes.
    """
    from apiece.sensitivity import Expression

    query = Expression(expression, make_dict("--range", map(_parse_range, ranges)))
    if noise_stddev is None:
        refuse_given(["order"], "is of the Rényi loss; give --noise-stddev too, or leave it out")
    if mean_of is not None:
        query = query.mean_of(mean_of)
    answer = describe_query(query)
    if at:
        answer["at"] = [_evaluate(query, text) for text in at]
    if noise_stddev is not None:
        answer["gaussian"] = _compute_loss(answer, noise_stddev, order)
    if figure is not None:
        _draw_surface(query, figure)
    emit(as_json, answer, format_answer(answer))


def describe_query(query: Expression) -> Json:
    """Return derivatives, maxima and shares, without any data; null where not proven."""
    from apiece.sensitivity import loss_shares, partial_sensitivity

    # Of the expression, its gradient norm, and that norm's derivative by each attribute.
    _, norm_latex, *derivatives_latex = query.latex().values()
    derivatives = {}
    for name, derivative, latex in zip(
        query.attributes, query.partial_sensitivities, derivatives_latex, strict=True
    ):
        derivatives[name] = {"text": str(derivative), "latex": latex}
    # No data are needed: shares are those of records that are spread evenly over the ranges.
    partial = partial_sensitivity(query, query.design(DESIGN))
    shares = dict(loss_shares(partial).ranking("all"))
    return {
        "expression": str(query.expression),
        "ranges": {name: list(ends) for name, ends in query.ranges.items()},
        "gradient_norm": {"text": str(query.gradient_norm), "latex": norm_latex},
        "partial_sensitivity": derivatives,
        "lipschitz_constant": _describe_maximum(query.lipschitz_constant()),
        "global_sensitivity": {
            relation: _describe_maximum(query.global_sensitivity(relation))
            for relation in ("add_remove", "replace")
        },
        "loss_share": {name: shares[name] for name in query.attributes},
    }


def _describe_maximum(maximum: Maximum) -> Json:
    return {
        "value": maximum.value,
        "upper": maximum.bounds.upper if math.isfinite(maximum.bounds.upper) else None,
        "location": maximum.location,
        "certified": maximum.certified,
        "reason": maximum.reason,
    }


def _evaluate(query: Expression, text: str) -> Json:
    """Return gradient norm and partial sensitivities at a record, written as `a=1,b=3`."""
    from apiece.sensitivity import partial_sensitivity

    pairs = []
    for part in text.split(","):
        name, number = parse_assignment("--at", part, "name=NUMBER, as in a=1")
        pairs.append((name.strip(), parse_numbers("--at", number)))
    values = make_dict("--at", pairs)
    for name in values.keys() - set(query.attributes):
        raise unknown(f"attribute in --at {text!r}", name, query.attributes)

    partial = partial_sensitivity(query, values)
    return {
        "record": {name: value[0] for name, value in values.items()},
        "gradient_norm": float(partial.norms[0]),
        "zero": bool(partial.zero[0]),
        "raw": dict(zip(query.attributes, partial.raw[0].tolist(), strict=True)),
        "fractions": dict(zip(query.attributes, partial.fractions[0].tolist(), strict=True)),
    }


def _compute_loss(answer: Json, noise_stddev: float, order: float) -> Json:
    """Return the Rényi loss of the worst record; null where its sensitivity is not proven."""
    from apiece.sensitivity import individual_rdp

    def compute_rdp(maximum: Json) -> float | None:
        # Without a proven bound there is no loss that could be promised.
        if maximum["upper"] is None:
            return None
        loss = float(individual_rdp(maximum["upper"], order=order, noise_stddev=noise_stddev))
        if not math.isfinite(loss):
            raise InputError(
                f"--noise-stddev {noise_stddev:g}: the Rényi loss of order {order:g} is past "
                "floating-point numbers; give more noise"
            )
        return loss

    return {
        "order": order,
        "noise_stddev": noise_stddev,
        "rdp": {
            relation: compute_rdp(maximum)
            for relation, maximum in answer["global_sensitivity"].items()
        },
        "rdp_per_squared_unit_of_change": compute_rdp(answer["lipschitz_constant"]),
    }


def format_answer(answer: Json) -> str:
    """Return the answer for people to read."""
    lines = [f"f = {answer['expression']}", f"‖∇f‖ = {answer['gradient_norm']['text']}"]
    for name, derivative in answer["partial_sensitivity"].items():
        lines.append(f"∂‖∇f‖/∂{name} = {derivative['text']}")
    lines.append("share in the privacy loss of records spread evenly over the ranges:")
    lines += [f"  {name}: {share:.1%}" for name, share in answer["loss_share"].items()]
    lines.append(_format_maximum("Lipschitz constant", answer["lipschitz_constant"]))
    for relation, maximum in answer["global_sensitivity"].items():
        lines.append(_format_maximum(f"global sensitivity ({relation})", maximum))
    for point in answer.get("at", []):
        record = ", ".join(f"{name}={value:g}" for name, value in point["record"].items())
        lines.append(f"at {record}: gradient norm {point['gradient_norm']:.12g}")
        if point["zero"]:
            lines.append("  the gradient norm is 0 here; partial sensitivities are defined as 0")
        for name, value in point["raw"].items():
            lines.append(f"  {name}: {value:.12g} ({point['fractions'][name]:.1%})")
    loss = answer.get("gaussian")
    if loss is not None:
        bounds = [
            f"{relation} no proven bound" if rdp is None else f"{relation} {rdp:.6g}"
            for relation, rdp in loss["rdp"].items()
        ]
        lines.append(
            f"Rényi loss of order {loss['order']:g} with noise {loss['noise_stddev']:g}, at most: "
            f"{'; '.join(bounds)}"
        )
    return "\n".join(lines)


def _format_maximum(label: str, maximum: Json) -> str:
    """Return the line of a maximum: its value, record, bound and reason."""
    record = ", ".join(f"{name}={value:.12g}" for name, value in maximum["location"].items())
    bound = "no proven bound" if maximum["upper"] is None else f"at most {maximum['upper']:.17g}"
    return f"{label}: {maximum['value']:.12g} at {record}; {bound} ({maximum['reason']})"


def _draw_surface(query: Expression, path: Path) -> None:
    """Draw the partial sensitivities of a query of two attributes over its ranges."""
    import numpy as np

    from apiece.reporting import save
    from apiece.reporting.plots import partial_sensitivity_surface
    from apiece.sensitivity import partial_sensitivity

    if len(query.attributes) != 2:
        raise InputError(
            f"--figure: {len(query.attributes)} attributes; a surface needs exactly two"
        )
    # One record for each point of the grid, the first attribute the slowest to change.
    a, b = (np.linspace(low, high, GRID) for low, high in query.ranges.values())
    columns = np.meshgrid(a, b, indexing="ij")
    grid = np.stack([column.ravel() for column in columns], axis=1)
    partial = partial_sensitivity(query, grid)
    save(partial_sensitivity_surface(a, b, partial), path)


def _parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Return the name and the ends of `name=LOWER:UPPER`."""
    form = "name=LOWER:UPPER, as in a=1:2"
    name, ends = parse_interval("--range", text, form)
    if not name.strip().isidentifier():
        raise make_form_error("--range", text, form)
    return name.strip(), ends
