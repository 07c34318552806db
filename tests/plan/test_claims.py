"""What a file says of a plan is compared with the plan: each field alone is caught."""

from dataclasses import fields, replace

import numpy as np
import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import DataError, VerificationError
from apiece.plan import Plan
from apiece.plan.serial import SLACK, Claims
from refusals import refused

BUDGETS = Budgets([1.0] * 60 + [3.0] * 40, 1e-5, excess=1.0)
PLAN: Plan = assign(BUDGETS, "scale", steps=8, expected_batch_size=20, clip_norm=1.0).public()
MEASURES = PLAN.measures
TRUE = Claims(
    steps=8,
    releasable=True,
    noise_multiplier=(PLAN.stages[0].noise_stddev / PLAN.stages[0].clip_norm).tolist(),
    epsilon_spent=PLAN.epsilon_spent.tolist(),
    advantage=np.asarray(MEASURES.advantage).tolist(),
    excess=np.maximum(MEASURES.forward, MEASURES.backward).tolist(),  # type: ignore[arg-type]
    excess_forward=np.asarray(MEASURES.forward).tolist(),
    excess_backward=np.asarray(MEASURES.backward).tolist(),
)


def require(claims: Claims, plan: Plan) -> None:
    claims.require(plan, lambda: plan.epsilon_spent, lambda: plan.measures)


def test_what_is_true_is_accepted_and_what_is_absent_claims_nothing() -> None:
    require(TRUE, PLAN)
    columns = {f.name: None for f in fields(Claims) if f.name not in ("steps", "releasable")}
    require(replace(TRUE, **columns), PLAN)


@pytest.mark.parametrize(
    "name", [f.name for f in fields(Claims) if f.name not in ("steps", "releasable")]
)
@pytest.mark.parametrize("off", [3 * SLACK, -0.01, float("nan")])
def test_each_column_is_held_against_the_plan(name: str, off: float) -> None:
    column = list(getattr(TRUE, name))
    column[1] += off * max(1.0, column[1])
    with pytest.raises(DataError, match=f"claims {name} = "):
        require(replace(TRUE, **{name: column}), PLAN)


def test_steps_and_objections() -> None:
    with refused(DataError, "steps", 9):
        require(replace(TRUE, steps=9), PLAN)
    with pytest.raises(DataError, match="releasable is False"):
        require(replace(TRUE, releasable=False), PLAN)


def test_a_promise_that_is_not_kept_is_found_without_any_claim() -> None:
    loud = replace(PLAN, stages=(replace(PLAN.stages[0], noise_stddev=0.9),))
    columns = {f.name: None for f in fields(Claims) if f.name not in ("steps", "releasable")}
    with pytest.raises(VerificationError):
        require(replace(TRUE, **columns), loud)
