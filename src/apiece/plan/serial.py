"""A plan as JSON types and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from apiece import _json
from apiece._types import Json
from apiece.budgets import BudgetGroups
from apiece.errors import DataError
from apiece.plan.claims import Claims
from apiece.plan.numbers import UNSPENT, Numbers, steps_of
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage
from apiece.plan.verification import Measures

MOST_STEPS, MOST_RECORDS = 10**9, 10**12
_MEASURES = ("epsilon_spent", "advantage", "excess", "excess_forward", "excess_backward")
_number, _numbers = _json.number, _json.listed(_json.number)
_steps, _records = _json.whole(MOST_STEPS), _json.whole(MOST_RECORDS)


def _object(**readers: _json.Reader[Any]) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, readers)


def _stage_in(value: Any, where: str) -> Json:
    required = {
        "steps": _steps,
        "expected_batch_size": _number,
        "noise_stddev": _number,
        "weight": _number,
        "sampling_probability": _numbers,
        "clip_norm": _numbers,
    }
    return _json.fields(value, where, required, {"participation": _numbers})


def _as_is(value: Any, where: str) -> Any:
    return value  # groups are read by column


_TOP: dict[str, _json.Reader[Any]] = {
    "strategy": _json.text,
    "relation": _json.text,
    "method": _json.text,
    "steps": _steps,
    "clip_norm": _number,
    "reference": _object(sampling_probability=_number, steps=_steps),
    "releasable": _json.flag,
    "objections": _json.listed(_json.text),
    "counts": _json.text,
    "notes": _json.listed(_json.text),
    "groups": _as_is,
}
_TOP_OPTIONAL: dict[str, _json.Reader[Any]] = {
    "expected_batch_size": _number,
    "noise_stddev": _number,
    "combine": _json.text,
    "stages": _json.listed(_stage_in),
    "unit": _json.text,
    "learning_rate": _object(points=_json.listed(_numbers), between=_json.text),
}
_GROUP: dict[str, _json.Reader[Any]] = {
    "name": _json.text,
    "records": _records,
    "epsilon": _number,
    "delta": _number,
}
_GROUP_SINGLE: dict[str, _json.Reader[Any]] = {
    "sampling_probability": _number,
    "clip_norm": _number,
    "noise_multiplier": _number,
}
_GROUP_OPTIONAL: dict[str, _json.Reader[Any]] = {
    "excess_bound": _number,
    "spent_share": _number,
    "saturated": _json.flag,
    **{name: _json.maybe(_number) for name in _MEASURES},
}


def parameters(plan: Numbers) -> Json:
    """Return budgets and parameters; a single stage's fields lie at the top level."""
    top: Json = {
        "strategy": plan.strategy,
        "relation": plan.relation,
        "method": plan.method,
        "steps": steps_of(plan),
        "clip_norm": plan.clip_norm,
        "reference": _reference(plan),
        "releasable": not plan.objections,
        "objections": list(plan.objections),
        "counts": plan.counts,
        "notes": list(plan.notes),
    }
    if plan.unit != "record":
        top["unit"] = plan.unit
    if plan.learning_rate is not None:
        points = [list(point) for point in plan.learning_rate.points]
        top["learning_rate"] = {"points": points, "between": plan.learning_rate.between}
    columns = _budget_columns(plan)
    if len(plan.stages) == 1 and plan.worst_paths is None:
        stage = plan.stages[0]
        top |= {
            "expected_batch_size": stage.expected_batch_size,
            "noise_stddev": stage.noise_stddev,
        }
        columns |= _stage_columns(stage)
        columns["noise_multiplier"] = (stage.noise_stddev / stage.clip_norm).tolist()
    else:
        top["combine"] = plan.combine
        top["stages"] = [_stage(stage) for stage in plan.stages]
    if plan.worst_paths is not None:
        columns["worst_path"] = plan.worst_paths.tolist()
    return top | {"groups": _rows(columns)}


def with_measures(plan: Numbers, measures: Measures) -> Json:
    """Return `parameters` with what each group spends beside them.

    saturated: whether the share of its ε that a group spends is below `UNSPENT`.
    """
    data = parameters(plan)
    share = measures.epsilon_spent / plan.budget_groups.epsilon
    columns = {
        "epsilon_spent": measures.epsilon_spent,
        "spent_share": share,
        "saturated": share < UNSPENT,
        "advantage": measures.advantage,
        "excess": measures.excess,
        "excess_forward": measures.forward,
        "excess_backward": measures.backward,
    }
    none = [None] * len(plan.budget_groups)
    lists = {k: none if column is None else column.tolist() for k, column in columns.items()}
    for group, extra in zip(data["groups"], _rows(lists), strict=True):
        group |= extra
    return data


def _reference(plan: Numbers) -> Json:
    assert plan.reference is not None  # set when the plan was made
    return dataclasses.asdict(plan.reference)


def _budget_columns(plan: Numbers) -> dict[str, list[Any]]:
    budgets = plan.budget_groups
    columns = {
        "name": budgets.name.tolist(),
        "records": budgets.records.tolist(),
        "epsilon": budgets.epsilon.tolist(),
        "delta": budgets.delta.tolist(),
    }
    if budgets.excess is not None:
        columns["excess_bound"] = budgets.excess.tolist()
    return columns


def _stage_columns(stage: Stage) -> dict[str, list[Any]]:
    columns = {
        "sampling_probability": stage.sampling_probability.tolist(),
        "clip_norm": stage.clip_norm.tolist(),
    }
    if stage.participation is not None:
        columns["participation"] = stage.participation.tolist()
    return columns


def _stage(stage: Stage) -> Json:
    return {
        "steps": stage.steps,
        "expected_batch_size": stage.expected_batch_size,
        "noise_stddev": stage.noise_stddev,
        "weight": stage.weight,
        **_stage_columns(stage),
    }


def _rows(columns: dict[str, list[Any]]) -> list[Json]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _columns(groups: Any, single: bool) -> dict[str, list[Any]]:
    """Return each field of the groups as a column; all groups must have the same fields."""
    readers = _GROUP | (_GROUP_SINGLE if single else {})
    more = {"participation": _number} if single else {"worst_path": _json.listed(_json.flag)}
    rows = _json.listed(lambda value, where: value)(groups, "plan.groups")
    if not rows or any(not isinstance(row, dict) or row.keys() != rows[0].keys() for row in rows):
        raise DataError(
            "plan.groups: must be objects with the same fields, at least one; "
            "give what to_json wrote"
        )
    columns = {
        name: _json.listed(read)([row[name] for row in rows], f"plan.groups.{name}")
        for name, read in (readers | _GROUP_OPTIONAL | more).items()
        if name in rows[0]
    }
    _json.fields(rows[0], "plan.groups", readers, _GROUP_OPTIONAL | more)
    return columns


def read(data: Any) -> tuple[Json, Claims]:
    """Return the arguments of `Plan` in `data`, and what else `data` claims of that plan.

    Raises `InputError` for anything but what `parameters` or `with_measures` wrote.
    """
    top = _json.fields(data, "plan", _TOP, _TOP_OPTIONAL)
    single = "stages" not in top
    for name in ("expected_batch_size", "noise_stddev") if single else ("combine",):
        if name not in top:
            raise DataError(f"plan: field {name!r} is missing; give what to_json wrote")
    columns = _columns(top["groups"], single)
    if single:
        stages = [
            Stage(
                steps=top["steps"],
                expected_batch_size=top["expected_batch_size"],
                noise_stddev=top["noise_stddev"],
                sampling_probability=np.array(columns["sampling_probability"]),
                clip_norm=np.array(columns["clip_norm"]),
                participation=_array(columns.get("participation")),
            )
        ]
    else:
        stages = [Stage(**stage) for stage in top["stages"]]
    rate = top.get("learning_rate")
    arguments = {
        **{name: top[name] for name in ("strategy", "relation", "method", "clip_norm", "counts")},
        "objections": tuple(top["objections"]),
        "notes": tuple(top["notes"]),
        "combine": top.get("combine", "continue"),
        "unit": top.get("unit", "record"),
        "reference": Reference(**top["reference"]),
        "learning_rate": None if rate is None else Schedule(**rate),
        "stages": tuple(stages),
        "worst_paths": _array(columns.get("worst_path")),
        "budget_groups": BudgetGroups(
            name=np.array(columns["name"], dtype=str),
            epsilon=np.array(columns["epsilon"]),
            delta=np.array(columns["delta"]),
            excess=_array(columns.get("excess_bound")),
            records=np.array(columns["records"], dtype=np.int64),
        ),
    }
    claims = {name: columns.get(name) for name in ("noise_multiplier", *_MEASURES)}
    return arguments, Claims(top["steps"], top["releasable"], **claims)


def _array(values: list[Any] | None) -> Any:
    try:
        return None if values is None else np.array(values)
    except ValueError:
        raise DataError(
            "plan.groups: lists of different lengths; give what to_json wrote"
        ) from None
