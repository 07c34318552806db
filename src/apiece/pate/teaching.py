"""teach: from people's rows and public inputs to a student that keeps every record's (ε, δ).

Rows are dealt to teachers, teachers are asked, and a student learns the answers.

Each record's teachers are drawn by its own coins: nobody else's presence, rows or budget move it to
others. A person's rows all go to the person's teachers, so that what holds of a record holds of a
person.

What is written down is answers: the noise is on them, and they are what a release shows. No vote,
no count, no teacher and no key of the noise is ever written. A run that is taken up again keeps the
answers that are there, trains teachers anew and goes on with fresh noise; a block that was not yet
written was seen by nobody.
"""

from __future__ import annotations

import hashlib
import json
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

from apiece import _check, _json
from apiece._identity import require_ids, require_rows
from apiece._lazy import lacking
from apiece._types import Floats, Integers, Mask
from apiece.budgets import Units
from apiece.errors import DataError, StateError, VerificationError
from apiece.pate.planning import Noise, VotePlan
from apiece.training.batches import read_included
from apiece.training.checkpoints import write_atomically
from apiece.training.identity import bytes_of
from apiece.training.randomness import ChaCha20Stream, Streams
from apiece.training.stacked import SUMS, StackedModel, logits_in_parts
from apiece.training.sums import choose_rows

# Coins in memory at a time.
_CELLS = 1 << 22
# The answer to a question that was asked and not answered.
NONE = -1
# Questions whose answers are written together.
BLOCK = 100
# First words of a file of answers, with the version of its format.
FORMAT = "apiece answers 1"
# Nearest inputs among which answers are spread.
NEIGHBOURS = 10
# The votes (teachers, questions) on some of the questions.
Votes = Callable[[slice], Integers]
# Called with the step and the number of steps.
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shares:
    """The rows of each model: those of model k are rows[starts[k]:starts[k + 1]]."""

    # Positions in the data, model by model; a row of several models stands in each.
    rows: Integers
    # (models + 1,) Where each model's rows begin, and the end.
    starts: Integers

    @property
    def sizes(self) -> Integers:
        """(models,) Number of rows of each model."""
        return np.diff(self.starts)

    def draw_rows(self, coins: Floats) -> Integers:
        """Draw rows with replacement from each model's own; 0 where a model has none.

        Args:
            coins: (models, rows) Uniform numbers in [0, 1).
        """
        sizes = self.sizes[:, None]
        # A model without rows has offset 0.
        highest_offset = np.maximum(sizes - 1, 0)
        # A coin just below 1 times a size may be rounded up to the size.
        offsets = np.minimum((coins * sizes).astype(np.int64), highest_offset)
        if not self.rows.size:
            return np.zeros_like(offsets)
        # A model without rows at the end would look past the last row.
        starts = self.starts[:-1, None]
        positions = np.minimum(starts + offsets, self.rows.size - 1)
        return np.asarray(np.where(sizes > 0, self.rows[positions], 0))


def deal_rows(
    plan: VotePlan, *, key: bytes, people: npt.ArrayLike | None = None, included: Mask | None = None
) -> Shares:
    """Deal the rows of records, or of persons, to the teachers."""
    # A record's rows are in `copies` different teachers of its group's pool and in no other, and
    # which these are depends on `key` and its place in the plan alone.
    bound = plan.plan
    if (people is None) != (bound.unit == "record"):
        raise DataError(
            f"people: the plan is of {bound.unit}s; give each row's person for a plan of persons, "
            "and none for a plan of records"
        )
    units = None if people is None else Units.of(people, bound.ids)
    record, teacher = _seat_records(plan, key)
    if included is not None:
        # Left out after the draw, so that nobody else's seat moves.
        mask = read_included(included, bound.ids)[record]
        record = record[mask]
        teacher = teacher[mask]
    order = np.argsort(teacher, kind="stable")
    rows = record[order]
    teacher = teacher[order]
    if units is not None:
        # All rows of a person are chosen, so that no coin is tossed.
        chosen = choose_rows(units, rows, key)
        rows = chosen.rows
        teacher = teacher[chosen.owner]
    sizes = np.bincount(teacher, minlength=plan.teachers)
    return Shares(rows, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))


def require_dealt(
    plan: VotePlan,
    shares: Shares,
    *,
    people: npt.ArrayLike | None = None,
    included: Mask | None = None,
) -> None:
    """Raise unless no record can move the votes by more than the plan says."""
    # A record moves a count by the votes of the different teachers who have a row of it: its reach,
    # added up here from the rows that the teachers learn from. Nothing of the plan is believed but
    # what its group was promised.
    if shares.sizes.size != plan.teachers:
        raise _misdeal("there are other teachers than the plan has")
    # (rows of all shares,), aligned with `shares.rows`.
    teacher = np.repeat(np.arange(plan.teachers), shares.sizes)
    group = plan.plan.group_index
    seats = plan.seats
    owner = np.arange(group.size) if people is None else Units.of(people, plan.plan.ids).owner
    # A pair of a record and a teacher counts once, however many rows they share.
    pairs = np.unique(owner[shares.rows] * plan.teachers + teacher)
    record = pairs // plan.teachers
    teacher = pairs % plan.teachers
    if not read_included(included, plan.plan.ids)[record].all():
        raise _misdeal("somebody who takes no part has a teacher")
    if (plan.pool_of_teacher[teacher] != seats.pool[group[record]]).any():
        raise _misdeal("a record sits with a teacher of another pool than its group's")
    for phase in plan.phases:
        # Weights are exact multiples of the grid, so that sums compare exactly.
        reach = np.bincount(record, plan.weights(phase)[teacher], minlength=group.size)
        promised = np.where(phase.voting[seats.pool], seats.reach, 0.0)
        if not (reach <= promised[group]).all():
            raise _misdeal("a record can move the votes by more than its group was promised")


def _misdeal(reason: str) -> VerificationError:
    return VerificationError(
        f"teachers: {reason}; no question was asked and nothing is released: deal again, by "
        "deal_rows"
    )


def _seat_records(plan: VotePlan, key: bytes) -> tuple[Integers, Integers]:
    """Return every pair of a record and a teacher of it."""
    # Each record has as many coins as its largest pool has teachers, by its place in the plan: who
    # else takes part moves none of them. Its teachers are those with the least coins.
    seats = plan.seats
    group_index = plan.plan.group_index
    first_teacher = np.concatenate([np.zeros(1, np.int64), np.cumsum(seats.teachers)])
    width = int(seats.teachers.max())
    stream = ChaCha20Stream(key)
    records = []
    teachers = []
    block = max(1, _CELLS // width)
    for start in range(0, group_index.size, block):
        groups = group_index[start : start + block]
        # (records of the block, teachers of the largest pool).
        coins = stream.uniform(groups.size * width).reshape(-1, width)
        for group in np.unique(groups).tolist():
            members = np.flatnonzero(groups == group)
            pool = seats.pool[group]
            copies = int(seats.copies[group])
            pool_coins = coins[members, : seats.teachers[pool]]
            # The positions of the least coins, in no order.
            chosen = np.argpartition(pool_coins, copies - 1, axis=1)[:, :copies]
            records.append(np.repeat(members + start, copies))
            teachers.append(first_teacher[pool] + chosen.reshape(-1))
    return np.concatenate(records), np.concatenate(teachers)


def count_votes(votes: Integers, weights: Floats, classes: int) -> Floats:
    """Add up the votes for each class, (questions, classes).

    Raises `VerificationError` for votes of another number of teachers, and for a vote that is no
    class, which would count for another question.
    """
    # Exact: the sums are multiples of the grid within a double's precision. A teacher who says
    # another class takes its weight from one count and adds it to another.
    if votes.ndim != 2 or votes.shape[0] != weights.size:
        raise VerificationError(
            f"votes: shape {votes.shape} for {weights.size} teachers; give one vote a teacher and "
            "question"
        )
    if not ((votes >= 0) & (votes < classes)).all():
        raise VerificationError(
            f"votes: some are not in 0 to {classes - 1}, the {classes} classes; no count is made"
        )
    questions = votes.shape[1]
    # One bin for each question and class.
    cells = (votes + classes * np.arange(questions)).reshape(-1)
    cell_weights = np.repeat(weights, questions)
    counts = np.bincount(cells, weights=cell_weights, minlength=questions * classes)
    return np.asarray(counts, dtype=np.float64).reshape(questions, classes)


def answer_questions(
    counts: Floats, noise: Noise, total: float, limit: int, stream: ChaCha20Stream
) -> Integers:
    """Return an answer to each question, or −1: noisy max, after a noisy check if one is made."""
    # For a record that moves each count by at most r, and two of them in opposite ways, this is one
    # Gaussian mechanism of sensitivity r for each question that is checked, and one of sensitivity
    # √2·r for each that is answered, of which there are at most `limit`.
    passed = np.ones(counts.shape[0], dtype=bool)
    if noise.check is not None and noise.threshold is not None:
        # One draw a question, on the largest count alone.
        check_draws = stream.normal(passed.size).numpy()
        largest = counts.max(axis=1) + noise.check * check_draws
        passed = largest >= noise.threshold * total
    # Which questions are answered follows from noisy checks, and costs nothing further.
    answerable = passed & (np.cumsum(passed) <= limit)
    draws = stream.normal(counts.size).numpy().reshape(counts.shape)
    classes = (counts + noise.answer * draws).argmax(axis=1)
    return np.where(answerable, classes, NONE)


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """A file that holds the answers of a run until it is done."""

    path: Path
    # Digest of the plan and the questions that are answered.
    of: str

    @classmethod
    def for_questions(cls, path: Path, plan: VotePlan, questions: Tensor) -> KeptAnswers:
        """Return the file of the answers of a plan to these questions."""
        digest = hashlib.sha256(f"{plan.hash()} {tuple(questions.shape)}".encode())
        digest.update(bytes_of(questions))
        return cls(path, digest.hexdigest())

    def read(self, questions: int, classes: int) -> Integers:
        """Read the answers so far; none where there is no file."""
        if not self.path.exists():
            return np.zeros(0, dtype=np.int64)
        wrong = StateError(
            f"{self.path}: holds no answers of this plan to these questions; the table or the "
            "public rows have changed since: start a new run"
        )
        try:
            result = _json.loads(self.path.read_bytes(), str(self.path))
            answers = np.array(result["answers"], dtype=np.int64)
            good = result["format"] == FORMAT and result["of"] == self.of
        except (OSError, DataError, KeyError, TypeError, ValueError):
            raise wrong from None
        fits = answers.ndim == 1 and answers.size <= questions
        if not (good and fits and ((answers >= NONE) & (answers < classes)).all()):
            raise wrong
        return answers

    def write(self, answers: Integers) -> None:
        """Write the answers so far, whole, for the owner only."""
        content = {"format": FORMAT, "of": self.of, "answers": answers.tolist()}
        write_atomically(self.path, json.dumps(content).encode())


def ask(
    plan: VotePlan, votes: Votes, classes: int, *, seed: int | None, kept: KeptAnswers | None = None
) -> Integers:
    """Ask the plan's questions in order; an answer is −1 where none was given."""
    # No more checks and answers in any phase than the plan has, whatever the votes are and however
    # often the run is killed and taken up again: what was written counts.
    none = np.zeros(0, dtype=np.int64)
    answers = none if kept is None else kept.read(plan.questions, classes)
    begin = 0
    for phase in plan.phases:
        end = begin + phase.questions
        weights = plan.weights(phase)
        while answers.size < end:
            start = answers.size
            # Blocks end at the same questions, wherever a run is taken up again.
            block = slice(start, min(end, start - start % BLOCK + BLOCK))
            # What was answered before a restart counts against the phase's limit.
            remaining = phase.answers - int((answers[begin:] != NONE).sum())
            block_answers = np.full(block.stop - start, NONE)
            if remaining > 0:
                counts = count_votes(votes(block), weights, classes)
                key = None if seed is None else Streams.from_seed(seed).derive("votes", start)
                stream = ChaCha20Stream(key)
                block_answers = answer_questions(
                    counts, plan.noise, float(weights.sum()), remaining, stream
                )
            # Written before the next block is asked: what is not in the file was shown to nobody.
            answers = np.concatenate([answers, block_answers])
            if kept is not None:
                kept.write(answers)
        begin = end
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """SGD on rows drawn with replacement; the learning rate falls to 0 by a cosine.

    Attributes:
        steps: Number of updates.
        batch_size: Rows of each model in a step.
        learning_rate: Learning rate of the first step, above 0.
        momentum: Momentum of SGD, in [0, 1).
        clip_norm: The bound on a row's gradient, which keeps steps of a hard row small; privacy
            does not depend on it.

    Raises:
        InputError: For values out of bounds.

    Example:
        >>> from apiece.pate import Lessons
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
        angle = math.pi * step / self.steps
        return self.learning_rate * (1 + math.cos(angle)) / 2


def learn(
    model: StackedModel,
    inputs: Tensor,
    targets: Tensor,
    shares: Shares,
    lessons: Lessons,
    streams: Streams,
    progress: Progress | None = None,
) -> Tensor:
    """Train models, each on its own rows; return their parameters, (models, parameters)."""
    # A row changes the parameters of the models that have it, and not one bit of any other's.
    models = shares.sizes.size
    flat = model.initial(models, streams.initialisation()).requires_grad_(False)
    optimizer = torch.optim.SGD([flat], lr=lessons.learning_rate, momentum=lessons.momentum)
    width = lessons.batch_size
    clip = torch.full((models, width), lessons.clip_norm)
    # A model without rows draws row 0, which a bound of 0 keeps out of it.
    clip[torch.from_numpy(shares.sizes == 0)] = 0.0
    for step in range(lessons.steps):
        # A stream of its own for each step.
        coins = streams.sampling(step).uniform(models * width).reshape(models, width)
        rows = torch.from_numpy(shares.draw_rows(coins))
        clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clip)
        for entry in optimizer.param_groups:
            entry["lr"] = lessons.rate(step)
        flat.grad = clipped.gradients[SUMS].div_(width)
        optimizer.step()
        if progress is not None:
            progress(step + 1, lessons.steps)
    return flat.detach()


def require_classes(targets: Tensor, classes: int) -> None:
    """Raise `DataError` for a label that is no class."""
    if targets.dtype.is_floating_point or targets.dtype.is_complex:
        raise DataError(f"targets: of type {targets.dtype}; give classes as whole numbers")
    outside = (targets < 0) | (targets >= classes)
    if bool(outside.any()):
        raise DataError(
            f"targets: {int(outside.sum())} labels are not in 0 to {classes - 1}, the {classes} "
            "classes; mend them, or declare more classes"
        )


def require_outputs(model: StackedModel, question: Tensor, classes: int) -> None:
    """Raise `DataError` unless the model gives one output for each class, before it learns."""
    blank = torch.zeros(1, model.parameters)
    logits = model.logits(blank, question[None, None])
    outputs = tuple(logits.shape[2:])
    if outputs != (classes,):
        raise DataError(
            f"model: outputs of shape {outputs} for {classes} classes; give it one output for each "
            "class"
        )


def predict_classes(
    model: StackedModel, flat: Tensor, inputs: Tensor, *, block: int = 64
) -> Integers:
    """Return the likeliest class of each input by each model, (models, inputs)."""
    # Without noise: data about those whom the models learned from, and for no eyes or files.
    parts = logits_in_parts(model, flat, inputs, block)
    return np.concatenate([logits.argmax(dim=2).numpy() for _, logits in parts], axis=1)


def spread_answers(inputs: Floats, answers: Integers) -> Integers:
    """Spread answers to inputs near by; return a class for each input, −1 where none reaches it."""
    try:
        from sklearn.semi_supervised import LabelSpreading
    except ModuleNotFoundError:
        raise lacking("sklearn", "sklearn") from None
    flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    model = LabelSpreading(
        kernel="knn", n_neighbors=min(NEIGHBOURS, len(flat) - 1), alpha=0.2, max_iter=200
    )
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        # Of inputs that no answer reaches, and of slow convergence.
        warnings.simplefilter("ignore")
        model.fit(flat, answers)
    reached = model.label_distributions_.max(axis=1)
    return np.where(reached > 0, model.transduction_, NONE)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Taught:
    """A student and the answers that it learned from, all covered by the plan's promises.

    Attributes:
        student: (parameters,) Parameters of the model.
        answers: (questions,) Class that the teachers answered, −1 where they did not.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from apiece.pate.teaching import Taught
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
    progress: Progress | None = None,
) -> Taught:
    """Return a student that learned what the teachers answered about public inputs.

    Args:
        plan: Who teaches whom, how many questions are asked, and the noise on the votes.
        model: The architecture of teachers and student.
        dataset: Inputs (n, …) and targets (n,), in the order of the plan's records; rows of
            persons in any order.
        public: (Q, …) Inputs that are declared public; the first are asked about, in order.
        classes: Number of classes; targets are 0 to classes − 1.
        lessons: Settings by which teachers learn.
        student: Settings by which the student learns; None for those of the teachers.
        semi_supervised: Whether answers are spread over all public inputs before the student
            learns; needs scikit-learn.
        people: (n,) Each row's person, by position, where the plan is of persons; a Series with an
            index other than 0, 1, 2, … is refused.
        included: (records,) Who takes part, such as those whom a ledger admitted; None for all. A
            Series has the ids of the plan as its index.
        seed: For an experiment that can be repeated; None for randomness of the operating system.
        keep: A file for the answers so far, so that a killed run can be gone on with.
        progress: Called with the step and the number of steps after each step, of the teachers and
            then of the student.

    Raises:
        DataError: For data that do not fit the plan, a Series of other ids or in another order,
            labels out of range, a model with another number of outputs than `classes`, fewer public
            inputs than questions, and where no question was answered.
        StateError: For kept answers of another plan or other inputs.
        VerificationError: Where the plan, or the deal of rows to teachers, does not keep what
            everyone allows: before any teacher votes.

    Guarantee:
        Where seed is None, the answers, and all that is computed from them and the public inputs,
        the student above all, are (ε_i, δ_i)-DP for record (or person) i under add/remove.

    Example:
        >>> import torch
        >>> from apiece import Budgets
        >>> from apiece.pate import Lessons, plan_votes, teach
        >>> from apiece.training.stacked import StackedMlp
        >>> x = torch.rand(2000, 1)
        >>> votes = plan_votes(Budgets([2.0] * 2000, 1e-5), "uniform", teachers=100, questions=50)
        >>> taught = teach(votes, StackedMlp((1, 2)), (x, (x[:, 0] > 0.5).long()),
        ...                torch.rand(50, 1), classes=2, lessons=Lessons(steps=50), seed=0)
        >>> taught.answers.shape, taught.student.shape
        ((50,), torch.Size([4]))
    """
    inputs, targets = dataset
    require_rows("dataset", None, people=people)
    _require_fit(plan, inputs, targets, public, people)
    require_classes(targets, classes)
    require_outputs(model, public[0], classes)
    if included is not None:
        require_ids("plan.ids", plan.plan.ids, included=included)
        included = _check.truth_values("included", included, shape=(plan.plan.group_index.size,))
    key = Streams.from_seed(seed)
    # Before a row is dealt: nobody learns from people under a plan that breaks a promise.
    plan.require()
    shares = deal_rows(plan, key=key.derive("shares", 0), people=people, included=included)
    require_dealt(plan, shares, people=people, included=included)
    kept = None if keep is None else KeptAnswers.for_questions(keep, plan, public)

    # Teachers are trained only where a question is left to ask.
    @cache
    def teachers() -> Tensor:
        return learn(model, inputs, targets, shares, lessons, key, progress)

    def votes(block: slice) -> Integers:
        return predict_classes(model, teachers(), public[block])

    answers = ask(plan, votes, classes, seed=seed, kept=kept)
    student_key = key.derive("student", 0)
    if not (answers != NONE).any():
        raise DataError(
            "answers: none of the questions was answered, as no count of votes reached the "
            "threshold; give a lower one, or none"
        )
    # Questions come first among the public inputs; all others are unlabelled.
    labels = np.full(public.shape[0], NONE)
    labels[: answers.size] = answers
    if semi_supervised:
        labels = spread_answers(public.numpy(), labels)
    labelled = np.flatnonzero(labels != NONE)
    student_inputs = public[torch.from_numpy(labelled)]
    student_targets = torch.from_numpy(labels[labelled])
    # One model, which has all labelled inputs.
    student_share = Shares(np.arange(labelled.size), np.array([0, labelled.size]))
    settings = lessons if student is None else student
    streams = Streams(student_key, release=seed is None)
    flat = learn(model, student_inputs, student_targets, student_share, settings, streams, progress)
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
