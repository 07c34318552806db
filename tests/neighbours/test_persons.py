"""No person moves the sum by more than their clip norm, however many rows, or it is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from apiece.training import clip_and_sum, sums
from apiece.training.clipping.joined import Joined
from apiece.training.clipping.records import ClippedSum

from .harness import METHODS, PRECISIONS
from .persons import RAGGED, ROWS, holds, movement, summed, trained, world
from .test_neighbours import NOT_BY_AUTOCAST, NOT_PROVED, ROOM
from .zoo import HONEST, MIXING, case

WIDTHS = (None, 4, 1)  # of a physical batch: all rows; fewer than some persons have; than most have


def turned(place):
    """Return the settings that stand at `place` in a walk through all of them."""
    options = {"method": METHODS[place % 3], "physical_batch_size": WIDTHS[place // 3 % 3]}
    made = {"rows": ROWS[place % len(ROWS)], "mixed": place % 2 == 0}
    return made, options


def runs(name, precision, method):
    """Return whether torch runs the case so at all."""
    if precision == "autocast" and name.startswith(NOT_BY_AUTOCAST):
        return False
    return method != "proved" or (name in HONEST and not name.startswith(NOT_PROVED))


def check(name, place, precision, **more):
    made, options = turned(place)
    options |= more
    if not runs(name, precision, options["method"]):
        return
    given = world({**HONEST, **MIXING}[name], precision=precision, **made)
    total = summed(clip_and_sum, **options)
    moved = holds(given, total, ROOM[precision], precision=precision, whom=(1, 3))
    if name in HONEST:
        assert moved is not None, "a model that keeps records apart was refused"


# Each method and each precision; alone in the narrowest and in the widest.
PLACES = (0, 1, 2, 4, 6, pytest.param(11, marks=pytest.mark.slow))


@pytest.mark.parametrize("place", PLACES)
def test_honest(place):
    check(list(HONEST)[5 * place], place, PRECISIONS[place // 3])


# Alone, each record has a process, whose copies take the time.
@pytest.mark.parametrize(
    "name",
    ["keeps: extra state", pytest.param("loss: focal, normalised, tensor", marks=pytest.mark.slow)],
)
def test_mixing(name):
    given = world(MIXING[name])
    assert holds(given, summed(clip_and_sum, method="proved"), 0) is None
    holds(given, summed(clip_and_sum), ROOM["float32"])


@pytest.mark.parametrize("rows", ROWS)
def test_from_one_row_to_five_hundred(rows):
    total = summed(clip_and_sum, physical_batch_size=64)
    holds(world(case(), RAGGED, rows=rows), total, ROOM["float32"], whom=(1,))
    holds(world(case(), RAGGED, rows=rows), summed(clip_and_sum), ROOM["float32"], whom=(1,))


@pytest.mark.parametrize("limit", [None, 2])
def test_trainer(limit):
    for place, name in enumerate(list(HONEST)[::40]):
        given = world(HONEST[name], rows=ROWS[place % 4], mixed=place % 2 == 0)
        total = trained(2, physical_batch_size=4, rows_per_person=limit)
        assert holds(given, total, ROOM["float32"], whom=(3,)) is not None
    if limit is not None:  # alone, where few rows make it affordable
        holds(world(MIXING["keeps: attribute"]), trained(2, rows_per_person=limit), ROOM["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", ROWS)
def test_from_one_row_to_five_hundred_by_every_path(rows, method):
    for width in WIDTHS:
        total = summed(clip_and_sum, method=method, physical_batch_size=width)
        given = world(case(), RAGGED, rows=rows, mixed=True)
        holds(given, total, ROOM["float32"], whom=(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*HONEST, *MIXING])
def test_every_path_and_precision(name, precision):
    place = [*HONEST, *MIXING].index(name) + PRECISIONS.index(precision)
    for method in METHODS:
        for step in range(3):
            check(name, place + 3 * step, precision, method=method)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", HONEST)
def test_trainer_every_precision(name, precision):
    if not runs(name, precision, "auto"):
        return
    place = list(HONEST).index(name)
    given = world(HONEST[name], rows=ROWS[place % 4], precision=precision, mixed=place % 2 == 0)
    for limit in (None, 3):
        total = trained(physical_batch_size=(5, 1024)[place % 2], rows_per_person=limit)
        room = max(ROOM[precision], 0.05 if precision == "bfloat16" else 0)
        assert holds(given, total, room, precision=precision) is not None


# the harness must see what it is for


def as_rows(model, loss, x, y, clip, *, people, **options):
    """Clip rows, each at their person's bound."""
    first = list(dict.fromkeys(people.tolist()))
    place = np.array([first.index(person) for person in people])
    return clip_and_sum(model, loss, x, y, clip[place], **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", ["apart", "alike"])
def test_it_sees_rows_clipped_instead_of_persons(method, rows):
    assert movement(world(case(), rows=rows), summed(as_rows, method=method), whom=(3,)) > 1.5


def test_it_sees_rows_joined_without_the_products_between_them(monkeypatch):
    def apart(self, of_rows=None):
        own = self.part.per_record().flatten(1).square().sum(1)
        return self.persons.add_rows(own)

    monkeypatch.setattr(Joined, "squares", apart)
    assert movement(world(case(), rows="alike"), summed(clip_and_sum)) > 2


def test_it_sees_a_weight_that_counts_the_rows_of_others():
    def averaged(model, loss, x, y, clip, *, people, **options):
        found = clip_and_sum(model, loss, x, y, clip, people=people, **options)
        mean = people.size / len(found)
        shares = {name: value / mean for name, value in found.gradients.items()}
        return replace(found, gradients=shares)

    assert movement(world(case(), (*[1] * 12, 30)), summed(averaged), whom=(12,)) > 1.1


def test_it_sees_a_person_clipped_once_in_each_physical_batch(monkeypatch):
    def cut(self, width):
        for start in range(0, self.owner.size, width):
            mine = self.owner[start : start + width]
            yield slice(mine[0], mine[-1] + 1), slice(start, start + width)

    monkeypatch.setattr(sums.Brought, "split", cut)
    assert movement(world(case(), rows="alike"), trained(physical_batch_size=4)) > 1.5


def test_it_sees_coins_of_the_place_in_the_draw(monkeypatch):
    coins = sums._toss_coins

    def misplaced(key, persons, ranks):
        return coins(key, np.unique(persons, return_inverse=True)[1] + persons.size, ranks)

    monkeypatch.setattr(sums, "_toss_coins", misplaced)
    total = trained(physical_batch_size=64, rows_per_person=2)
    assert movement(world(case()), total, whom=(0, 1, 2, 3)) > 1.1


def test_it_sees_rows_that_a_trainer_takes_for_records(monkeypatch):
    def careless(model, loss, x, y, clip, *, people, **options):
        found = as_rows(model, loss, x, y, clip, people=people, **options)
        assert isinstance(found, ClippedSum)
        return found

    monkeypatch.setattr(sums, "clip_and_sum", careless)
    assert movement(world(case(), rows="alike"), trained(1, physical_batch_size=64)) > 1.5


def test_the_worlds_are_what_they_are_said_to_be():
    given = world(case(), mixed=True)
    assert 3 not in given.without(3).people
    other = given.replaced(3, 4)
    assert np.bincount(other.people).tolist() == [1, 6, 2, 1, 1, 3]
    whole = summed(clip_and_sum)(given)
    by_trainer = trained(1)(given)
    assert torch.allclose(by_trainer, whole, rtol=1e-3, atol=1e-6)
