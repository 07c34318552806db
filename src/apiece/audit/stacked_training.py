"""DP-SGD on K models at once, each with its own members, coins, noise and start."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from apiece import _check
from apiece._types import AnyArray, Floats, Integers, Mask
from apiece.budgets import Units
from apiece.errors import DataError, InputError, UnsupportedError, unknown
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training.batches import draw_positions
from apiece.training.modes import evaluating
from apiece.training.randomness import noisy_mean
from apiece.training.stacked import SUMS, StackedModel, logits_in_parts
from apiece.training.sums import choose_rows


class PaddedBatch(NamedTuple):
    """One step's records for K models: `records` (K, P), of which `real` (K, P) are not padding."""

    records: Integers
    real: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        return "PaddedBatch()"  # what it holds is data about people


def pad(models: Integers, records: Integers, count: int) -> PaddedBatch:
    """Return the pairs (model, record) as rows of equal length, padded with record 0."""
    order = np.argsort(models, kind="stable")
    models, records = models[order], records[order]
    sizes = np.bincount(models, minlength=count)
    width = max(int(sizes.max(initial=0)), 1)
    starts = np.cumsum(sizes) - sizes
    rows = np.zeros((count, width), dtype=np.int64)
    rows[models, np.arange(models.size) - starts[models]] = records
    return PaddedBatch(rows, np.arange(width) < sizes[:, None])


def batches(rates: Floats, steps: int, generator: np.random.Generator) -> Iterator[PaddedBatch]:
    """Yield `steps` batches in which model k's record i takes part with probability rates[k, i]."""
    count, size = rates.shape
    flat = rates.ravel()
    pairs = [(float(q), np.flatnonzero(flat == q)) for q in np.unique(flat[flat > 0])]
    block = max(1, min(steps, 200_000 // max(1, int(flat.sum()))))
    for first in range(0, steps, block):
        now = min(block, steps - first)
        when, who = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for q, members in pairs:
            at = draw_positions(now * members.size, q, generator)
            when.append(at // members.size)
            who.append(members[at % members.size])
        step, pair = np.concatenate(when), np.concatenate(who)
        ends = np.cumsum(np.bincount(step, minlength=now))[:-1]
        for chosen in np.split(pair[np.argsort(step, kind="stable")], ends):
            yield pad(chosen // size, chosen % size, count)


OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How a model is updated; the defaults are Kaiser et al.'s (AdamW, weight decay 5e-4, cosine).

    Privacy does not depend on it: it only processes what the noisy gradients show.

    Attributes:
        learning_rate: Positive.
        optimizer: "adamw" or "sgd".
        weight_decay: At least 0.
        schedule: Of the learning rate: "cosine", to zero, or "constant".

    Raises:
        InputError: For a learning rate or weight decay outside its bounds.
        OptionError: For an unknown optimizer or schedule.

    References:
        Kaiser et al. 2026.

    Example:
        >>> from apiece.audit.stacked_training import UpdateRule
        >>> UpdateRule(learning_rate=0.1).rate(5, 10)
        0.05
    """

    learning_rate: float = 0.01
    optimizer: str = "adamw"
    weight_decay: float = 5e-4
    schedule: str = "cosine"

    def __post_init__(self) -> None:
        _check.positive("learning_rate", self.learning_rate)
        if not _check.finite("weight_decay", self.weight_decay) >= 0:
            raise InputError(f"weight_decay = {self.weight_decay}: must not be negative")
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)

    def start(self, flat: Tensor) -> torch.optim.Optimizer:
        """Return an optimizer of all models; it works entry by entry, so they do not mix.

        Args:
            flat: (models, parameters).
        """
        lr, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD([flat], lr=lr, weight_decay=decay)
        return torch.optim.AdamW([flat], lr=lr, weight_decay=decay, fused=True)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step.

        Args:
            step: In 0 … steps − 1.
            steps: How many in all.
        """
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockStreams:
    """The three streams of randomness of a block of models: coins, noise, start."""

    sampling: np.random.Generator
    noise: torch.Generator
    start: torch.Generator

    @classmethod
    def from_seed(cls, seed: int, block: int, device: torch.device | str = "cpu") -> BlockStreams:
        """Return the streams of `block` under `seed`; different blocks are independent."""
        parts = np.random.SeedSequence((seed, block)).spawn(3)
        noise, start = (torch.Generator(device=device) for _ in range(2))
        noise.manual_seed(int(parts[1].generate_state(1, np.uint64)[0] >> 1))
        start.manual_seed(int(parts[2].generate_state(1, np.uint64)[0] >> 1))
        return cls(np.random.Generator(np.random.SFC64(parts[0])), noise, start)


def train(
    model: StackedModel,
    dataset: tuple[Tensor, Tensor],
    plan: Plan,
    *,
    groups: Integers,
    included: Mask,
    recipe: UpdateRule,
    seed: int,
    block: int = 0,
    people: Units | None = None,
) -> Tensor:
    """Return the parameters (K, parameters) of K models trained under one `plan`."""
    # Model k takes record i into a step with its group's sampling probability if included[k, i],
    # never otherwise. Nothing else depends on `included`: the worlds of an audit differ in
    # membership only.
    if plan.combine == "average":
        raise UnsupportedError(
            f'plan.combine = "average" ({len(plan.stages)} stages, each with a model of its own): '
            "a shadow is one model; audit a plan that trains one through all stages"
        )
    (inputs, targets), device = dataset, dataset[0].device
    streams = BlockStreams.from_seed(seed, block, device)
    flat = model.initial(included.shape[0], streams.start).requires_grad_(False)
    optimizer = recipe.start(flat)
    done = 0
    for stage in plan.stages:
        rates, clip = stage_rates(stage, groups, included, streams.sampling)
        for batch in batches(rates, stage.steps, streams.sampling):
            own = 1.0 if plan.learning_rate is None else plan.learning_rate.at(done)
            for entry in optimizer.param_groups:
                entry["lr"] = recipe.rate(done, plan.steps) * own
            who, places, whose = rows_of(batch, people, streams.sampling)
            bounds = np.where(who.real, np.take_along_axis(clip, who.records, axis=1), 0.0)
            clips, rows = torch.from_numpy(bounds).to(inputs), torch.from_numpy(places).to(device)
            owner = None if whose is None else torch.from_numpy(whose).to(device)
            clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clips, owner)
            mean = stage.expected_batch_size
            noisy = noisy_mean(clipped, stage.noise_stddev, mean, generator=streams.noise)
            flat.grad = noisy[SUMS]
            optimizer.step()
            done += 1
    return flat.detach()


def stage_rates(
    stage: Stage, groups: Integers, included: Mask, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return sampling probabilities and clip norms, (K, n) each; 0 probability outside a world."""
    if stage.times is not None:
        raise UnsupportedError(
            "strategy allocate: shadow models are trained on Poisson batches alone; audit a plan "
            "of Sample with the same budgets"
        )
    joined = included
    if stage.participation is not None:
        joined = included & (generator.random(included.shape) < stage.participation[groups])
    rates = np.where(joined, stage.sampling_probability[groups], 0.0)
    return rates, np.broadcast_to(stage.clip_norm[groups], included.shape)


def rows_of(
    batch: PaddedBatch, people: Units | None, generator: np.random.Generator
) -> tuple[PaddedBatch, Integers, Integers | None]:
    """Return those who take part, (K, P), their rows (K, R), and whose of the P each row is.

    Of persons the rows are drawn by coins of each model's own; None where records are the rows.
    """
    # Rows are padded with row 0 of one who is padding.
    if people is None:
        return batch, batch.records, None
    ends = ((0, 0), (0, 1))  # the last is padding
    records, real = np.pad(batch.records, ends), np.pad(batch.real, ends)
    brought = [
        choose_rows(people, records[k, real[k]], generator.bytes(32)) for k in range(len(records))
    ]
    width = max(1, *(each.rows.size for each in brought))
    rows = np.zeros((len(records), width), dtype=np.int64)
    owner = np.full(rows.shape, records.shape[1] - 1)
    for k, each in enumerate(brought):
        rows[k, : each.rows.size], owner[k, : each.owner.size] = each.rows, each.owner
    return PaddedBatch(records, real), rows, owner


def confidences(model: StackedModel, flat: Tensor, inputs: Tensor, targets: Tensor) -> Floats:
    """Return (K, n): φ = log(p/(1−p)) of the true class (Carlini et al. 2022, LiRA, §V)."""
    width = max(1, int(2e6 / max(1, inputs[0].numel() * flat.shape[0])))
    parts = [
        logit_scaled(logits, targets[part].expand(flat.shape[0], -1))
        for part, logits in logits_in_parts(model, flat, inputs, width)
    ]
    return np.concatenate(parts, axis=1).astype(np.float64)


def logit_scaled(logits: Tensor, targets: Tensor) -> npt.NDArray[np.float32]:
    """Return z_y − log Σ_{c≠y} e^{z_c} = log(p_y/(1−p_y)), over the last axis of `logits`."""
    own = logits.gather(-1, targets[..., None])
    others = logits.scatter(-1, targets[..., None], -torch.inf)
    scaled = own[..., 0] - torch.logsumexp(others, dim=-1)
    return np.asarray(scaled.detach().cpu().numpy())


def model_confidences(
    model: nn.Module,
    inputs: Tensor | AnyArray,
    targets: Tensor | AnyArray,
    *,
    batch_size: int = 1024,
) -> Floats:
    """Return φ = log(p/(1−p)) of the true class for each record, (n,)."""
    inputs, targets = torch.as_tensor(inputs), torch.as_tensor(targets)
    parts: list[npt.NDArray[np.float32]] = []
    with evaluating(model), torch.no_grad():
        for at in range(0, len(targets), batch_size):
            part = targets[at : at + batch_size]
            try:
                logits = model(inputs[at : at + batch_size])
            except (RuntimeError, AssertionError, TypeError) as error:
                first = str(error).strip().split("\n")[0]
                raise DataError(
                    f"model: does not take inputs of shape {tuple(inputs.shape)} and "
                    f"{inputs.dtype} ({first})"
                ) from None
            if logits.ndim != 2 or logits.shape[0] != len(part) or logits.shape[1] < 2:
                raise DataError(
                    f"model: logits of shape {tuple(logits.shape)} for {len(part)} records; "
                    "give (records, classes)"
                )
            if not bool(((part >= 0) & (part < logits.shape[1])).all()):
                raise DataError(
                    f"targets: not all in 0 … {logits.shape[1] - 1}, the model's classes"
                )
            parts.append(logit_scaled(logits, part.long()))
    return np.concatenate(parts).astype(np.float64)


class _Exported(nn.Module):
    """A program of torch.export, which has no training mode to be put in or out of."""

    def __init__(self, run: nn.Module) -> None:
        super().__init__()
        self.run = (run,)  # in a tuple, so that it is no submodule

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.run[0](inputs)
        return out


def exported_model(path: Path, *, trusted: bool = False) -> nn.Module:
    """Return the model in a file that `torch.export.save` wrote (.pt2), with a dynamic batch."""
    # Such a file can run any code: its constants are pickled, and expressions in it are evaluated.
    if not trusted:
        raise UnsupportedError(
            f"{path}: a .pt2 file can run any code of its writer's when it is loaded; if you trust "
            "where it comes from as you trust a program, pass --trust-model (trusted=True); "
            "scores of a model that you do not trust can be audited with --canaries"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            known = any(name.endswith("archive_format") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a .pt2 file") from None
    if not known:
        raise DataError(f"{path}: not a program of torch.export; write one with torch.export.save")
    return _Exported(torch.export.load(path).module())
