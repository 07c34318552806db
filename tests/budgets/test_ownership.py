"""A selection depends on the graph alone, keeps the limit, and leaves no row out idly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from apiece.budgets import Ownership
from apiece.errors import InputError
from refusals import refused

GRAPHS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=20)


@settings(max_examples=200, deadline=None)
@given(GRAPHS, st.data())
def test_nobody_owns_more_and_no_row_could_be_added(owners, data) -> None:
    graph = Ownership(owners)
    size = graph.ids.size
    limit = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    rows = graph.select(limit)
    owned = graph.owned(rows)
    assert (owned <= limit).all()
    left = dict(zip(graph.ids.tolist(), (limit - owned).tolist(), strict=True))
    for row in set(range(len(owners))) - set(rows.tolist()):
        assert min(left[owner] for owner in owners[row]) == 0


@settings(max_examples=50, deadline=None)
@given(GRAPHS, st.integers(1, 3), st.randoms())
def test_names_of_owners_and_their_order_do_not_matter(owners, limit, random) -> None:
    names = {owner: f"p{owner:03}" for row in owners for owner in row}
    told = [[names[o] for o in random.sample(row, len(row))] for row in owners]
    assert Ownership(told).select(limit).tolist() == Ownership(owners).select(limit).tolist()


def random_graph(kind: str, seed: int, rows: int = 1500, people: int = 1000) -> Ownership:
    random = np.random.default_rng(seed)
    weight = 1 / np.arange(1, people + 1)
    draw = {
        "pairs": lambda: random.choice(people, 2, replace=False),
        "skewed": lambda: random.choice(people, random.integers(1, 5), p=weight / weight.sum()),
        "threads": lambda: (
            random.integers(people - 6) + random.choice(6, random.integers(1, 5), replace=False)
        ),
    }[kind]
    return Ownership([draw() for _ in range(rows)])


def by_degree(graph: Ownership) -> int:
    """Ganesh et al. 2025, Algorithm 2 with one row an owner: fewest owners first."""
    taken: set[int] = set()
    owners = np.split(graph.owner, np.flatnonzero(np.diff(graph.row)) + 1)
    chosen = 0
    for row in sorted(owners, key=len):
        if taken.isdisjoint(row.tolist()):
            taken.update(row.tolist())
            chosen += 1
    return chosen


@pytest.mark.parametrize("kind", ["pairs", "skewed", "threads"])
@pytest.mark.parametrize("limit", [1, 3])
def test_close_to_the_most_rows_that_there_could_be(kind: str, limit: int) -> None:
    graph = random_graph(kind, 0)
    ones = np.ones(graph.row.size)
    edges = csr_matrix((ones, (graph.owner, graph.row)), shape=(graph.ids.size, graph.rows))
    room = np.full(graph.ids.size, limit)
    most = -linprog(-np.ones(graph.rows), A_ub=edges, b_ub=room, bounds=(0, 1)).fun
    found = graph.select(limit).size
    assert 0.93 * most <= found <= most + 1e-6
    assert limit > 1 or found >= by_degree(graph)


def test_lists_and_pairs_are_one_graph() -> None:
    lists = Ownership([["bob", "ann", "bob"], ["eve"]])
    pairs = Ownership.from_pairs([1, 0, 0], ["eve", "bob", "ann"])
    for name in ("ids", "row", "owner"):
        assert getattr(lists, name).tolist() == getattr(pairs, name).tolist()
        assert not getattr(lists, name).flags.writeable
    assert repr(lists) == "Ownership(rows=2)"


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        ([], "no owner"),
        ([["a"], []], "row 1: no owner"),
        ([["a", 1]], "one kind"),
        ([[True]], "one kind"),
        ([[None]], "one kind"),
        ([[1.0]], "one kind"),
    ],
)
def test_what_is_no_graph_is_refused(owners, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Ownership(owners)


@pytest.mark.parametrize(
    ("row", "owner"),
    [
        ([], []),
        ([0, 1], [1]),
        ([[0]], [[1]]),
        ([0, 2], [1, 1]),
        ([-1, 0], [1, 1]),
        ([0.0], [1]),
        ([0], [1.5]),
        ([10**15], [1]),
    ],
)
def test_what_are_no_pairs_is_refused(row, owner) -> None:
    with pytest.raises(InputError):
        Ownership.from_pairs(row, owner)


@pytest.mark.parametrize("limit", [-1, 1.5, [1, 2, 3], "2", True, [[1, 1]]])
def test_what_is_no_limit_is_refused(limit) -> None:
    with refused(InputError, "limit"):
        Ownership([[1, 2]]).select(limit)
