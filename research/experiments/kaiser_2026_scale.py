"""Kaiser et al. 2026, Table II: how much of Sample’s effect is left with Scale, and why.

For each data set that both strategies were trained on (`kaiser_2026_table1.py train`), by group:

- score: the rise of the signed privacy score (μ_in − μ_out)/(σ_in + σ_out) from a strict share of
  20 % to one of 80 %, on the records that are in the group throughout, and the ratio of Scale's
  rise to Sample's. The intervals are of a bootstrap over models (the same draws for both
  strategies, which share splits and starts) and over records at once.
- apart, width: the same for the score's numerator and denominator.
- theory: the advantage of any test, from the plans alone, at both ends.
- realised: what the plan cannot know. A record's signal in a step is min(‖g‖, c)/noise_stddev, at
  most the c/noise_stddev that the plan pays for. Its root mean square, over the updates of 8 models
  and their members, and how many gradients reach the clip norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apiece.audit import stacked_training
from apiece.audit.records import ShadowScores
from apiece.errors import DataError
from apiece.plan import Plan
from apiece.training import ClippedSum
from apiece.training.stacked import StackedMlp
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments import kaiser_2026_data
from research.experiments.kaiser_2026_table1 import SETTINGS, data_of, gather, job, tiers

RESAMPLES, PROBES, STRATEGIES = 1000, 200, ("sample", "scale")


def moments(scores: ShadowScores, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """μ_in − μ_out and σ_in + σ_out, (resamples, n), when model k counts weights[·, k] times."""
    values = scores.confidences - scores.confidences.mean(axis=0)
    worlds = []
    for member in (scores.included, ~scores.included):
        count = weights @ member
        mean = weights @ (member * values) / count
        square = weights @ (member * values**2) / count
        worlds.append((mean, np.sqrt(np.maximum(square - mean**2, 0))))
    (inside, spread_in), (outside, spread_out) = worlds
    return inside - outside, spread_in + spread_out


def counts(size: int, seed: int) -> np.ndarray:
    """(1 + RESAMPLES, size): all once, then how often a bootstrap draws each."""
    drawn = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
    return np.vstack([np.ones(size), drawn])


def resampled(populations: list[ShadowScores], models: int, group: str) -> dict[str, np.ndarray]:
    """Means over the records that are in the group throughout, (1 + RESAMPLES, shares)."""
    always = np.all([part.groups == group for part in populations], axis=0)
    record = counts(int(always.sum()), seed=1)
    found: dict[str, list[np.ndarray]] = {"score": [], "apart": [], "width": []}
    for part in populations:
        few = ShadowScores(
            part.ids[always],
            part.groups[always],
            part.included[:models, always],
            part.confidences[:models, always],
        )
        apart, width = moments(few, counts(models, seed=0))
        for name, values in (("score", apart / width), ("apart", apart), ("width", width)):
            found[name].append((values * record).sum(axis=1) / record.sum(axis=1))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def measured(found: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    """Rises of the score and of its parts, from a strict share of 20 % to one of 80 %."""
    result: dict[str, Any] = {}
    for part in ("score", "apart", "width"):
        rise = {s: values[part][:, -1] - values[part][:, 0] for s, values in found.items()}
        result[part] = {
            s: {"mean": values[part][0].tolist(), "rise": spread(rise[s])}
            for s, values in found.items()
        }
        if part != "width":
            result[part]["scale_to_sample"] = spread(rise["scale"] / rise["sample"])
    return result


def spread(values: np.ndarray) -> dict[str, Any]:
    """The value, its standard error and 95 % interval, of a value and its resamples."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {
        "value": float(values[0]),
        "standard_error": float(values[1:].std(ddof=1)),
        "interval": [float(low), float(high)],
    }


def theory(plan: Plan, group: str) -> dict[str, Any]:
    """What the plan fixes for the group."""
    of, stage = int(np.flatnonzero(plan.budget_groups.name == group)[0]), plan.stages[0]
    advantage = plan.curve(of).advantage()
    return {
        "sampling_probability": float(stage.sampling_probability[of]),
        "clip_norm": float(stage.clip_norm[of]),
        "noise_stddev": float(stage.noise_stddev),
        "largest_signal": float(stage.clip_norm[of] / stage.noise_stddev),
        "advantage": [float(advantage.lower), float(advantage.upper)],
    }


class Watched:
    """A stacked MLP that keeps the gradient norms of `inputs` at about 80 of the updates."""

    def __init__(self, model: StackedMlp, inputs: Tensor, targets: Tensor, steps: int) -> None:
        self.model, self.inputs, self.targets = model, inputs, targets
        self.every, self.step, self.norms = max(1, steps // 80), 0, list[np.ndarray]()
        self.parameters, self.initial, self.logits = model.parameters, model.initial, model.logits

    def clipped_sum(
        self,
        flat: Tensor,
        inputs: Tensor,
        targets: Tensor,
        clip: Tensor,
        owner: Tensor | None = None,
    ) -> ClippedSum:
        if self.step % self.every == 0:
            shape = (flat.shape[0], *self.inputs.shape)
            norms = self.model.gradient_norms(
                flat, self.inputs.expand(shape), self.targets.expand(shape[:2])
            )
            self.norms.append(norms.numpy())
        self.step += 1
        return self.model.clipped_sum(flat, inputs, targets, clip, owner)


def realised(name: str, strategy: str, share: float) -> dict[str, dict[str, float]]:
    """Signals of members that are in their group at every share, by group."""
    one = job(name, strategy, share, 0)
    fifths, rows = tiers(len(one.pool)), one.rows(0)
    probes = {g: np.flatnonzero(fifths == f)[:PROBES] for g, f in (("strict", 0), ("weak", 4))}
    both = np.concatenate(list(probes.values()))
    assert isinstance(one.model, StackedMlp)
    watched = Watched(one.model, one.pool.inputs[both], one.pool.targets[both], one.plan.steps)
    stacked_training.train(
        watched,
        (one.pool.inputs, one.pool.targets),
        one.plan,
        groups=one.pool.groups,
        included=one.included[rows],
        recipe=one.recipe,
        seed=one.seed,
    )
    norms, stage = np.array(watched.norms), one.plan.stages[0]
    found = {}
    for at, group in enumerate(probes):
        part = slice(at * PROBES, (at + 1) * PROBES)
        own = norms[:, :, part]
        member = np.broadcast_to(one.included[rows][:, both[part]], own.shape)
        clip = stage.clip_norm[int(one.pool.groups[both[part]][0])]
        signal = np.minimum(own[member], clip) / stage.noise_stddev
        found[group] = {
            "signal": float(np.sqrt(np.mean(signal**2))),
            "reach_the_clip_norm": float(np.mean(own[member] >= clip)),
        }
    return found


def row(work: Path, name: str) -> dict[str, Any] | None:
    """All figures of one data set; None where a strategy was not run."""
    runs = {strategy: gather(work, name, strategy) for strategy in STRATEGIES}
    if any(run is None for run in runs.values()):
        return None
    made = {strategy: run for strategy, run in runs.items() if run is not None}
    models = min(populations[0].models for populations, _ in made.values())
    ends = {s: [realised(name, s, share) for share in (0.2, 0.8)] for s in STRATEGIES}
    groups = {
        group: {
            **measured({s: resampled(p, models, group) for s, (p, _) in made.items()}),
            "theory": {s: [theory(p, group) for p in plans] for s, (_, plans) in made.items()},
            "realised": {s: [end[group] for end in ends[s]] for s in STRATEGIES},
        }
        for group in ("strict", "weak")
    }
    setting = SETTINGS[name]._asdict()
    return {"data": name, "setting": {**setting, "models": models}, "groups": groups}


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Compare the two strategies that kaiser-2026-table1 trained, whose folder lies beside."""
    torch.set_num_threads(1)
    kaiser_2026_data.DATA = place.data
    found = row(place.work.parent / "kaiser-2026-table1", unit["data"])
    if found is None:
        raise DataError(
            f"{unit['data']}: no models of both strategies yet; run first: python -m research "
            f"kaiser-2026-table1 --only data={unit['data']}"
        )
    return found


def tables(done: Sequence[Outcome]) -> list[Table]:
    rows = []
    for one in done:
        for group, its in one.result["groups"].items():
            width = its["width"]["scale"]["mean"]
            clipped = [f"{end['reach_the_clip_norm']:.0%}" for end in its["realised"]["scale"]]
            rows.append([one.result["data"], str(one.result["setting"]["models"]), group,
                         *(ratio(its[part]["scale_to_sample"]) for part in ("score", "apart")),
                         f"{width[-1] / width[0] - 1:+.0%}", " → ".join(clipped)])  # fmt: skip
    return [Table(["data", "K", "group", "score, Scale / Sample", "μ_in − μ_out, Scale / Sample",
                   "σ_in + σ_out with Scale", "gradients at their clip norm"], rows)]  # fmt: skip


def ratio(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['value']:.2f} ({low:.2f} to {high:.2f})"


EXPERIMENT = Experiment(
    name="kaiser-2026-scale",
    paper="Kaiser et al. 2026",
    shows="Table II: how much of Sample's effect is left with Scale",
    cost="minutes, once kaiser-2026-table1 has both strategies",
    units=lambda seeds, scale: [{"data": name} for name in SETTINGS],
    run=run,
    tables=tables,
    notes=lambda done: (
        "What the table shows is in [auditing](auditing.md). "
        "`kaiser-2026-scale.json` was measured on or before 2026-11-22 with the code up to "
        "`e1a580f7`, and not again since: that needs hours on one thread."
    ),
    seeds=1,
    needs=("mnist", "isolet", "medmnist", "cifar10-jpeg"),
    reads=lambda unit: data_of(unit["data"]),
    open="what kaiser-2026-table1 has without Scale: tables at 60 epochs, CIFAR-10, data not here",
)
