"""What each budget on offer means: against plans made one by one, and a search over mixtures."""

import numpy as np
import pytest

from apiece.assignment import Allocate, Hybrid, Sample, Scale, assign
from apiece.budgets import Budgets
from apiece.contract import Choices, budget_manipulation, choices
from apiece.contract.choices import Outcome
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.plan import Plan

OFFERED = [("weak", 8.0, 0.25), ("strict", 1.0, 0.75)]
SETTINGS = {"steps": 5, "expected_batch_size": 40.0}
RECORDS, DELTA, BOUND = 200, 1e-5, 0.02
GIVEN = {"records": RECORDS, "delta": DELTA, "bound": BOUND, **SETTINGS}


TOLD: list[tuple[int, int]] = []


@pytest.fixture(scope="module")
def found() -> Choices:
    TOLD.clear()
    return choices(
        OFFERED,
        strategies=[Sample()],
        progress=lambda done, of: TOLD.append((done, of)),
        **GIVEN,  # type: ignore[arg-type]
    )


def outcome(found: Choices, strategy: str, budget: int, others: int | None) -> Outcome:
    (one,) = [
        o for o in found.outcomes if (o.strategy, o.budget, o.others) == (strategy, budget, others)
    ]
    return one


def right(plan: Plan, group: int) -> float:
    return 1000 * plan.curve(group, method="pld").success(0.5).upper


def test_every_choice_is_there_once_strictest_first_and_each_plan_is_told(found: Choices) -> None:
    assert found.names == ("strict", "weak")
    assert found.shares == (0.75, 0.25)
    keys = {(o.strategy, o.budget, o.others) for o in found.outcomes}
    assert len(keys) == len(found.outcomes) == 2 * 3
    # of one plan as expected, and of one for each choice of one and of the others
    assert TOLD == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_six_budgets_may_be_offered_and_each_may_expect_as_many() -> None:
    six = [(f"at {epsilon}", float(epsilon), 1 / 6) for epsilon in (3, 1, 2, 6, 5, 4)]
    found = choices(six, strategies=[], **GIVEN | {"steps": 1})
    assert found.names == tuple(f"at {epsilon}" for epsilon in range(1, 7))
    assert list(found.references) == sorted(set(found.references))
    assert all(a <= b for a, b in zip(found.references, found.bounded, strict=True))
    assert found.bounded[0] <= found.promises[0].frequencies.right


@pytest.mark.slow
def test_a_whole_number_of_steps_leaves_what_it_says_or_is_left_out() -> None:
    found = choices(OFFERED, strategies=[Allocate()], **GIVEN)
    plan = assign(
        Budgets.from_groups(OFFERED, RECORDS, DELTA), "allocate", clip_norm=1.0, **SETTINGS
    )
    names = plan.budget_groups.name.tolist()
    for budget, name in enumerate(found.names):
        one, group = outcome(found, "allocate", budget, None), names.index(name)
        assert one.explanation.taking_part[:3] == (plan.stages[0].times[group], plan.steps, True)
        assert one.unspent == int(100 * (1 - plan.spent_share[group]))
        assert f"at least {one.unspent} % of your ε" in one.sentences[-1]
        assert found.guaranteed(budget, "allocate") == found.promises[budget].frequencies.right
    tiny = [("weak", 8.0, 0.5), ("strict", 0.001, 0.5)]
    with pytest.raises(InfeasibleError, match="does not allow"):
        choices(tiny, strategies=[Allocate()], **GIVEN)
    without = choices(tiny, **GIVEN)
    assert "allocate" not in {o.strategy for o in without.outcomes}
    assert len(without.left_out) == 1
    assert "does not allow" in without.left_out[0]


def test_what_all_others_choose_is_as_manipulated(found: Choices) -> None:
    budgets = Budgets([8.0] * RECORDS, DELTA)
    honest, moved = budget_manipulation(budgets, 0, decoys=[1.0], clip_norm=1.0, **SETTINGS)
    for exposure, others in ((honest, 1), (moved, 0)):
        said = outcome(found, "sample", 1, others)
        assert said.excess == pytest.approx(exposure.forward.upper, abs=1e-6)
        advantage = exposure.advantage.upper
        assert said.explanation.frequencies.right == pytest.approx(500 * (1 + advantage), abs=1.001)
    assert moved.forward.upper > BOUND  # so Sample breaks the bound that Hybrid keeps


@pytest.mark.slow
def test_scale_does_not_move() -> None:
    found = choices(OFFERED, strategies=[Scale()], **GIVEN)
    for budget in range(2):
        counts = {
            outcome(found, "scale", budget, others).explanation.frequencies.right
            for others in (None, 0, 1)
        }
        assert counts == {found.references[budget]} == {found.guaranteed(budget, "scale")}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Scale(), Hybrid(BOUND)], ids=lambda s: s.name)
def test_no_mixture_of_others_breaks_the_guarantee(found: Choices, strategy: Scale) -> None:
    generator = np.random.default_rng(3)
    for trial in range(4):
        share = generator.dirichlet([0.3] * 4)
        others = generator.choice([0.2, 1.0, 8.0, 30.0], RECORDS - 1, p=share)
        for budget, epsilon in enumerate((1.0, 8.0)):
            budgets = Budgets(np.append(others, epsilon), DELTA)
            plan = assign(budgets, strategy, clip_norm=1.0, **SETTINGS)
            group = int(plan.group_index[-1])
            assert right(plan, group) <= found.guaranteed(budget, strategy.name), trial


def test_the_search_finds_what_sample_does_not_keep(found: Choices) -> None:
    """The control: under Sample some mixture goes past the bound, yet never past the promise."""
    budgets = Budgets([1.0] * (RECORDS - 1) + [8.0], DELTA)
    plan = assign(budgets, Sample(), clip_norm=1.0, **SETTINGS)
    reached = right(plan, int(plan.group_index[-1]))
    assert found.bounded[1] < reached <= found.guaranteed(1, "sample")


@pytest.mark.slow
def test_hybrid_keeps_its_bound_whatever_the_others_choose() -> None:
    found = choices(OFFERED, strategies=[Hybrid(BOUND)], **GIVEN)
    assert max(o.excess for o in found.outcomes) <= BOUND
    for o in found.outcomes:
        assert o.explanation.frequencies.right <= found.bounded[o.budget]


def test_more_is_the_excess_of_a_thousand(found: Choices) -> None:
    for o in found.outcomes:
        assert 1000 * o.excess <= o.more < 1000 * o.excess + 1
        assert o.explanation.frequencies.right <= found.guaranteed(o.budget, o.strategy)
        assert o.epsilon_spent <= found.promises[o.budget].epsilon


@pytest.mark.parametrize(
    ("offered", "changes"),
    [
        ([("a", 1.0, 1.0)], {}),
        ([("a", 1.0, 0.5), ("b", 1.0, 0.5)], {}),
        ([("a", 1.0, 0.5), ("a", 2.0, 0.5)], {}),
        ([(str(e), e, 1 / 7) for e in range(1, 8)], {}),
        ([("a", 1.0, 0.5), ("b", 2.0, 0.6)], {}),
        ([("a", 1.0, 0.5), ("b", float("nan"), 0.5)], {}),
        (OFFERED, {"records": 15}),
        (OFFERED, {"bound": 1.5}),
        (OFFERED, {"delta": 0.0}),
    ],
)
def test_mistakes(offered: list[tuple[str, float, float]], changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        choices(offered, **GIVEN | changes)


@pytest.mark.parametrize("excess", [None, 0.0, 0.5])
def test_a_bound_that_hybrid_does_not_keep_is_not_said(excess: float | None) -> None:
    with pytest.raises(InputError, match=r"Hybrid\(0\.02\)"):
        choices(OFFERED, strategies=[Scale(), Hybrid(excess)], **GIVEN)


def test_too_few_are_a_budget_error() -> None:
    with pytest.raises(BudgetError, match="offer 2 to 6"):
        choices(OFFERED[:1], **GIVEN)
