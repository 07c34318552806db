"""Plans of rows with several owners keep each owner's promise; one that forgets breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from apiece import Budgets, assign
from apiece.accounting import privacy_curve
from apiece.assignment import assign_owned
from apiece.assignment.owners import OwnedPlan
from apiece.budgets import Ownership
from apiece.errors import InputError, UnsupportedError
from refusals import refused

SETTINGS = {"steps": 40, "expected_batch_size": 10, "clip_norm": 1.0}


def world(seed: int, people: int = 60, rows: int = 200) -> tuple[Ownership, Budgets]:
    random = np.random.default_rng(seed)
    graph = Ownership(
        [random.choice(people, random.integers(1, 4), replace=False) for _ in range(rows)]
    )
    epsilon = random.choice([1.0, 4.0], graph.ids.size)
    return graph, Budgets(epsilon, 1e-4, ids=graph.ids)


@pytest.mark.parametrize("strategy", ["uniform", "scale", "sample"])
@pytest.mark.parametrize("limit", [1, 2])
def test_every_owner_spends_at_most_what_they_asked(strategy: str, limit: int) -> None:
    graph, budgets = world(1)
    owned = assign_owned(graph, budgets, strategy, limit=limit, **SETTINGS)
    assert owned.verify().ok
    assert (graph.owned(owned.rows) <= limit).all()
    for place in range(0, graph.ids.size, 7):
        if not graph.owned(owned.rows)[place]:
            continue
        spent = privacy_curve(owned.mechanism_for(graph.ids[place])).epsilon(1e-4)
        assert spent.upper <= budgets.epsilon[place]
    found = owned.verify()
    assert (found.epsilon_spent / found.epsilon).max() > 0.9


def test_a_plan_that_counts_one_row_only_is_caught() -> None:
    graph, budgets = world(2)
    rows = graph.select(2)
    least = np.full(graph.rows, np.inf)
    np.minimum.at(least, graph.row, budgets.epsilon[graph.owner])
    careless = assign(Budgets(least[rows], 1e-4, ids=rows), "scale", **SETTINGS)
    found = OwnedPlan(careless, rows, graph, budgets).verify()
    assert careless.verify().ok
    assert not found.ok
    assert (found.epsilon_spent / found.epsilon).max() > 1.2


def test_who_spends_nothing_is_aimed_at_as_before() -> None:
    graph, budgets = world(2)
    owned = assign_owned(graph, budgets, "scale", limit=2, **SETTINGS)
    found = owned.verify()
    spent = found.epsilon.copy()
    spent[0] = 0.0
    spent[1] *= 2
    changed = replace(found, epsilon_spent=spent, kept=spent <= found.epsilon)
    lowered = owned._lower_aims(np.ones(graph.ids.size), changed, 0)
    kinds = owned._kinds.index
    assert (lowered[kinds != 1] == 1).all()
    assert (lowered[kinds == 1] < 1).all()


def test_a_plan_for_other_rows_is_refused() -> None:
    graph, budgets = world(2)
    owned = assign_owned(graph, budgets, "scale", limit=2, **SETTINGS)
    for rows in (owned.rows[::-1], owned.rows[1:], owned.rows + 1):
        with pytest.raises(InputError, match="not the ids of the plan"):
            OwnedPlan(owned.plan, rows, graph, budgets)


def test_who_holds_the_rows_cannot_change_them_in_the_plan() -> None:
    graph, budgets = world(2)
    owned = assign_owned(graph, budgets, "scale", limit=2, **SETTINGS)
    rows = owned.rows.copy()
    held = replace(owned, rows=rows)
    rows[:] = 0
    assert (held.rows == owned.rows).all()
    with pytest.raises(ValueError, match="read-only"):
        held.rows[0] = 1


def test_limits_of_one_owner_each() -> None:
    graph, budgets = world(3)
    limit = np.where(np.arange(graph.ids.size) % 2, 2, 0)
    owned = assign_owned(graph, budgets, "scale", limit=limit, **SETTINGS)
    assert (graph.owned(owned.rows) <= limit).all()
    assert owned.verify().ok
    assert len(owned.plan.ids) == owned.rows.size


def test_bad_input_is_refused_in_one_line() -> None:
    graph, budgets = world(4)
    with pytest.raises(InputError, match="1 of the graph's"):
        assign_owned(graph, Budgets(1.0, 1e-4, ids=graph.ids[1:]), "scale", **SETTINGS)
    text = Budgets(1.0, 1e-4, ids=graph.ids.astype(str))
    with pytest.raises(InputError, match="same type"):
        assign_owned(graph, text, "scale", **SETTINGS)
    with pytest.raises(InputError, match="no row is left"):
        assign_owned(graph, budgets, "scale", limit=0, **SETTINGS)
    bounded = Budgets(1.0, 1e-4, excess=0.1, ids=graph.ids)
    with refused(UnsupportedError, "excess"):
        assign_owned(graph, bounded, "scale", **SETTINGS)
    many = Ownership([[i] for i in range(600)])
    with pytest.raises(InputError, match="500"):
        assign_owned(many, Budgets(np.linspace(1, 2, 600), 1e-4), "scale", **SETTINGS)
    with pytest.raises(InputError, match="owns no row"):
        assign_owned(graph, budgets, "uniform", **SETTINGS).mechanism_for(10**6)
    with pytest.raises(UnsupportedError, match="many steps"):
        assign_owned(graph, budgets, "jorgensen", limit=2, **SETTINGS)
