"""No group's budget is passed: recomputed from the numbers of votes and noise alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import contract
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, InputError
from apiece.pate import Noise, Upsample, plan_votes
from apiece.pate.planning import VotePlan
from apiece.pate.strategies import VOTERS, Seats
from apiece.pate.teaching import deal_rows, require_dealt
from refusals import refused

from .worlds import budgets, passed, unchecked

STRATEGIES = [*VOTERS, Upsample(3)]
OPTIONS = [
    {},
    {"threshold": 0.6, "answers": 40},
    {"noise": Noise(answer=20.0)},
    {"noise": Noise(answer=40.0, check=90.0, threshold=0.5), "answers": 33},
]


def made(strategy: object, **options: object) -> VotePlan:
    given = {"teachers": 30, "questions": 150, **options}
    return plan_votes(budgets(600), strategy, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "check", "given", "given check"])
def test_no_budget_is_passed(strategy: object, options: dict[str, object]) -> None:
    votes = made(strategy, **options)
    assert passed(votes) == []
    assert votes.plan.verify().ok
    assert contract.check(votes.plan.public()).ok


def test_no_budget_is_passed_whatever_is_asked() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        sizes = generator.integers(40, 200, 3)
        epsilon, delta = generator.uniform(0.1, 8, 3), 10.0 ** generator.uniform(-9, -3, 3)
        asked = Budgets(np.repeat(epsilon, sizes), np.repeat(delta, sizes))
        questions = int(generator.integers(1, 400))
        strategy = ["uniform", "weight", "upsample"][int(generator.integers(3))]
        checked = bool(generator.integers(2))
        options = {"threshold": 0.5, "answers": -(-questions // 3)} if checked else {}
        try:
            votes = plan_votes(asked, strategy, teachers=40, questions=questions, **options)
        except InfeasibleError:
            continue  # more copies than teachers
        assert passed(votes) == []


@pytest.mark.parametrize("strategy", ["uniform", "weight"])
def test_what_is_allowed_is_spent(strategy: str) -> None:
    """A thousandth less noise passes a budget: the noise is no larger than it must be."""
    votes = made(strategy)
    less = unchecked(votes, noise=Noise(answer=votes.noise.answer * 0.999))
    assert passed(votes) == []
    assert passed(less)


def broken(votes: VotePlan, what: str) -> dict[str, Any]:
    """The parts of a plan of votes with one of them changed, and the rest as it was."""
    seats, phases = votes.seats, votes.phases
    if what == "one copy more":
        return {"seats": replace(seats, copies=seats.copies + 1)}
    if what == "heavier":
        return {"seats": replace(seats, weight=seats.weight * 2)}
    if what == "more answers":
        more = tuple(replace(p, answers=p.answers + 2, questions=p.questions + 2) for p in phases)
        return {"phases": more}
    if what == "nobody leaves":
        return {"phases": tuple(replace(p, voting=np.ones_like(p.voting)) for p in phases)}
    return {"noise": Noise(answer=votes.noise.answer / 2**0.5)}  # sensitivity 1, not √2


@pytest.mark.parametrize("what", ["one copy more", "heavier", "more answers", "√2 left out"])
def test_breaks_are_seen(what: str) -> None:
    votes = made("weight")
    assert passed(votes) == []
    assert passed(unchecked(votes, **broken(votes, what)))
    with pytest.raises(InputError, match="are not what these seats, noise and phases do") as error:
        replace(votes, **broken(votes, what))
    assert "\n" not in str(error.value)


def with_own_phases() -> VotePlan:
    """Groups of one weight each, so that the strict ones' budgets are spent first."""
    from apiece.budgets import BudgetGroups
    from apiece.pate.strategies import Seats

    class Alike:
        name = "alike"

        def seats(self, groups: BudgetGroups, mu: np.ndarray, teachers: int) -> Seats:
            one = np.ones(3, dtype=np.int64)
            return Seats(np.arange(3), one, np.array([10, 10, 10]), np.ones(3))

    noise = Noise(answer=20.0)
    return plan_votes(budgets(600), Alike(), teachers=30, questions=150, noise=noise)


def test_pools_leave_as_their_budgets_are_spent() -> None:
    votes = with_own_phases()
    assert [p.voting.tolist() for p in votes.phases] == [
        [True, True, True], [False, True, True], [False, False, True],
    ]  # fmt: skip
    assert passed(votes) == []
    assert passed(unchecked(votes, **broken(votes, "nobody leaves")))
    spent = votes.plan.epsilon_spent
    assert (spent > [0.9, 1.9, 2.9]).all()
    assert votes.weights(votes.phases[1]).tolist() == [0.0] * 10 + [1.0] * 20


def test_others_budgets_give_nobody_more_risk() -> None:
    """A record's mechanism is a Gaussian of its own μ: the uniform one, or a weaker leak."""
    for strategy in VOTERS:
        assert (made(strategy).plan.measures.forward < 1e-4).all()


def test_the_same_budget_among_others_gets_the_same_promise() -> None:
    strict = [Budgets([1.0] * 300 + [e] * 300, 1e-5) for e in (2.0, 8.0)]
    own = [plan_votes(b, "weight", teachers=30, questions=50).plan.curve(0) for b in strict]
    assert own[0].delta(0.5).upper == pytest.approx(own[1].delta(0.5).upper, rel=1e-4)


@pytest.mark.parametrize(
    ("groups", "teachers"),
    [(3, 2), (4, 3), (10, 9), (40, 39), (101, 100), (150, 100), (2, 1), (5, 1), (600, 599)],
)
def test_fewer_teachers_than_groups_are_refused(groups: int, teachers: int) -> None:
    """A group without a teacher sat with the next one's, at a hundredfold weight."""
    levels = np.linspace(0.1, 10.5, groups)
    asked = Budgets(np.resize(levels, max(600, 4 * groups)), 1e-5)
    with pytest.raises(
        InfeasibleError, match=rf"teachers = {teachers}: fewer than the {groups}"
    ) as e:
        plan_votes(asked, "weight", teachers=teachers, questions=10)
    assert "\n" not in str(e.value)
    assert f"give at least {groups}" in str(e.value)
    least = plan_votes(asked, "weight", teachers=groups, questions=10)
    assert least.seats.teachers.tolist() == [1] * groups
    assert passed(least) == []


def test_a_group_whose_votes_would_count_nothing_is_refused() -> None:
    asked = Budgets([1e-6] * 100 + [500.0] * 100, [1e-12] * 100 + [0.4] * 100)
    with pytest.raises(InfeasibleError, match="teachers' votes count nothing"):
        plan_votes(asked, "weight", teachers=10, questions=10)


ONE = np.ones(2, dtype=np.int64)
SEATS: dict[str, dict[str, Any]] = {
    "no seat": {"teachers": np.array([0, 2])},
    "fewer than none": {"teachers": np.array([-1, 3])},
    "more copies than teachers": {"copies": np.array([3, 1])},
    "no copy": {"copies": np.array([0, 1])},
    "a pool that there is not": {"pool": np.array([0, 2])},
    "a pool before the first": {"pool": np.array([-1, 1])},
    "a weight of nothing": {"weight": np.array([0.0, 1.0])},
    "a weight below nothing": {"weight": np.array([-1.0, 1.0])},
    "a weight that is none": {"weight": np.array([np.nan, 1.0])},
    "an infinite weight": {"weight": np.array([np.inf, 1.0])},
    "a weight off the grid": {"weight": np.array([1 / 3, 1.0])},
    "weights too large to add up exactly": {"weight": np.array([2.0**40, 1.0])},
    "one weight": {"weight": np.array([1.0])},
    "one copy": {"copies": np.array([1])},
}


@pytest.mark.parametrize("what", SEATS)
def test_seats_that_are_none(what: str) -> None:
    good: dict[str, Any] = {
        "pool": np.arange(2), "copies": ONE, "teachers": ONE, "weight": np.ones(2),
    }  # fmt: skip
    Seats(**good)
    with pytest.raises(InputError, match="seats: ") as error:
        Seats(**(good | SEATS[what]))
    assert "\n" not in str(error.value)


def test_seats_are_of_the_groups_of_the_plan() -> None:
    votes = made("weight")
    two = Seats(np.arange(2), ONE, ONE, np.ones(2))
    with refused(InputError, 2, "groups", 3, "plan"):
        replace(votes, seats=two)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    levels=st.lists(st.floats(0.05, 20), min_size=12, max_size=12, unique=True),
    teachers=st.integers(1, 40),
    strategy=st.sampled_from(["uniform", "upsample", "weight"]),
)
def test_every_group_has_seats_of_its_own_or_there_is_no_plan(
    sizes: list[int], levels: list[float], teachers: int, strategy: str
) -> None:
    """Whatever groups and teachers: an oracle that knows no accountant finds no budget passed."""
    asked = Budgets(np.repeat(levels[: len(sizes)], sizes), 1e-5)
    try:
        votes = plan_votes(asked, strategy, teachers=teachers, questions=7)
    except InputError:  # too few teachers, or too few records for one
        return
    seats = votes.seats
    assert seats.teachers.sum() == teachers
    assert (seats.copies <= seats.teachers[seats.pool]).all()
    assert (seats.teachers >= 1).all()
    if strategy == "weight":
        assert seats.pool.tolist() == list(range(len(sizes)))
    assert passed(votes) == []
    shares = deal_rows(votes, key=bytes(32))
    require_dealt(votes, shares)
    assert shares.rows.size == int(seats.copies @ votes.plan.budget_groups.records)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"teachers": 601}, "teachers = 601: there are 600 records"),
        ({"teachers": 0}, "teachers"),
        ({"questions": 0}, "questions"),
        ({"questions": float("nan")}, "questions"),
        ({"answers": 5}, "answers = 5: without a threshold"),
        ({"answers": 151, "threshold": 0.5}, "answers = 151: must be at most"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.0}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": 0.5, "noise": Noise(answer=3.0)}, "leave one of them out"),
        ({"noise": Noise(answer=0.1)}, "not one question can be asked .* give at least"),
    ],
)
def test_bad_requests_are_one_clear_line(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        made("weight", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_noise_that_is_none(value: float) -> None:
    with refused(InputError, "noise"):
        Noise(answer=value)
    with refused(InputError, "noise"):
        Noise(answer=1.0, check=value, threshold=0.5)


def test_the_remedy_that_is_named_works() -> None:
    with pytest.raises(InfeasibleError) as error:
        made("weight", noise=Noise(answer=0.1))
    least = float(str(error.value).rsplit(" ", 1)[1])
    assert made("weight", noise=Noise(answer=least * 1.001)).answers == 1


def test_the_hash_is_of_everything_public() -> None:
    one, other = made("weight"), made("weight", questions=149)
    assert one.hash() == made("weight").hash() != other.hash()
    assert one.hash() != unchecked(one, **broken(one, "heavier")).hash()


def test_the_plan_is_of_the_unit_that_is_said() -> None:
    assert made("weight", unit="person").plan.unit == "person"
