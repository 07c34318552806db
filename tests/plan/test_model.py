"""Plan: frozen, read back exactly, verified from its own numbers."""

import dataclasses
import json

import numpy as np
import pytest

from apiece.assignment import Scale, Threshold, Uniform, assign
from apiece.budgets import Budgets
from apiece.errors import InputError, VerificationError
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from apiece.plan import Plan, Stage

BUDGETS = Budgets.from_groups([("strict", 0.4, 1.0), ("weak", 0.6, 3.0)], 1000, 1e-5)


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
        assert back.group_index is None
        assert back.ids is None
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
    assert bound.group_index is not None
    assert (bound.group_index == plan.group_index).all()
    with pytest.raises(InputError, match="do not fit"):
        loose.bind(Budgets([1.0, 2.0], 1e-5))


def test_parts_that_do_not_fit_are_refused(plan: Plan) -> None:
    stage = plan.stages[0]
    with pytest.raises(InputError, match="one entry a budget group"):
        dataclasses.replace(stage, sampling_probability=np.array([0.1]))
    with pytest.raises(InputError, match=r"sampling_probability\[0\]"):
        dataclasses.replace(stage, sampling_probability=np.array([1.2, 0.1]))
    with pytest.raises(InputError, match="no stages"):
        dataclasses.replace(plan, stages=())
    with pytest.raises(InputError, match="group_index"):
        dataclasses.replace(plan, group_index=np.zeros(1000, dtype=int))
    with pytest.raises(InputError, match="combine"):
        dataclasses.replace(plan, combine="mix")
    with pytest.raises(InputError, match="relation"):
        dataclasses.replace(plan, relation="replace_one")
    with pytest.raises(ValueError, match="read-only"):
        stage.clip_norm[0] = 2.0
    with pytest.raises(InputError):
        Stage(0, 1.0, 1.0, np.array([0.1]), np.array([1.0]))


def test_unknown_group(plan: Plan) -> None:
    with pytest.raises(InputError, match="'medium'"):
        plan.mechanism_for("medium")
    with pytest.raises(InputError, match="2 groups"):
        plan.mechanism_for(2)


def test_a_plan_that_breaks_promises_says_so() -> None:
    plan = assign(BUDGETS, Uniform("loosest"), steps=20, expected_batch_size=100, clip_norm=1)
    assert not plan.releasable
    assert "400 records" in plan.objections[0]
    assert plan.verify().kept.tolist() == [False, True]
    assert not Plan.from_json(plan.to_json()).releasable
