"""A plan as JSON types and back; what a file says beside parameters is compared, not believed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from apiece import _json
from apiece._types import AnyArray, Floats, Json
from apiece.accounting.bounds import within_range
from apiece.budgets import BudgetGroups
from apiece.errors import DataError
from apiece.mechanisms.algebra import read_runs
from apiece.plan.parts import (
    UNSPENT,
    Numbers,
    Reference,
    Schedule,
    Selection,
    Stage,
)
from apiece.plan.verification import MEASURED, Measures, strictest, verify

# What two builds of one accountant may differ by: relative for ε, absolute for the others.
SLACK = 1e-6
MOST_STEPS, MOST_RECORDS = 10**9, 10**12
Column = list[float | None] | None


@dataclass(frozen=True, slots=True)
class Claims:
    """The derived fields of a plan's JSON, a column a field; null in a plan of many groups."""

    steps: int
    releasable: bool
    noise_multiplier: Column
    epsilon_spent: Column
    advantage: Column
    excess: Column
    excess_forward: Column
    excess_backward: Column

    def require(
        self, plan: Numbers, spent: Callable[[], Floats], measures: Callable[[], Measures]
    ) -> None:
        """Raise unless `plan`, recomputed from its own numbers, is as claimed."""
        # `DataError` where a field is not what the parameters give; `VerificationError` where a
        # plan without objections does not keep what it promises. Advantage and excess take a curve
        # a group: they are compared where the budgets have bounds on the excess, which then rest on
        # the plan's reference; elsewhere `Plan.measures` recomputes them when they are read.
        if self.steps != plan.steps:
            raise DataError(f"plan: steps = {self.steps}, but its stages have {plan.steps}")
        if self.releasable != plan.releasable:
            raise DataError(
                f"plan: releasable is {self.releasable}, with {len(plan.objections)} objections; "
                "give the JSON that apiece wrote"
            )
        if plan.worst_paths is not None and plan.releasable:
            raise DataError("plan: its coins are revealed, so it has objections; none is given")
        # a bound that is no number keeps no promise
        with within_range(lambda: "plan"):
            stage, bounds = plan.stages[0], plan.budget_groups.excess
            self._same(plan, "noise_multiplier", stage.noise_stddev / stage.clip_norm)
            epsilon, delta, bound = strictest(plan.budget_groups)
            if plan.releasable:  # bounds on the excess wait for a release, and `Plan.require`
                verify(plan, spent(), (epsilon, delta, np.ones_like(bound)), measures).require()
            self._same(plan, "epsilon_spent", spent())
            if plan.releasable and (bound < 1).any():
                _require_own_reference(plan)
            if bounds is not None and len(plan.budget_groups) <= MEASURED:
                for name, own in measures().columns().items():
                    self._same(plan, name, own)

    def _same(self, plan: Numbers, name: str, own: Floats | None) -> None:
        """Raise unless a claimed column is the plan's own; an absent one claims nothing."""
        claimed: Column = getattr(self, name)
        if own is None or claimed is None or all(value is None for value in claimed):
            return
        given = np.array([np.nan if value is None else value for value in claimed])
        good = np.abs(given - own) <= SLACK * np.maximum(np.abs(own), 1.0)
        if not good.all():
            g = int(np.argmin(good))
            raise DataError(
                f"plan: group {plan.budget_groups.name[g]} claims {name} = {given[g]:g}, but its "
                f"parameters give {own[g]:g}; give the JSON that apiece wrote, or plan again"
            )


def _require_own_reference(plan: Numbers) -> None:
    """Raise `DataError` unless the reference, on which bounds rest, is that of what will be run."""
    own, given = plan.own_reference(), plan.reference
    assert given is not None  # set when the plan was made
    off = abs(given.sampling_probability - own.sampling_probability)
    if given.steps != own.steps or not off <= SLACK * own.sampling_probability:
        raise DataError(
            f"plan: reference = {given.sampling_probability:g} in {given.steps} steps, on which "
            f"the bounds on the excess rest, but its batch size and records give "
            f"{own.sampling_probability:g} in {own.steps}; make the plan again"
        )


def parameters(plan: Numbers) -> Json:
    """Return budgets and parameters; a single stage's fields lie at the top level."""
    assert plan.reference is not None  # set when the plan was made
    top: Json = {
        "strategy": plan.strategy,
        "relation": plan.relation,
        "method": plan.method,
        "steps": plan.steps,
        "clip_norm": plan.clip_norm,
        "reference": asdict(plan.reference),
        "releasable": plan.releasable,
        "objections": list(plan.objections),
        "counts": plan.counts,
        "notes": list(plan.notes),
    }
    if plan.unit != "record":
        top["unit"] = plan.unit
    if plan.learning_rate is not None:
        top["learning_rate"] = _json.plain(plan.learning_rate)
    if (selection := plan.selection) is not None:
        top["selection"] = {
            "runs": {"mean": selection.runs.mean, "shape": selection.runs.shape},
            "score_noise": selection.score_noise,
            "others": list(map(_stage_fields, selection.others)),
        }
    budgets, stage = plan.budget_groups, plan.stages[0]
    columns = {name: getattr(budgets, name) for name in ("name", "records", "epsilon", "delta")}
    if budgets.excess is not None:
        columns["excess_bound"] = budgets.excess
    if len(plan.stages) == 1 and plan.worst_paths is None:
        top["expected_batch_size"] = stage.expected_batch_size
        top["noise_stddev"] = stage.noise_stddev
        columns |= _stage_columns(stage)
        columns["noise_multiplier"] = stage.noise_stddev / stage.clip_norm
    else:
        top["combine"] = plan.combine
        top["stages"] = list(map(_stage_fields, plan.stages))
    if plan.worst_paths is not None:
        columns["worst_path"] = plan.worst_paths
    return top | {"groups": _rows({name: column.tolist() for name, column in columns.items()})}


def with_measures(plan: Numbers, measures: Measures) -> Json:
    """Return `parameters` with what each group spends, and whether that is below `UNSPENT`."""
    data = parameters(plan)
    share = measures.epsilon_spent / plan.budget_groups.epsilon
    spent = {"epsilon_spent": measures.epsilon_spent, "spent_share": share}
    columns = spent | {"saturated": share < UNSPENT} | measures.columns()
    none = [None] * len(plan.budget_groups)
    lists = {k: none if column is None else column.tolist() for k, column in columns.items()}
    for group, extra in zip(data["groups"], _rows(lists), strict=True):
        group |= extra
    return data


def _stage_fields(stage: Stage) -> Json:
    numbers = ("steps", "expected_batch_size", "noise_stddev", "weight")
    columns = {name: column.tolist() for name, column in _stage_columns(stage).items()}
    return {name: getattr(stage, name) for name in numbers} | columns


def _stage_columns(stage: Stage) -> dict[str, AnyArray]:
    return {name: each for name in _OF_GROUPS if (each := getattr(stage, name)) is not None}


def _rows(columns: Mapping[str, Sequence[object]]) -> list[Json]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


_OF_GROUPS = ("sampling_probability", "clip_norm", "participation", "times")  # of a stage
Readers = dict[str, _json.Reader[object]]
_MEASURES = ("epsilon_spent", "advantage", "excess", "excess_forward", "excess_backward")
_COLUMN, _TEXTS = tuple[float, ...], tuple[str, ...]
_STEPS = Annotated[int, _json.whole(MOST_STEPS)]
_TIMES = tuple[_STEPS, ...]


def _typed(**kinds: object) -> Readers:
    return {name: _json.reader_of(kind) for name, kind in kinds.items()}


def _object(required: Readers, optional: Readers | None = None) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, required, optional)


_ONE_STAGE = _typed(expected_batch_size=float, noise_stddev=float)
_STAGE = _object(
    _ONE_STAGE
    | _typed(steps=_STEPS, weight=float, sampling_probability=_COLUMN, clip_norm=_COLUMN),
    _typed(participation=_COLUMN, times=_TIMES),
)
_TOP = _typed(strategy=str, relation=str, method=str, counts=str, steps=_STEPS, clip_norm=float)
_TOP |= _typed(releasable=bool, objections=_TEXTS, notes=_TEXTS, groups=object)
_TOP["reference"] = _object(_typed(sampling_probability=float, steps=_STEPS))
_TOP_OPTIONAL = _ONE_STAGE | _typed(combine=str, unit=str, learning_rate=Schedule)
_TOP_OPTIONAL["stages"] = _json.listed(_STAGE)


def _selection(value: object, where: str) -> Selection:
    kinds: Readers = {"runs": lambda runs, _: read_runs(runs), "others": _json.listed(_STAGE)}
    kinds["score_noise"] = _json.maybe(_json.number)
    read = _json.fields(value, where, kinds)
    return Selection(**read | {"others": tuple(Stage(**stage) for stage in read["others"])})


_TOP_OPTIONAL["selection"] = _selection
_GROUP = _typed(name=str, records=Annotated[int, _json.whole(MOST_RECORDS)], epsilon=float)
_GROUP |= _typed(delta=float)
_GROUP_SINGLE = _typed(sampling_probability=float, clip_norm=float, noise_multiplier=float)
_GROUP_OPTIONAL = _typed(excess_bound=float, spent_share=float, saturated=bool)
_GROUP_OPTIONAL |= dict.fromkeys(_MEASURES, _json.maybe(_json.number))


def _columns(groups: object, single: bool) -> Json:
    """Return each field of the groups as a column; all groups must have the same fields."""
    readers = _GROUP | (_GROUP_SINGLE if single else {})
    kind = {"participation": float, "times": _STEPS} if single else {"worst_path": tuple[bool, ...]}
    more = _GROUP_OPTIONAL | _typed(**kind)
    rows = _json.listed(_json.as_is)(groups, "plan.groups")
    if not rows or any(not isinstance(row, dict) or row.keys() != rows[0].keys() for row in rows):
        raise DataError(
            "plan.groups: must be objects with the same fields, at least one; "
            "give the JSON that apiece wrote"
        )
    columns = {
        name: _json.listed(read)([row[name] for row in rows], f"plan.groups.{name}")
        for name, read in (readers | more).items()
        if name in rows[0]
    }
    _json.fields(rows[0], "plan.groups", readers, more)
    return columns


def read(data: object) -> tuple[Json, Claims]:
    """Return the arguments of `Plan` in `data`, and what else `data` claims of that plan."""
    top = _json.fields(data, "plan", _TOP, _TOP_OPTIONAL)
    single = "stages" not in top
    for name in _ONE_STAGE if single else ("combine",):
        if name not in top:
            raise DataError(f"plan: field {name!r} is missing; give the JSON that apiece wrote")
    groups = top.pop("groups")
    columns = _columns(groups, single)
    stages = top.pop("stages", None)
    if stages is None:
        shared = {name: top.pop(name) for name in _ONE_STAGE} | {"steps": top["steps"]}
        stages = [shared | {name: _array(columns.get(name)) for name in _OF_GROUPS}]
    claims = {name: columns.get(name) for name in ("noise_multiplier", *_MEASURES)}
    told = Claims(top.pop("steps"), top.pop("releasable"), **claims)
    budgets = BudgetGroups(
        name=np.array(columns["name"], dtype=str),
        epsilon=np.array(columns["epsilon"]),
        delta=np.array(columns["delta"]),
        excess=_array(columns.get("excess_bound")),
        records=np.array(columns["records"], dtype=np.int64),
    )
    arguments = top | {
        "reference": Reference(**top["reference"]),
        "stages": tuple(Stage(**stage) for stage in stages),
        "worst_paths": _array(columns.get("worst_path")),
        "budget_groups": budgets,
    }
    return arguments, told


def _array(values: list[object] | None) -> AnyArray | None:
    try:
        return None if values is None else np.array(values)
    except ValueError:
        raise DataError(
            "plan.groups: lists of different lengths; give the JSON that apiece wrote"
        ) from None
