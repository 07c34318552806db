"""Kaiser et al. 2026 Fig. 6 in full, on a Ray cluster: 256,000 models, in blocks of 64.

All 30,000 Credit Default clients, 56,250 steps (60 epochs), 1,000 targets, four budgets of the
others. A block is one task of some minutes to an hour, kept when it is done; the same command goes
on where the last one ended, whatever was killed. On more cores than a part has blocks (20), start
it several times with other parts. In all 574 hours of a quiet thread, 1,600 and more of a busy one.

python experiments/kaiser_2026_fig6_full.py cost
python experiments/kaiser_2026_fig6_full.py train FOLDER --address HOST:6379 --parts 0 50
python experiments/kaiser_2026_fig6_full.py train TRIAL --parts 0 1 --targets 1 --steps 20
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from kaiser_2026_data import tabular
from kaiser_2026_fig6 import BATCH, DELTA, MODELS, OTHERS, OWN

from apiece.assignment import Sample, Uniform, assign
from apiece.audit import Pool, ShadowJob, UpdateRule, train_shadows
from apiece.audit.shadows import target_job
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp

RECORDS, EPOCHS, TARGETS, PART, BLOCK = 30_000, 60, 1000, 20, 64
STEPS = RECORDS * EPOCHS // BATCH
BLOCKS = TARGETS * MODELS * len(OTHERS) // BLOCK


def make_plan(others: float, steps: int = STEPS) -> Plan:
    """Return the one plan of both worlds when all but the target ask for `others`."""
    groups = [("others", others, RECORDS - 1), ("target", OWN, 1)]
    budgets = Budgets.from_groups(groups, RECORDS, DELTA)
    strategy = Uniform() if others == OWN else Sample()
    return assign(budgets, strategy, steps=steps, expected_batch_size=BATCH, clip_norm=1.0)


def job(others: float, part: int, *, targets: int = PART, steps: int = STEPS) -> ShadowJob:
    """Return the models of one part's targets, for one budget of the others."""
    table, plan = tabular("credit_default", RECORDS), make_plan(others, steps)
    drawn = np.random.default_rng(6).permutation(RECORDS)[part * PART : part * PART + targets]
    inputs, classes = torch.from_numpy(table.inputs), torch.from_numpy(table.targets)
    return target_job(
        Pool(table.ids, inputs, classes, np.zeros(RECORDS, dtype=np.int64)),
        plan,
        table.ids[drawn],
        group=len(plan.budget_groups) - 1,
        models=MODELS,
        model=StackedMlp((table.inputs.shape[1], 128, 64, table.classes)),
        recipe=UpdateRule(),
        seed=part,
        block=BLOCK,
    )


def cost(steps: int = 60) -> dict[str, float]:
    """Return what the whole takes at the pace of a block here and now, in processor time.

    Two numbers of steps are timed; what is done once a block is apart. Beside other work a step
    takes several times the processor time of one on a quiet machine.
    """
    torch.set_num_threads(1)
    job(4.0, 0, targets=1, steps=2).train_block(0)  # what is done once a process
    took = []
    for count in (steps, 3 * steps):
        one = job(4.0, 0, targets=1, steps=count)
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
            one, where = (
                job(others, part, targets=targets, steps=steps),
                folder / f"{others:g}-{part}",
            )
            if (where / "scores.npz").exists():
                continue

            def say(done: int, of: int, name: str = where.name) -> None:
                print(f"{name}: {done} of {of}", flush=True)

            scores = train_shadows(one, folder=where, mapper=cluster(address), progress=say)
            (where / "plan.json").write_text(one.plan.to_json())
            scores.save(where / "scores.npz")


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
