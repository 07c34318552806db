"""The checklist for release: each check on its own, and the verdict of all together."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from apiece.jobs.release import checklist


def metrics() -> dict[str, Any]:
    """A run that is fit for release in every respect."""
    group = {"records": 500, "epsilon": 1.0, "delta": 1e-5}
    plan = {"objections": [], "groups": [group, group | {"epsilon": 2.0}]}
    return {
        "training": {"strategy": "sample"},
        "strategies": [{"strategy": "sample", "plan": plan}],
        "randomness": {"seed": None},
        "all_models": {"models": 1},
        "data": {"test_records": 0, "packaged": False},
        "no_limit_cap": None,
    }


def plan(found: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = found["strategies"][0]["plan"]
    return part


WRONG: dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]] = {
    "an objection": ("promises", "no", lambda m: plan(m)["objections"].append("broken")),
    "a seed": ("randomness", "no", lambda m: m["randomness"].update(seed=0)),
    "delta of 1/n": ("δ against 1/n", "no", lambda m: plan(m)["groups"][0].update(delta=1e-3)),
    "delta above": ("δ against 1/n", "no", lambda m: plan(m)["groups"][1].update(delta=0.1)),
    "epsilon": ("largest ε", "decide", lambda m: plan(m)["groups"][0].update(epsilon=10.5)),
    "models": ("number of models", "decide", lambda m: m["all_models"].update(models=2)),
    "one person": (
        "groups too small to name", "decide", lambda m: plan(m)["groups"][0].update(records=1),
    ),
    "nine": (
        "groups too small to name", "decide", lambda m: plan(m)["groups"][0].update(records=9),
    ),
    "held out": ("held-out figures", "decide", lambda m: m["data"].update(test_records=5)),
}  # fmt: skip


def test_a_run_with_nothing_wrong_is_fit() -> None:
    found = checklist(metrics())
    assert found["fit"] == "yes"
    assert len(found["checks"]) == 7
    assert {check["verdict"] for check in found["checks"]} == {"yes"}


@pytest.mark.parametrize("case", WRONG)
def test_one_thing_wrong_is_one_check(case: str) -> None:
    name, verdict, spoil = WRONG[case]
    made = metrics()
    plan(made)["groups"] = copy.deepcopy(plan(made)["groups"])
    spoil(made)
    found = checklist(made)
    assert found["fit"] == verdict
    assert [c["name"] for c in found["checks"] if c["verdict"] != "yes"] == [name]


def test_no_outweighs_decide() -> None:
    made = metrics()
    for _, _, spoil in WRONG.values():
        spoil(made)
    assert checklist(made)["fit"] == "no"


def test_accuracy_on_public_data_is_no_worry() -> None:
    made = metrics()
    made["data"] |= {"test_records": 5, "packaged": True}
    assert checklist(made)["fit"] == "yes"


def test_the_cap_is_stated() -> None:
    says = {c["name"]: c["says"] for c in checklist(metrics() | {"no_limit_cap": 8})["checks"]}
    assert "epsilon = 8, a cap set by the steward" in says["largest ε"]
