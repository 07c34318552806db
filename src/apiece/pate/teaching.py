"""teach: from people's rows and public inputs to a student that keeps every record's (ε, δ)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apiece._types import Integers, Mask
from apiece.errors import DataError
from apiece.pate.asking import Kept, ask
from apiece.pate.lessons import Lessons, Watcher, learn, require_classes, said
from apiece.pate.planning import VotePlan
from apiece.pate.shares import Shares, require_dealt, shared_out
from apiece.pate.spreading import spread
from apiece.pate.voting import NONE
from apiece.training.randomness import Streams
from apiece.training.stacked import StackedModel


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Taught:
    """What came of it, all of it covered by the plan's promises.

    Attributes:
        student: (parameters,) Of the model.
        answers: (questions,) What the teachers answered, −1 where they did not.

    Example:
        >>> Taught(torch.zeros(4), np.array([0, -1, 1])).answers.size
        3
    """

    student: Tensor
    answers: Integers


def teach(
    plan: VotePlan,
    model: StackedModel,
    dataset: tuple[Tensor, Tensor],
    public: Tensor,
    *,
    classes: int,
    lessons: Lessons,
    student: Lessons | None = None,
    semi_supervised: bool = False,
    people: npt.ArrayLike | None = None,
    included: Mask | None = None,
    seed: int | None = None,
    keep: Path | None = None,
    watch: Watcher | None = None,
) -> Taught:
    """Return a student that learned what the teachers answered about public inputs.

    Args:
        plan: Who teaches whom, how many questions are asked, and the noise on the votes.
        model: The architecture of teachers and student.
        dataset: Inputs (n, …) and targets (n,), in the order of the plan's records; rows of
            persons in any order.
        public: (Q, …) Inputs that are declared public; the first are asked about, in order.
        classes: How many there are; targets are 0 to classes − 1.
        lessons: How teachers learn.
        student: How the student learns; None for as the teachers do.
        semi_supervised: Whether answers are spread over all public inputs before the student
            learns; needs scikit-learn.
        people: (n,) Each row's person, where the plan is of persons.
        included: (records,) Who takes part, such as those whom a ledger admitted; None for all.
        seed: For an experiment that can be repeated; None for randomness of the operating system.
        keep: A file for the answers so far, so that a killed run can be gone on with.
        watch: Told after each step, of the teachers and then of the student.

    Raises:
        DataError: For data that do not fit the plan, labels out of range, fewer public inputs
            than questions, and where no question was answered.
        StateError: For kept answers of another plan or other inputs.
        VerificationError: Where the plan, or the deal of rows to teachers, does not keep what
            everyone allows: before any teacher votes.

    Guarantee:
        For record i, (ε_i, δ_i) as the plan was asked, add/remove, for the answers and all that
        is computed from them and the public inputs, the student above all; where seed is None.

    Example:
        >>> import torch
        >>> from apiece import Budgets
        >>> from apiece.pate import plan_votes
        >>> from apiece.training import StackedMlp
        >>> x = torch.rand(2000, 1)
        >>> votes = plan_votes(Budgets([2.0] * 2000, 1e-5), "uniform", teachers=100, questions=50)
        >>> found = teach(votes, StackedMlp((1, 2)), (x, (x[:, 0] > 0.5).long()),
        ...               torch.rand(50, 1), classes=2, lessons=Lessons(steps=50), seed=0)
        >>> found.answers.shape, found.student.shape
        ((50,), torch.Size([4]))
    """
    inputs, targets = dataset
    _require_fit(plan, inputs, targets, public, people)
    require_classes(targets, classes)
    key = Streams.from_seed(seed)
    plan.require()
    shares = shared_out(plan, key=key.derive("shares", 0), people=people, included=included)
    require_dealt(plan, shares, people=people, included=included)
    kept = None if keep is None else Kept.at(keep, plan, public)

    @cache
    def teachers() -> Tensor:
        return learn(model, inputs, targets, shares, lessons, key, watch)

    def votes(which: slice) -> Integers:
        return said(model, teachers(), public[which])

    answers = ask(plan, votes, classes, seed=seed, kept=kept)
    own = key.derive("student", 0)
    taken, labels = _lesson(public, answers, semi_supervised)
    flat = learn(
        model,
        public[taken],
        torch.from_numpy(labels),
        Shares(np.arange(labels.size), np.array([0, labels.size])),
        lessons if student is None else student,
        Streams(own, release=seed is None),
        watch,
    )
    return Taught(flat[0], answers)


def _lesson(public: Tensor, answers: Integers, semi_supervised: bool) -> tuple[Tensor, Integers]:
    """Return which public inputs the student learns from, and their labels."""
    if not (answers != NONE).any():
        raise DataError(
            "answers: none of the questions was answered, as no count of votes reached the "
            "threshold; give a lower one, or none"
        )
    labels = np.full(public.shape[0], NONE)
    labels[: answers.size] = answers
    if semi_supervised:
        labels = spread(public.numpy(), labels)
    taken = np.flatnonzero(labels != NONE)
    return torch.from_numpy(taken), labels[taken]


def _require_fit(
    plan: VotePlan, inputs: Tensor, targets: Tensor, public: Tensor, people: object
) -> None:
    """Raise `DataError` where the data are not of the plan, or the public inputs are too few."""
    rows = inputs.shape[0]
    if targets.shape != (rows,):
        raise DataError(f"targets: shape {tuple(targets.shape)} for {rows} rows; give one a row")
    if people is None and rows != plan.plan.group_index.size:
        raise DataError(
            f"inputs: {rows} rows for the {plan.plan.group_index.size} records of the plan; give "
            "them in its order"
        )
    if public.shape[1:] != inputs.shape[1:]:
        raise DataError(
            f"public: inputs of shape {tuple(public.shape[1:])}, the people's have "
            f"{tuple(inputs.shape[1:])}; both must be encoded alike"
        )
    if not public.shape[0] >= plan.questions:
        raise DataError(
            f"public: {public.shape[0]} inputs for {plan.questions} questions; ask fewer, or "
            "declare more public"
        )
    if not bool(torch.isfinite(public).all()):
        raise DataError("public: an input is NaN or infinite; leave it out")
