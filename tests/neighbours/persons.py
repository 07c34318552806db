"""Remove all rows of a person, or put another's in their place: how far does the sum move?"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from apiece import Budgets
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer
from apiece.training.clipping.records import select

from .harness import Refused, flat, typed

FEW = (1, 6, 2, 10, 1, 3)  # rows of the persons
RAGGED = (1, 500, 3, 40, 1, 7)
ROWS = ("apart", "alike", "cancelling", "nearly")


@dataclass(frozen=True)
class World:
    """Rows of persons numbered from 0 on, and each person's bound."""

    model: Any
    loss: Any
    inputs: Any
    targets: Any
    people: np.ndarray
    clip: torch.Tensor

    def at(self, index: np.ndarray) -> World:
        """Return the world with just the rows at `index`."""
        where = torch.from_numpy(index)
        return replace(
            self,
            inputs=select(self.inputs, where),
            targets=select(self.targets, where),
            people=self.people[index],
        )

    def without(self, person: int) -> World:
        """Return the world in which a person has no row."""
        return self.at(np.flatnonzero(self.people != person))

    def replaced(self, person: int, other: int) -> World:
        """Return the world in which a person has the rows of another, as many as those are."""
        theirs = self.at(np.flatnonzero(self.people == other))
        theirs = replace(theirs, people=np.full(theirs.people.size, person))
        found = self.without(person).plus(theirs)
        return found.at(np.argsort(found.people, kind="stable"))

    def plus(self, other: World) -> World:
        """Return the world with the rows of both."""
        pairs = zip((self.inputs, *self.targets), (other.inputs, *other.targets), strict=True)
        x, *targets = (torch.cat(pair) for pair in pairs)
        people = np.concatenate([self.people, other.people])
        return replace(self, inputs=x, targets=tuple(targets), people=people)


def world(case, counts=FEW, *, rows="apart", precision="float32", mixed=False) -> World:
    """Return a case of the zoo with rows of persons.

    rows: "apart" draws each; "alike" gives a person the same row again and again, so that their
    gradients add up; "cancelling" gives them half with the opposite sign, so that their norms
    add up and their sum does not; "nearly" leaves of large gradients a small rest, which round-off
    may hide. mixed: the persons' rows come in any order.
    """
    torch.manual_seed(0)
    people = np.repeat(np.arange(len(counts)), counts)
    model, loss, x, y = case(people.size)
    sign = torch.ones(people.size)
    if rows != "apart":
        first = np.searchsorted(people, people)
        x, y = x[first], y[first]
    if rows in ("cancelling", "nearly"):
        sign[(np.arange(people.size) - first) % 2 == 1] = -1
    if rows == "nearly":
        sign *= torch.where(sign > 0, 1000, 1000.25)
    found = World(
        typed(model, precision),
        lambda out, target: target[1] * loss(out, target[0]),
        typed(x, precision),
        (typed(y, precision), typed(sign, precision)),
        people,
        torch.linspace(0.01, 0.02, len(counts)).double(),
    )
    return found.at(np.random.default_rng(0).permutation(people.size)) if mixed else found


def ambient(precision):
    """Return the context that goes with `precision`."""
    if precision == "autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def summed(of, **options):
    """Return a function from a world to the clipped sum over its persons as a vector.

    of: called as `clip_and_sum`, with bounds and people in the order of first appearance.
    """

    def total(world):
        first = list(dict.fromkeys(world.people.tolist()))
        torch.manual_seed(1)
        return flat(
            of(
                world.model, world.loss, world.inputs, world.targets, world.clip[first],
                people=world.people, **options,
            ).gradients
        )  # fmt: skip

    return total


class Keep(torch.optim.Optimizer):
    """Changes nothing, and keeps the last gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        all_ = [p for g in self.param_groups for p in g["params"] if p.requires_grad]
        self.last = [p.grad.double().flatten() for p in all_]


def trained(steps=3, **options):
    """Return a function from a world to the update of a trainer that everyone takes part in.

    Who lacks rows is left out of the batches; the plan stays. The noise is next to none, and the
    same each time; of several steps the last counts.
    """

    def total(world):
        size = world.clip.numel()
        here = np.unique(world.people)
        budgets = Budgets(np.linspace(1, 2, size), 1e-5, ids=np.arange(size))
        stage = Stage(steps, float(size), 1e-9, np.ones(size), world.clip.numpy())
        plan = Plan("all", 1.0, budgets.groups, (stage,)).bind(budgets)
        absent = np.setdiff1d(np.arange(size), here)
        full = world  # the absent get a row, which is never looked at
        for person in absent:
            full = full.plus(replace(world.at(np.zeros(1, int)), people=np.array([person])))
        optimizer = Keep(world.model.parameters())
        Trainer(
            world.model, optimizer, world.loss, plan, (full.inputs, full.targets), seed=0,
            people=full.people, included=np.isin(np.arange(size), here), **options,
        ).fit()  # fmt: skip
        return torch.cat(optimizer.last) * size

    return total


def movement(world, total, *, precision="float32", whom=(0, 1, 3)):
    """Return the largest move over removals and replacements of persons, divided by its bound.

    Raises `Refused`.
    """
    try:
        with ambient(precision):
            whole = total(world)
            worst = 0.0
            for person in whom:
                bound = float(world.clip[person])
                other = world.replaced(person, (person + 1) % world.clip.numel())
                for neighbour, most in ((world.without(person), bound), (other, 2 * bound)):
                    worst = max(worst, float((whole - total(neighbour)).norm()) / most)
    except InputError as refusal:
        raise Refused(str(refusal)) from None
    return worst


def holds(world, total, room, **options):
    """Return the move, None where the model was refused; fail where it is beyond `room`."""
    try:
        moved = movement(world, total, **options)
    except Refused:
        return None
    assert moved <= 1 + room, f"the sum moved by {moved:.4g} of its bound"
    return moved
