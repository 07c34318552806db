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
from apiece._types import Floats, Integers
from apiece.errors import DataError, StateError
from apiece.pate.planning import Noise, VotePlan
from apiece.training import ChaCha20Stream
from apiece.training.checkpoints import write_atomically
from apiece.training.randomness import Streams

NONE = -1  # asked, and not answered


def counted(votes: Integers, weights: Floats, classes: int) -> Floats:
    """Return what the votes for each class add up to, (questions, classes)."""
    # Exact: the sums are multiples of the grid within a double's precision. A teacher who says
    # another class takes its weight from one count and adds it to another.
    questions = votes.shape[1]
    place = (votes + classes * np.arange(questions)).reshape(-1)
    each = np.repeat(weights, questions)
    flat = np.bincount(place, weights=each, minlength=questions * classes)
    return np.asarray(flat, dtype=np.float64).reshape(questions, classes)


def answered(
    counts: Floats, noise: Noise, total: float, most: int, stream: ChaCha20Stream
) -> Integers:
    """Return an answer to each question, or −1: noisy max, after a noisy check if one is made."""
    # For a record that moves each count by at most r, and two of them in opposite ways, this is one
    # Gaussian mechanism of sensitivity r for each question that is checked, and one of sensitivity
    # √2·r for each that is answered, of which there are at most `most`.
    passed = np.ones(counts.shape[0], dtype=bool)
    if noise.check is not None and noise.threshold is not None:
        largest = counts.max(axis=1) + noise.check * stream.normal(passed.size).numpy()
        passed = largest >= noise.threshold * total
    given = passed & (np.cumsum(passed) <= most)
    fresh = stream.normal(counts.size).numpy().reshape(counts.shape)
    return np.where(given, (counts + noise.answer * fresh).argmax(axis=1), NONE)


BLOCK = 100  # questions whose answers are written together
FORMAT = "apiece answers 1"
Votes = Callable[[slice], Integers]  # the votes (teachers, questions) on some of the questions


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """Where answers are kept until a run is done; None keeps nothing."""

    path: Path  # Of the file
    of: str  # What the answers are to: a digest of the plan and of the questions

    @classmethod
    def at(cls, path: Path, plan: VotePlan, questions: Tensor) -> KeptAnswers:
        """Return the place for the answers of a plan to these questions."""
        digest = hashlib.sha256(f"{plan.hash()} {tuple(questions.shape)}".encode())
        digest.update(questions.contiguous().view(torch.uint8).numpy().tobytes())
        return cls(path, digest.hexdigest())

    def read(self, questions: int, classes: int) -> Integers:
        """Return the answers that are there, maybe none."""
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
    """Return the answers to the plan's questions, in order; −1 where one was not answered."""
    # No more checks and answers in any phase than the plan has, whatever the votes are and however
    # often the run is killed and taken up again: what was written counts.
    none = np.zeros(0, dtype=np.int64)
    answers = none if kept is None else kept.read(plan.questions, classes)
    begin = 0
    for phase in plan.phases:
        end, weights = begin + phase.questions, plan.weights(phase)
        while answers.size < end:
            at = answers.size
            block = slice(at, min(end, at - at % BLOCK + BLOCK))
            left = phase.answers - int((answers[begin:] != NONE).sum())
            result = np.full(block.stop - at, NONE)
            if left > 0:
                counts = counted(votes(block), weights, classes)
                key = None if seed is None else Streams.from_seed(seed).derive("votes", at)
                stream = ChaCha20Stream(key)
                result = answered(counts, plan.noise, float(weights.sum()), left, stream)
            answers = np.concatenate([answers, result])
            if kept is not None:
                kept.write(answers)
        begin = end
    return answers
