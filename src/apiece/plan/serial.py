"""A plan as JSON types and back; what a file says beside parameters is compared, not believed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from apiece import _json
from apiece._types import AnyArray, Floats, Json
from apiece.accounting.bounds import within_range
from apiece.budgets import BudgetGroups
from apiece.correlation.strategies import STRATEGY_KINDS
from apiece.errors import DataError
from apiece.mechanisms.algebra import read_runs
from apiece.plan.correlated import CorrelatedNoise, noise_from_json
from apiece.plan.parts import (
    UNSPENT,
    Numbers,
    Reference,
    Schedule,
    Selection,
    Stage,
)
from apiece.plan.verification import MEASURED, Limits, Measures, find_limits, verify

# What two builds of one accountant may differ by: relative for ε, absolute for the others.
SLACK = 1e-6
# The largest number of steps that a file may claim.
MAX_STEPS = 10**9
# The largest number of records of a group that a file may claim.
MAX_RECORDS = 10**12
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
        """Raise unless `plan`, recomputed from its own numbers, is as claimed.

        Args:
            plan: Made from the parameters beside the claims.
            spent: Computes the plan's ε spent, one entry a group.
            measures: Computes the plan's measures.

        Raises:
            DataError: Where a claimed field is not what the parameters give.
            VerificationError: Where a plan without objections does not keep what it promises.
        """
        # Advantage and excess take a curve a group: they are compared where the budgets have bounds
        # on the excess, which then rest on the plan's reference; elsewhere `Plan.measures`
        # recomputes them when they are read.
        if self.steps != plan.steps:
            raise DataError(f"plan: steps = {self.steps}, but its stages have {plan.steps}")
        if self.releasable != plan.releasable:
            raise DataError(
                f"plan: releasable is {self.releasable}, with {len(plan.objections)} objections; "
                "give the JSON that apiece wrote"
            )
        if plan.worst_paths is not None and plan.releasable:
            raise DataError("plan: its coins are revealed, so it has objections; none is given")
        # A bound that is no number keeps no promise.
        with within_range(lambda: "plan"):
            groups = plan.budget_groups
            stage = plan.stages[0]
            self._require_agreement(plan, "noise_multiplier", stage.noise_stddev / stage.clip_norm)
            limits = find_limits(groups)
            if plan.releasable:
                # Bounds on the excess wait for a release, and `Plan.require`.
                unbounded = Limits(limits.epsilon, limits.delta, np.ones_like(limits.excess))
                verify(plan, spent(), unbounded, measures).require()
            self._require_agreement(plan, "epsilon_spent", spent())
            # Against a reference of the writer's own choice any excess could look small.
            if plan.releasable and (limits.excess < 1).any():
                _require_own_reference(plan)
            if groups.excess is not None and len(groups) <= MEASURED:
                for name, column in measures().columns().items():
                    self._require_agreement(plan, name, column)

    def _require_agreement(self, plan: Numbers, name: str, computed: Floats | None) -> None:
        """Raise unless a claimed column is the one computed; an absent one claims nothing."""
        column: Column = getattr(self, name)
        if computed is None or column is None or all(value is None for value in column):
            return
        claimed = np.array([np.nan if value is None else value for value in column])
        tolerance = SLACK * np.maximum(np.abs(computed), 1.0)
        # In the positive form: a claim that is no number agrees with nothing.
        agrees = np.abs(claimed - computed) <= tolerance
        if not agrees.all():
            g = int(np.argmin(agrees))
            raise DataError(
                f"plan: group {plan.budget_groups.name[g]} claims {name} = {claimed[g]:g}, but its "
                f"parameters give {computed[g]:g}; give the JSON that apiece wrote, or plan again"
            )


def _require_own_reference(plan: Numbers) -> None:
    """Raise `DataError` unless the reference, on which bounds rest, is that of what will be run."""
    claimed = plan.reference
    assert claimed is not None  # set when the plan was made
    computed = plan.own_reference()
    difference = abs(claimed.sampling_probability - computed.sampling_probability)
    near = difference <= SLACK * computed.sampling_probability
    if claimed.steps != computed.steps or not near:
        raise DataError(
            f"plan: reference = {claimed.sampling_probability:g} in {claimed.steps} steps, on "
            "which the bounds on the excess rest, but its batch size and records give "
            f"{computed.sampling_probability:g} in {computed.steps}; make the plan again"
        )


def describe_parameters(plan: Numbers) -> Json:
    """Return budgets and parameters as JSON; a single stage's fields lie at the top level."""
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
    # A field with its default is left out, so that it does not enter hashes of plans without it.
    if plan.unit != "record":
        top["unit"] = plan.unit
    if plan.learning_rate is not None:
        top["learning_rate"] = _json.plain(plan.learning_rate)
    if plan.selection is not None:
        runs = plan.selection.runs
        top["selection"] = {
            "runs": {"mean": runs.mean, "shape": runs.shape},
            "score_noise": plan.selection.score_noise,
            "others": [_describe_stage(stage) for stage in plan.selection.others],
        }
    groups = plan.budget_groups
    columns = {
        "name": groups.name,
        "records": groups.records,
        "epsilon": groups.epsilon,
        "delta": groups.delta,
    }
    if groups.excess is not None:
        columns["excess_bound"] = groups.excess
    # One stage without worst paths lies at the top level, each of several in an object.
    if len(plan.stages) == 1 and plan.worst_paths is None:
        stage = plan.stages[0]
        top["expected_batch_size"] = stage.expected_batch_size
        top["noise_stddev"] = stage.noise_stddev
        columns |= _list_columns(stage)
        columns["noise_multiplier"] = stage.noise_stddev / stage.clip_norm
        if stage.correlated is not None:
            top["correlated"] = stage.correlated.to_json()
    else:
        top["combine"] = plan.combine
        top["stages"] = [_describe_stage(stage) for stage in plan.stages]
    if plan.worst_paths is not None:
        columns["worst_path"] = plan.worst_paths
    top["groups"] = _make_rows({name: column.tolist() for name, column in columns.items()})
    return top


def describe_plan(plan: Numbers, measures: Measures) -> Json:
    """Return the parameters with each group's measures, and whether it spends below `UNSPENT`."""
    data = describe_parameters(plan)
    share = measures.epsilon_spent / plan.budget_groups.epsilon
    columns = {
        "epsilon_spent": measures.epsilon_spent,
        "spent_share": share,
        "saturated": share < UNSPENT,
        **measures.columns(),
    }
    absent = [None] * len(plan.budget_groups)
    lists = {
        name: absent if column is None else column.tolist() for name, column in columns.items()
    }
    # Rows are the groups' own dictionaries, which this fills up.
    for group, extra in zip(data["groups"], _make_rows(lists), strict=True):
        group |= extra
    return data


def _describe_stage(stage: Stage) -> Json:
    fields: Json = {
        "steps": stage.steps,
        "expected_batch_size": stage.expected_batch_size,
        "noise_stddev": stage.noise_stddev,
        "weight": stage.weight,
    }
    for name, column in _list_columns(stage).items():
        fields[name] = column.tolist()
    if stage.correlated is not None:
        fields["correlated"] = stage.correlated.to_json()
    return fields


def _list_columns(stage: Stage) -> dict[str, AnyArray]:
    """Return those arrays of a stage that it has, by name; one entry a group."""
    columns = {name: getattr(stage, name) for name in _STAGE_COLUMNS}
    return {name: column for name, column in columns.items() if column is not None}


def _make_rows(columns: Mapping[str, Sequence[object]]) -> list[Json]:
    """Return columns as one dict a row."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# A reader takes a value and where it stands, and raises for one of another type.
Readers = dict[str, _json.Reader[object]]


def _make_readers(**kinds: object) -> Readers:
    """Return a reader for each field, by the type of its value."""
    return {name: _json.reader_of(kind) for name, kind in kinds.items()}


def _make_object_reader(required: Readers, optional: Readers | None = None) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, required, optional)


# The arrays of a stage, with one entry a group.
_STAGE_COLUMNS = ("sampling_probability", "clip_norm", "participation", "times")
# The fields of a group that follow from its parameters and are claims in a file.
_MEASURES = ("epsilon_spent", "advantage", "excess", "excess_forward", "excess_backward")

# What follows is the shape of a plan's JSON: a reader for each field of each object.
_COLUMN = tuple[float, ...]
_TEXTS = tuple[str, ...]
_STEPS = Annotated[int, _json.whole(MAX_STEPS)]
_TIMES = tuple[_STEPS, ...]
_RECORDS = Annotated[int, _json.whole(MAX_RECORDS)]
# Fields that a plan of one stage has at the top level, and each of several stages in its object.
_STAGE_NUMBERS = _make_readers(expected_batch_size=float, noise_stddev=float)
# Of correlated noise.
# By the name of a strategy, a reader of its fields, all lists of numbers.
_STRATEGY_READERS: Readers = {
    name: _make_object_reader(_make_readers(**dict.fromkeys(kind.__dataclass_fields__, _COLUMN)))
    for name, kind in STRATEGY_KINDS.items()
}
_read_noise_fields = _make_object_reader(
    {
        "strategy": lambda value, where: _json.fields(value, where, {}, _STRATEGY_READERS),
        **_make_readers(separation=_STEPS),
    },
    _make_readers(sampled=bool),
)


def _read_noise(value: object, where: str) -> CorrelatedNoise:
    return noise_from_json(_read_noise_fields(value, where))


_read_stage = _make_object_reader(
    _STAGE_NUMBERS
    | _make_readers(steps=_STEPS, weight=float, sampling_probability=_COLUMN, clip_norm=_COLUMN),
    {**_make_readers(participation=_COLUMN, times=_TIMES), "correlated": _read_noise},
)


def _read_selection(value: object, where: str) -> Selection:
    readers: Readers = {
        "runs": lambda runs, _: read_runs(runs),
        "others": _json.listed(_read_stage),
        "score_noise": _json.maybe(_json.number),
    }
    fields = _json.fields(value, where, readers)
    stages = tuple(Stage(**stage) for stage in fields["others"])
    return Selection(fields["runs"], fields["score_noise"], stages)


_TOP: Readers = {
    **_make_readers(
        strategy=str,
        relation=str,
        method=str,
        counts=str,
        steps=_STEPS,
        clip_norm=float,
        releasable=bool,
        objections=_TEXTS,
        notes=_TEXTS,
        groups=object,
    ),
    "reference": _make_object_reader(_make_readers(sampling_probability=float, steps=_STEPS)),
}
_TOP_OPTIONAL: Readers = {
    **_STAGE_NUMBERS,
    **_make_readers(combine=str, unit=str, learning_rate=Schedule),
    "stages": _json.listed(_read_stage),
    "selection": _read_selection,
    "correlated": _read_noise,
}
_GROUP = _make_readers(name=str, records=_RECORDS, epsilon=float, delta=float)
_GROUP_OPTIONAL: Readers = {
    **_make_readers(excess_bound=float, spent_share=float, saturated=bool),
    **dict.fromkeys(_MEASURES, _json.maybe(_json.number)),
}
# Further fields of a group in a plan of one stage, and in one of several.
_GROUP_OF_ONE_STAGE = _make_readers(
    sampling_probability=float, clip_norm=float, noise_multiplier=float
)
_GROUP_OF_ONE_STAGE_OPTIONAL = _make_readers(participation=float, times=_STEPS)
_GROUP_OF_STAGES_OPTIONAL = _make_readers(worst_path=tuple[bool, ...])


def _read_columns(groups: object, single: bool) -> Json:
    """Return each field of the groups as a column; all groups must have the same fields."""
    # A field of the one form in a plan of the other is unknown, and refused.
    if single:
        required = _GROUP | _GROUP_OF_ONE_STAGE
        optional = _GROUP_OPTIONAL | _GROUP_OF_ONE_STAGE_OPTIONAL
    else:
        required = _GROUP
        optional = _GROUP_OPTIONAL | _GROUP_OF_STAGES_OPTIONAL
    # All groups have the fields of the first, so that each field is a full column.
    rows = _json.listed(_json.as_is)(groups, "plan.groups")
    if not rows or any(not isinstance(row, dict) or row.keys() != rows[0].keys() for row in rows):
        raise DataError(
            "plan.groups: must be objects with the same fields, at least one; "
            "give the JSON that apiece wrote"
        )
    columns = {}
    for name, read in (required | optional).items():
        if name in rows[0]:
            values = [row[name] for row in rows]
            columns[name] = _json.listed(read)(values, f"plan.groups.{name}")
    # Complains of fields that are missing or unknown; the values were read above.
    _json.fields(rows[0], "plan.groups", required, optional)
    return columns


def read_plan(data: object) -> tuple[Json, Claims]:
    """Return the arguments of `Plan` in `data`, and what else `data` claims of that plan."""
    top = _json.fields(data, "plan", _TOP, _TOP_OPTIONAL)
    # The two forms of a plan are told apart by this field alone.
    single = "stages" not in top
    for name in _STAGE_NUMBERS if single else ("combine",):
        if name not in top:
            raise DataError(f"plan: field {name!r} is missing; give the JSON that apiece wrote")
    groups = top.pop("groups")
    columns = _read_columns(groups, single)
    if single:
        stage = {name: top.pop(name) for name in _STAGE_NUMBERS}
        stage["steps"] = top["steps"]
        stage["correlated"] = top.pop("correlated", None)
        for name in _STAGE_COLUMNS:
            stage[name] = _make_array(columns.get(name))
        stages = [stage]
    else:
        stages = top.pop("stages")
    claims = Claims(
        steps=top.pop("steps"),
        releasable=top.pop("releasable"),
        # Columns of other names are parameters; these are claims about them.
        **{name: columns.get(name) for name in ("noise_multiplier", *_MEASURES)},
    )
    budgets = BudgetGroups(
        name=np.array(columns["name"], dtype=str),
        epsilon=np.array(columns["epsilon"]),
        delta=np.array(columns["delta"]),
        excess=_make_array(columns.get("excess_bound")),
        records=np.array(columns["records"], dtype=np.int64),
    )
    # What is left at the top are parameters of `Plan` under their own names.
    arguments = top | {
        "reference": Reference(**top["reference"]),
        "stages": tuple(Stage(**stage) for stage in stages),
        "worst_paths": _make_array(columns.get("worst_path")),
        "budget_groups": budgets,
    }
    return arguments, claims


def _make_array(values: list[object] | None) -> AnyArray | None:
    try:
        return None if values is None else np.array(values)
    except ValueError:
        raise DataError(
            "plan.groups: lists of different lengths; give the JSON that apiece wrote"
        ) from None
