"""A plan as JSON types and back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from apiece.budgets import BudgetGroups
from apiece.errors import InputError
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage

if TYPE_CHECKING:
    from apiece.plan.model import Plan


def parameters(plan: Plan) -> dict[str, Any]:
    """Return budgets and parameters; a single stage's fields lie at the top level."""
    top: dict[str, Any] = {
        "strategy": plan.strategy,
        "relation": plan.relation,
        "method": plan.method,
        "steps": plan.steps,
        "clip_norm": plan.clip_norm,
        "reference": _reference(plan),
        "releasable": plan.releasable,
        "objections": list(plan.objections),
        "counts": plan.counts,
        "notes": list(plan.notes),
    }
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


def with_measures(plan: Plan) -> dict[str, Any]:
    """Return `parameters` with what each group spends beside them."""
    data, measures = parameters(plan), plan.measures
    columns = {
        "epsilon_spent": measures.epsilon_spent,
        "advantage": measures.advantage,
        "excess": measures.excess,
        "excess_forward": measures.forward,
        "excess_backward": measures.backward,
    }
    none = [None] * len(plan.budgets)
    lists = {k: none if column is None else column.tolist() for k, column in columns.items()}
    for group, extra in zip(data["groups"], _rows(lists), strict=True):
        group |= extra
    return data


def _reference(plan: Plan) -> dict[str, Any]:
    assert plan.reference is not None  # set when the plan was made
    return dataclasses.asdict(plan.reference)


def _budget_columns(plan: Plan) -> dict[str, list[Any]]:
    budgets = plan.budgets
    columns = {
        "name": budgets.name.tolist(),
        "records": budgets.records.tolist(),
        "epsilon": budgets.epsilon.tolist(),
        "delta": budgets.delta.tolist(),
        "saturated": plan.saturated.tolist(),
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


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "steps": stage.steps,
        "expected_batch_size": stage.expected_batch_size,
        "noise_stddev": stage.noise_stddev,
        "weight": stage.weight,
        **_stage_columns(stage),
    }


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read(data: Any) -> dict[str, Any]:
    """Return the arguments of `Plan` in `data`, as `parameters` wrote them."""
    try:
        groups, rate = data["groups"], data.get("learning_rate")

        def column(name: str) -> list[Any]:
            return [group[name] for group in groups]

        def optional(name: str) -> list[Any] | None:
            return column(name) if groups and name in groups[0] else None

        if "stages" in data:
            stages = [Stage(**stage) for stage in data["stages"]]
        else:
            stages = [
                Stage(
                    steps=data["steps"],
                    expected_batch_size=data["expected_batch_size"],
                    noise_stddev=data["noise_stddev"],
                    sampling_probability=np.array(column("sampling_probability")),
                    clip_norm=np.array(column("clip_norm")),
                    participation=_array(optional("participation")),
                )
            ]
        return {
            "strategy": str(data["strategy"]),
            "relation": data["relation"],
            "method": data["method"],
            "clip_norm": data["clip_norm"],
            "reference": Reference(**data["reference"]),
            "objections": data["objections"],
            "counts": data["counts"],
            "notes": data["notes"],
            "combine": data.get("combine", "continue"),
            "learning_rate": None if rate is None else Schedule(**rate),
            "stages": tuple(stages),
            "saturated": np.array(column("saturated"), dtype=bool),
            "worst_paths": _array(optional("worst_path")),
            "budgets": BudgetGroups(
                name=np.array(column("name"), dtype=str),
                epsilon=np.array(column("epsilon"), dtype=float),
                delta=np.array(column("delta"), dtype=float),
                excess=_array(optional("excess_bound")),
                records=np.array(column("records"), dtype=np.int64),
            ),
        }
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"plan: not a plan ({type(error).__name__}: {error}); give what to_json wrote"
        ) from None


def _array(values: list[Any] | None) -> Any:
    return None if values is None else np.array(values)
