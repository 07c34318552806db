"""Plan: frozen, read back exactly, verified from its own numbers."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

from apiece.assignment import (
    AdaPDP,
    Allocate,
    Hybrid,
    JorgensenSampling,
    Rounds,
    Sample,
    Scale,
    Sequential,
    Strategy,
    Threshold,
    Uniform,
    assign,
)
from apiece.assignment.request import Request
from apiece.budgets import Budgets
from apiece.errors import BudgetError, InputError, VerificationError
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage
from apiece.training.batches import OneStream, draw_batches
from refusals import refused

BUDGETS = Budgets.from_groups([("strict", 1.0, 0.4), ("weak", 3.0, 0.6)], 1000, 1e-5)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return assign(BUDGETS, Scale(), steps=20, expected_batch_size=100, clip_norm=0.5)


def two_stages(plan: Plan) -> Plan:
    first = plan.stages[0]
    second = dataclasses.replace(
        first,
        sampling_probability=np.array([0.0, 1.0]),
        participation=np.array([1.0, 0.25]),
        expected_batch_size=150.0,
    )
    return dataclasses.replace(plan, stages=(first, second), objections=("a test",))


def test_mechanism_is_read_from_the_plan(plan: Plan) -> None:
    stage = plan.stages[0]
    z = stage.noise_stddev / float(stage.clip_norm[0])
    assert plan.mechanism_for("strict") == Repeated(Sampled(Gaussian(z), 0.1), 20)
    both = two_stages(plan)
    assert both.mechanism_for("strict") == plan.mechanism_for(0)
    z = stage.noise_stddev / float(stage.clip_norm[1])
    assert both.mechanism_for(1) == Composed(
        Repeated(Sampled(Gaussian(z), 0.1), 20), Sampled(Repeated(Gaussian(z), 20), 0.25)
    )


def test_a_group_left_out_sees_nothing() -> None:
    plan = assign(BUDGETS, Threshold(3.0), steps=50, expected_batch_size=100, clip_norm=1)
    assert plan.mechanism_for("strict") == Composed()
    assert plan.measures.epsilon_spent[0] == 0


def test_json_round_trip_is_exact(plan: Plan) -> None:
    for each in (plan, two_stages(plan)):
        back = Plan.from_json(each.to_json())
        assert back.to_json() == each.to_json()
        assert back.hash() == each.hash()
        assert type(back) is Plan
    assert "group_index" not in plan.to_json()


def test_json_has_the_fields_of_the_design(plan: Plan) -> None:
    data = plan.to_dict()
    assert {
        "strategy", "relation", "steps", "expected_batch_size", "noise_stddev", "clip_norm",
        "groups",
    } <= set(data)  # fmt: skip
    assert {
        "name", "records", "epsilon", "delta", "sampling_probability", "clip_norm",
        "noise_multiplier", "epsilon_spent", "advantage", "saturated",
    } <= set(data["groups"][0])  # fmt: skip
    assert len(two_stages(plan).to_dict()["stages"]) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"groups": []}', '{"groups": [{"name": "a"}]}']
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Plan.from_json(text)


def test_a_tampered_plan_does_not_load(plan: Plan) -> None:
    data = json.loads(plan.to_json())
    data["noise_stddev"] /= 2
    for group in data["groups"]:
        group["noise_multiplier"] /= 2
        group["epsilon_spent"] = 0.001  # what a file claims is not believed
    with pytest.raises(VerificationError, match="group weak spends"):
        Plan.from_dict(data)
    data["objections"], data["releasable"] = ["a test"], False
    with pytest.raises(InputError, match="claims epsilon_spent"):
        Plan.from_dict(data)
    for group in data["groups"]:
        group.pop("epsilon_spent")
    assert not Plan.from_dict(data).verify().ok  # it may be looked at
    data = json.loads(plan.to_json())
    data["expected_batch_size"] = 10.0
    with pytest.raises(InputError, match="must agree"):
        Plan.from_dict(data)


def test_hash_moves_with_every_parameter(plan: Plan) -> None:
    stage = plan.stages[0]
    others = [
        dataclasses.replace(plan, stages=(dataclasses.replace(stage, steps=21),)),
        dataclasses.replace(plan, stages=(dataclasses.replace(stage, noise_stddev=9.0),)),
        dataclasses.replace(plan, clip_norm=0.6),
        dataclasses.replace(plan, objections=("no",)),
    ]
    assert len({p.hash() for p in [plan, *others]}) == 5


def test_verification_joins_by_id_and_against_each_record(plan: Plan) -> None:
    order = np.random.default_rng(0).permutation(1000)
    shuffled = Budgets(BUDGETS.epsilon[order], 1e-5, ids=BUDGETS.ids[order])
    assert plan.verify(shuffled).ok
    lower = BUDGETS.epsilon.copy()
    lower[-1] = 2.0
    verification = plan.verify(Budgets(lower, 1e-5))
    assert verification.kept.tolist() == [True, False]
    assert verification.epsilon.tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match="no record with id 999"):
        plan.verify(Budgets(BUDGETS.epsilon[:-1], 1e-5))


def test_bind_wants_the_same_groups(plan: Plan) -> None:
    loose = Plan.from_json(plan.to_json())
    bound = loose.bind(BUDGETS)
    assert (bound.group_index == plan.group_index).all()
    with pytest.raises(InputError, match="do not fit"):
        loose.bind(Budgets([1.0, 2.0], 1e-5))


def test_parts_that_do_not_fit_are_refused(plan: Plan) -> None:
    stage = plan.stages[0]
    with pytest.raises(InputError, match="one entry a budget group"):
        dataclasses.replace(stage, sampling_probability=np.array([0.1]))
    with refused(InputError, "sampling_probability[0]"):
        dataclasses.replace(stage, sampling_probability=np.array([1.2, 0.1]))
    with pytest.raises(InputError, match="no stages"):
        dataclasses.replace(plan, stages=())
    with refused(InputError, "group_index"):
        dataclasses.replace(plan, group_index=np.zeros(1000, dtype=int))
    with refused(InputError, "combine"):
        dataclasses.replace(plan, combine="mix")
    with refused(InputError, "relation"):
        dataclasses.replace(plan, relation="replace_one")
    with pytest.raises(ValueError, match="read-only"):
        stage.clip_norm[0] = 2.0
    with pytest.raises(InputError):
        Stage(0, 1.0, 1.0, np.array([0.1]), np.array([1.0]))


def test_unknown_group(plan: Plan) -> None:
    with pytest.raises(InputError, match="'medium'"):
        plan.mechanism_for("medium")
    with pytest.raises(InputError, match="the plan has 2"):
        plan.mechanism_for(2)


def test_a_plan_that_breaks_promises_says_so() -> None:
    plan = assign(BUDGETS, Uniform("loosest"), steps=20, expected_batch_size=100, clip_norm=1)
    assert not plan.releasable
    assert "400 records" in plan.objections[0]
    assert plan.verify().kept.tolist() == [False, True]
    assert not Plan.from_json(plan.to_json()).releasable


@pytest.mark.parametrize("name", ["epsilon", "delta", "excess"])
@pytest.mark.parametrize("who", [0, 399, 999])
def test_nobody_is_in_a_group_that_asks_more_than_they_allow(
    plan: Plan, name: str, who: int
) -> None:
    """Whoever makes a bound plan: narrower consents are refused, not replaced."""
    columns = {
        "epsilon": BUDGETS.epsilon.copy(),
        "delta": BUDGETS.delta.copy(),
        "excess": np.ones(1000),
    }
    columns[name][who] *= 0.999
    less = Budgets(**columns).consents
    with pytest.raises(InputError, match=f"in a group whose {name} is above what the record") as e:
        dataclasses.replace(plan, consents=less)
    assert "\n" not in str(e.value)
    looser = dataclasses.replace(
        plan.budget_groups, **{name: np.array([0.9, 0.9]) * (9 if name == "epsilon" else 1)}
    )
    if name != "excess":
        with pytest.raises(InputError, match=f"a group whose {name}"):
            dataclasses.replace(plan, budget_groups=looser)


def test_a_plan_without_bounds_is_not_bound_to_who_has_them(plan: Plan) -> None:
    bounded = Budgets(BUDGETS.epsilon, 1e-5, excess=1.0, labels=BUDGETS.labels)
    with pytest.raises(InputError, match="do not fit"):
        plan.public().bind(bounded)


def test_a_strategy_of_ones_own_cannot_loosen_what_was_asked() -> None:
    """It may return a plan that is bound already: to other consents than those that were given."""

    class Loose:
        name = "loose"

        def plan(self, request: Request) -> Plan:
            looser = Budgets(np.where(BUDGETS.epsilon > 1, 8.0, 1.0), 1e-4)
            return assign(looser, Scale(), steps=2, expected_batch_size=100, clip_norm=1.0)

    with pytest.raises(InputError, match="a group whose epsilon is above"):
        assign(BUDGETS, Loose(), steps=2, expected_batch_size=100, clip_norm=1.0)
    less = Budgets(BUDGETS.epsilon, 1e-5, excess=np.where(np.arange(1000) == 5, 0.1, 1.0))
    with pytest.raises(InputError, match="a group whose"):
        assign(less, Loose(), steps=2, expected_batch_size=100, clip_norm=1.0)


PEOPLE = np.array([f"person {i:03}" for i in range(40)])
ASKED = np.repeat([1.0, 3.0], [12, 28])
STRATEGIES: list[Strategy] = [
    Uniform(), Scale(), Sample(), Allocate(), Hybrid(1.0), Threshold(3.0), Sequential(),
    JorgensenSampling(3.0),
    Rounds(2), AdaPDP(1),
]  # fmt: skip


def of_people(strategy: Strategy, order: np.ndarray) -> BoundPlan:
    budgets = Budgets(ASKED[order], 1e-4, ids=PEOPLE)
    return assign(budgets, strategy, steps=2, expected_batch_size=8, clip_norm=1.0)


def entries(value: object) -> int:
    """The length of the longest array or tuple in a value, fields of fields included."""
    if isinstance(value, np.ndarray):
        return max(value.shape, default=0)
    inside: list[object] = list(value) if isinstance(value, tuple | list) else []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside += list(getattr(value, "__dict__", {}).values())
        inside += [getattr(value, field.name) for field in dataclasses.fields(value)]
    return max([len(inside) if isinstance(value, tuple | list) else 0, *map(entries, inside)])


def named(data: bytes) -> bool:
    """Whether an id is in there, as Python or as numpy writes texts."""
    return any("person".encode(how) in data for how in ("utf-8", "utf-32-le"))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_plan_says_nothing_of_who_is_where(strategy: Strategy) -> None:
    """The same budgets, asked by other people: the same public plan to the bit."""
    plan = of_people(strategy, np.arange(40))
    other = of_people(strategy, np.random.default_rng(0).permutation(40))
    assert (plan.group_index != other.group_index).any()
    assert plan.hash() == other.hash()
    if isinstance(strategy, Scale):
        assert plan.to_json() == other.to_json()
    public = plan.public()
    assert type(public) is Plan
    assert named(pickle.dumps(plan))  # the control
    assert not named(pickle.dumps(public))
    assert entries(public) < 40


def test_the_law_sees_a_field_an_entry_a_record() -> None:
    plan = of_people(Scale(), np.arange(40))
    assert entries(plan) == entries((1, plan)) == 40
    assert entries(plan.public()) < 40
    assert entries(dataclasses.replace(plan.public(), notes=("a",) * 50)) == 50


def test_what_was_measured_goes_along_where_nothing_public_changes() -> None:
    plan = of_people(Scale(), np.arange(40))
    spent, measures, groups = plan.epsilon_spent, plan.measures, plan.groups
    for same in (plan.public(), plan.public().bind(Budgets(ASKED, 1e-4, ids=PEOPLE))):
        assert same.epsilon_spent is spent
        assert same.measures is measures
        assert same.groups is groups
    stage = dataclasses.replace(plan.stages[0], noise_stddev=9.0)
    assert dataclasses.replace(plan, stages=(stage,)).epsilon_spent is not spent


def test_a_plan_that_is_not_bound_says_how_to_bind_it() -> None:
    bound = of_people(Scale(), np.arange(40))
    assert BoundPlan.of(bound) is bound
    with pytest.raises(InputError, match=r"use plan\.bind\(budgets\)"):
        BoundPlan.of(bound.public())
    with pytest.raises(InputError, match=r"use plan\.bind\(budgets\)"):
        next(draw_batches(Plan.from_json(bound.to_json()), OneStream(np.random.default_rng(0))))


def test_renamed_takes_one_name_a_group(plan: Plan) -> None:
    assert plan.renamed(["low", "high"]).budget_groups.name.tolist() == ["low", "high"]
    for names in (["low"], ["low", "middle", "high"], ["low", "low"]):
        with pytest.raises(BudgetError):
            plan.renamed(names)


def test_renamed_changes_every_note_once(plan: Plan) -> None:
    notes = (
        "group strict: each record takes part in exactly 2 of 20 steps",
        "group weak spends 90% of its epsilon, less than group strict (group weak, too)",
        "a group strictest is none of its groups, and neither is a subgroup strict",
    )
    noted = dataclasses.replace(plan, notes=notes)
    swapped = noted.renamed(["weak", "strict"])
    assert swapped.notes == (
        "group weak: each record takes part in exactly 2 of 20 steps",
        "group strict spends 90% of its epsilon, less than group weak (group strict, too)",
        notes[2],
    )
    assert swapped.renamed(["strict", "weak"]).notes == notes
    assert noted.renamed([r"\1", "a+"]).notes[0].startswith(r"group \1: each")
    one_begins_with_another = noted.renamed(["a", "a b"])
    assert one_begins_with_another.renamed(["strict", "weak"]).notes == notes


def test_notes_of_allocated_steps_follow_the_names() -> None:
    allocated = assign(BUDGETS, Allocate(), steps=20, expected_batch_size=100, clip_norm=0.5)
    renamed = allocated.renamed(["low", "high"])
    assert any(note.startswith("group low: ") for note in renamed.notes)
    assert not any(name in note for note in renamed.notes for name in ("strict", "weak"))


def test_who_holds_the_memory_of_an_array_cannot_change_a_plan(plan: Plan) -> None:
    bound = plan if isinstance(plan, BoundPlan) else plan.bind(BUDGETS)
    index = bound.group_index.copy()
    view = index[:]
    view.flags.writeable = False
    held = dataclasses.replace(bound, group_index=view)
    index[:] = 1 - index
    assert (held.group_index == bound.group_index).all()
    # What nobody can write is held as it is: a plan has an entry a record.
    assert dataclasses.replace(bound, group_index=held.group_index).group_index is held.group_index
