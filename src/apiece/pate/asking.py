"""The questions of a plan, put to the teachers in order; and what is kept of a run that is killed.

What is written down is answers: the noise is on them, and they are what a release shows. No vote,
no count, no teacher and no key of the noise is ever written. A run that is taken up again keeps the
answers that are there, trains teachers anew and goes on with fresh noise; a block that was not yet
written was seen by nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from apiece import _json
from apiece._types import Integers
from apiece.errors import DataError, StateError
from apiece.pate.planning import VotePlan
from apiece.pate.voting import NONE, answered, counted
from apiece.training import ChaCha20Stream
from apiece.training.checkpoints import write_atomically
from apiece.training.randomness import Streams

BLOCK = 100  # questions whose answers are written together
FORMAT = "apiece answers 1"
Votes = Callable[[slice], Integers]  # the votes (teachers, questions) on some of the questions


@dataclass(frozen=True, slots=True)
class Kept:
    """Where answers are kept until a run is done; None keeps nothing.

    Attributes:
        path: Of the file.
        of: What the answers are to: a digest of the plan and of the questions.
    """

    path: Path
    of: str

    @classmethod
    def at(cls, path: Path, plan: VotePlan, questions: Tensor) -> Kept:
        """Return the place for the answers of a plan to these questions."""
        digest = hashlib.sha256(f"{plan.hash()} {tuple(questions.shape)}".encode())
        digest.update(questions.contiguous().view(torch.uint8).numpy().tobytes())
        return cls(path, digest.hexdigest())

    def read(self, questions: int, classes: int) -> Integers:
        """Return the answers that are there, maybe none.

        Raises:
            StateError: For a file that is damaged, or of another plan or other questions.
        """
        if not self.path.exists():
            return np.zeros(0, dtype=np.int64)
        wrong = StateError(
            f"{self.path}: holds no answers of this plan to these questions; the table or the "
            "public rows have changed since: start a new run"
        )
        try:
            found = _json.loads(self.path.read_bytes(), str(self.path))
            answers = np.array(found["answers"], dtype=np.int64)
            good = found["format"] == FORMAT and found["of"] == self.of
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
    plan: VotePlan, votes: Votes, classes: int, *, seed: int | None, kept: Kept | None = None
) -> Integers:
    """Return the answers to the plan's questions, in order; −1 where one was not answered.

    Args:
        plan: How many questions, in which phases, and the noise.
        votes: The teachers' votes on a slice of the questions.
        classes: How many there are.
        seed: Of the noise, for an experiment; None for fresh noise of the operating system.
        kept: Where answers are kept; those that are there are not asked again.

    Guarantee:
        No more checks and answers in any phase than the plan has, whatever the votes are and
        however often the run is killed and taken up again: what was written counts.
    """
    none = np.zeros(0, dtype=np.int64)
    answers = none if kept is None else kept.read(plan.questions, classes)
    begin = 0
    for phase in plan.phases:
        end, weights = begin + phase.questions, plan.weights(phase)
        while answers.size < end:
            at = answers.size
            block = slice(at, min(end, at - at % BLOCK + BLOCK))
            left = phase.answers - int((answers[begin:] != NONE).sum())
            if left > 0:
                counts = counted(votes(block), weights, classes)
                total = float(weights.sum())
                found = answered(counts, plan.noise, total, left, _stream(seed, at))
            else:
                found = np.full(block.stop - at, NONE)
            answers = np.concatenate([answers, found])
            if kept is not None:
                kept.write(answers)
        begin = end
    return answers


def _stream(seed: int | None, at: int) -> ChaCha20Stream:
    """Return the noise of the block that begins at a question."""
    if seed is None:
        return ChaCha20Stream()
    return ChaCha20Stream(Streams.from_seed(seed).derive("votes", at))
