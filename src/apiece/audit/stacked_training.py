"""DP-SGD on K models at once, each with its own members, coins, noise and start."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.audit import poisson
from apiece.budgets import Units
from apiece.errors import InputError, UnsupportedError, unknown
from apiece.plan import Plan, Stage
from apiece.training import SUMS, StackedModel, add_noise, normalise
from apiece.training.people import bring

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, slots=True)
class Recipe:
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
        >>> Recipe(learning_rate=0.1).rate(5, 10)
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
        if self.optimizer == "sgd":
            return torch.optim.SGD([flat], lr=self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.AdamW(
            [flat], lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )

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
    recipe: Recipe,
    seed: int,
    block: int = 0,
    people: Units | None = None,
) -> Tensor:
    """Return the parameters (K, parameters) of K models trained under one `plan`.

    Model k takes record i into a step with its group's sampling probability if included[k, i],
    never otherwise; the gradient is clipped to its group's norm, summed, noised with the plan's
    standard deviation and divided by the plan's expected batch size: nothing else depends on
    `included`, so the worlds of an audit differ in membership only.

    Args:
        model: the architecture.
        dataset: inputs (n, …) and targets (n,), the same for all models.
        plan: of one model through all stages; its learning-rate schedule, where it has one,
            multiplies the recipe's.
        groups: (n,) or (K, n), positions in the plan's groups.
        included: (K, n), who is a member of which model's data.
        recipe: how the noisy gradients are applied.
        seed, block: different pairs train independent models.
        people: where records are persons, whose each row of the dataset is.

    Raises:
        UnsupportedError: the plan averages the models of its stages.
    """
    if plan.combine == "average":
        raise UnsupportedError(
            f'plan.combine = "average" ({len(plan.stages)} stages, each with a model of its own): '
            "a shadow is one model; audit a plan that trains one through all stages"
        )
    streams = BlockStreams.from_seed(seed, block, dataset[0].device)
    flat = model.initial(included.shape[0], streams.start).requires_grad_(False)
    optimizer = recipe.start(flat)
    done = 0
    for stage in plan.stages:
        rates, clip = stage_rates(stage, groups, included, streams.sampling)
        steps = poisson.batches(rates, stage.steps, streams.sampling)
        for batch in steps:
            for entry in optimizer.param_groups:
                entry["lr"] = recipe.rate(done, plan.steps) * factor(plan, done)
            rows = rows_of(batch, people, streams.sampling)
            flat.grad = noisy_gradient(model, flat, dataset, rows, clip, stage, streams.noise)
            optimizer.step()
            done += 1
    return flat.detach()


def factor(plan: Plan, step: int) -> float:
    """Return by what the plan itself multiplies the learning rate at `step`."""
    return 1.0 if plan.learning_rate is None else plan.learning_rate.at(step)


def stage_rates(
    stage: Stage, groups: Integers, included: Mask, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return sampling probabilities and clip norms, (K, n) each; 0 probability outside a world."""
    joined = included
    if stage.participation is not None:
        joined = included & (generator.random(included.shape) < stage.participation[groups])
    rates = np.where(joined, stage.sampling_probability[groups], 0.0)
    return rates, np.broadcast_to(stage.clip_norm[groups], included.shape)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """One step's rows for K models.

    batch: the records that take part, (K, P), padded. rows: (K, R) positions in the data set.
    owner: (K, R) whose of the P each row is; None where the records are the rows.
    """

    batch: poisson.PaddedBatch
    rows: Integers
    owner: Integers | None = None


def rows_of(
    batch: poisson.PaddedBatch, people: Units | None, generator: np.random.Generator
) -> Rows:
    """Return the rows that the records of `batch` bring: for persons, by coins of each model's own.

    Rows are padded with row 0 of one who is padding.
    """
    if people is None:
        return Rows(batch, batch.records)
    ends = ((0, 0), (0, 1))  # the last is padding
    records, real = np.pad(batch.records, ends), np.pad(batch.real, ends)
    brought = [bring(people, records[k, real[k]], generator.bytes(32)) for k in range(len(records))]
    width = max(1, *(each.rows.size for each in brought))
    rows = np.zeros((len(records), width), dtype=np.int64)
    owner = np.full(rows.shape, records.shape[1] - 1)
    for k, each in enumerate(brought):
        rows[k, : each.rows.size], owner[k, : each.owner.size] = each.rows, each.owner
    return Rows(poisson.PaddedBatch(records, real), rows, owner)


def noisy_gradient(
    model: StackedModel,
    flat: Tensor,
    dataset: tuple[Tensor, Tensor],
    step: Rows,
    clip: Floats,
    stage: Stage,
    generator: torch.Generator,
) -> Tensor:
    """Return (K, parameters): (Σ clipped gradients + N(0, noise_stddev²)) / expected batch size."""
    inputs, targets = dataset
    device, batch = inputs.device, step.batch
    rows = torch.from_numpy(step.rows).to(device)
    bounds = np.where(batch.real, np.take_along_axis(clip, batch.records, axis=1), 0.0)
    clips = torch.from_numpy(bounds).to(device=device, dtype=inputs.dtype)
    owner = None if step.owner is None else torch.from_numpy(step.owner).to(device)
    clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clips, owner)
    noisy = add_noise(clipped, stage.noise_stddev, generator=generator)
    normalise(noisy, stage.expected_batch_size)
    return noisy[SUMS]


def confidences(model: StackedModel, flat: Tensor, inputs: Tensor, targets: Tensor) -> Floats:
    """Return (K, n): φ = log(p/(1−p)) of the true class, from logits without cancellation.

    Source: Carlini et al. 2022 (LiRA), §V.
    """
    found: list[npt.NDArray[np.float32]] = []
    width = max(1, int(2e6 / max(1, inputs[0].numel() * flat.shape[0])))
    for at in range(0, inputs.shape[0], width):
        part = inputs[at : at + width]
        logits = model.logits(flat, part.expand(flat.shape[0], *part.shape))
        found.append(logit_scaled(logits, targets[at : at + width].expand(flat.shape[0], -1)))
    return np.concatenate(found, axis=1).astype(np.float64)


def logit_scaled(logits: Tensor, targets: Tensor) -> npt.NDArray[np.float32]:
    """Return z_y − log Σ_{c≠y} e^{z_c} = log(p_y/(1−p_y)), over the last axis of `logits`."""
    own = logits.gather(-1, targets[..., None])
    others = logits.scatter(-1, targets[..., None], -torch.inf)
    result: npt.NDArray[np.float32] = (
        (own[..., 0] - torch.logsumexp(others, dim=-1)).detach().cpu().numpy()
    )
    return result
