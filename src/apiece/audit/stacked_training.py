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
        # Who takes part in a step is data about people.
        return "PaddedBatch()"


def pad(models: Integers, records: Integers, count: int) -> PaddedBatch:
    """Return the pairs (model, record) as rows of equal length, padded with record 0."""
    # Sorted by model, a pair's column is its place among the pairs of its model.
    order = np.argsort(models, kind="stable")
    sorted_models = models[order]
    sizes = np.bincount(sorted_models, minlength=count)
    width = max(int(sizes.max(initial=0)), 1)
    starts = np.cumsum(sizes) - sizes
    columns = np.arange(sorted_models.size) - starts[sorted_models]
    rows = np.zeros((count, width), dtype=np.int64)
    rows[sorted_models, columns] = records[order]
    return PaddedBatch(rows, np.arange(width) < sizes[:, None])


def batches(rates: Floats, steps: int, generator: np.random.Generator) -> Iterator[PaddedBatch]:
    """Yield `steps` batches in which model k's record i takes part with probability rates[k, i]."""
    models, records = rates.shape
    flat_rates = rates.ravel()
    # A pair of a model and a record is model · records + record; pairs of one rate are drawn
    # together.
    distinct_rates = np.unique(flat_rates[flat_rates > 0])
    pairs_by_rate = [(float(rate), np.flatnonzero(flat_rates == rate)) for rate in distinct_rates]
    # So many steps at a time that about _DRAWN pairs are drawn.
    block = max(1, min(steps, _DRAWN // max(1, int(flat_rates.sum()))))
    for start in range(0, steps, block):
        size = min(block, steps - start)
        # An empty array of integers keeps the type where no pair has a rate above 0.
        step_parts = [np.empty(0, dtype=np.int64)]
        pair_parts = [np.empty(0, dtype=np.int64)]
        for rate, pairs in pairs_by_rate:
            # Positions in a table of (steps of the block, pairs of this rate), row by row.
            positions = draw_positions(size * pairs.size, rate, generator)
            step_parts.append(positions // pairs.size)
            pair_parts.append(pairs[positions % pairs.size])
        step = np.concatenate(step_parts)
        drawn = np.concatenate(pair_parts)
        # Batches lie one after the other once pairs are sorted by their step.
        ends = np.cumsum(np.bincount(step, minlength=size))[:-1]
        by_step = drawn[np.argsort(step, kind="stable")]
        for batch in np.split(by_step, ends):
            yield pad(batch // records, batch % records, models)


# Pairs of a model and a record that are drawn at a time.
_DRAWN = 200_000
# Numbers of the inputs of all models that `confidences` reads at a time.
_INPUT_NUMBERS = 2e6
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
        rate = self.learning_rate
        decay = self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD([flat], lr=rate, weight_decay=decay)
        return torch.optim.AdamW([flat], lr=rate, weight_decay=decay, fused=True)

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
        # Spawned children are independent streams; members apart, the same seed gives the same
        # models.
        sampling_seed, noise_seed, start_seed = np.random.SeedSequence((seed, block)).spawn(3)
        sampling = np.random.Generator(np.random.SFC64(sampling_seed))
        noise = _make_generator(noise_seed, device)
        start = _make_generator(start_seed, device)
        return cls(sampling, noise, start)


def _make_generator(seed: np.random.SeedSequence, device: torch.device | str) -> torch.Generator:
    """Return a generator of torch from 63 bits of a seed sequence: its seeds are signed."""
    generator = torch.Generator(device=device)
    generator.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> 1))
    return generator


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
    inputs, targets = dataset
    device = inputs.device
    streams = BlockStreams.from_seed(seed, block, device)
    # Gradients are made by `clipped_sum`; autograd keeps none.
    flat = model.initial(included.shape[0], streams.start).requires_grad_(False)
    optimizer = recipe.start(flat)
    step = 0
    for stage in plan.stages:
        rates, clip_norms = stage_rates(stage, groups, included, streams.sampling)
        for batch in batches(rates, stage.steps, streams.sampling):
            factor = 1.0 if plan.learning_rate is None else plan.learning_rate.at(step)
            for entry in optimizer.param_groups:
                entry["lr"] = recipe.rate(step, plan.steps) * factor
            units, unit_rows, row_owner = draw_rows(batch, people, streams.sampling)
            # Padding has a clip norm of 0: it adds nothing to a sum.
            # (K, P), each unit's own.
            bounds = np.take_along_axis(clip_norms, units.records, axis=1)
            bounds = np.where(units.real, bounds, 0.0)
            clips = torch.from_numpy(bounds).to(inputs)
            rows = torch.from_numpy(unit_rows).to(device)
            owner = None if row_owner is None else torch.from_numpy(row_owner).to(device)
            clipped = model.clipped_sum(flat, inputs[rows], targets[rows], clips, owner)
            noisy = noisy_mean(
                clipped, stage.noise_stddev, stage.expected_batch_size, generator=streams.noise
            )
            # All models' gradients are one tensor's, so that one optimizer steps all.
            flat.grad = noisy[SUMS]
            optimizer.step()
            step += 1
    return flat.detach()


def stage_rates(
    stage: Stage, groups: Integers, included: Mask, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return sampling probabilities and clip norms, (K, n) each; 0 probability outside a world."""
    if stage.times is not None:
        raise UnsupportedError(
            "plan: its records take part in fixed numbers of steps, and shadow models are trained "
            "on Poisson batches alone; audit a plan of Sample with the same budgets"
        )
    joined = included
    # Who takes part in a stage at all is decided once, before its first step.
    if stage.participation is not None:
        joined = included & (generator.random(included.shape) < stage.participation[groups])
    rates = np.where(joined, stage.sampling_probability[groups], 0.0)
    return rates, np.broadcast_to(stage.clip_norm[groups], included.shape)


def draw_rows(
    batch: PaddedBatch, people: Units | None, generator: np.random.Generator
) -> tuple[PaddedBatch, Integers, Integers | None]:
    """Return the units of a step, (K, P), their rows, (K, R), and each row's position in P.

    The rows of persons are drawn by coins of each model's own. Where records are the units, each
    is its own row, and the positions are None.
    """
    if people is None:
        return batch, batch.records, None
    # One more unit, which is padding: it owns the rows that are padding.
    one_column = ((0, 0), (0, 1))
    records = np.pad(batch.records, one_column)
    real = np.pad(batch.real, one_column)
    brought = []
    for model in range(len(records)):
        persons = records[model, real[model]]
        brought.append(choose_rows(people, persons, generator.bytes(32)))
    width = max(1, *(part.rows.size for part in brought))
    rows = np.zeros((len(records), width), dtype=np.int64)
    owner = np.full(rows.shape, records.shape[1] - 1)
    # Rows beyond a model's own belong to the last unit, which is padding.
    for model, part in enumerate(brought):
        rows[model, : part.rows.size] = part.rows
        owner[model, : part.owner.size] = part.owner
    return PaddedBatch(records, real), rows, owner


def confidences(model: StackedModel, flat: Tensor, inputs: Tensor, targets: Tensor) -> Floats:
    """Return (K, n): φ = log(p/(1−p)) of the true class (Carlini et al. 2022, LiRA, §V)."""
    models = flat.shape[0]
    # Fewer records at once, the more models there are.
    records = max(1, int(_INPUT_NUMBERS / max(1, inputs[0].numel() * models)))
    parts = []
    for part, logits in logits_in_parts(model, flat, inputs, records):
        parts.append(scale_logits(logits, targets[part].expand(models, -1)))
    return np.concatenate(parts, axis=1).astype(np.float64)


def scale_logits(logits: Tensor, targets: Tensor) -> npt.NDArray[np.float32]:
    """Return z_y − log Σ_{c≠y} e^{z_c} = log(p_y/(1−p_y)), over the last axis of `logits`."""
    true_class = logits.gather(-1, targets[..., None])
    # −∞ takes the true class out of the sum.
    other_classes = logits.scatter(-1, targets[..., None], -torch.inf)
    scaled = true_class[..., 0] - torch.logsumexp(other_classes, dim=-1)
    return np.asarray(scaled.detach().cpu().numpy())


def model_confidences(
    model: nn.Module,
    inputs: Tensor | AnyArray,
    targets: Tensor | AnyArray,
    *,
    batch_size: int = 1024,
) -> Floats:
    """Return φ = log(p/(1−p)) of the true class for each record, (n,)."""
    inputs = torch.as_tensor(inputs)
    targets = torch.as_tensor(targets)
    parts: list[npt.NDArray[np.float32]] = []
    with evaluating(model), torch.no_grad():
        for start in range(0, len(targets), batch_size):
            batch = slice(start, start + batch_size)
            batch_targets = targets[batch]
            try:
                logits = model(inputs[batch])
            except (RuntimeError, AssertionError, TypeError) as error:
                reason = str(error).strip().split("\n")[0]
                raise DataError(
                    f"model: does not take inputs of shape {tuple(inputs.shape)} and "
                    f"{inputs.dtype} ({reason})"
                ) from None
            _check_logits(logits, batch_targets)
            parts.append(scale_logits(logits, batch_targets.long()))
    return np.concatenate(parts).astype(np.float64)


def _check_logits(logits: Tensor, targets: Tensor) -> None:
    """Check that logits are (records, classes), and targets among the classes."""
    if logits.ndim != 2 or logits.shape[0] != len(targets) or logits.shape[1] < 2:
        raise DataError(
            f"model: logits of shape {tuple(logits.shape)} for {len(targets)} records; "
            "give (records, classes)"
        )
    if not bool(((targets >= 0) & (targets < logits.shape[1])).all()):
        raise DataError(f"targets: not all in 0 … {logits.shape[1] - 1}, the model's classes")


class _ExportedModel(nn.Module):
    """A program of torch.export, which has no training mode to be put in or out of."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule, whose mode torch would set.
        self.program = (program,)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.program[0](inputs)
        return logits


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
            is_program = any(name.endswith("archive_format") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a .pt2 file") from None
    if not is_program:
        raise DataError(f"{path}: not a program of torch.export; write one with torch.export.save")
    return _ExportedModel(torch.export.load(path).module())
