"""Rows of people: everyone's own, chosen by their own coins, and together in a physical batch."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apiece import Budgets, assign
from apiece.budgets import Units
from apiece.errors import DataError, InputError, StateError
from apiece.training import Trainer
from apiece.training.sums import Brought, choose_rows

KEYS = [k.to_bytes(32, "little") for k in range(4000)]


def ragged(seed: int, persons: int = 40, most: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and each row's person, people in no order, from 1 to `most` rows a person."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"p{k}" for k in rng.permutation(persons)])
    counts = np.minimum(rng.geometric(0.1, persons), most)
    return ids, rng.permutation(np.repeat(ids, counts))


@given(seed=st.integers(0, 10**6), limit=st.one_of(st.none(), st.integers(1, 30)))
def test_everyone_brings_rows_of_their_own_and_no_more_than_the_limit(
    seed: int, limit: int | None
) -> None:
    ids, people = ragged(seed)
    held = Units.of(people, ids)
    drawn = np.random.default_rng(seed).permutation(len(held))[:17]
    found = choose_rows(replace(held, most=limit), drawn, KEYS[0])
    for k, person in enumerate(drawn):
        own = np.flatnonzero(people == ids[person])
        brought = found.rows[found.owner == k]
        assert np.array_equal(np.unique(brought), np.sort(brought))  # each once
        assert np.isin(brought, own).all()
        assert brought.size == min(own.size, limit or own.size)
    assert (np.diff(found.owner) >= 0).all()


@pytest.mark.parametrize("limit", [1, 5])
def test_nobody_s_coins_depend_on_anybody_else(limit: int) -> None:
    """With other people drawn, or others' rows taken away, a person brings the same rows."""
    ids, people = ragged(3)
    whole, alone = Units.of(people, ids).at_most(limit), np.arange(40)
    everyone = choose_rows(whole, alone, KEYS[1])
    for person in range(40):
        own = everyone.rows[everyone.owner == person]
        assert np.array_equal(choose_rows(whole, np.array([person]), KEYS[1]).rows, own)
        fewer = people.copy()
        stolen = np.flatnonzero((people != ids[person]) & (np.arange(people.size) % 3 == 0))
        fewer[stolen] = ids[(person + 1) % 40]  # other people's rows change hands
        place = {one: k for k, one in enumerate(ids)}  # without the demand that all hold a row
        other = Units(ids, np.array([place[one] for one in fewer]), most=limit)
        assert np.array_equal(choose_rows(other, np.array([person]), KEYS[1]).rows, own)


def chosen(bringing: object, held: int, limit: int) -> np.ndarray:
    """How often each subset of one person's rows was brought, over the keys."""
    people = np.repeat(["a", "b"], [3, held])
    of = Units.of(people, ["a", "b"]).at_most(limit)
    names = {s: k for k, s in enumerate(itertools.combinations(range(3, 3 + held), limit))}
    counts = np.zeros(len(names))
    for key in KEYS:
        rows = bringing(of, np.array([1]), key).rows  # type: ignore[operator]
        counts[names[tuple(sorted(rows.tolist()))]] += 1
    return counts


def first_rows(of: Units, persons: np.ndarray, key: bytes) -> Brought:
    """Planted break: the first row is brought more often than the others."""
    if key[0] % 4:
        return choose_rows(of, persons, key)
    found = choose_rows(replace(of, most=None), persons, key)
    return Brought(found.rows[: of.most], found.owner[: of.most])


@pytest.mark.parametrize(("held", "limit"), [(5, 2), (6, 1), (4, 3)])
def test_every_subset_has_the_same_chance(held: int, limit: int) -> None:
    assert stats.chisquare(chosen(choose_rows, held, limit)).pvalue > 1e-4
    assert stats.chisquare(chosen(first_rows, held, limit)).pvalue < 1e-6


def test_people_s_choices_are_independent() -> None:
    of = Units.of(np.repeat(["a", "b"], 2), ["a", "b"]).at_most(1)
    both = np.array([choose_rows(of, np.arange(2), key).rows - [0, 2] for key in KEYS])
    assert abs(np.corrcoef(both.T)[0, 1]) < 4.5 / len(KEYS) ** 0.5
    later = np.array([both[:-1, 0], both[1:, 0]])
    assert abs(np.corrcoef(later)[0, 1]) < 4.5 / len(KEYS) ** 0.5


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=12), width=st.integers(1, 12))
def test_a_person_s_rows_stay_in_one_physical_batch(counts: list[int], width: int) -> None:
    owner = np.repeat(np.arange(len(counts)), counts)
    parts = list(Brought(np.arange(owner.size), owner).split(width))
    persons, rows = zip(*parts, strict=True)
    assert np.array_equal(
        np.concatenate([np.arange(owner.size)[r] for r in rows]), np.arange(owner.size)
    )
    assert np.array_equal(
        np.concatenate([np.arange(len(counts))[p] for p in persons]), np.arange(len(counts))
    )
    for who, part in parts:
        assert set(owner[part]) == set(range(len(counts))[who])
        assert part.stop - part.start <= width or who.stop - who.start == 1
    for one, other in itertools.pairwise(parts):  # and no batch is needlessly small
        assert other[1].start - one[1].start + counts[other[0].start] > width


def test_nobody_drawn_brings_nothing() -> None:
    of = Units.of(["a", "b", "a"], ["a", "b"]).at_most(3)
    none = choose_rows(of, np.empty(0, np.int64), KEYS[0])
    assert none.rows.size == 0
    assert list(none.split(4)) == []


@pytest.mark.parametrize(
    ("people", "ids", "message"),
    [
        (["a", "a"], ["a", "b"], "1 of 2 persons of the plan have no row"),
        (["a", "c", "c"], ["a"], "2 of 3 rows are of nobody in the plan"),
        ([1.0, np.nan], [1.0, 2.0], "give whole numbers or text"),
        ([1.0, 2.0], [1, 2], "give whole numbers or text"),
        (["a\0", "b"], ["a", "b"], "NUL"),
        (["a", "b"], ["a", "b", "a"], "occurs 2 times"),
        ([1, 2], ["1", "2"], "ids of type int64"),
        ([["a", "b"]], ["a"], "give a flat list of ids"),
        ([], ["a"], "one id a row"),
    ],
)
def test_bad_input_is_told_in_one_line_that_names_nobody_s_rows(
    people: list[object], ids: list[object], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Units.of(people, ids)
    assert "\n" not in str(caught.value)


def test_texts_may_be_objects_as_pandas_keeps_them() -> None:
    column = np.array(["b", "a", "b"], dtype=object)
    assert Units.of(column, ["a", "b"]).rows.tolist() == [1, 0, 2]
    with pytest.raises(DataError, match="type object"):
        Units.of(np.array(["b", 1], dtype=object), ["b", "1"])


def test_the_limit_is_a_count() -> None:
    with pytest.raises(InputError, match="rows_per_person"):
        Units.of(["a"], ["a"]).at_most(0)


def test_reprs_show_nobody() -> None:
    of = Units.of(np.full(7310, 429), [429])
    assert "7310" not in repr(of) + repr(choose_rows(of, np.array([0]), KEYS[0]))


def trained(people, missing=None, **options):
    """A trainer of ten persons after some steps; the same seed draws the same persons and noise."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    size = 10 if people is None else len(people)
    data = torch.randn(size, 3), torch.randint(0, 2, (size,))
    if missing is not None:  # rows that are not finite count for nothing, and the draw stays
        data[0][torch.from_numpy(people == missing)] = torch.nan
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    budgets = Budgets(np.repeat([1.0, 4.0], 5), 1e-3, ids=np.arange(10))
    plan = assign(budgets, "scale", steps=4, expected_batch_size=6, clip_norm=0.1)
    return Trainer(model, optimizer, loss, plan, data, seed=3, people=people, **options)


def parameters(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


MANY = np.repeat(np.arange(10), [1, 3, 2, 40, 1, 1, 7, 2, 1, 5])


@pytest.mark.parametrize(("limit", "width"), [(None, 1024), (2, 4)])
def test_a_step_without_a_person_moves_by_at_most_their_bound(limit, width: int) -> None:
    """Whoever is missing, with however many rows."""
    whole = trained(MANY, rows_per_person=limit, physical_batch_size=width)
    whole.step()
    stage, moved = whole.plan.stages[0], 0
    for person in range(10):
        less = trained(MANY, person, rows_per_person=limit, physical_batch_size=width)
        less.step()
        bound = float(stage.clip_norm[whole.plan.group_index[person]])
        far = float((parameters(whole) - parameters(less)).double().norm())
        assert far * stage.expected_batch_size <= bound * (1 + 1e-3) + 1e-5
        moved += far > 0
    assert moved >= 3


def test_one_row_each_is_as_without_people() -> None:
    one, other = trained(np.arange(10)), trained(None)
    one.fit()
    other.fit()
    assert torch.equal(parameters(one), parameters(other))


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path) -> None:
    whole = trained(MANY, rows_per_person=2)
    whole.fit()
    part = trained(MANY, rows_per_person=2, checkpoint=tmp_path / "run")
    part.fit(2)
    part.save()
    fresh = trained(MANY, rows_per_person=2)
    source = fresh._loop.sums.source
    data = source.inputs, source.targets
    model, optimizer = fresh.model, fresh.optimizer
    settings = {"people": MANY, "rows_per_person": 2}
    for other in ({"people": MANY}, {"people": np.roll(MANY, 1), "rows_per_person": 2}):
        with pytest.raises(StateError, match="data"):
            Trainer.resume(
                tmp_path / "run", model, optimizer, fresh.loss_fn, fresh.plan, data, **other
            )
    again = Trainer.resume(
        tmp_path / "run", model, optimizer, fresh.loss_fn, fresh.plan, data, **settings
    )
    again.fit()
    assert torch.equal(parameters(again), parameters(whole))


def test_what_does_not_fit_the_plan_is_refused() -> None:
    with pytest.raises(DataError, match="have no row"):
        trained(np.repeat(np.arange(9), 2))
    with pytest.raises(DataError, match="of nobody"):
        trained(np.arange(11))
    with pytest.raises(InputError, match="rows_per_person"):
        trained(None, rows_per_person=2)
    with pytest.raises(InputError, match="rows_per_person"):
        trained(MANY, rows_per_person=0)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16, str])
def test_rows_are_found_for_every_kind_of_ids(kind: type) -> None:
    """By a table where ids are small whole numbers, by a search elsewhere: the same."""
    random = np.random.default_rng(0)
    ids = random.permutation(100).astype(kind)
    whose = random.permutation(np.concatenate([ids, random.choice(ids, 400)]))
    of = Units.of(whose, ids)
    for person, name in enumerate(ids):
        mine = of.rows[of.starts[person] : of.starts[person + 1]]
        assert mine.tolist() == np.flatnonzero(whose == name).tolist()
    for stranger in np.array(["x"]) if kind is str else np.array([101, 255]):
        with pytest.raises(DataError, match="1 of 501 rows are of nobody"):
            Units.of(np.append(whose, stranger), ids)


def test_ids_far_apart_and_below_zero() -> None:
    ids = np.array([-(2**63), 5, 2**62, -7])
    of = Units.of(np.array([5, -7, 2**62, -(2**63), 5]), ids)
    assert (of.rows.tolist(), of.starts.tolist()) == ([3, 0, 4, 2, 1], [0, 1, 3, 4, 5])
    of = Units.of(np.array([-1, -3, -1]), np.array([-3, -1]))
    assert of.rows.tolist() == [1, 0, 2]
    for people in (np.array([-1, -2, -3]), np.array([1, 2], dtype=np.uint64)):
        with pytest.raises(DataError, match="nobody"):
            Units.of(people, np.array([-3, -1]))


def test_more_persons_than_sixteen_bits() -> None:
    random = np.random.default_rng(0)
    whose = random.permutation(np.repeat(np.arange(70_000), 2))
    of = Units.of(whose, np.arange(70_000))
    assert (whose[of.rows] == np.repeat(np.arange(70_000), 2)).all()
    assert (of.rows[::2] < of.rows[1::2]).all()
