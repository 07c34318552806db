"""apiece audit: how much a model really leaks, and about whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.errors import DataError, InputError

if TYPE_CHECKING:
    from apiece.audit.shadows import Mapper

EXAMPLE = """
\b
Examples:
  apiece audit runs/first --delta 1e-5
  apiece audit runs/first --models 64 --processes 2 --out audits/first
  apiece audit --scores-in with.txt --scores-out without.txt --delta 1e-5 --json
  apiece audit --canaries canaries.csv --score score --included included --delta 1e-5
  apiece audit --shadows audits/first/scores.npz
"""
_PATH = click.Path(path_type=Path)


@click.command(epilog=EXAMPLE)
@click.argument("run", required=False, type=_PATH)
@click.option("--models", type=int, help="With RUN: train so many shadow models, then LiRA.")
@click.option("--processes", type=int, default=1, show_default=True, help="For --models.")
@click.option("--ray", is_flag=True, help="Train shadow models on a Ray cluster.")
@click.option("--address", help="Of the Ray cluster; one is started here if not given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shadow models.")
@click.option("--out", type=_PATH, help="Folder of the shadow models; resumed if it has some.")
@click.option("--scores-in", type=_PATH, help="One score a line, of models with the target.")
@click.option("--scores-out", type=_PATH, help="One score a line, of models without it.")
@click.option("--canaries", type=_PATH, help="CSV or Parquet, one canary a row, of one run.")
@click.option("--score", default="score", show_default=True, help="Column of --canaries.")
@click.option("--included", default="included", show_default=True, help="Column of --canaries.")
@click.option("--group", help="Column of --canaries with budget groups.")
@click.option("--shadows", type=_PATH, help="Scores of shadow models, as --out/scores.npz.")
@click.option("--variant", default="online", show_default=True, help="LiRA: online or offline.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of the bounds.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the bounds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(run: Path | None, as_json: bool, **flags: Any) -> None:
    """Audit a run folder, scores of many models, canaries of one run, or shadow models.

    Bounds say that ε is at least so much, with the stated confidence; a group's ROC says how well
    its members can be told. No figure of a single person is printed.
    """
    asked = {
        "RUN": run,
        "--scores-in": flags["scores_in"] or flags["scores_out"],
        "--canaries": flags["canaries"],
        "--shadows": flags["shadows"],
    }
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        named = " and ".join(given) or "nothing"
        raise InputError(f"{named} given; name one of RUN, --scores-in, --canaries, --shadows")
    if run is not None:
        findings = _shadow_run(run, flags) if flags["models"] is not None else _run(run, flags)
    elif flags["canaries"] is not None:
        findings = _canaries(flags)
    elif flags["shadows"] is not None:
        findings = _shadows(flags["shadows"], flags)
    else:
        findings = _two_worlds(flags)
    click.echo(json.dumps(findings) if as_json else text(findings))


def _two_worlds(flags: dict[str, Any]) -> dict[str, Any]:
    from apiece.audit import lower_bound

    for name in ("scores_in", "scores_out"):
        if flags[name] is None:
            raise InputError(f"--{name.replace('_', '-')}: missing; give both files of scores")
    ins, outs = _numbers(flags["scores_in"]), _numbers(flags["scores_out"])
    bounds = [
        lower_bound(ins, outs, delta=flags["delta"], confidence=flags["confidence"], method=method)
        for method in ("clopper-pearson", "gdp")
    ]
    return {"audit": "two worlds", "lower_bounds": [bound.to_dict() for bound in bounds]}


def _numbers(path: Path) -> list[float]:
    from apiece.cli._inputs import read_text

    found = []
    for at, line in enumerate(read_text(path).split(), start=1):
        try:
            found.append(float(line))
        except ValueError:
            raise DataError(f"{path}, entry {at} = {line!r}: not a number") from None
    return found


def _canaries(flags: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    from apiece.audit import one_run, roc_by_group
    from apiece.datasets import read_table

    frame = read_table(flags["canaries"])
    for name in (flags["score"], flags["included"], *([flags["group"]] if flags["group"] else [])):
        if name not in frame.columns:
            raise DataError(f"column {name!r}: not in {flags['canaries']} ({list(frame.columns)})")
    try:
        scores = frame[flags["score"]].to_numpy().astype(float)
    except ValueError as error:
        raise DataError(f"column {flags['score']!r}: not numbers ({error})") from None
    words = frame[flags["included"]].astype(str).str.lower()
    if not words.isin(["0", "1", "true", "false"]).all():
        raise DataError(f"column {flags['included']!r}: give 0 or 1, true or false")
    truth = words.isin(["1", "true"]).to_numpy()
    groups = frame[flags["group"]].to_numpy().astype(str) if flags["group"] else None
    found = {}
    for name in ["all"] if groups is None else ["all", *np.unique(groups).tolist()]:
        of = np.full(scores.size, True) if name == "all" else groups == name
        found[name] = [
            one_run(
                scores[of],
                truth[of],
                delta=flags["delta"],
                confidence=flags["confidence"],
                method=method,
            ).to_dict()
            for method in ("dp", "gdp")
        ]
    rocs = roc_by_group(scores, truth, np.full(scores.size, "all") if groups is None else groups)
    return {
        "audit": "one run",
        "lower_bounds": found["all"],
        "lower_bounds_by_group": {k: v for k, v in found.items() if k != "all"},
        "roc": {name: curve.summary() for name, curve in rocs.items()},
    }


def _shadows(path: Path, flags: dict[str, Any]) -> dict[str, Any]:
    from apiece.audit.records import ShadowScores
    from apiece.audit.summary import shadow_findings

    return {
        "audit": "shadow models",
        **shadow_findings(ShadowScores.load(path), variant=flags["variant"]),
    }


def _run(run: Path, flags: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    from apiece.audit import roc
    from apiece.audit.models import audit_scores, model_confidences
    from apiece.training.tabular import load_model, read_job
    from apiece.training.tabular.people import read_people

    people = read_people(read_job(run / "config.toml"))
    network = load_model(run / "model.pt").network

    def confidences(records: Any) -> Any:
        good = ~records.faulty
        inputs, labels = records.features[good], records.labels[good]
        return model_confidences(network, inputs, labels)

    groups = people.budgets.groups.name[people.budgets.group_index].astype(str)
    groups = groups[~people.train.faulty]
    members, others = confidences(people.train), confidences(people.test)
    generator = np.random.default_rng(flags["seed"])
    found = audit_scores(
        members,
        others,
        delta=flags["delta"],
        confidence=flags["confidence"],
        generator=generator,
    ).to_dict()
    for name in np.unique(groups).tolist():
        own = members[groups == name]
        truth = np.repeat([True, False], [own.size, others.size])
        found["roc"][name] = roc(np.concatenate([own, others]), truth).summary()
    return {"audit": "run folder", **found}


def _shadow_run(run: Path, flags: dict[str, Any]) -> dict[str, Any]:
    from apiece.audit.records import ShadowScores
    from apiece.audit.shadows import train_shadows
    from apiece.audit.summary import shadow_findings
    from apiece.audit.tables import half_plan, table_job
    from apiece.budgets import Budgets
    from apiece.cli._progress import Bar
    from apiece.training.tabular import read_job
    from apiece.training.tabular.people import read_people

    job = read_job(run / "config.toml")
    people = read_people(job)
    good, asked = ~people.train.faulty, people.budgets
    budgets = Budgets(
        asked.epsilon[good],
        asked.delta[good],
        ids=asked.ids[good],
        labels=None if asked.labels is None else asked.labels[good],
    )
    plan = half_plan(
        budgets,
        job.strategy,
        steps=job.steps,
        expected_batch_size=job.batch_size / 2,
        clip_norm=job.clip_norm,
    )
    shadow_job = table_job(
        people.train.features[good],
        people.train.labels[good],
        budgets,
        plan,
        models=flags["models"],
        seed=flags["seed"],
    )
    with Bar(shadow_job.blocks) as bar:
        scores: ShadowScores = train_shadows(
            shadow_job,
            folder=flags["out"],
            mapper=_mapper(flags),
            progress=lambda done, total: bar.advance(f"block {done} of {total}"),
        )
    if flags["out"] is not None:
        scores.save(flags["out"] / "scores.npz")
    return {
        "audit": "shadow models of a run's table",
        "strategy": plan.strategy,
        "steps": plan.steps,
        **shadow_findings(scores, variant=flags["variant"]),
    }


def _mapper(flags: dict[str, Any]) -> Mapper:
    from apiece.audit.shadows import processes, serially

    if flags["ray"]:
        from apiece.adapters.ray import cluster

        return cluster(flags["address"])
    return serially if flags["processes"] == 1 else processes(flags["processes"])


def text(findings: dict[str, Any]) -> str:
    """Return the findings for people to read."""
    lines = [findings["audit"] + (f": {findings['attack']}" if "attack" in findings else "")]
    lines += [
        f"  epsilon >= {bound['epsilon']:.4g} at delta = {bound['delta']:g} with "
        f"{bound['confidence']:.0%} confidence ({bound['method']})"
        for bound in findings.get("lower_bounds", [])
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
    return "\n".join(lines)
