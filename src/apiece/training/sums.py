"""The clipped sum over some of the records of a data set, a physical batch at a time.

Where the unit of privacy is a person, a sampler draws persons; each of them brings at most so many
of their rows, chosen by coins of that person alone. These rows then depend on nobody else's, and
the rows of one person stay together to be clipped as one.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from apiece.training.clipping.cache import proof_of, weigh_capture
from apiece.training.clipping.front import METHODS, check_values, empty_sum
from apiece.training.clipping.records import LossFunction
from apiece.training.sources import Source, Tensors


class Sums:
    """Clips and sums over records by their positions; over persons, where `people` is given.

    width: the most rows in memory at a time; None takes all at once. It bounds the memory and is no
    part of the mechanism. people: the person of each row; None where each row is a record.
    rows_of_run: about how many rows all steps of the run sum over; None where nobody knows. With
    method="auto" they are weighed against the cost of a capture. The other parameters, and the
    errors, are as in `clip_and_sum`.
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
        rows_of_run: float | None = None,
    ) -> None:
        self.model = model
        self.loss_fn = loss_fn
        self.source = source
        self.take_parameters()
        guards.check_modules(model)
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        self.width = width
        self.method = method
        self.compiled = compiled
        self.people = people
        self._rows_of_run = rows_of_run if method == "auto" and not compiled else None
        # Rows in memory whose values are to be checked before the first sum; None once they are.
        self._unchecked_rows: Tensors | None = None
        # Values (labels, indices) can be checked at once only where all rows are in memory.
        if isinstance(source, Tensors) and method != "alone" and not compiled:
            self._unchecked_rows = source

    def take_parameters(self) -> None:
        """Take the parameters that are trainable now as those to sum over."""
        self.parameters = guards.trainable(self.model)

    def check_parameters(self) -> None:
        """Raise `StateError` where other parameters are trainable than at first.

        A parameter that was frozen has no gradient any more, and one that replaced another, or was
        unfrozen, is not updated: the noise would be drawn for a sum that nobody applies.
        """
        former = self.parameters
        # By identity and order: a parameter of the same name may be another tensor.
        current = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        pairs = zip(current.values(), former.values(), strict=False)
        if len(current) == len(former) and all(new is old for new, old in pairs):
            return
        common = current.keys() & former.keys()
        changed = {
            "no longer trainable": former.keys() - current.keys(),
            "trainable now": current.keys() - former.keys(),
            "another tensor now": {name for name in common if current[name] is not former[name]},
        }
        changes = "; ".join(
            f"{min(names)!r} is {change}" for change, names in changed.items() if names
        )
        raise StateError(
            f"model: its trainable parameters changed since the trainer was made ({changes}); keep "
            "requires_grad and the parameters as they were, or make a trainer for each part of the "
            "run"
        )

    @property
    def proof(self) -> Proof | None:
        """The proof of model and loss; None before the first batch."""
        return proof_of(guards.inner(self.model))

    def over(self, records: Integers, clip_norms: Floats, seed: int) -> ClippedSum:
        """Return the sum of the gradients of records or persons, each clipped at its bound.

        seed: of the model's own randomness (dropout) in this pass, and of which rows a person
        brings; torch's generators are left as they were.
        """
        if not records.size:
            return empty_sum(self.parameters)
        total: ClippedSum | None = None
        width = self.width or len(self.source)
        # By batch, the positions in `records` that were in it.
        summed: list[Integers] = []
        weighed: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._rows_of_run is not None:
            weighed = weigh_capture(self._rows_of_run)
        devices = (p.device for p in self.parameters.values())
        # Seeded once a pass; the generators are put back afterwards, so that nothing else moves.
        with weighed, model_randomness(seed, devices):
            for positions, inputs, targets, owner in self._make_batches(records, width, seed):
                self._check_rows(inputs, targets)
                clipped = clip_and_sum(
                    self.model,
                    self.loss_fn,
                    inputs,
                    targets,
                    torch.from_numpy(clip_norms[positions]),
                    method=self.method,
                    physical_batch_size=None if owner is None else width,
                    people=owner,
                    compiled=self.compiled,
                )
                total = clipped if total is None else total + clipped
                summed.append(positions)
        assert total is not None
        # With people, batches come in the order of the draw already.
        if self.people is not None:
            return total
        # Records of one shape were put together: norms go back to the order of the draw.
        return total.ordered(np.concatenate(summed))

    def _check_rows(self, inputs: object, targets: object) -> None:
        """Check the values of all rows in memory, once and before anything is released."""
        if self._unchecked_rows is None:
            return
        rows = self._unchecked_rows.inputs, self._unchecked_rows.targets
        check_values(self.model, self.loss_fn, (inputs, targets), rows)
        self._unchecked_rows = None

    def _make_batches(
        self, records: Integers, width: int, seed: int
    ) -> Iterator[tuple[Integers, object, object, Integers | None]]:
        """Yield batches: positions in `records`, inputs, targets, and the person of each row."""
        device = next(iter(self.parameters.values())).device
        positions = np.arange(records.size)
        if self.people is None:
            for start in range(0, records.size, width):
                part = slice(start, start + width)
                # Records of one shape at a time: their positions within this part.
                for alike, inputs, targets in self.source.read_alike(records[part], device):
                    yield positions[part][alike], inputs, targets, None
            return
        # No guarantee rests on these coins: how many rows a person brings is bounded anyway.
        key = hashlib.blake2b(f"rows {seed}".encode(), digest_size=32).digest()
        brought = choose_rows(self.people, records, key)
        # Whole persons only, since a person's norm is over all of their rows.
        for persons, rows in brought.split(width):
            batch = self.source.fetch(brought.rows[rows], device)
            yield positions[persons], *batch, brought.owner[rows]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Brought:
    """The rows (R,) that some persons bring to a step, person by person.

    owner: (R,) the person of each row, counted from 0 in the order of the draw.
    """

    rows: Integers
    owner: Integers

    def split(self, width: int) -> Iterator[tuple[slice, slice]]:
        """Yield (persons, rows) that share a physical batch: all rows of a person, in order.

        A person with more than `width` rows has a batch alone.
        """
        # Persons are numbered in the order of the draw, and each has at least one row.
        persons = int(self.owner[-1]) + 1 if self.owner.size else 0
        # By person, the row behind their last one.
        row_ends = np.searchsorted(self.owner, np.arange(persons), side="right")
        person = 0
        row = 0
        while person < persons:
            # The persons whose rows end within `width` rows from here, but one at least.
            fitting = int(np.searchsorted(row_ends, row + width, side="right"))
            person_end = max(fitting, person + 1)
            row_end = int(row_ends[person_end - 1])
            yield slice(person, person_end), slice(row, row_end)
            person = person_end
            row = row_end


def choose_rows(units: Units, drawn: Integers, key: bytes) -> Brought:
    """Return the rows that `drawn` units bring: all, or `units.most` of them without return.

    Which rows a person brings is a function of the key, that person's position and their number of
    rows: every subset of `most` of them has the same chance, and nobody else's presence or rows
    change it.

    key: 32 bytes, new in each step; drawn: (B,) positions of units, in any order, each once.
    """
    # Rows of each drawn person; a number for each row says whose it is.
    counts = units.counts[drawn]
    owner = np.repeat(np.arange(drawn.size), counts)
    rank = _number_within(counts)  # of each row among its person's
    if units.most is not None:
        # Of each person with more rows than that, the `most` whose coins are lowest stay.
        stays = counts[owner] <= units.most
        # Only rows of persons with too many need a coin.
        contested = np.flatnonzero(~stays)
        coins = _toss_coins(key, drawn[owner[contested]], rank[contested])
        # Sorted by person, and within a person by coin.
        order = np.lexsort((coins, owner[contested]))
        coin_rank = _number_within(counts[counts > units.most])
        # Those with the lowest coins: every subset of `most` rows is as likely as another.
        stays[contested[order[coin_rank < units.most]]] = True
        owner = owner[stays]
        rank = rank[stays]
    # From person and rank within the person to the row in the data.
    return Brought(units.rows[units.starts[drawn[owner]] + rank], owner)


def _number_within(counts: Integers) -> Integers:
    """Return 0, 1, …, count − 1 for each of the counts, one after the other."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def _toss_coins(key: bytes, persons: Integers, ranks: Integers) -> npt.NDArray[np.uint64]:
    """Return a uniform 64-bit word for each (person, rank): AES as a function of the pair.

    A block cipher encrypts each pair for itself: no word depends on which others are computed.
    """
    # (rows, 2) words of 64 bits, one block of the cipher each.
    pairs = np.stack([persons, ranks], axis=1).astype("<u8")
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    # The first word of each encrypted block: 64 uniform bits.
    return np.frombuffer(cipher.update(pairs.tobytes()), dtype="<u8")[::2]


def read_units(
    people: npt.ArrayLike | None,
    ids: AnyArray,
    source: Source,
    rows_per_person: int | None,
    unit: str = "record",
) -> Units | None:
    """Return the units of privacy that the rows belong to; None where each row is a record.

    Raises `InputError` unless the data holds the records or persons of the plan with these ids; the
    errors of `Units.of`; and `DataError` for people with an index, as data have none.
    """
    if people is not None:
        require_rows("dataset", None, people=people)
        # Persons and their rows by the plan's ids, in its order.
        units = Units.of(people, ids)
        if units.owner.size != len(source):
            raise InputError(
                f"people: {units.owner.size} ids, but the dataset has {len(source)} rows; give one "
                "id a row"
            )
        return units if rows_per_person is None else units.at_most(rows_per_person)
    if rows_per_person is not None:
        raise InputError("rows_per_person: without people each row is a record; give people too")
    # A plan for persons bounds a person; rows clipped one by one would bound a row.
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
