"""apiece audit: how much a model really leaks, and about whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from apiece._text import plain
from apiece.cli._inputs import table_options
from apiece.cli._output import echo
from apiece.errors import InputError

EXAMPLE = """
\b
Examples:
  apiece audit runs/first --delta 1e-5
  apiece audit runs/first --models 64 --processes 2 --out audits/first
  apiece audit --model model.pt2 --trust-model --members train.npz --others test.npz --delta 1e-5
  apiece audit --scores-in with.txt --scores-out without.txt --plan a.json --plan b.json --json
  apiece audit --canaries scores.csv --coins coins.csv --id person --group consent
  apiece audit --shadows audits/first/scores.npz
"""
_PATH = click.Path(path_type=Path)
SHADOW_RUN = "RUN --models"
FEW_MODELS = 32  # from here on the AUC of scores without signal is within 0.005 of 1/2
_SHADOWS, _CANARIES = (SHADOW_RUN,), ("--canaries",)
_BOUNDS = ("RUN", "--model", "--scores-in", "--canaries")
GOES_WITH = {  # the kinds of audit that use an option, where not all do
    **dict.fromkeys(("models", "processes", "ray", "address", "out"), _SHADOWS),
    **dict.fromkeys(("members", "others", "trust_model"), ("--model",)),
    **dict.fromkeys(("coins", "id_column", "score", "included", "group"), _CANARIES),
    **dict.fromkeys(("separator", "decimal", "encoding"), _CANARIES),
    **dict.fromkeys(("delta", "confidence"), _BOUNDS),
    "plan": ("--scores-in",),
    "seed": ("RUN", SHADOW_RUN, "--model"),
    "variant": (SHADOW_RUN, "--shadows"),
}


@click.command(epilog=EXAMPLE)
@click.argument("run", required=False, type=_PATH)
@click.option("--models", type=int, help="With RUN: train so many shadow models, then LiRA.")
@click.option("--processes", type=int, default=1, show_default=True, help="For --models.")
@click.option("--ray", is_flag=True, help="Train shadow models on a Ray cluster.")
@click.option("--address", help="Of the Ray cluster; one is started here if not given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shadow models.")
@click.option("--out", type=_PATH, help="Folder of the shadow models; resumed if it has some.")
@click.option("--model", type=_PATH, help="A model written by torch.export.save (.pt2).")
@click.option(
    "--trust-model",
    is_flag=True,
    help="Load --model though such a file can run any code of its writer's, as you.",
)
@click.option("--members", type=_PATH, help="For --model: .npz of inputs, targets, maybe groups.")
@click.option("--others", type=_PATH, help="For --model: the same, of records not trained on.")
@click.option("--scores-in", type=_PATH, help="One score a line, of models with the target.")
@click.option("--scores-out", type=_PATH, help="One score a line, of models without it.")
@click.option("--plan", type=_PATH, multiple=True, help="Of each world; refused if they differ.")
@click.option("--canaries", type=_PATH, help="CSV or Parquet, one canary a row, of one run.")
@click.option("--coins", type=_PATH, help="CSV or Parquet with who was included, joined by --id.")
@click.option("--id", "id_column", default="id", show_default=True, help="Column for --coins.")
@click.option("--score", default="score", show_default=True, help="Column of --canaries.")
@click.option(
    "--included", default="included", show_default=True, help="Column of --canaries or --coins."
)
@table_options
@click.option("--group", help="Column of --canaries or --coins with budget groups.")
@click.option("--shadows", type=_PATH, help="Scores of shadow models, as --out/scores.npz.")
@click.option("--variant", default="online", show_default=True, help="LiRA: online or offline.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of the bounds.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the bounds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(run: Path | None, as_json: bool, **flags: Any) -> None:
    """Audit a run folder, a torch model, scores of many models, canaries of one run, or shadows.

    Bounds say that ε is at least so much, with the stated confidence; those of the groups hold
    together. A group's ROC says how well its members can be told. No figure of a single person is
    printed.
    """
    from apiece.cli import _findings, _shadow_audit

    kinds = {
        "RUN": (run if flags["models"] is None else None, _findings.of_run),
        SHADOW_RUN: (None if flags["models"] is None else run, _shadow_audit.of_shadow_run),
        "--model": (flags["model"], _findings.of_model),
        "--scores-in": (flags["scores_in"] or flags["scores_out"], _findings.of_two_worlds),
        "--canaries": (flags["canaries"], _findings.of_canaries),
        "--shadows": (flags["shadows"], _findings.of_shadows),
    }
    given = [name for name, (value, _) in kinds.items() if value is not None]
    if len(given) != 1:
        named = " and ".join(given) or "nothing"
        known = ", ".join(name for name in kinds if name != SHADOW_RUN)
        raise InputError(f"{named} given; name one of {known}")
    _check_options(given[0])
    findings = kinds[given[0]][1]({**flags, "run": run})
    echo(json.dumps(findings) if as_json else text(findings))


def _check_options(kind: str) -> None:
    """Raise `InputError` for an option that was given though `kind` has no use for it."""
    context = click.get_current_context()
    for option in context.command.params:
        owners = GOES_WITH.get(option.name or "")
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if owners is not None and given and kind not in owners:
            raise InputError(
                f"{option.opts[0]}: goes with {' or '.join(owners)}, not with {kind}; leave it out"
            )


def text(findings: dict[str, Any]) -> str:
    """Return the findings for people to read."""
    lines = [findings["audit"] + (f": {findings['attack']}" if "attack" in findings else "")]
    lines += [_bound(bound) for bound in findings.get("lower_bounds", [])]
    lines += [
        _bound(bound, f"{name}: ")
        for name, bounds in findings.get("lower_bounds_by_group", {}).items()
        for bound in bounds
    ]
    lines += [
        f"  {name}: AUC {curve['auc']:.4f}, balanced accuracy {curve['balanced_accuracy']:.4f}, "
        f"TPR {curve['tpr_at_fpr_0.001']:.4f} at FPR 0.001"
        for name, curve in findings.get("roc", {}).items()
    ]
    lines += [
        f"  {name}: privacy score {score['mean']:.4f} on average"
        for name, score in findings.get("privacy_score", {}).items()
    ]
    lines += [
        f"  {pair['groups'][0]} against {pair['groups'][1]}: t = {pair['statistic']:.3f}, "
        f"p = {pair['p_value']:.2g}"
        for pair in findings.get("differences", [])
        if "p_value" in pair
    ]
    if findings.get("models", FEW_MODELS) < FEW_MODELS:
        lines.append(
            f"  Only {findings['models']} models: LiRA puts even what does not leak below AUC 1/2; "
            "train 64 or more."
        )
    return "\n".join(map(plain, lines))


def _bound(bound: dict[str, Any], group: str = "") -> str:
    return (
        f"  {group}epsilon >= {bound['epsilon']:.4g} at delta = {bound['delta']:g} with "
        f"{bound['confidence']:.4g} confidence ({bound['method']})"
    )
