"""The clipped sum over any of the records of a data set, a physical batch at a time.

Where the unit of privacy is a person, a sampler draws persons; each of them brings at most so many
of their rows, chosen by coins of that person alone. What a person brings then depends on nobody
else's rows, and the rows of one person stay together to be clipped as one.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import nn

from apiece._identity import require_rows
from apiece._types import AnyArray, Floats, Integers
from apiece.budgets import Units
from apiece.errors import InputError, StateError, unknown
from apiece.training.clipping import ClippedSum, Proof, clip_and_sum, guards
from apiece.training.clipping.ambient import model_randomness
from apiece.training.clipping.engine import proof_of
from apiece.training.clipping.front import METHODS, check_values, empty_sum
from apiece.training.clipping.records import LossFunction
from apiece.training.sources import Source, Tensors


class Sums:
    """Clips and sums over records by their positions; over persons, where `people` is given.

    width: how many rows are in memory at a time; None takes all at once. It bounds the memory and
    is no part of the mechanism. The rest is as in `clip_and_sum`, and so are the errors.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        source: Source,
        *,
        width: int | None = None,
        method: str = "auto",
        people: Units | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.loss_fn, self.source = model, loss_fn, source
        self.take_parameters()
        guards.check_modules(model)
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        self.width, self.method, self.compiled, self.people = width, method, compiled, people
        in_memory = isinstance(source, Tensors) and method != "alone" and not compiled
        self._rows = source if in_memory else None  # whose labels are yet to be looked at

    def take_parameters(self) -> None:
        """Take the parameters that are trainable now for those to sum over."""
        self.parameters = guards.trainable(self.model)

    def check_same(self) -> None:
        """Raise `StateError` where other parameters are trainable than at first.

        Of one that was frozen there is no gradient any more, and one that took another's place, or
        was unfrozen, is not updated: the noise would be drawn for a sum that nobody applies.
        """
        known = self.parameters
        now = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if len(now) == len(known) and all(map(operator.is_, now.values(), known.values())):
            return
        told = {
            "no longer trainable": known.keys() - now.keys(),
            "trainable now": now.keys() - known.keys(),
            "another tensor now": {n for n in now.keys() & known.keys() if now[n] is not known[n]},
        }
        changes = "; ".join(f"{min(names)!r} is {how}" for how, names in told.items() if names)
        raise StateError(
            f"model: its trainable parameters changed since the trainer was made ({changes}); keep "
            "requires_grad and the parameters as they were, or make a trainer for each part of the "
            "run"
        )

    @property
    def proof(self) -> Proof | None:
        """What was proved of model and loss; None before the first batch."""
        return proof_of(guards.inner(self.model))

    def over(self, records: Integers, clip_norms: Floats, seed: int) -> ClippedSum:
        """Return the sum of the gradients of records or persons, each clipped at its bound.

        seed: of the model's own randomness (dropout) in this pass, and of which rows a person
        brings; torch's generators are left as they were.
        """
        if not records.size:
            return empty_sum(self.parameters)
        total: ClippedSum | None = None
        bounds, width = torch.from_numpy(clip_norms), self.width or len(self.source)
        summed: list[Integers] = []
        with model_randomness(seed, (p.device for p in self.parameters.values())):
            for places, inputs, targets, owner in self._batches(records, width, seed):
                if isinstance(self._rows, Tensors):  # before anything is released
                    every = self._rows.inputs, self._rows.targets
                    check_values(self.model, self.loss_fn, (inputs, targets), every)
                    self._rows = None
                clipped = clip_and_sum(
                    self.model,
                    self.loss_fn,
                    inputs,
                    targets,
                    bounds[places],
                    method=self.method,
                    physical_batch_size=None if owner is None else width,
                    people=owner,
                    compiled=self.compiled,
                )
                total = clipped if total is None else total + clipped
                summed.append(places)
        assert total is not None
        return total if self.people is not None else total.ordered(np.concatenate(summed))

    def _batches(
        self, records: Integers, width: int, seed: int
    ) -> Iterator[tuple[Integers, object, object, Integers | None]]:
        """Yield batches: places in `records`, inputs and targets, and whose each row is."""
        device = next(iter(self.parameters.values())).device
        every = np.arange(records.size)
        if self.people is None:
            for start in range(0, records.size, width):
                part = slice(start, start + width)
                for places, inputs, targets in self.source.alike(records[part], device):
                    yield every[part][places], inputs, targets, None
            return
        # No guarantee rests on these coins: how many rows a person brings is bounded anyway.
        key = hashlib.blake2b(f"rows {seed}".encode(), digest_size=32).digest()
        brought = bring(self.people, records, key)
        for persons, rows in brought.parts(width):
            batch = self.source.fetch(brought.rows[rows], device)
            yield every[persons], *batch, brought.owner[rows]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Brought:
    """The rows (R,) that some persons bring to a step, person by person.

    owner: (R,) which of the persons, counted from 0 in the order of the draw, each row is of.
    """

    rows: Integers
    owner: Integers

    def parts(self, width: int) -> Iterator[tuple[slice, slice]]:
        """Yield (persons, rows) that share a physical batch: whole persons, in order.

        A person with more than `width` rows has a batch alone.
        """
        persons = int(self.owner[-1]) + 1 if self.owner.size else 0
        ends = np.searchsorted(self.owner, np.arange(persons), side="right")
        first = start = 0
        while first < persons:
            last = max(int(np.searchsorted(ends, start + width, side="right")), first + 1)
            end = int(ends[last - 1])
            yield slice(first, last), slice(start, end)
            first, start = last, end


def bring(units: Units, drawn: Integers, key: bytes) -> Brought:
    """Return the rows that `drawn` units bring: all they have, or `units.most` without return.

    Which rows a person brings is a function of the key, that person's position and how many rows
    they hold: every subset of `most` of them has the same chance, and nobody else's presence or
    rows change it.

    key: 32 bytes, new in each step; drawn: (B,) positions of units, in any order, each once.
    """
    counts = units.counts[drawn]
    owner = np.repeat(np.arange(drawn.size), counts)
    rank = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    if units.most is not None:
        # Of each person with more rows than that, the `most` whose coins are lowest stay.
        kept = counts[owner] <= units.most
        many = np.flatnonzero(~kept)
        coins = _coins(key, drawn[owner[many]], rank[many])
        order = np.lexsort((coins, owner[many]))
        held = counts[counts > units.most]
        place = np.arange(many.size) - np.repeat(np.cumsum(held) - held, held)
        kept[many[order[place < units.most]]] = True
        owner, rank = owner[kept], rank[kept]
    return Brought(units.rows[units.starts[drawn[owner]] + rank], owner)


def _coins(key: bytes, persons: Integers, ranks: Integers) -> npt.NDArray[np.uint64]:
    """Return a uniform 64-bit word for each (person, rank): AES as a function of the pair.

    A cipher of blocks needs no order: no word depends on which others are asked for.
    """
    pairs = np.stack([persons, ranks], axis=1).astype("<u8")
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return np.frombuffer(cipher.update(pairs.tobytes()), dtype="<u8")[::2]


def units_of(
    people: npt.ArrayLike | None,
    ids: AnyArray,
    source: Source,
    rows_per_person: int | None,
    unit: str = "record",
) -> Units | None:
    """Return whose each row of the data is; None where each row is a record of its own.

    Raises `InputError` unless the data holds what the plan with these ids is for; as `Units.of`;
    and `DataError` for people with an index of their own, as data have none.
    """
    if people is not None:
        require_rows("dataset", None, people=people)
        units = Units.of(people, ids)
        if units.owner.size != len(source):
            raise InputError(
                f"people: {units.owner.size} ids, but the dataset has {len(source)} rows; give one "
                "id a row"
            )
        return units if rows_per_person is None else units.at_most(rows_per_person)
    if rows_per_person is not None:
        raise InputError("rows_per_person: without people each row is a record; give people too")
    if unit == "person":
        raise InputError(
            "people: the plan is for persons (plan.unit), and without people rows would have its "
            "promises; give the id of each row's person"
        )
    if len(source) != ids.size:
        raise InputError(
            f"dataset: {len(source)} records, but the plan is for {ids.size}; make the plan from "
            "the budgets of exactly these records, or say whose each row is (people)"
        )
    return None
