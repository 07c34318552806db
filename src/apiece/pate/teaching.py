"""teach: from people's rows and public inputs to a student that keeps every record's (ε, δ)."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.errors import DataError, UnsupportedError
from apiece.pate.asking import NONE, KeptAnswers, ask
from apiece.pate.planning import VotePlan
from apiece.pate.shares import Shares, require_dealt, shared_out
from apiece.training.randomness import Streams
from apiece.training.stacked import SUMS, StackedModel

Watcher = Callable[[int, int], object]  # told the step and the number of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """SGD on rows drawn with replacement; the learning rate falls to 0 by a cosine.

    Attributes:
        steps: How many updates.
        batch_size: Rows of each model in a step.
        learning_rate: At first.
        momentum: In [0, 1).
        clip_norm: The bound on a row's gradient, which keeps steps of a hard row small; privacy
            does not depend on it.

    Raises:
        InputError: For values out of bounds.

    Example:
        >>> Lessons(steps=100).rate(50)
        0.5
    """

    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 1.0
    momentum: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _check.put(self, steps=_check.count, batch_size=_check.count)
        _check.put(self, learning_rate=_check.positive, clip_norm=_check.positive)
        _check.put(self, momentum=partial(_check.probability, high_open=True))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step.

        Args:
            step: Counted from 0.
        """
        return self.learning_rate * (1 + math.cos(math.pi * step / self.steps)) / 2


def learn(
    model: StackedModel,
    inputs: Tensor,
    targets: Tensor,
    shares: Shares,
    lessons: Lessons,
    streams: Streams,
    watch: Watcher | None = None,
) -> Tensor:
    """Return the parameters (models, parameters) of models that each learned from its own rows."""
    # A row changes the parameters of the models that have it, and not one bit of any other's.
    models = shares.sizes.size
    flat = model.initial(models, streams.initialisation()).requires_grad_(False)
    optimizer = torch.optim.SGD([flat], lr=lessons.learning_rate, momentum=lessons.momentum)
    width = lessons.batch_size
    clip = torch.full((models, width), lessons.clip_norm)
    clip[torch.from_numpy(shares.sizes == 0)] = 0.0
    for step in range(lessons.steps):
        coins = streams.sampling(step).uniform(models * width).reshape(models, width)
        rows = torch.from_numpy(shares.drawn(coins))
        clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clip)
        for entry in optimizer.param_groups:
            entry["lr"] = lessons.rate(step)
        flat.grad = clipped.gradients[SUMS].div_(width)
        optimizer.step()
        if watch is not None:
            watch(step + 1, lessons.steps)
    return flat.detach()


def require_classes(targets: Tensor, classes: int) -> None:
    """Raise `DataError` for a label that is no class."""
    if targets.dtype.is_floating_point or targets.dtype.is_complex:
        raise DataError(f"targets: of type {targets.dtype}; give classes as whole numbers")
    odd = (targets < 0) | (targets >= classes)
    if bool(odd.any()):
        raise DataError(
            f"targets: {int(odd.sum())} labels are not in 0 to {classes - 1}, the {classes} "
            "classes; mend them, or declare more classes"
        )


def said(model: StackedModel, flat: Tensor, inputs: Tensor, *, block: int = 64) -> Integers:
    """Return the class that each model says of each input, (models, inputs)."""
    # Without noise: data about those whom the models learned from, and for no eyes or files.
    models, result = flat.shape[0], []
    for at in range(0, inputs.shape[0], block):
        part = inputs[at : at + block]
        logits = model.logits(flat, part.expand(models, *part.shape))
        result.append(logits.argmax(dim=2).numpy())
    return np.concatenate(result, axis=1)


NEIGHBOURS = 10


def spread(inputs: Floats, answers: Integers) -> Integers:
    """Return a class for each input, −1 where no answer reaches it."""
    try:
        from sklearn.semi_supervised import LabelSpreading
    except ModuleNotFoundError:
        raise UnsupportedError(
            "semi_supervised: needs scikit-learn; pip install 'apiece[sklearn]', or leave it out"
        ) from None
    flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    model = LabelSpreading(
        kernel="knn", n_neighbors=min(NEIGHBOURS, len(flat) - 1), alpha=0.2, max_iter=200
    )
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # of inputs that no answer reaches, and of slow convergence
        model.fit(flat, answers)
    reached = model.label_distributions_.max(axis=1)
    return np.where(reached > 0, model.transduction_, NONE)


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
    kept = None if keep is None else KeptAnswers.at(keep, plan, public)

    @cache
    def teachers() -> Tensor:
        return learn(model, inputs, targets, shares, lessons, key, watch)

    def votes(which: slice) -> Integers:
        return said(model, teachers(), public[which])

    answers = ask(plan, votes, classes, seed=seed, kept=kept)
    own = key.derive("student", 0)
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
    lesson = public[torch.from_numpy(taken)], torch.from_numpy(labels[taken])
    whole = Shares(np.arange(taken.size), np.array([0, taken.size]))
    streams = Streams(own, release=seed is None)
    flat = learn(model, *lesson, whole, lessons if student is None else student, streams, watch)
    return Taught(flat[0], answers)


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
