"""apiece audit: how much a model really leaks, and about whom; a sub-command a kind of audit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._text import plain
from apiece.cli._command import DIALECT, Command, Output, dialect_from, echo, renamed, table_options
from apiece.errors import InputError

if TYPE_CHECKING:
    from apiece.audit import Findings, LowerBound

EXAMPLE = """
\b
Examples:
  apiece audit run runs/first --delta 1e-5
  apiece audit lira runs/first --models 64 --processes 2 --out audits/first
  apiece audit model --model model.pt2 --trust-model --members train.npz --others test.npz
  apiece audit worlds --scores-in with.txt --scores-out without.txt --plan a.json --json
  apiece audit canaries --canaries scores.csv --coins coins.csv --ids person --group consent
  apiece audit shadows --shadows audits/first/scores.npz
"""
_PATH = click.Path(path_type=Path)
FEW_MODELS = 32  # from here on the AUC of scores without signal is within 0.005 of 1/2
# What an audit is of, by the option that names it; without a sub-command it is told by these.
NAMED_BY = {
    "--model": "model",
    "--scores-in": "worlds",
    "--scores-out": "worlds",
    "--canaries": "canaries",
    "--shadows": "shadows",
}


class Kinds(click.Group):
    """The sub-commands, of which the first option or argument tells which is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the sub-command first, where it is not there."""
        helped = args in (["--help"], ["-h"])
        if not helped and (not args or args[0] not in self.commands):
            args = [_kind_of(args), *args]
        return super().parse_args(ctx, args)


def _kind_of(args: list[str]) -> str:
    """Return the sub-command that arguments without one are for."""
    options = [word.partition("=")[0] for word in args if word.startswith("--")]
    given = list(dict.fromkeys(NAMED_BY[name] for name in options if name in NAMED_BY))
    if not given and args and not args[0].startswith("-"):
        return "lira" if "--models" in options else "run"
    if len(given) != 1:
        named = " and ".join(name for name in options if name in NAMED_BY) or "nothing"
        raise InputError(f"{named} given; name one of RUN, {', '.join(NAMED_BY)}")
    return given[0]


class Kind(Command):
    """One kind of audit: an option of another is refused with the kinds that it goes with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments, or raise for an option of another kind."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            parent = ctx.parent.command if ctx.parent is not None else None
            kinds = parent.commands if isinstance(parent, click.Group) else {}
            owners = [
                name
                for name, kind in kinds.items()
                if any(error.option_name in option.opts for option in kind.params)
            ]
            if not owners:
                raise
            raise InputError(
                f"{error.option_name}: goes with {' or '.join(owners)}, not with {self.name}; "
                "leave it out"
            ) from None


@click.group(short_help="How much a model really leaks, and about whom.", cls=Kinds, epilog=EXAMPLE)
def command() -> None:
    """Audit a run folder, a torch model, scores of many models, canaries of one run, or shadows.

    The sub-command may be left out: what is given tells it. Bounds say that ε is at least so much,
    with the stated confidence; those of the groups hold together. A group's ROC says how well its
    members can be told. No figure of a single person is printed.
    """


def _bounds(function: Any) -> Any:
    confidence = click.option(
        "--confidence", type=float, default=0.95, show_default=True, help="Of the bounds."
    )
    delta = click.option(
        "--delta", type=float, default=1e-5, show_default=True, help="δ of the bounds."
    )
    return delta(confidence(function))


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Of the audit.")
_variant_option = click.option(
    "--variant", default="online", show_default=True, help="LiRA: online or offline."
)


def _say(found: Findings, as_json: bool) -> None:
    echo(json.dumps(found.to_dict()) if as_json else text(found))


@command.command("run", short_help="The model in a run folder, by its losses.", cls=Kind)
@click.argument("run", type=_PATH)
@_seed_option
@_bounds
@_json_option
def of_run(run: Path, as_json: bool, **asked: Any) -> None:
    """Audit the model in a run folder by its loss on those trained on and those held out."""
    from apiece.cli import _findings

    _say(_findings.of_run(run, **asked), as_json)


@command.command("lira", short_help="Shadow models of a run's table (LiRA).", cls=Kind)
@click.argument("run", type=_PATH)
@click.option("--models", type=int, default=64, show_default=True, help="How many to train.")
@click.option("--processes", type=int, default=1, show_default=True, help="That train them.")
@click.option("--ray", "--cluster", "ray", is_flag=True, help="Train them on a Ray cluster.")
@click.option("--address", help="Of the Ray cluster; one is started here if not given.")
@_seed_option
@click.option(
    "--out", type=Output(None), help="Folder of the shadow models; resumed if it has some."
)
@_variant_option
@_json_option
def of_shadow_run(as_json: bool, **flags: Any) -> None:
    """Train shadow models on a run's table, and attack each by all others (LiRA)."""
    from apiece.cli import _findings

    _say(_findings.of_shadow_run(_findings.Asked(**flags)), as_json)


@command.command("model", short_help="A torch model, by its losses.", cls=Kind)
@click.option("--model", type=_PATH, required=True, help="Written by torch.export.save (.pt2).")
@click.option(
    "--trust-model",
    "trusted",
    is_flag=True,
    help="Load --model though such a file can run any code of its writer's, as you.",
)
@click.option("--members", type=_PATH, help=".npz of inputs, targets, maybe groups, people.")
@click.option("--others", type=_PATH, help="The same, of records not trained on.")
@_seed_option
@_bounds
@_json_option
def of_model(as_json: bool, **asked: Any) -> None:
    """Audit a torch model by its loss on those trained on and on others."""
    from apiece.cli import _findings

    _say(_findings.of_model(**asked), as_json)


@command.command("worlds", short_help="Scores of models with and without one record.", cls=Kind)
@click.option("--scores-in", type=_PATH, help="One score a line, of models with the target.")
@click.option("--scores-out", type=_PATH, help="One score a line, of models without it.")
@click.option(
    "--plan", "plans", type=_PATH, multiple=True, help="Of each world; refused if they differ."
)
@_bounds
@_json_option
def of_two_worlds(as_json: bool, **asked: Any) -> None:
    """Bound ε from the scores of models trained with and without one record."""
    from apiece.cli import _findings

    _say(_findings.of_two_worlds(**asked), as_json)


@command.command("canaries", short_help="One run, on those included by fair coins.", cls=Kind)
@click.option(
    "--canaries", type=_PATH, required=True, help="CSV or Parquet, one canary a row, of one run."
)
@click.option("--coins", type=_PATH, help="CSV or Parquet with who was included, joined by --ids.")
@click.option("--ids", "id_column", default="id", show_default=True, help="Column for --coins.")
@renamed("--id", "--ids")
@click.option("--score", default="score", show_default=True, help="Column of --canaries.")
@click.option(
    "--included", default="included", show_default=True, help="Column of --canaries or --coins."
)
@click.option("--group", help="Column of --canaries or --coins with budget groups.")
@click.option(
    "--person",
    help="Column of persons' ids, in place of --ids: canaries are persons with many rows.",
)
@table_options
@_bounds
@_json_option
def of_canaries(as_json: bool, delta: float, confidence: float, **flags: Any) -> None:
    """Bound ε from one run, on records or persons that were included by fair coins."""
    from apiece.cli import _findings

    dialect = dialect_from({name: flags.pop(name) for name in DIALECT})
    given = _findings.Canaries(**flags, dialect=dialect)
    _say(_findings.of_canaries(given, delta=delta, confidence=confidence), as_json)


@command.command("shadows", short_help="Stored shadow models (LiRA).", cls=Kind)
@click.option("--shadows", type=_PATH, required=True, help="Scores, as --out/scores.npz.")
@_variant_option
@_json_option
def of_shadows(shadows: Path, variant: str, as_json: bool) -> None:
    """Attack each of many stored shadow models by all others (LiRA)."""
    from apiece.cli import _findings

    _say(_findings.of_shadows(shadows, variant), as_json)


def text(found: Findings) -> str:
    """Return the findings for people to read."""
    by_group = found.bounds_by_group or {}
    by = f", by {found.unit}" if found.unit else ""
    lines = [found.audit + (f": {found.attack}" if found.attack else "") + by]
    lines += map(_bound, found.bounds)
    lines += [_bound(bound, f"{name}: ") for name, each in by_group.items() for bound in each]
    lines += [
        f"  {name}: AUC {curve.auc:.4f}, balanced accuracy {curve.balanced_accuracy:.4f}, "
        f"TPR {curve.tpr_at(0.001):.4f} at FPR 0.001"
        for name, curve in found.rocs.items()
    ]
    lines += [
        f"  {name}: privacy score {score.mean:.4f} on average"
        for name, score in found.privacy_score.items()
    ]
    lines += [
        f"  {pair.groups[0]} against {pair.groups[1]}: t = {pair.test.statistic:.3f}, "
        f"p = {pair.test.p_value:.2g}"
        for pair in found.differences
        if pair.test is not None
    ]
    if found.models is not None and found.models < FEW_MODELS:
        lines.append(
            f"  Only {found.models} models: LiRA puts even what does not leak below AUC 1/2; "
            "train 64 or more."
        )
    return "\n".join(map(plain, [*lines, "", *verdict(found)]))


def verdict(found: Findings) -> list[str]:
    """Return in plain words what the findings show, and what they do not."""
    by_group = found.bounds_by_group or {}
    every = [("", bound) for bound in found.bounds]
    every += [(f" of {name}", bound) for name, each in by_group.items() for bound in each]
    if every:
        whose, most = max(every, key=lambda pair: pair[1].epsilon)
        if most.epsilon > 0:
            return [
                f"Verdict: a leak is shown. The ε{whose} is at least {most.epsilon:.4g} with "
                f"{most.confidence:.4g} confidence;",
                "a promise below that is broken, one above it is not contradicted.",
            ]
        return [
            "Verdict: no leak is shown. That is no proof that there is none: a stronger attack",
            "may find one. What is promised rests on the plan's accounting, not on an audit.",
        ]
    if not found.rocs:
        return ["Verdict: nothing was measured."]
    name, roc = max(found.rocs.items(), key=lambda pair: pair[1].balanced_accuracy)
    right = math.ceil(1000 * roc.balanced_accuracy)
    return [
        f"Verdict: this attack tells those of {name} best. Of 1,000, 500 of them members, it is",
        f"right about {right}; blind guessing, about 500. A stronger attack may do better.",
    ]


def _bound(bound: LowerBound, group: str = "") -> str:
    return (
        f"  {group}epsilon >= {bound.epsilon:.4g} at delta = {bound.delta:g} with "
        f"{bound.confidence:.4g} confidence ({bound.method})"
    )
