"""Remove one record, or replace one: how far does the sum move, in clip norms?"""

from __future__ import annotations

import contextlib

import torch

from apiece.errors import InputError
from apiece.training import FilteredTrainer, clip_and_sum
from apiece.training.clipping.records import select

SIZE = 12
TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
PRECISIONS = [*TYPES, "autocast"]
METHODS = ["auto", "proved", "alone"]


class Refused(Exception):  # noqa: N818 - an outcome
    """The model was refused."""


def flat(sums):
    """Return a sum of all parameters as one vector of doubles."""
    return torch.cat([value.double().flatten() for value in sums.values()])


def typed(tree, precision):
    """Return `tree` in the type that goes with `precision`."""
    dtype = TYPES.get(precision, torch.float32)
    return (
        tree.to(dtype) if not isinstance(tree, torch.Tensor) or tree.is_floating_point() else tree
    )


def movement(case, precision="float32", method="auto", *, of=clip_and_sum, whom=(0, 5, SIZE - 1)):
    """Return the largest move over removals and replacements, divided by its bound.

    A batch of two goes first, which must not settle anything. Bounds are a third of each record's
    norm alone, so that all are clipped. Raises `Refused`.
    """
    torch.manual_seed(0)
    model, loss, inputs, targets = case()
    model, inputs, targets = (typed(what, precision) for what in (model, inputs, targets))
    clip = torch.linspace(0.01, 0.02, SIZE).double()
    context = (
        torch.autocast("cpu", dtype=torch.bfloat16)
        if precision == "autocast"
        else contextlib.nullcontext()
    )

    def total(index):
        torch.manual_seed(1)
        try:
            with context:
                found = of(
                    model, loss, select(inputs, index), select(targets, index), clip[index],
                    method=method,
                )  # fmt: skip
        except InputError as refusal:
            raise Refused(str(refusal)) from None
        return flat(found.gradients)

    total(torch.tensor([1, 2]))
    whole = total(torch.arange(SIZE))
    worst = 0.0
    for i in whom:
        others = torch.tensor([k for k in range(SIZE) if k != i])
        other = (i + 1) % SIZE
        replaced = torch.arange(SIZE)
        replaced[i] = other
        worst = max(worst, float((whole - total(others)).norm() / clip[i]))
        both = clip[i] + clip[other]
        worst = max(worst, float((whole - total(replaced)).norm() / both))
    return worst


def filtered(case):
    """Run `FilteredTrainer` for three steps, or raise `Refused`; returns the model's parameters."""
    from apiece.filters import GaussianFilter

    torch.manual_seed(0)
    model, loss, inputs, targets = case()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    people = GaussianFilter([8.0] * SIZE, 1e-5)
    trainer = FilteredTrainer(
        model, optimizer, loss, people, (inputs, targets), clip_norm=1.0, noise_stddev=9.0, seed=0,
    )  # fmt: skip
    try:
        trainer.fit(3)
    except InputError as refusal:
        raise Refused(str(refusal)) from None
