"""Shadow models in blocks: trained once each, resumable, on one process or many.

A block of models is one stacked computation with random streams of its own, so its result does
not depend on who trains it, when, or after how many interruptions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apiece import _check
from apiece._files import Kind, write
from apiece._identity import require_ids, require_rows
from apiece._types import AnyArray, Integers, Json, Mask
from apiece.assignment import Strategy
from apiece.assignment.front import make_plan
from apiece.audit import stacked_training
from apiece.audit.membership import PrivacyScores, privacy_scores
from apiece.audit.records import ShadowScores, positions, read_arrays, write_arrays
from apiece.audit.splits import biregular, one_plan
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets, Units
from apiece.errors import DataError, InputError
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp, StackedModel

Arrays = dict[str, AnyArray]
# Trains a block, by its number.
Work = Callable[[int], Arrays]
# Has blocks trained, and yields each with its number as it is done.
Mapper = Callable[[Work, Iterable[int]], Iterable[tuple[int, Arrays]]]


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """The records that shadow models are trained on and tested with, held in memory once.

    Attributes:
        ids: (n,), of records or of persons, each once.
        inputs: (n, …) floats, finite; (rows, …) with `people`.
        targets: (n,) classes; (rows,) with `people`.
        groups: (n,) positions in the plan's groups.
        people: Where records are persons, whose each row is.

    Raises:
        DataError: Where lengths differ, an id is there twice, or an input is not finite.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from apiece.audit import Pool
        >>> pool = Pool(np.arange(4), torch.ones(4, 3), torch.zeros(4).long(), np.zeros(4, int))
        >>> len(pool)
        4
    """

    ids: AnyArray
    inputs: Tensor
    targets: Tensor
    groups: Integers
    people: Units | None = None

    def __post_init__(self) -> None:
        # Ids and groups are one a unit, inputs and targets one a row; without people these agree.
        ids = _check.record_ids("ids", self.ids)
        require_ids("ids", self.ids, groups=self.groups)
        object.__setattr__(self, "groups", np.asarray(self.groups))
        inputs = self.inputs.shape[0]
        targets = self.targets.shape[0]
        groups = self.groups.size
        units = ids.size if self.people is None else len(self.people)
        rows = ids.size if self.people is None else self.people.rows.size
        if (ids.size, inputs, targets, groups) != (units, rows, rows, units):
            raise DataError(
                f"pool: {ids.size} ids, {inputs} inputs, {targets} targets, {groups} "
                "groups; give one of each a record, or ids and groups a person and the rest a row"
            )
        finite_rows = torch.isfinite(self.inputs.reshape(rows, -1)).all(dim=1)
        bad = ~finite_rows
        if bool(bad.any()):
            row = int(torch.nonzero(bad)[0, 0])
            label = f"record {ids[row]!s}" if self.people is None else f"row {row}"
            raise DataError(f"inputs of {label}: not finite; mend or leave it out")
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return int(self.ids.size)


@dataclass(frozen=True, eq=False, repr=False)
class ShadowJob:
    """The data, plan, model, split and seed that together decide K shadow models.

    Attributes:
        pool: The n records.
        plan: How each model is trained.
        model: What is trained, K of them at once.
        included: (K, n), whether a model's training set has a record.
        recipe: How a model is updated.
        seed: Of all randomness: members apart, the same seed gives the same models.
        block: How many models are trained as one computation.
        groups: (K, n) positions in the plan's groups, where budgets differ between models.

    Raises:
        DataError: Where `included` has another shape.
        InputError: For a position that the plan has no group for, or a plan for persons with a pool
            of rows.

    Example:
        >>> import numpy as np
        >>> from apiece import Budgets
        >>> from apiece.audit.shadows import half_plan, table_job
        >>> budgets = Budgets([1.0] * 4 + [3.0] * 4, 1e-5)
        >>> plan = half_plan(budgets, "scale", steps=2, expected_batch_size=2.0, clip_norm=1.0)
        >>> x, y = np.ones((8, 3), np.float32), np.arange(8) % 2
        >>> table_job(x, y, budgets, plan, models=32, seed=0).blocks
        2
    """

    pool: Pool
    plan: Plan
    model: StackedModel
    included: Mask
    recipe: UpdateRule
    seed: int
    block: int = 64
    groups: Integers | None = None

    def __post_init__(self) -> None:
        require_ids("pool.ids", self.pool.ids, axis=1, included=self.included, groups=self.groups)
        if self.groups is not None:
            object.__setattr__(self, "groups", np.asarray(self.groups))
        object.__setattr__(self, "included", _check.truth_values("included", self.included))
        if self.included.ndim != 2 or self.included.shape[1] != len(self.pool):
            raise DataError(
                f"included: shape {self.included.shape} for {len(self.pool)} records; "
                "give (models, records)"
            )
        _check.count("block", self.block)
        if self.plan.unit == "person" and self.pool.people is None:
            raise InputError(
                "pool.people: the plan is for persons (plan.unit); say whose each row is, or rows "
                "would be audited in their place"
            )
        # A position below 0 would count from the last group.
        lowest = int(self.budget_groups.min())
        highest = int(self.budget_groups.max())
        groups = len(self.plan.budget_groups)
        if not 0 <= lowest <= highest < groups:
            raise InputError(f"groups: position {highest} in a plan of {groups} groups")

    @property
    def budget_groups(self) -> Integers:
        """The positions in the plan's groups, (n,) or (K, n)."""
        return self.pool.groups if self.groups is None else self.groups

    @property
    def blocks(self) -> int:
        """How many blocks."""
        models = int(self.included.shape[0])
        # Rounded up: the last block may be smaller.
        return -(-models // self.block)

    def rows(self, block: int) -> slice:
        """Return the models of a block.

        Args:
            block: In 0 … blocks − 1.
        """
        return slice(block * self.block, min((block + 1) * self.block, self.included.shape[0]))

    def digest(self) -> str:
        """Return a SHA-256 of everything that decides the result."""
        # `included` and groups are in it as arrays: any other split is another job.
        settings = {
            "plan": self.plan.hash(),
            "recipe": asdict(self.recipe),
            "seed": self.seed,
            "block": self.block,
            "model": repr(self.model),
        }
        arrays: list[AnyArray] = [
            self.pool.inputs.cpu().numpy(),
            self.pool.targets.cpu().numpy(),
            np.packbits(self.included),
            self.budget_groups,
        ]
        people = self.pool.people
        if people is not None:
            # 0 stands for no limit on the rows of a person.
            arrays += [people.rows, people.starts, np.array([people.most or 0])]
        state = hashlib.sha256()
        state.update(json.dumps(settings, sort_keys=True).encode())
        for array in arrays:
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def train_block(self, block: int) -> Arrays:
        """Return the "confidences" of a block's models, trained here: (models of the block, n).

        Args:
            block: In 0 … blocks − 1.
        """
        models = self.rows(block)
        pool = self.pool
        groups = self.budget_groups if self.groups is None else self.groups[models]
        flat = stacked_training.train(
            self.model,
            (pool.inputs, pool.targets),
            self.plan,
            groups=groups,
            included=self.included[models],
            recipe=self.recipe,
            seed=self.seed,
            block=block,
            people=pool.people,
        )
        confidences = stacked_training.confidences(self.model, flat, pool.inputs, pool.targets)
        if pool.people is not None:
            confidences = pool.people.mean(confidences)
        return {"confidences": confidences.astype(np.float32)}


def serially(work: Work, blocks: Iterable[int]) -> Iterator[tuple[int, Arrays]]:
    """Yield each block, trained here, one after the other: the default mapper."""
    for block in blocks:
        yield block, work(block)


def processes(count: int) -> Mapper:
    """Return a mapper over processes of this machine, each with one thread.

    Interrupted, it ends what runs and begins nothing more.

    Args:
        count: How many processes, at least 1.

    Raises:
        InputError: For another count.

    Example:
        >>> from apiece.audit.shadows import processes
        >>> mapper = processes(2)  # for train_shadows(job, mapper=mapper)
    """
    count = _check.count("processes", count)

    def mapper(work: Work, blocks: Iterable[int]) -> Iterator[tuple[int, Arrays]]:
        from multiprocessing import get_context

        # Spawned, since threads of torch do not survive a fork.
        with ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=_begin_process
        ) as pool:
            running = {pool.submit(work, block): block for block in blocks}
            try:
                for future in as_completed(running):
                    yield running[future], future.result()
            finally:
                # After an interruption no further block is begun: it would be lost.
                pool.shutdown(cancel_futures=True)

    return mapper


def _begin_process() -> None:
    """Use one thread, and end with the process that began this one, however that ends."""

    # A parent that is killed cannot tell its workers.
    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    torch.set_num_threads(1)
    Thread(target=end_with_parent, daemon=True).start()


def train_shadows(
    job: ShadowJob,
    *,
    folder: Path | None = None,
    mapper: Mapper = serially,
    progress: Callable[[int, int], None] | None = None,
) -> ShadowScores:
    """Return the confidences of all models of `job` on all records, or persons, of its pool.

    A person's confidence is the mean over all of their rows.

    Args:
        job: What is trained.
        folder: Where each finished block is written; started again, only what is missing is
            trained, and the result is the same.
        mapper: Who trains the blocks: `serially`, `processes(n)`, or `apiece.adapters.cluster()`.
        progress: Called with (blocks done, blocks in all).

    Raises:
        DataError: Where the folder holds another job's blocks or cannot be written to.

    Example:
        >>> import numpy as np
        >>> from apiece import Budgets
        >>> from apiece.audit import train_shadows
        >>> from apiece.audit.shadows import half_plan, table_job
        >>> budgets = Budgets([1.0] * 4 + [3.0] * 4, 1e-5)
        >>> plan = half_plan(budgets, "scale", steps=2, expected_batch_size=2.0, clip_norm=1.0)
        >>> x, y = np.ones((8, 3), np.float32), np.arange(8) % 2
        >>> train_shadows(table_job(x, y, budgets, plan, models=4, seed=0)).confidences.shape
        (4, 8)
    """
    missing = list(range(job.blocks)) if folder is None else claim(job, folder)
    finished = job.blocks - len(missing)
    # The arrays of each block, where there is no folder.
    in_memory: dict[int, Arrays] = {}
    for block, arrays in mapper(job.train_block, missing):
        # Written as soon as it is done: an interruption loses the blocks in work alone.
        if folder is None:
            in_memory[block] = arrays
        else:
            write_arrays(_block_path(folder, block), arrays)
        finished += 1
        if progress is not None:
            progress(finished, job.blocks)
    # In the order of models, whoever was done first.
    parts = []
    for block in range(job.blocks):
        arrays = in_memory[block] if folder is None else read_arrays(_block_path(folder, block))
        parts.append(arrays["confidences"])
    confidences = np.concatenate(parts).astype(np.float64)
    groups = job.plan.budget_groups.name[job.pool.groups]
    return ShadowScores(job.pool.ids, groups, job.included, confidences)


def claim(job: ShadowJob, folder: Path) -> list[int]:
    """Return the blocks that a folder lacks; an empty folder becomes this job's."""
    path = folder / "job.json"
    models = int(job.included.shape[0])
    manifest = {"digest": job.digest(), "models": models, "blocks": job.blocks}
    if path.exists():
        try:
            content = json.loads(path.read_text())
        # A file that cannot be read is not this job's.
        except (OSError, ValueError):
            content = None
        stored: Json = content if isinstance(content, dict) else {}
        if stored.get("digest") != manifest["digest"]:
            raise DataError(
                f"{folder}: holds shadow models of another job ({stored.get('models', '?')} "
                f"models, this one has {models}; or data, plan, split, recipe or seed differ); "
                "repeat the command that began it, or give another folder"
            )
    else:
        write(path, json.dumps(manifest), Kind("a job", (".json",)))
    # A block's file is complete where it exists at all: it is put in place as a whole.
    return [block for block in range(job.blocks) if not _block_path(folder, block).exists()]


def _block_path(folder: Path, block: int) -> Path:
    return folder / f"block-{block:06d}.npz"


# Units of the hidden layers of a table's models (Kaiser et al. 2026).
HIDDEN = (128, 64)


def half_plan(
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
) -> Plan:
    """Return the one plan for all shadow models, each trained on half of every budget group."""
    # Its groups have half of the records, the odd one more, whoever is in which model. What it
    # promises holds for every record of the group, whichever model it is in.
    groups = budgets.groups
    # The larger half: with a record more a group is promised no less than it gets.
    counts = (groups.records + 1) // 2
    half = Budgets(
        np.repeat(groups.epsilon, counts),
        np.repeat(groups.delta, counts),
        excess=None if groups.excess is None else np.repeat(groups.excess, counts),
        labels=np.repeat(groups.name, counts),
    )
    return make_plan(
        half, strategy, steps=steps, expected_batch_size=expected_batch_size, clip_norm=clip_norm
    )


def table_job(
    features: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
    budgets: Budgets,
    plan: Plan,
    *,
    models: int,
    seed: int,
    recipe: UpdateRule | None = None,
    people: AnyArray | None = None,
    rows_per_person: int | None = None,
) -> ShadowJob:
    """Return the job of `models` MLPs (features, 128, 64, classes) on halves of a table.

    people: (rows,) the id of each row's person, where the units are persons.
    """
    if not len(features) == len(targets) == len(budgets if people is None else people):
        raise DataError(
            f"table: {len(features)} rows of features, {len(targets)} labels, {len(budgets)} "
            "budgets; give one of each a record, or a person's id with each row"
        )
    require_rows("features", features, targets=targets, people=people)
    units = None
    if people is not None:
        units = replace(Units.of(people, budgets.ids), most=rows_per_person)
    pool = Pool(
        budgets.ids,
        torch.from_numpy(features),
        torch.from_numpy(targets),
        budgets.group_index,
        units,
    )
    # A stream apart from those of the blocks.
    generator = np.random.default_rng((seed, 1))
    included = biregular(models, budgets.group_index, generator=generator)
    classes = int(targets.max()) + 1
    model = StackedMlp((features.shape[1], *HIDDEN, classes))
    return ShadowJob(pool, plan, model, included, recipe or UpdateRule(), seed=seed, block=16)


def target_job(
    pool: Pool,
    plan: Plan | Sequence[Plan],
    targets: npt.ArrayLike,
    *,
    group: int,
    models: int,
    model: StackedModel,
    recipe: UpdateRule,
    seed: int,
    block: int = 16,
) -> ShadowJob:
    """Return the shadow models of each target: `models` a target, half with it, half without.

    All other records are in all models. In its own models a target is in the plan's `group`, and
    the plan must have been made for those counts. plan: one, or one a world; these must be equal.
    The models of target t are t·models … (t+1)·models − 1.
    """
    shared = one_plan(*([plan] if isinstance(plan, Plan) else plan))
    target_positions = positions(pool.ids, np.asarray(targets))
    models = _check.count("models", models, least=2)
    count = target_positions.size
    # (targets, models, records).
    included = np.ones((count, models, len(pool)), dtype=bool)
    # Every second model lacks its target.
    included[np.arange(count), 1::2, target_positions] = False
    # (targets·models, records): in its own models alone a target is in the plan's group.
    groups = np.repeat(pool.groups[None], count * models, axis=0)
    groups[np.arange(len(groups)), np.repeat(target_positions, models)] = group
    expected = shared.budget_groups.records
    # A target's first model has it: the plan must have been made for the counts of that one.
    for target, position in enumerate(target_positions):
        counts = np.bincount(groups[target * models], minlength=expected.size)
        if not np.array_equal(counts, expected):
            raise InputError(
                f"plan: made for {expected.tolist()} records a group, but with target "
                f"{pool.ids[position]!s} there are {counts.tolist()}; make it with the target in it"
            )
    rows = included.reshape(-1, len(pool))
    return ShadowJob(pool, shared, model, rows, recipe, seed=seed, block=block, groups=groups)


def target_scores(scores: ShadowScores, targets: npt.ArrayLike, *, models: int) -> PrivacyScores:
    """Return each target's privacy score from the models that `target_job` made for it."""
    ids = np.asarray(targets)
    columns = positions(scores.ids, ids)
    count = columns.size
    if scores.models != count * models:
        raise DataError(f"scores: {scores.models} models for {count} targets of {models} each")
    target_score = np.empty(count)
    for target, column in enumerate(columns):
        rows = slice(target * models, (target + 1) * models)
        inside = int(scores.included[rows, column].sum())
        if inside != (models + 1) // 2:
            raise DataError(
                f"target {ids[target]!s}: in {inside} of its {models} models; must be in half"
            )
        own_models = scores.of(rows, np.array([column]))
        target_score[target] = privacy_scores(own_models).score[0]
    return PrivacyScores(ids, np.full(ids.shape, "target"), target_score, None, None)
