"""Kaiser et al. 2026 Fig. 6 in full, on a Ray cluster: 256,000 models, in blocks of 64.

All 30,000 Credit Default clients, 56,250 steps (60 epochs), 1,000 targets, four budgets of the
others. A block is one task of some minutes to an hour, kept when it is done; the same command goes
on where the last one ended, whatever was killed. On more cores than a part has blocks (20), start
it several times with other parts. In all 860 hours of a quiet thread, 1,600 and more of a busy one.

python -m research.experiments.kaiser_2026_fig6_full cost
python -m research.experiments.kaiser_2026_fig6_full train FOLDER --address HOST:6379 --parts 0 50
python -m research.experiments.kaiser_2026_fig6_full train TRIAL --parts 0 1 --targets 1 --steps 20
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch

from research.experiments.kaiser_2026_data import shadows
from research.experiments.kaiser_2026_fig6 import BATCH, MODELS, OTHERS, Size, job

RECORDS, EPOCHS, TARGETS, PART, BLOCK = 30_000, 60, 1000, 20, 64
STEPS = RECORDS * EPOCHS // BATCH
BLOCKS = TARGETS * MODELS * len(OTHERS) // BLOCK


def size_of(targets: int = PART, steps: int = STEPS) -> Size:
    return Size(RECORDS, steps, PART, BLOCK, targets)


def cost(steps: int = 60) -> dict[str, float]:
    """Return what the whole takes at the pace of a block here and now, in processor time.

    Two numbers of steps are timed; what is done once a block is apart. Beside other work a step
    takes several times the processor time of one on a quiet machine.
    """
    torch.set_num_threads(1)
    job(4.0, 0, size=size_of(1, 2)).train_block(0)  # what is done once a process
    took = []
    for count in (steps, 3 * steps):
        one = job(4.0, 0, size=size_of(1, count))
        begun = time.process_time()
        one.train_block(0)
        took.append(time.process_time() - begun)
    step = (took[1] - took[0]) / (2 * steps)
    once = took[0] - steps * step
    block = STEPS * step + once
    return {
        "blocks": BLOCKS,
        "models": BLOCKS * BLOCK,
        "steps": STEPS,
        "model_steps_per_second": round(BLOCK / step),
        "minutes_a_block": round(block / 60, 1),
        "core_hours": round(BLOCKS * block / 3600),
        "megabytes_kept": round(BLOCKS * BLOCK * RECORDS * 4 / 1e6),
    }


def train(folder: Path, address: str | None, parts: range, targets: int, steps: int) -> None:
    """Train what is missing of these parts; each block is kept as it comes."""
    from apiece.adapters import cluster

    for part in parts:
        for others in OTHERS:
            make = partial(job, others, part, size=size_of(targets, steps))
            shadows(folder / f"{others:g}-{part}", make, cluster(address))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cost", help="Measure some steps here; say what the whole takes.")
    training = commands.add_parser("train")
    training.add_argument("folder", type=Path)
    training.add_argument("--address", help="Of the Ray cluster; one is started here if not given.")
    training.add_argument("--parts", type=int, nargs=2, default=[0, TARGETS // PART])
    training.add_argument("--targets", type=int, default=PART, help="Of each part; fewer to try.")
    training.add_argument("--steps", type=int, default=STEPS, help="Fewer to try.")
    given = parser.parse_args()
    if given.command == "cost":
        print(json.dumps(cost(), indent=1))
    else:
        train(given.folder, given.address, range(*given.parts), given.targets, given.steps)


if __name__ == "__main__":
    main()
