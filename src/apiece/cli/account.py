"""apiece account: what a mechanism, several, or a plan's groups cost."""

from dataclasses import dataclass
from pathlib import Path

import click

from apiece import _check, _json
from apiece._types import Json
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting.curve import RELATION
from apiece.cli._command import (
    Bar,
    Command,
    columns,
    emit,
    needed_delta,
    option,
    read_plan,
    read_stdin,
    renamed,
)
from apiece.errors import ApieceError, InputError
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled
from apiece.mechanisms.algebra import from_dict, to_dict

EXAMPLE = """
\b
Example:
  apiece account --noise-multiplier 1.0 --sampling-probability 0.02 --steps 1465 --delta 1e-5
  apiece account plan.json --json
  echo '[{"gaussian": {"noise_multiplier": 2}}]' | apiece account - --delta 1e-6 --json
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One mechanism to account for, with what the answer is called and asked at."""

    mechanism: Mechanism
    delta: float
    name: str | None = None
    asked: float | None = None


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("source", required=False)
@option("--noise-multiplier", type=float, help="Noise standard deviation over clip norm.")
@option("--sampling-probability", type=float, help="Chance of joining a step.  [default: 1]")
@option("--steps", help="Number of steps.  [default: 1]")
@option("--delta", type=float)
@option("--method", default="pld", help="Accounting method: pld, rdp, gdp or best.")
@option("--figure", help="Draw the curves here (.png, .svg or .pdf).")
@renamed("--plot", "--figure")
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
    {"composed": {"mechanisms": […]}}.

    Every ε is given from below and from above for add/remove adjacency; advantage is an upper
    bound on TPR − FPR of any membership test.
    """
    flags = (noise_multiplier, sampling_probability, steps)
    if source is None:
        cases, many = [_from_flags(*flags, delta)], False
    elif any(flag is not None for flag in flags):
        raise InputError(f"{source}: mechanisms are given twice; leave out the options or SOURCE")
    elif source == "-":
        cases, many = _from_json(read_stdin(), delta)
    else:
        plan, many = read_plan(Path(source)), True
        cases = [
            Case(
                plan.mechanism_for(g),
                group.delta if delta is None else delta,
                group.name,
                group.epsilon if delta is None else None,
            )
            for g, group in enumerate(plan.groups)
        ]
    curves, documents = [], []
    with Bar(len(cases)) as bar:
        for number, case in enumerate(cases):
            curve, document = _account(case, method, number if many else None)
            curves.append(curve)
            documents.append(document)
            bar.advance("accounting")
    if figure is not None:
        from apiece.reporting import save
        from apiece.reporting.plots import privacy_curves

        labels = [case.name or f"mechanism {number}" for number, case in enumerate(cases)]
        save(privacy_curves(dict(zip(labels, curves, strict=True))), figure)
    if many:
        whole = {"results": documents, "relation": RELATION, "method": method}
        emit(as_json, whole, _rows(documents, method))
    else:
        emit(as_json, documents[0], _lines(documents[0], curves[0]))


def _from_flags(
    noise_multiplier: float | None,
    probability: float | None,
    steps: int | None,
    delta: float | None,
) -> Case:
    if noise_multiplier is None:
        raise InputError(
            "--noise-multiplier: missing; give it, a plan's file, or - for JSON on stdin"
        )
    step: Mechanism = Gaussian(noise_multiplier)
    if probability is not None and probability != 1:
        step = Sampled(step, _check.probability("--sampling-probability", probability))
    times = 1 if steps is None else _check.count("--steps", steps)
    return Case(step if times == 1 else Repeated(step, times), needed_delta(delta))


def _from_json(text: str, delta: float | None) -> tuple[list[Case], bool]:
    data = _json.loads(text, "stdin")
    if not isinstance(data, list):
        return [Case(from_dict(data), needed_delta(delta))], False
    if not data:
        raise InputError("stdin: an empty list; give at least one mechanism")
    cases, one = [], needed_delta(delta)
    for number, item in enumerate(data):
        try:
            cases.append(Case(from_dict(item), one))
        except InputError as error:
            raise type(error)(f"stdin: mechanism {number}: {error}") from None
    return cases, True


def _account(case: Case, method: str, number: int | None) -> tuple[PrivacyCurve, Json]:
    try:
        curve = privacy_curve(case.mechanism, method=method)
        epsilon = curve.epsilon(case.delta)
        advantage = curve.advantage().upper
    except ApieceError as error:
        if number is None:
            raise
        raise type(error)(f"{case.name or f'mechanism {number}'}: {error}") from None
    document: Json = {} if case.name is None else {"name": case.name}
    if case.asked is not None:
        document["epsilon_asked"] = case.asked
    return curve, document | {
        "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper},
        "delta": case.delta,
        "advantage": advantage,
        "relation": curve.relation,
        "method": method,
        "mechanism": to_dict(case.mechanism),
    }


def _lines(document: Json, curve: PrivacyCurve) -> list[str]:
    epsilon = document["epsilon"]
    low = f" (at least {epsilon['lower']:.6g})" if epsilon["lower"] > 0 else ""
    return [
        f"epsilon    at most {epsilon['upper']:.6g}{low} at delta = {document['delta']:g}",
        f"advantage  at most {document['advantage']:.4g}",
        f"relation   {document['relation']}, method {document['method']}",
        "",
        *curve.statement().split("\n"),
    ]


def _rows(documents: list[Json], method: str) -> list[str]:
    head = ["", "asked", "epsilon ≥", "epsilon ≤", "delta", "advantage ≤"]
    rows = [
        [
            d.get("name", str(number)),
            f"{d['epsilon_asked']:.6g}" if "epsilon_asked" in d else "",
            *(f"{d['epsilon'][end]:.6g}" for end in ("lower", "upper")),
            f"{d['delta']:.3g}",
            f"{d['advantage']:.4g}",
        ]
        for number, d in enumerate(documents)
    ]
    return [*columns([head, *rows]), f"relation {RELATION}, method {method}"]
