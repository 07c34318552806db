"""Kaiser et al. 2026 Fig. 6, scaled: does the target leak more when all others ask for less?

A random 500 of the Credit Default clients, the MLP and training of Kaiser et al. 2026 with fewer
epochs (AdamW, 5 epochs, B = 32, clip 1). For each target and each budget of the others in {4, 8,
16, 32} (the target always asks 32; δ = 1e-12, Sample), 64 models under one frozen plan: 32 with the
target, 32 without. The same under an enforced contract (Δ̄ = 0.02 for everyone), with the others at
4; with the others at 32 all ask the same, and both plans are the uniform one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from apiece import contract
from apiece.assignment import Sample, Uniform, assign
from apiece.audit import ShadowJob
from apiece.audit.findings import jonckheere_terpstra, share_that_rises
from apiece.audit.membership import lira_each
from apiece.audit.records import ShadowScores, positions
from apiece.audit.shadows import Pool, target_job, target_scores
from apiece.audit.splits import one_plan
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.contract.exposure import exposure
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.kaiser_2026_data import shadows, tabular

RECORDS, BATCH, EPOCHS, DELTA, EXCESS = 500, 32, 5, 1e-12, 0.02
OTHERS, OWN, MODELS, PART = (32.0, 16.0, 8.0, 4.0), 32.0, 64, 10
STEPS = RECORDS * EPOCHS // BATCH


class Size(NamedTuple):
    """Of the pool, the training, the parts that targets come in, and the blocks of models."""

    records: int = RECORDS
    steps: int = STEPS
    part: int = PART
    block: int = 16
    targets: int = PART  # of a part; fewer to try


HERE = Size()


def make_plan(others: float, *, bound: float | None = None, size: Size = HERE) -> Plan:
    """Return the one plan of both worlds when all but the target ask for `others`."""
    groups = [("others", others, size.records - 1), ("target", OWN, 1)]
    budgets = Budgets.from_groups(groups, size.records, DELTA)
    settings: dict[str, Any] = {
        "steps": size.steps, "expected_batch_size": BATCH, "clip_norm": 1.0,
    }  # fmt: skip
    if bound is not None:
        return contract.enforce(budgets, excess=bound, **settings)
    # with one budget, Sample is Uniform
    return assign(budgets, Uniform() if others == OWN else Sample(), **settings)


def job(others: float, part: int, *, bound: float | None = None, size: Size = HERE) -> ShadowJob:
    """Return the models of the targets of one `part`, for one budget of the others."""
    table = tabular("credit_default", size.records)
    plan = make_plan(others, bound=bound, size=size)
    inputs, targets = torch.from_numpy(table.inputs), torch.from_numpy(table.targets)
    return target_job(
        Pool(table.ids, inputs, targets, np.zeros(size.records, dtype=np.int64)),
        plan,
        drawn_ids(part, size),
        group=len(plan.budget_groups) - 1,
        models=MODELS,
        model=StackedMlp((table.inputs.shape[1], 128, 64, table.classes)),
        recipe=UpdateRule(),
        seed=part,  # the same starts and noise seeds for every budget of the others
        block=size.block,
    )


def drawn_ids(part: int, size: Size = HERE) -> np.ndarray:
    """Return the ids of the targets of one part."""
    drawn = np.random.default_rng(6).permutation(size.records)[part * size.part :][: size.targets]
    return tabular("credit_default", size.records).ids[drawn]


def folder_of(work: Path, others: float, part: int, bound: float | None) -> Path:
    kind = "sample" if bound is None else "contract"
    return work / f"fig6-{kind}-{others:g}-{part}"


def train(work: Path, parts: int, *, enforced: bool) -> None:
    """Train what is missing; keep each part's scores beside the plan that they were made under."""
    torch.set_num_threads(1)
    wanted = [(4.0, EXCESS)] if enforced else [(o, None) for o in (4.0, 32.0, 8.0, 16.0)]
    for part in range(parts):
        for others, bound in wanted:
            folder = folder_of(work, others, part, bound)
            shadows(folder, partial(job, others, part, bound=bound))


def told_apart(scores: ShadowScores, targets: np.ndarray) -> np.ndarray:
    """Each target's TPR − FPR of "LiRA's log-ratio is positive", every model attacked in turn."""
    found = []
    for t, column in enumerate(positions(scores.ids, targets)):
        rows = slice(t * MODELS, (t + 1) * MODELS)
        one = ShadowScores(
            scores.ids[[column]],
            scores.groups[[column]],
            scores.included[rows, [column]],
            scores.confidences[rows, [column]],
        )
        guess = lira_each(one) > 0
        found.append(guess[one.included].mean() - guess[~one.included].mean())
    return np.array(found)


def finished(work: Path, others: float, bound: float | None) -> int:
    """Return how many parts are there, from the first on."""
    part = 0
    while (folder_of(work, others, part, bound) / "scores.npz").exists():
        part += 1
    return part


class Column(NamedTuple):
    plan: Plan
    score: dict[int, float]  # by the target's id
    told: np.ndarray


def column(work: Path, others: float, parts: int, bound: float | None) -> Column:
    """Return what was found of the targets of the first `parts`."""
    folders = [folder_of(work, others, part, bound) for part in range(parts)]
    every = [ShadowScores.load(f / "scores.npz") for f in folders]
    found = [target_scores(s, drawn_ids(p), models=MODELS) for p, s in enumerate(every)]
    return Column(
        one_plan(*(Plan.from_json((f / "plan.json").read_text()) for f in folders)),
        {int(i): float(s) for f in found for i, s in zip(f.ids, f.score, strict=True)},
        np.concatenate([told_apart(s, drawn_ids(p)) for p, s in enumerate(every)]),
    )


def compared(work: Path, bound: float | None, budgets: tuple[float, ...]) -> dict[str, Any] | None:
    """The targets' scores for each budget of the others, under Sample or under the contract."""
    kinds = {others: None if others == OWN else bound for others in budgets}
    parts = min(finished(work, others, kind) for others, kind in kinds.items())
    if not parts:
        return None
    columns = {others: column(work, others, parts, kind) for others, kind in kinds.items()}
    ids = sorted(columns[OWN].score)
    scores = {others: [c.score[i] for i in ids] for others, c in columns.items()}
    plans = {others: c.plan for others, c in columns.items()}
    faced = {o: exposure(p, len(p.budget_groups) - 1) for o, p in plans.items()}
    return {
        "strategy": plans[min(budgets)].strategy,
        "bound": bound,
        "targets": len(ids),
        "models": len(ids) * len(budgets) * MODELS,
        "epsilon_spent": {o: float(f.epsilon.upper) for o, f in faced.items()},
        "advantage": {o: float(f.advantage.upper) for o, f in faced.items()},
        "excess": {o: float(f.forward.upper) for o, f in faced.items()},
        "measured_advantage": {o: float(c.told.mean()) for o, c in columns.items()},
        "measured_advantage_standard_error": {
            o: float(c.told.std(ddof=1) / c.told.size**0.5) for o, c in columns.items()
        },
        "ids": ids,
        "privacy_scores": scores,
        "mean": {o: float(np.mean(s)) for o, s in scores.items()},
        "rise_from_32": {
            o: asdict(share_that_rises(scores[OWN], scores[o])) for o in budgets if o != OWN
        },
        "trend": asdict(jonckheere_terpstra([scores[o] for o in budgets])),
    }


def result(work: Path) -> dict[str, Any]:
    """Both halves: without a contract and with it; what is not finished is left out."""
    done = tuple(o for o in OTHERS if finished(work, o, None))
    found = {
        "data": f"Credit Default, {RECORDS} random clients",
        "models_per_target_and_budget": MODELS,
        "steps": STEPS,
        "delta": DELTA,
        "target_epsilon": OWN,
        "sample": compared(work, None, done),
        "contract": compared(work, EXCESS, (32.0, 4.0)),
    }
    return {name: value for name, value in found.items() if value is not None}


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Train what is missing of so many parts of ten targets, and return both halves."""
    for enforced in (False, True):
        train(place.work, unit["parts"], enforced=enforced)
    return result(place.work)


def tables(done: Sequence[Outcome]) -> list[Table]:
    rows = []
    for one in done:
        for kind in ("sample", "contract"):
            its = one.result.get(kind)
            for others in its["mean"] if its else ():
                rise = its["rise_from_32"].get(others)
                if kind == "contract" and rise is None:
                    continue
                rows.append([
                    f"{float(others):g}" + f", contract Δ̄ = {EXCESS:g}" * (kind == "contract"),
                    str(its["targets"]), f"{its['mean'][others]:.3f}",
                    "" if rise is None else share(rise),
                    f"{its['advantage'][others]:.2f}", f"{its['excess'][others]:.3f}",
                    f"{its['measured_advantage'][others]:.2f} ± "
                    f"{its['measured_advantage_standard_error'][others]:.2f}",
                ])  # fmt: skip
    return [Table(["others ask", "targets", "mean score", "rises for (published at 4: 62 %)",
                   "advantage by the plan", "excess Δ", "measured TPR − FPR"], rows)]  # fmt: skip


def share(rise: dict[str, float]) -> str:
    return f"{rise['share']:.0%} ({rise['lower']:.0%} to {rise['upper']:.0%})"


EXPERIMENT = Experiment(
    name="kaiser-2026-fig6",
    paper="Kaiser et al. 2026",
    shows="Figure 6: does the target leak more when all others ask for less?",
    cost="2 hours on one thread for 50 targets; in full (kaiser_2026_fig6_full.py) 860 hours",
    units=lambda seeds, scale: [{"parts": max(1, round(5 * scale))}],
    run=run,
    tables=tables,
    notes=lambda done: (
        "500 clients and 5 epochs in place of 30,000 and 60; more in [auditing](auditing.md). "
        "`kaiser-2026-fig6.json` was measured on or before 2026-11-22 with the code up to "
        "`e1a580f7`, and not again since: that needs hours on one thread."
    ),
    seeds=1,
    open="30,000 clients and 60 epochs: 860 hours, out of reach here",
)
