"""Rows of people in a batch: whose each row is, with a person's rows side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from apiece import _check
from apiece.errors import InputError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Owners:
    """The persons of a batch, numbered in the order of first appearance.

    owner: (B,) the person of each row, rows in the order of `order`; never falling.
    order: (B,) the rows, person by person; None where they are so already.
    """

    owner: torch.Tensor
    order: torch.Tensor | None
    persons: int


def owners(people: Any, size: int) -> Owners:
    """Return the persons of a batch of `size` rows, from the id of each row's person.

    Raises:
        InputError: For another number of ids, or ids that are neither integers nor text.
    """
    given = people.cpu().numpy() if isinstance(people, torch.Tensor) else people
    ids = _check.ids("people", given, error=InputError)
    if ids.shape != (size,):
        raise InputError(
            f"people: {ids.size} ids for {size} rows; give the id of each row's person"
        )
    if ids.dtype.kind == "i" and (ids[1:] >= ids[:-1]).all():  # as a sampler hands them over
        turn = np.cumsum(np.append(False, ids[1:] != ids[:-1])[:size])
        return Owners(torch.from_numpy(turn), None, int(turn[-1]) + 1 if size else 0)
    _, first, place = np.unique(ids, return_index=True, return_inverse=True)
    number = np.empty(first.size, dtype=np.int64)
    number[np.argsort(first)] = np.arange(first.size)
    owner = torch.from_numpy(number[place])
    if bool((owner[1:] >= owner[:-1]).all()):
        return Owners(owner, None, first.size)
    order = torch.argsort(owner, stable=True)
    return Owners(owner[order], order, first.size)
