"""Recurrent layers as they are felt: wall and processor time from the first call, beside plain.

A long sequence for each kind of layer, and ragged text in thirty batches of twelve lengths. Plain
and private steps take turns in random order. The model that is measured is new; another one has run
before, and Python has collected what it left, so that no library is imported meanwhile.

    python -m research.benchmarks.recurrent --out research/results/recurrent.json     # two minutes
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from apiece.training import clip_and_sum

LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
# Records of a batch, values of an entry, units, classes and words.
RECORDS, WIDTH, UNITS, CLASSES, WORDS = 64, 64, 128, 10, 1000
# Steps of the long sequence, how many of them are timed, and the lengths of the ragged text.
LENGTH, ROUNDS, LENGTHS, BATCHES = 64, 30, range(20, 68, 4), 30

Batch = tuple[tuple[torch.Tensor, ...], torch.Tensor]


class Whole(nn.Module):
    """A layer over sequences of one length, and a readout of its mean."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = LAYERS[kind](WIDTH, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.layer(x)
        scores: torch.Tensor = self.readout(outputs.mean(1))
        return scores


class Ragged(Whole):
    """A layer over packed words, and a readout of each record's mean."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, words: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        packed = pack_padded_sequence(self.table(words), ends, True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.layer(packed)[0], True)
        scores: torch.Tensor = self.readout(outputs.sum(1) / ends.unsqueeze(1))
        return scores


def losses(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, targets, reduction="none")


def whole_batch() -> Batch:
    return (torch.randn(RECORDS, LENGTH, WIDTH),), torch.randint(CLASSES, (RECORDS,))


def ragged_batch(length: int) -> Batch:
    ends = torch.randint(length // 2, length + 1, (RECORDS,))
    ends[0] = length
    words = torch.randint(WORDS, (RECORDS, length))
    return (words, ends), torch.randint(CLASSES, (RECORDS,))


def plain(model: nn.Module, batch: Batch) -> None:
    inputs, targets = batch
    total = losses(model(*inputs), targets).sum()
    torch.autograd.grad(total, list(model.parameters()))


def private(model: nn.Module, batch: Batch) -> None:
    inputs, targets = batch
    clip_and_sum(model, losses, inputs, targets, 1.0, method="proved")


def timed(
    step: Callable[[nn.Module, Batch], None], model: nn.Module, batch: Batch
) -> tuple[float, float]:
    """Return the seconds that a step takes, by the wall's clock and by the processor's."""
    begun = time.perf_counter()
    begun_by_processor = time.process_time()
    step(model, batch)
    return time.perf_counter() - begun, time.process_time() - begun_by_processor


def compare(model: nn.Module, batches: list[Batch]) -> dict[str, dict[str, float]]:
    """Return what plain and private steps take, whose first one captures and proves."""
    plain(model, batches[0])
    turns = random.Random(0)
    taken: dict[str, list[tuple[float, float]]] = {"plain": [], "private": []}
    gc.collect()
    for batch in batches:
        steps = [("plain", plain), ("private", private)]
        turns.shuffle(steps)
        for name, step in steps:
            taken[name].append(timed(step, model, batch))
    return {
        clock: summarize({name: [pair[number] for pair in taken[name]] for name in taken})
        for number, clock in enumerate(("wall", "processor"))
    }


def summarize(taken: dict[str, list[float]]) -> dict[str, float]:
    """Return the ratios of private to plain seconds, and the longest private step but the first."""
    usual = statistics.median(taken["plain"])
    later = taken["private"][1:]
    ratios = [b / a for a, b in zip(taken["plain"][1:], later, strict=True)]
    return {
        "plain_step": usual,
        "median_ratio": statistics.median(ratios),
        "first_in_plain_steps": taken["private"][0] / usual,
        "longest_later_in_median_steps": max(later) / statistics.median(later),
        "total_ratio": sum(taken["private"]) / sum(taken["plain"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    arguments = parser.parse_args()
    result: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for kind in arguments.layers:
            torch.manual_seed(0)
            private(Ragged(kind), ragged_batch(5))
            whole = whole_batch()
            # each length once, then some of them again, as batches come
            lengths = [*LENGTHS, *random.Random(1).choices(LENGTHS, k=BATCHES - len(LENGTHS))]
            ragged = [ragged_batch(length) for length in lengths]
            result[f"{kind}, T={LENGTH}, {threads} threads"] = compare(
                Whole(kind), [whole] * ROUNDS
            )
            result[f"{kind}, ragged, {threads} threads"] = compare(Ragged(kind), ragged)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
