"""A model by PATE: from a prepared job to a student, gone on with where a run was killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apiece.errors import StateError
from apiece.jobs.folder import RunFolder
from apiece.jobs.model import build
from apiece.jobs.people import Records
from apiece.jobs.prepared import Prepared
from apiece.pate import Lessons, VotePlan, teach
from apiece.training import StackedMlp

if TYPE_CHECKING:
    from apiece.jobs.charged import Charge

KEPT = "answers.json"


def taught(
    prepared: Prepared,
    name: str,
    repeat: int,
    folder: RunFolder,
    watch: Callable[[str, int, int, int], object],
    charge: Charge | None,
) -> nn.Sequential:
    """Return the student of one strategy's teachers.

    Args:
        prepared: A job whose method is PATE.
        name: The strategy.
        repeat: Which of its models.
        folder: Of the run; it is told how many questions were answered.
        watch: Told the strategy, which model, the step and the number of steps, of teachers and
            student together.
        charge: Who takes part, where a ledger was charged.

    Guarantee:
        In the run folder only answers are kept until the run is done, readable by their owner
        alone: no vote, no teacher and no key.
    """
    job, people = prepared.job, prepared.people
    training, public = job.training_of(name), people.public
    assert public is not None  # of every job whose method is PATE
    place = prepared.unfinished.model(name, repeat)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{place}: cannot be made ({error.strerror}); make room or mend the folder, then "
            "resume the run"
        ) from None
    lessons = Lessons(
        steps=training.steps,
        batch_size=int(training.batch_size),
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        clip_norm=training.clip_norm,
    )
    told = iter(range(1, 2 * training.steps + 1))
    network, answers = student(
        prepared.votes[name],
        people.train.without_faulty(),
        public,
        hidden=training.hidden,
        classes=len(people.classes),
        lessons=lessons,
        semi_supervised=bool(job.pate.semi_supervised),
        included=None if charge is None else charge.included,
        seed=job.seed_of(name, repeat),
        keep=place / KEPT,
        watch=lambda *_: watch(name, repeat, next(told), 2 * training.steps),
    )
    folder.log("answered", strategy=name, repeat=repeat, answers=answers)
    return network


def student(
    votes: VotePlan,
    records: Records,
    public: npt.NDArray[np.float32],
    *,
    hidden: tuple[int, ...],
    classes: int,
    **options: object,
) -> tuple[nn.Sequential, int]:
    """Return a student as a network, and how many questions were answered.

    Args:
        votes: The plan of the votes.
        records: The rows that the teachers learn from, of persons where the plan is of persons.
        public: (Q, d) Public rows, encoded alike.
        hidden: Widths of hidden layers.
        classes: How many there are.
        **options: As for `teach`.

    Raises:
        DataError: As `teach`.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.pate import plan_votes
        >>> votes = plan_votes(Budgets([2.0] * 500, 1e-5), "weight", teachers=25, questions=20)
        >>> x = np.random.default_rng(0).random((500, 3), dtype=np.float32)
        >>> records = Records(x, (x[:, 0] > 0.5).astype(np.int64))
        >>> student(votes, records, x[:20], hidden=(), classes=2, lessons=Lessons(steps=9), seed=0)
        (Sequential(
          (0): Linear(in_features=3, out_features=2, bias=True)
        ), 20)
    """
    features = records.features.shape[1]
    found = teach(
        votes,
        StackedMlp((features, *hidden, classes)),
        (torch.from_numpy(records.features), torch.from_numpy(records.labels)),
        torch.from_numpy(public),
        classes=classes,
        people=records.person,
        **options,  # type: ignore[arg-type]
    )
    network = build(features, classes, hidden, torch.Generator())
    nn.utils.vector_to_parameters(found.student, network.parameters())
    return network, int((found.answers >= 0).sum())
