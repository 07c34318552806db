"""What `apiece audit` finds, one function a kind of input; heavy imports stay inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece._types import Floats
from apiece.errors import DataError, InputError

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Records


def of_two_worlds(
    scores_in: Path | None,
    scores_out: Path | None,
    plans: tuple[Path, ...],
    *,
    delta: float,
    confidence: float,
) -> Findings:
    """Bounds from the scores of models trained with and without one record."""
    from apiece.audit import Findings, lower_bound

    for name, path in (("in", scores_in), ("out", scores_out)):
        if path is None:
            raise InputError(f"--scores-{name}: missing; give both files of scores")
    assert scores_in is not None
    assert scores_out is not None
    _one_plan(plans)
    ins, outs = _numbers(scores_in), _numbers(scores_out)
    bounds = tuple(
        lower_bound(ins, outs, delta=delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    return Findings(audit="two worlds", bounds=bounds)


def _one_plan(paths: tuple[Path, ...]) -> None:
    from apiece.audit import one_plan
    from apiece.cli._inputs import read_text
    from apiece.plan import Plan

    if paths:
        one_plan(*(Plan.from_json(read_text(path)) for path in paths))


def _numbers(path: Path) -> list[float]:
    from apiece.cli._inputs import read_text

    found = []
    for at, line in enumerate(read_text(path).split(), start=1):
        try:
            found.append(float(line))
        except ValueError:
            raise DataError(f"{path}, entry {at} = {line!r}: not a number") from None
    return found


def of_canaries(flags: dict[str, Any]) -> Findings:
    """Bounds, by group too, and ROC curves from canaries that were included by fair coins."""
    import numpy as np
    import pandas as pd

    from apiece.audit import Findings, one_run, one_run_by_group, roc_by_group
    from apiece.datasets import texts

    table = _canary_table(flags)
    scores = _score_column(table, flags)
    words = pd.Series(texts(table[flags["included"]])).str.lower()
    if not words.isin(["0", "1", "true", "false"]).all():
        raise DataError(f"column {flags['included']!r}: give 0 or 1, true or false")
    truth = words.isin(["1", "true"]).to_numpy()
    asked = {"delta": flags["delta"], "confidence": flags["confidence"]}
    methods = ("dp", "gdp")
    by_group, groups = {}, np.full(scores.size, "all")
    if flags["group"]:
        groups = texts(table[flags["group"]]).astype(str)
        each = [one_run_by_group(scores, truth, groups, method=m, **asked) for m in methods]
        by_group = {name: tuple(bounds[name] for bounds in each) for name in each[0]}
    return Findings(
        audit="one run",
        bounds=tuple(one_run(scores, truth, method=m, **asked) for m in methods),
        bounds_by_group=by_group,
        rocs=roc_by_group(scores, truth, groups),
    )


def _score_column(table: Any, flags: dict[str, Any]) -> Any:
    import numpy as np

    from apiece.datasets import as_numbers, texts

    cells = texts(table[flags["score"]])
    scores = as_numbers(cells, flags["decimal"] or ".")
    bad = np.flatnonzero(np.isnan(scores))
    if bad.size:
        raise DataError(
            f"column {flags['score']!r}, row {int(bad[0]) + 1} = {cells[bad[0]]!r}: not a number "
            f"({bad.size} such rows); give every canary a score"
        )
    return scores


def _canary_table(flags: dict[str, Any]) -> Any:
    """Return one table with scores, coins and groups.

    With --coins, the two files are joined by record id, whatever the order of their rows.
    """
    from apiece.audit import join
    from apiece.datasets import texts

    coined = [flags["included"], *([flags["group"]] if flags["group"] else [])]
    if flags["coins"] is None:
        return _columns(flags, flags["canaries"], [flags["score"], *coined])
    key = flags["id_column"]
    scores = _columns(flags, flags["canaries"], [key, flags["score"]])
    coins = _columns(flags, flags["coins"], [key, *coined])
    ids = [texts(table[key]).astype(str) for table in (scores, coins)]
    order = join(str(flags["coins"]), ids[1], str(flags["canaries"]), ids[0])
    joined = coins.iloc[order].reset_index(drop=True)
    return joined.assign(**{flags["score"]: scores[flags["score"]].to_numpy()})


def _columns(flags: dict[str, Any], path: Path, names: list[str]) -> Any:
    from apiece.cli._inputs import dialect_from
    from apiece.datasets import column, read_table

    table = read_table(path, dialect_from(flags))
    for name in names:
        column(table, name, f"{path.name}:")
    return table[list(dict.fromkeys(names))]


def of_shadows(path: Path, variant: str) -> Findings:
    """LiRA by group from the stored confidences of shadow models."""
    from apiece.audit import ShadowScores, shadow_findings

    return shadow_findings(ShadowScores.load(path), variant=variant)


def of_model(
    model: Path,
    members: Path | None,
    others: Path | None,
    *,
    trusted: bool,
    delta: float,
    confidence: float,
    seed: int,
) -> Findings:
    """The loss-threshold test of a model of torch.export, with one-run bounds."""
    import numpy as np

    from apiece.audit import read_arrays
    from apiece.audit.models import audit_scores, exported_model, model_confidences

    if members is None or others is None:
        raise InputError("--members, --others: missing; give the records trained on, and others")
    network, found, groups = exported_model(model, trusted=trusted), [], []
    for path in (members, others):
        arrays = read_arrays(path)
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
        inputs = arrays["inputs"].astype(np.float32)
        found.append(model_confidences(network, inputs, arrays["targets"]))
        groups.append(arrays.get("groups"))
    return audit_scores(
        *found,
        delta=delta,
        confidence=confidence,
        member_groups=groups[0],
        other_groups=groups[1],
        generator=np.random.default_rng(seed),
    )


def of_run(run: Path, *, delta: float, confidence: float, seed: int) -> Findings:
    """The loss-threshold test of a run's model by group, with one-run bounds."""
    import numpy as np

    from apiece.audit import roc
    from apiece.audit.models import audit_scores, model_confidences
    from apiece.jobs import load_model, read_job, read_people

    people = read_people(read_job(run / "config.toml"))
    network = load_model(run / "model.pt").network

    def confidences(records: Records) -> Floats:
        good = ~records.faulty
        inputs, labels = records.features[good], records.labels[good]
        return model_confidences(network, inputs, labels)

    groups = people.budgets.groups.name[people.budgets.group_index].astype(str)
    groups = groups[~people.train.faulty]
    members, others = confidences(people.train), confidences(people.test)
    generator = np.random.default_rng(seed)
    found = audit_scores(members, others, delta=delta, confidence=confidence, generator=generator)
    rocs = dict(found.rocs)
    for name in np.unique(groups).tolist():
        own = members[groups == name]
        truth = np.repeat([True, False], [own.size, others.size])
        rocs[name] = roc(np.concatenate([own, others]), truth)
    return replace(found, audit="run folder", rocs=rocs)
