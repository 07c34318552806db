"""Choices, charges and rounds."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from apiece.accounting.slack import gaussian_of_bounded_range
from apiece.budgets.release import make_source
from apiece.errors import BudgetError, InputError
from apiece.synthesis.marginals import Rows
from apiece.synthesis.rounds import (
    ExactRandomness,
    Rounds,
    Settings,
    read_state,
    write_state,
)
from apiece.synthesis.selection import draw_candidate, rate_of, weigh_candidates
from apiece.synthesis.weights import Account, Weights


def make_rows(people=400, sizes=(2, 3, 2), groups=2, seed=0):
    generator = np.random.default_rng(seed)
    first = generator.integers(0, sizes[0], people)
    codes = np.stack(
        [first, np.minimum(first + generator.integers(0, 2, people), sizes[1] - 1),
         generator.integers(0, sizes[2], people)], axis=1
    )  # fmt: skip
    return Rows(codes.astype(np.int32), generator.integers(0, groups, people), sizes)


def run(rows, epsilon, seed, rounds=12, account=None):
    weights = Weights.from_budgets(np.asarray(epsilon, float), np.full(len(epsilon), 1e-6))
    account = account or Account(weights)
    workload = weigh_candidates(itertools.combinations(range(3), 2))
    machine = Rounds(rows, account, Settings(workload, rounds), lambda k: ExactRandomness(seed, k))
    state = machine.begin()
    while not state.finished:
        state = machine.advance(state)
    return state, account


def test_everybody_spends_what_they_asked_for_and_nobody_more() -> None:
    state, account = run(make_rows(), [0.5, 1.0, 4.0], seed=1)
    share = account.spending / account.weights.limit
    assert (share <= 1).all()
    assert (share > 0.995).all()
    assert state.finished


def test_a_choice_costs_a_smaller_weight_no_less_than_in_proportion() -> None:
    """The one place where weights in proportion do not spend alike; at most a percent here."""
    ranges = np.array([0.01, 0.1, 1.0])
    ratio = gaussian_of_bounded_range(ranges / 10) / gaussian_of_bounded_range(ranges)
    assert (ratio >= 0.1).all()
    assert (ratio < 0.101).all()


def test_the_exponential_mechanism_draws_by_its_weights() -> None:
    scores = [0, 3, 5, 5]
    rate = Fraction(1, 3)
    below = make_source(5)
    draws = np.bincount([draw_candidate(scores, rate, below) for _ in range(20_000)], minlength=4)
    weights = np.exp(np.array(scores) / 3)
    np.testing.assert_allclose(draws / 20_000, weights / weights.sum(), atol=0.015)


def test_the_rate_gives_weight_one_a_range_of_eta() -> None:
    candidates = {(0,): 2, (0, 1): 5}
    # A person of weight 1 moves a score by up to 5 steps of weight 1, up or down.
    assert float(rate_of(0.7, candidates) * 2 * 5 * 2**20) == pytest.approx(0.7, rel=1e-15)


def test_steps_are_rounded_down() -> None:
    rows = make_rows()
    weight = np.array([1.0, 0.3])
    for step in (0.1, 1 / 3, 1e-7):
        assert (rows.steps_of(weight, step) * step <= weight).all()


def test_a_person_with_many_rows_adds_no_more_than_their_weight() -> None:
    rows = Rows(np.zeros((5, 1), np.int32), np.zeros(5, int), (2,), rows_per_person=5)
    steps = rows.steps_of(np.array([1.0]), 2**-20)
    assert rows.count((0,), steps).tolist() == [5 * (2**20 // 5), 0]


def test_a_state_goes_through_json_and_the_next_round_is_the_same() -> None:
    rows = make_rows()
    weights = Weights.from_budgets(np.array([1.0, 2.0]), np.full(2, 1e-6))
    settings = Settings(weigh_candidates(itertools.combinations(range(3), 2)), 12)
    states = []
    for broken in (False, True):
        account = Account(weights)
        machine = Rounds(rows, account, settings, lambda k: ExactRandomness(3, k))
        state = machine.begin()
        while not state.finished:
            state = machine.advance(state)
            if broken and not state.finished:
                text = json.dumps(write_state(state, account.spending))
                state, spent = read_state(json.loads(text), rows.sizes, {})
                account = Account(weights, spent)
                machine = Rounds(rows, account, settings, lambda k: ExactRandomness(3, k))
        states.append(state)
    plain, resumed = states
    assert [m.clique for m in plain.measurements] == [m.clique for m in resumed.measurements]
    for first, second in zip(plain.measurements[:-1], resumed.measurements[:-1], strict=True):
        np.testing.assert_array_equal(first.values, second.values)


def test_a_state_that_spent_too_much_is_refused() -> None:
    weights = Weights.from_budgets(np.array([1.0]), np.array([1e-6]))
    with pytest.raises(BudgetError, match="above the limit"):
        Account(weights, weights.limit * 1.1)


def test_rounds_must_pay_for_more_than_the_columns() -> None:
    with pytest.raises(InputError, match="rounds = 3"):
        Settings({(0,): 1, (1,): 1, (2,): 1}, 3)


def test_work_is_linear_in_rounds() -> None:
    """Each round looks at the rows once for its measurement, whatever came before."""
    counted = []

    class Counting(Rows):
        def count(self, clique, steps):
            counted.append(clique)
            return super().count(clique, steps)

    plain = make_rows()
    rows = Counting(plain.codes, plain.group, plain.sizes)
    looks = []
    for rounds in (20, 40):
        counted.clear()
        state, _ = run(rows, [0.2, 0.4], seed=2, rounds=rounds)
        looks.append(len(counted))
        assert len(counted) == 6 + len(state.measurements)
    assert looks[1] < 2 * looks[0] + 6


def test_one_budget_gives_every_row_the_weight_one() -> None:
    weights = Weights.from_budgets(np.array([1.0]), np.array([1e-6]))
    assert math.isclose(weights.weight[0], 1, rel_tol=1e-14)
    assert weights.weight[0] <= 1
