"""apiece account: what a mechanism, several, or a plan's groups cost."""

import math
from dataclasses import dataclass
from pathlib import Path

import click

from apiece import _check, _json
from apiece._text import rounded_up
from apiece._types import Json
from apiece.accounting import PrivacyCurve, concentrated_rho, privacy_curve
from apiece.accounting.curve import RELATION
from apiece.cli._command import (
    Bar,
    Command,
    emit,
    format_table,
    option,
    read_plan,
    read_stdin,
    require_delta,
)
from apiece.errors import ApieceError, InputError
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled
from apiece.mechanisms.algebra import from_dict, to_dict
from apiece.plan import Plan

EXAMPLE = """
\b
Example:
  apiece account --noise-multiplier 1.0 --sampling-probability 0.02 --steps 1465 --delta 1e-5
  apiece account plan.json --json
  echo '[{"gaussian": {"noise_multiplier": 2}}]' | apiece account - --delta 1e-6 --json
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A mechanism to account for, at a δ."""

    mechanism: Mechanism
    delta: float
    # The group's name, in a plan.
    name: str | None = None
    # The ε that the group asked, in a plan at its own δ.
    asked: float | None = None


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("source", required=False)
@option("--noise-multiplier", type=float, help="Noise standard deviation over clip norm.")
@option("--sampling-probability", type=float, help="Chance of joining a step.  [default: 1]")
@option("--steps", help="Number of steps.  [default: 1]")
@option("--delta", type=float)
@option("--method", default="pld", help="Accounting method: pld, rdp, gdp or best.")
@option("--figure", help="Draw the curves here (.png, .svg or .pdf).")
@option("--json")
def command(
    source: str | None,
    noise_multiplier: float | None,
    sampling_probability: float | None,
    steps: int | None,
    delta: float | None,
    method: str,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Account for one mechanism (by flags), a JSON list of them, or a plan.

    SOURCE is a plan's JSON file, or - to read a mechanism or a list of mechanisms as JSON from
    standard input: {"gaussian": {"noise_multiplier": 1}}, {"laplace": …}, {"sampled":
    {"mechanism": …, "probability": 0.01}}, {"repeated": {"mechanism": …, "times": 100}},
    {"composed": {"mechanisms": […]}}. {"concentrated": {"rho": 2.56}} and {"stated": {"epsilon":
    1, "delta": 1e-6}} are what others state of a release.

    Every ε is given from below and from above for add/remove adjacency; advantage is an upper
    bound on TPR − FPR of any membership test, and rho the ρ of concentrated privacy.
    """
    flags = (noise_multiplier, sampling_probability, steps)
    # A plan and a list are answered by a table, whatever their length.
    as_table = True
    if source is None:
        cases = [_make_case(*flags, delta)]
        as_table = False
    elif any(flag is not None for flag in flags):
        raise InputError(f"{source}: mechanisms are given twice; leave out the options or SOURCE")
    elif source == "-":
        cases, as_table = _read_cases(read_stdin(), delta)
    else:
        cases = _list_groups(read_plan(Path(source)), delta)
    curves = []
    documents = []
    with Bar(len(cases)) as bar:
        for number, case in enumerate(cases):
            curve, document = _account(case, method, number if as_table else None)
            curves.append(curve)
            documents.append(document)
            bar.advance("accounting")
    if figure is not None:
        from apiece.reporting import save
        from apiece.reporting.plots import privacy_curves

        labels = [case.name or f"mechanism {number}" for number, case in enumerate(cases)]
        save(privacy_curves(dict(zip(labels, curves, strict=True))), figure)
    if as_table:
        answer = {"results": documents, "relation": RELATION, "method": method}
        emit(as_json, answer, _format_documents(documents, method))
    else:
        emit(as_json, documents[0], _format_document(documents[0], curves[0]))


def _list_groups(plan: Plan, delta: float | None) -> list[Case]:
    """Return a case for each group of a plan, at its own δ or at one for all."""
    cases = []
    for g, group in enumerate(plan.groups):
        mechanism = plan.mechanism_for(g)
        if delta is None:
            cases.append(Case(mechanism, group.delta, group.name, group.epsilon))
        else:
            cases.append(Case(mechanism, delta, group.name))
    return cases


def _make_case(
    noise_multiplier: float | None,
    probability: float | None,
    steps: int | None,
    delta: float | None,
) -> Case:
    """Return the case that options describe: steps with Gaussian noise."""
    if noise_multiplier is None:
        raise InputError(
            "--noise-multiplier: missing; give it, a plan's file, or - for JSON on stdin"
        )
    step: Mechanism = Gaussian(noise_multiplier)
    # A step that everybody joins is not sampled.
    if probability is not None and probability != 1:
        step = Sampled(step, _check.probability("--sampling-probability", probability))
    times = 1 if steps is None else _check.count("--steps", steps)
    return Case(step if times == 1 else Repeated(step, times), require_delta(delta))


def _read_cases(text: str, delta: float | None) -> tuple[list[Case], bool]:
    """Return the cases in a JSON text, and whether it is a list."""
    data = _json.loads(text, "stdin")
    if not isinstance(data, list):
        return [Case(from_dict(data), require_delta(delta))], False
    if not data:
        raise InputError("stdin: an empty list; give at least one mechanism")
    delta = require_delta(delta)
    cases = []
    for number, item in enumerate(data):
        try:
            cases.append(Case(from_dict(item), delta))
        except InputError as error:
            raise type(error)(f"stdin: mechanism {number}: {error}") from None
    return cases, True


def _account(case: Case, method: str, number: int | None) -> tuple[PrivacyCurve, Json]:
    """Return the curve of a case and its numbers as JSON types.

    Args:
        case: The mechanism and its δ.
        method: The accounting.
        number: Which of several it is, for an error; None of one alone.
    """
    try:
        curve = privacy_curve(case.mechanism, method=method)
        epsilon = curve.epsilon(case.delta)
        advantage = curve.advantage().upper
    except ApieceError as error:
        if number is None:
            raise
        # Of several cases the message says which.
        raise type(error)(f"{case.name or f'mechanism {number}'}: {error}") from None
    document: Json = {} if case.name is None else {"name": case.name}
    if case.asked is not None:
        document["epsilon_asked"] = case.asked
    return curve, document | {
        "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper},
        "delta": case.delta,
        "advantage": advantage,
        "rho": _find_rho(case.mechanism),
        "relation": curve.relation,
        "method": method,
        "mechanism": to_dict(case.mechanism),
    }


def _find_rho(mechanism: Mechanism) -> float | None:
    """Return ρ of concentrated privacy, None where none is known."""
    rho = concentrated_rho(mechanism)
    return rho if rho < math.inf else None


def _format_document(document: Json, curve: PrivacyCurve) -> list[str]:
    """Return the lines of one answer for people."""
    epsilon = document["epsilon"]
    lower = f" (at least {epsilon['lower']:.6g})" if epsilon["lower"] > 0 else ""
    rho = document["rho"]
    return [
        f"epsilon    at most {epsilon['upper']:.6g}{lower} at delta = {document['delta']:g}",
        f"advantage  at most {document['advantage']:.4g}",
        "rho        " + ("none known" if rho is None else f"at most {rounded_up(rho, 6)}"),
        f"relation   {document['relation']}, method {document['method']}",
        "",
        *curve.statement().split("\n"),
    ]


def _format_documents(documents: list[Json], method: str) -> list[str]:
    """Return the lines of a table of several answers."""
    rows = [["", "asked", "epsilon ≥", "epsilon ≤", "delta", "advantage ≤", "rho ≤"]]
    for number, document in enumerate(documents):
        asked = document.get("epsilon_asked")
        epsilon = document["epsilon"]
        rows.append(
            [
                document.get("name", str(number)),
                "" if asked is None else f"{asked:.6g}",
                f"{epsilon['lower']:.6g}",
                f"{epsilon['upper']:.6g}",
                f"{document['delta']:.3g}",
                f"{document['advantage']:.4g}",
                "" if document["rho"] is None else rounded_up(document["rho"], 6),
            ]
        )
    return [*format_table(rows), f"relation {RELATION}, method {method}"]
