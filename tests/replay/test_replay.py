"""Thirteen bugs, twelve of kinds that others' libraries had: each is seen when planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apiece.datasets.encode import encode
from apiece.filters.filter import Filter
from apiece.jobs.people import read_people
from apiece.jobs.table import read_job_table
from apiece.pate.teaching import ask
from apiece.queries.scan import ClampedColumn, contributions_sql
from apiece.queries.session import Session
from apiece.training.clipping.engine import _sum_clipped
from apiece.training.clipping.records import clip_factors
from apiece.training.loop import Loop
from planted import plant

from . import worlds
from .tape import Leak, replayed

pytestmark = pytest.mark.filterwarnings("ignore:.*records. noise that hides")
Make = Callable[[Path], worlds.World]
WORLDS: dict[str, Make] = {
    **{s: (lambda _, s=s: worlds.trained(s))
       for s in ("sample", "scale", "threshold", "rounds", "allocate")},
    "persons": lambda _: worlds.trained("sample", persons=True),
    "filter": lambda _: worlds.filtered(),
    "whole filter": lambda _: worlds.filtered(20, whole=True),
    "estimator": lambda _: worlds.fitted(),
    "votes": lambda _: worlds.taught(),
    "job": lambda folder: worlds.job(folder, "scale"),
    "job of persons": lambda folder: worlds.job(folder, "sample", person="who", rows_per_person=2),
    **{text: (lambda _, text=text: worlds.asked(text)) for text in worlds.QUESTIONS},
}  # fmt: skip


def check(monkeypatch: pytest.MonkeyPatch, world: worlds.World) -> list[float]:
    """Replay a world on all its neighbours; return how far the first mechanism's input moved."""
    most = []
    for there in world.there:
        out, moves = replayed(monkeypatch, world.run, world.here, there)
        world.check(out, moves)
        most.append(max(moves))
    return most


LONG = {"threshold", "rounds", "job of persons"}  # their like run with every test


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in WORLDS]
)
def test_what_comes_out_is_made_of_noisy_values_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = check(monkeypatch, WORLDS[name](tmp_path))
    assert max(moved) > 0, "the neighbours' difference reached no mechanism: nothing was checked"


# ------------------------------------- planted: thirteen bugs, twelve of seven libraries


def _source(target: Any, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: plant(monkeypatch, target, old, new)


def _unclamped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClampedColumn, "clamped_sql", property(lambda self: self.stored))
    monkeypatch.setattr(
        ClampedColumn, "scaled_sql",
        property(lambda self: f"(({self.stored} - {self.measure.middle}) / {self.measure.half})"),
    )  # fmt: skip


# library: kind of bug; what is planted here; the world that must see it
PLANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "Opacus: the divisor is how many took part": (
        _source(Loop._release, "draw.expected_batch_size", "float((clipped.norms > 0).sum() + 1)"),
        "sample",
    ),
    "Opacus: NaN is not clipped": (
        _source(
            _sum_clipped, "contributions = drop(contributions, norms)",
            "contributions = dict(contributions)",
        ), "sample",
    ),
    "Diffprivlib: classes are those that occur": (
        _source(
            read_job_table, "target = schema.target(label)",
            "target = Categorical(tuple(sorted(set(frame[label]))))",
        ),
        "job",
    ),
    "Diffprivlib: bounds are those that occur": (
        _source(
            encode, "scale(values, limits)",
            "scale(values, Numeric(float(np.nanmin(values)), float(np.nanmax(values))))",
        ),
        "estimator",
    ),
    "SmartNoise: the sum is of values that were not clipped": (
        _source(clip_factors, "return factors", "return torch.ones_like(norms); factors"), "sample",
    ),
    "SmartNoise: a query's values are not clamped": (_unclamped, "sum(x)"),
    "Synthcity: how many rows cannot be read is told": (
        _source(
            read_people, "private_doubts = table.list_private_doubts(encoded)",
            "public_doubts += table.list_private_doubts(encoded); private_doubts = []",
        ), "job",
    ),
    "Synthcity: noise of 0 for one setting": (
        _source(Loop._release, "draw.noise_stddev", "draw.noise_stddev * (draw.stage > 0)"),
        "scale",
    ),
    "Synthcity: gaps are filled by the mean of the rows": (
        _source(
            encode, "features[faulty] = np.nan",
            "features[faulty] = np.nanmean(features[~faulty], axis=0)",
        ),
        "job",
    ),
    "dpmm: groups are those that occur": (
        _source(
            Session._estimate_groups, "enumerate(np.array(noisy).reshape(shape))",
            "enumerate(np.array([r if g in sums else [np.inf] for g, r in enumerate(noisy)])"
            ".reshape(shape))",
        ),
        "count() by city",
    ),
    "dpmm: a person counts with all rows": (
        _source(contributions_sql, "nth <= {question.rows}", "nth <= 99"), "count()",
    ),
    "one budget is spent twice and more: what was spent is forgotten": (
        _source(Filter.admit, "limit[part], spent[part]", "limit[part], 0 * spent[part]"),
        "whole filter",
    ),
    "mbi: questions are chosen by the votes without noise": (
        _source(
            ask, "counts = count_votes(votes(block), weights, classes)",
            "counts = count_votes(votes(block), weights, classes); "
            "most = counts.max(axis=1, keepdims=True); "
            "counts = counts * (most % (.1 * weights.sum()) < .05 * weights.sum())",
        ),
        "votes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_bugs_of_other_libraries_are_seen_when_planted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, world = PLANTS[name]
    put(monkeypatch)
    with pytest.raises(Leak):
        check(monkeypatch, WORLDS[world](tmp_path))
