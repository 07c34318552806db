"""What `apiece audit` finds, one function a kind of input; heavy imports stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apiece.errors import DataError, InputError


def of_two_worlds(flags: dict[str, Any]) -> dict[str, Any]:
    """Bounds from the scores of models trained with and without one record."""
    from apiece.audit import lower_bound

    for name in ("scores_in", "scores_out"):
        if flags[name] is None:
            raise InputError(f"--{name.replace('_', '-')}: missing; give both files of scores")
    _one_plan(flags["plan"])
    ins, outs = _numbers(flags["scores_in"]), _numbers(flags["scores_out"])
    bounds = [
        lower_bound(ins, outs, delta=flags["delta"], confidence=flags["confidence"], method=method)
        for method in ("clopper-pearson", "gdp")
    ]
    return {"audit": "two worlds", "lower_bounds": [bound.to_dict() for bound in bounds]}


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


def of_canaries(flags: dict[str, Any]) -> dict[str, Any]:
    """Bounds, by group too, and ROC curves from canaries that were included by fair coins."""
    import numpy as np
    import pandas as pd

    from apiece.audit import one_run, one_run_by_group, roc_by_group
    from apiece.datasets import texts

    table = _canary_table(flags)
    scores = _score_column(table, flags)
    words = pd.Series(texts(table[flags["included"]])).str.lower()
    if not words.isin(["0", "1", "true", "false"]).all():
        raise DataError(f"column {flags['included']!r}: give 0 or 1, true or false")
    truth = words.isin(["1", "true"]).to_numpy()
    asked = {"delta": flags["delta"], "confidence": flags["confidence"]}
    methods = ("dp", "gdp")
    found: dict[str, Any] = {
        "audit": "one run",
        "lower_bounds": [one_run(scores, truth, method=m, **asked).to_dict() for m in methods],
        "lower_bounds_by_group": {},
    }
    groups = np.full(scores.size, "all")
    if flags["group"]:
        groups = texts(table[flags["group"]]).astype(str)
        each = [one_run_by_group(scores, truth, groups, method=m, **asked) for m in methods]
        found["lower_bounds_by_group"] = {
            name: [bounds[name].to_dict() for bounds in each] for name in each[0]
        }
    rocs = roc_by_group(scores, truth, groups)
    return {**found, "roc": {name: curve.summary() for name, curve in rocs.items()}}


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


def of_shadows(flags: dict[str, Any]) -> dict[str, Any]:
    """LiRA by group from the stored confidences of shadow models."""
    from apiece.audit import ShadowScores, shadow_findings

    shadows = ShadowScores.load(flags["shadows"])
    return {"audit": "shadow models", **shadow_findings(shadows, variant=flags["variant"])}


def of_model(flags: dict[str, Any]) -> dict[str, Any]:
    """The loss-threshold test of a model of torch.export, with one-run bounds."""
    import numpy as np

    from apiece.audit import read_arrays
    from apiece.audit.models import audit_scores, exported_model, model_confidences

    if flags["members"] is None or flags["others"] is None:
        raise InputError("--members, --others: missing; give the records trained on, and others")
    network, found, groups = exported_model(flags["model"], trusted=flags["trust_model"]), [], []
    for path in (flags["members"], flags["others"]):
        arrays = read_arrays(path)
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
        inputs = arrays["inputs"].astype(np.float32)
        found.append(model_confidences(network, inputs, arrays["targets"]))
        groups.append(arrays.get("groups"))
    audit = audit_scores(
        *found,
        delta=flags["delta"],
        confidence=flags["confidence"],
        member_groups=groups[0],
        other_groups=groups[1],
        generator=np.random.default_rng(flags["seed"]),
    )
    return {"audit": "torch model", **audit.to_dict()}


def of_run(flags: dict[str, Any]) -> dict[str, Any]:
    """The loss-threshold test of a run's model by group, with one-run bounds."""
    import numpy as np

    from apiece.audit import roc
    from apiece.audit.models import audit_scores, model_confidences
    from apiece.jobs import load_model, read_job, read_people

    run: Path = flags["run"]
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
