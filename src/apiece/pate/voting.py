"""Votes, counted and covered with noise: what leaves here is an answer or none."""

from __future__ import annotations

import numpy as np

from apiece._types import Floats, Integers
from apiece.pate.planning import Noise
from apiece.training import ChaCha20Stream

NONE = -1  # asked, and not answered


def counted(votes: Integers, weights: Floats, classes: int) -> Floats:
    """Return what the votes for each class add up to, (questions, classes).

    Args:
        votes: (teachers, questions) The class that each teacher says.
        weights: (teachers,) What its vote counts, multiples of `strategies.GRID`.
        classes: How many there are.

    Guarantee:
        Exact: the sums are multiples of the grid within a double's precision. A teacher who says
        another class takes its weight from one count and adds it to another.

    Example:
        >>> counted(np.array([[0], [1], [1]]), np.array([1.0, 0.5, 1.0]), 3).tolist()
        [[1.0, 1.5, 0.0]]
    """
    questions = votes.shape[1]
    place = (votes + classes * np.arange(questions)).reshape(-1)
    each = np.repeat(weights, questions)
    flat = np.bincount(place, weights=each, minlength=questions * classes)
    return np.asarray(flat, dtype=np.float64).reshape(questions, classes)


def answered(
    counts: Floats, noise: Noise, total: float, most: int, stream: ChaCha20Stream
) -> Integers:
    """Return an answer to each question, or −1: noisy max, after a noisy check where one is made.

    Args:
        counts: (questions, classes) Exact counts.
        noise: On them, and the threshold.
        total: What all votes that are cast add up to: public.
        most: How many questions may still be answered.
        stream: Of the noise.

    Guarantee:
        For a record that moves each count by at most r, and two of them in opposite ways, this is
        one Gaussian mechanism of sensitivity r for each question that is checked, and one of
        sensitivity √2·r for each that is answered, of which there are at most `most`.

    References:
        Papernot et al. 2018, Algorithm 1.

    Example:
        >>> counts = np.array([[90.0, 10.0], [51.0, 49.0]])
        >>> noise = Noise(answer=1.0, check=1.0, threshold=0.8)
        >>> answered(counts, noise, 100.0, 2, ChaCha20Stream(bytes(32))).tolist()
        [0, -1]
    """
    passed = np.ones(counts.shape[0], dtype=bool)
    if noise.check is not None and noise.threshold is not None:
        largest = counts.max(axis=1) + noise.check * stream.normal(passed.size).numpy()
        passed = largest >= noise.threshold * total
    given = passed & (np.cumsum(passed) <= most)
    fresh = stream.normal(counts.size).numpy().reshape(counts.shape)
    return np.where(given, (counts + noise.answer * fresh).argmax(axis=1), NONE)
