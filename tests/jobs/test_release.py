"""The checklist for release: each check on its own, and the verdict of all together."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.jobs import Run
from apiece.jobs.trained import make_checklist
from apiece.plan import Plan
from sample_runs import FACTS, trained


def fit_plan(*, epsilon: float = 2.0, delta: float = 1e-5, small: int = 500) -> Plan:
    budgets = Budgets([1.0] * 500 + [epsilon] * small, delta)
    return assign(budgets, "scale", steps=4, expected_batch_size=20, clip_norm=1.0)


GOOD = Run(
    version="0", name="x", data=replace(FACTS, test_records=0), strategy="scale", hidden=(),
    analysis=None, no_limit_cap=None, seed=None,
    strategies=(trained("scale", 0.8, plan=fit_plan()),), models=1, totals=(),
)  # fmt: skip


def planned(plan: Plan) -> Run:
    return replace(GOOD, strategies=(trained("scale", 0.8, plan=plan),))


WRONG: dict[str, tuple[str, str, Callable[[], Run]]] = {
    "an objection": (
        "promises", "no", lambda: planned(replace(fit_plan(), objections=("broken",))),
    ),
    "a seed": ("randomness", "no", lambda: replace(GOOD, seed=0)),
    "delta of 1/n": ("δ against 1/n", "no", lambda: planned(fit_plan(delta=1e-3))),
    "delta above": ("δ against 1/n", "no", lambda: planned(fit_plan(delta=0.1))),
    "epsilon": ("largest ε", "decide", lambda: planned(fit_plan(epsilon=10.5))),
    "models": ("number of models", "decide", lambda: replace(GOOD, models=2)),
    "one person": ("groups too small to name", "decide", lambda: planned(fit_plan(small=1))),
    "nine": ("groups too small to name", "decide", lambda: planned(fit_plan(small=9))),
    "held out": ("held-out figures", "decide", lambda: replace(GOOD, data=FACTS)),
}  # fmt: skip


def test_a_run_with_nothing_wrong_is_fit() -> None:
    assert GOOD.release.fit == "yes"
    assert len(GOOD.release.checks) == 7
    assert {check.verdict for check in GOOD.release.checks} == {"yes"}


@pytest.mark.parametrize("case", WRONG)
def test_one_thing_wrong_is_one_check(case: str) -> None:
    name, verdict, spoiled = WRONG[case]
    release = spoiled().release
    assert release.fit == verdict
    assert [check.name for check in release.checks if check.verdict != "yes"] == [name]
    assert release.to_dict()["fit"] == verdict


def test_no_outweighs_decide() -> None:
    run = replace(planned(fit_plan(epsilon=10.5, small=1)), seed=0, models=2, data=FACTS)
    assert {check.verdict for check in run.release.checks} == {"yes", "no", "decide"}
    assert run.release.fit == "no"


def test_accuracy_on_public_data_is_no_worry() -> None:
    assert replace(GOOD, data=replace(FACTS, packaged=True)).release.fit == "yes"


def test_the_cap_is_stated() -> None:
    release = make_checklist(GOOD.kept, GOOD.data, seed=None, count=1, no_limit_cap=8)
    says = {check.name: check.says for check in release.checks}
    assert "epsilon = 8, a cap set by the steward" in says["largest ε"]
