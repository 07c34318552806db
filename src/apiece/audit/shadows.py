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
Work = Callable[[int], Arrays]
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
        ids = _check.record_ids("ids", self.ids)
        require_ids("ids", self.ids, groups=self.groups)
        object.__setattr__(self, "groups", np.asarray(self.groups))
        counts = ids.size, self.inputs.shape[0], self.targets.shape[0], self.groups.size
        persons = ids.size if self.people is None else len(self.people)
        rows = ids.size if self.people is None else self.people.rows.size
        if counts != (persons, rows, rows, persons):
            raise DataError(
                f"pool: {counts[0]} ids, {counts[1]} inputs, {counts[2]} targets, {counts[3]} "
                "groups; give one of each a record, or ids and groups a person and the rest a row"
            )
        bad = ~torch.isfinite(self.inputs.reshape(rows, -1)).all(dim=1)
        if bool(bad.any()):
            first = int(torch.nonzero(bad)[0, 0])
            whose = f"record {ids[first]!s}" if self.people is None else f"row {first}"
            raise DataError(f"inputs of {whose}: not finite; mend or leave it out")
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return int(self.ids.size)


@dataclass(frozen=True, eq=False, repr=False)
class ShadowJob:
    """All that decides K shadow models.

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
        highest = int(self.budget_groups.max())
        if not 0 <= int(self.budget_groups.min()) <= highest < len(self.plan.budget_groups):
            raise InputError(
                f"groups: position {highest} in a plan of {len(self.plan.budget_groups)} groups"
            )

    @property
    def budget_groups(self) -> Integers:
        """The positions in the plan's groups, (n,) or (K, n)."""
        return self.pool.groups if self.groups is None else self.groups

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return -(-int(self.included.shape[0]) // self.block)

    def rows(self, block: int) -> slice:
        """Return the models of a block.

        Args:
            block: In 0 … blocks − 1.
        """
        return slice(block * self.block, min((block + 1) * self.block, self.included.shape[0]))

    def digest(self) -> str:
        """Return a SHA-256 of everything that decides the result."""
        state, people = hashlib.sha256(), self.pool.people
        public = {"plan": self.plan.hash(), "recipe": asdict(self.recipe), "seed": self.seed}
        public |= {"block": self.block, "model": repr(self.model)}
        state.update(json.dumps(public, sort_keys=True).encode())
        for array in (
            self.pool.inputs.cpu().numpy(),
            self.pool.targets.cpu().numpy(),
            np.packbits(self.included),
            self.budget_groups,
            *(() if people is None else (people.rows, people.starts, np.array([people.most or 0]))),
        ):
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def train_block(self, block: int) -> Arrays:
        """Return the "confidences" of a block's models, trained here: (models of the block, n).

        Args:
            block: In 0 … blocks − 1.
        """
        rows, pool = self.rows(block), self.pool
        groups = self.budget_groups if self.groups is None else self.groups[rows]
        flat = stacked_training.train(
            self.model,
            (pool.inputs, pool.targets),
            self.plan,
            groups=groups,
            included=self.included[rows],
            recipe=self.recipe,
            seed=self.seed,
            block=block,
            people=pool.people,
        )
        phi = stacked_training.confidences(self.model, flat, pool.inputs, pool.targets)
        if pool.people is not None:
            phi = pool.people.mean(phi)
        return {"confidences": phi.astype(np.float32)}


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

        with ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=_begin_process
        ) as pool:
            running = {pool.submit(work, block): block for block in blocks}
            try:
                for done in as_completed(running):
                    yield running[done], done.result()
            finally:  # interrupted: what waits is not begun, it would be lost
                pool.shutdown(cancel_futures=True)

    return mapper


def _begin_process() -> None:
    """Use one thread, and end with the process that began this one, however that ends."""

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
    todo = list(range(job.blocks)) if folder is None else claim(job, folder)
    done, held = job.blocks - len(todo), {}
    for at, (block, arrays) in enumerate(mapper(job.train_block, todo), start=done + 1):
        if folder is None:
            held[block] = arrays
        else:
            write_arrays(_file(folder, block), arrays)
        if progress is not None:
            progress(at, job.blocks)
    parts = [
        held[block] if folder is None else read_arrays(_file(folder, block))
        for block in range(job.blocks)
    ]
    confidences = np.concatenate([part["confidences"] for part in parts]).astype(np.float64)
    groups = job.plan.budget_groups.name[job.pool.groups]
    return ShadowScores(job.pool.ids, groups, job.included, confidences)


def claim(job: ShadowJob, folder: Path) -> list[int]:
    """Return the blocks that a folder lacks; an empty folder becomes this job's."""
    manifest, models = folder / "job.json", int(job.included.shape[0])
    own = {"digest": job.digest(), "models": models, "blocks": job.blocks}
    if manifest.exists():
        try:
            content = json.loads(manifest.read_text())
        except (OSError, ValueError):
            content = None
        known: Json = content if isinstance(content, dict) else {}
        if known.get("digest") != own["digest"]:
            raise DataError(
                f"{folder}: holds shadow models of another job ({known.get('models', '?')} models, "
                f"this one has {models}; or data, plan, split, recipe or seed differ); repeat the "
                "command that began it, or give another folder"
            )
    else:
        write(manifest, json.dumps(own), Kind("a job", (".json",)))
    return [block for block in range(job.blocks) if not _file(folder, block).exists()]


def _file(folder: Path, block: int) -> Path:
    return folder / f"block-{block:06d}.npz"


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
    count = (groups.records + 1) // 2
    epsilon, delta, name = (
        np.repeat(column, count) for column in (groups.epsilon, groups.delta, groups.name)
    )
    excess = None if groups.excess is None else np.repeat(groups.excess, count)
    half = Budgets(epsilon, delta, excess=excess, labels=name)
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
    """Return the job of `models` MLPs (features, 128, 64, classes) on halves, of persons if so."""
    if not len(features) == len(targets) == len(budgets if people is None else people):
        raise DataError(
            f"table: {len(features)} rows of features, {len(targets)} labels, {len(budgets)} "
            "budgets; give one of each a record, or a person's id with each row"
        )
    require_rows("features", features, targets=targets, people=people)
    own = None if people is None else Units.of(people, budgets.ids)
    if own is not None:
        own = replace(own, most=rows_per_person)
    pool = Pool(
        budgets.ids, torch.from_numpy(features), torch.from_numpy(targets), budgets.group_index, own
    )
    generator = np.random.default_rng((seed, 1))
    included = biregular(models, budgets.group_index, generator=generator)
    model = StackedMlp((features.shape[1], *HIDDEN, int(targets.max()) + 1))
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
    """Return the shadow models of each target: `models` a target, half with it, half without."""
    # Everyone else is in all of them. For its own models a target is moved to the plan's `group`;
    # the plan must have been made for just those counts. plan: one, or one a world, which must be
    # the same. The rows of target t are t·models … (t+1)·models − 1.
    shared = one_plan(*([plan] if isinstance(plan, Plan) else plan))
    where = positions(pool.ids, np.asarray(targets))
    models = _check.count("models", models, least=2)
    included = np.ones((where.size, models, len(pool)), dtype=bool)
    included[np.arange(where.size), 1::2, where] = False
    groups = np.repeat(pool.groups[None], where.size * models, axis=0)
    groups[np.arange(len(groups)), np.repeat(where, models)] = group
    expected = shared.budget_groups.records
    for t in range(where.size):
        counts = np.bincount(groups[t * models], minlength=expected.size)
        if not np.array_equal(counts, expected):
            raise InputError(
                f"plan: made for {expected.tolist()} records a group, but with target "
                f"{pool.ids[where[t]]!s} there are {counts.tolist()}; make it with the target in it"
            )
    rows = included.reshape(-1, len(pool))
    return ShadowJob(pool, shared, model, rows, recipe, seed=seed, block=block, groups=groups)


def target_scores(scores: ShadowScores, targets: npt.ArrayLike, *, models: int) -> PrivacyScores:
    """Return each target's privacy score from the models that `target_job` made for it."""
    wanted = np.asarray(targets)
    where = positions(scores.ids, wanted)
    if scores.models != where.size * models:
        raise DataError(f"scores: {scores.models} models for {where.size} targets of {models} each")
    targets_scores = np.empty(where.size)
    for t, column in enumerate(where):
        rows = slice(t * models, (t + 1) * models)
        inside = int(scores.included[rows, column].sum())
        if inside != (models + 1) // 2:
            raise DataError(
                f"target {wanted[t]!s}: in {inside} of its {models} models; must be in half"
            )
        targets_scores[t] = privacy_scores(scores.of(rows, np.array([column]))).score[0]
    return PrivacyScores(wanted, np.full(wanted.shape, "target"), targets_scores, None, None)
