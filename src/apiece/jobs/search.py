"""Search: settings chosen by training a random number of times, under one promise for all runs.

What is private of a run is its noise, its coins and its score; of the search also how many runs
there were. Settings are drawn by public chances. A run's score is the number of records (of
persons, each with the share of their rows) that its model gets right, with Gaussian noise that the
plan accounts for; or, without noise, the same on rows that are public. The best model is returned,
and nothing else leaves this module but what `save` stores, for a search to be gone on with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from apiece import _check
from apiece._types import Floats, Mask
from apiece.errors import InputError, unknown
from apiece.mechanisms import Runs

if TYPE_CHECKING:
    from apiece.assignment import Strategy
    from apiece.budgets import Budgets
    from apiece.plan import BoundPlan
    from apiece.training.randomness import ChaCha20Stream, Streams

# Settings that a plan is made of.
PLANNED: Final = ("steps", "batch_size", "clip_norm")
# Settings that can be searched.
SETTINGS: Final = (*PLANNED, "learning_rate")
# Kinds of ranges.
_RANGES: Final = ("log_uniform", "uniform", "integers")
# Law of the number of runs → its parameter, as `Runs` takes it.
_LAWS: Final = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
# Combinations of the planned settings, at most: each takes a plan.
_MAX_PLANS: Final = 64
# Values at even distances in a range, at most.
_MAX_VALUES: Final = 10**4
# Standard deviation of the noise on a score by default: a number of people, or a share of them
# where that is more.
_SCORE_NOISE: Final = 20.0
_SCORE_NOISE_SHARE: Final = 0.002
# From one run's seed of an experiment to the next experiment's: far more runs than any search has.
_SEED_STRIDE: Final = 100_003
Settings = Mapping[str, Any]
Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers between two ends: even, or with `log` their logarithms."""

    low: float
    high: float
    log: bool

    def locate(self, share: float) -> float:
        """Return the number that a share of the range lies below."""
        if self.log:
            # Even in the logarithm: low (high / low)^share.
            return self.low * math.exp(share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)


def _draw_uniform(coins: ChaCha20Stream) -> float:
    return float(coins.uniform(1)[0])


def derive_run_seed(seed: int, run: int) -> int:
    """Return the seed of one run of a search, in an experiment."""
    return seed * _SEED_STRIDE + run


def _read_values(name: str, declared: object) -> tuple[Any, ...] | Range:
    """Return what a setting is drawn from: values, all equally likely, or a range."""
    if isinstance(declared, list | tuple) and declared:
        read = _value_reader(name)
        return tuple(read(name, value) for value in declared)
    kind = _find_range_kind(declared)
    if kind is None or not isinstance(declared, Mapping) or set(declared) - {kind, "count"}:
        raise InputError(
            f"search: {name} = {declared!r} must be a list of values, or a range as "
            "{ log_uniform = [0.01, 10] }, uniform or integers, and may say its count of values"
        )
    return _read_range(name, kind, declared)


def _value_reader(name: str) -> Callable[[str, object], Any]:
    """Return how a value of a setting is checked."""
    return _check.count if name == "steps" else _check.positive


def _find_range_kind(declared: object) -> str | None:
    """Return the kind of a declared range; None of what is no range."""
    if isinstance(declared, Mapping):
        for kind in _RANGES:
            if kind in declared:
                return kind
    return None


def _read_range(name: str, kind: str, declared: Mapping[str, Any]) -> tuple[Any, ...] | Range:
    """Return a range, or the values in it where their count is declared."""
    ends = declared[kind]
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise InputError(f"search: {name}: {kind} = {ends!r} must be two ends, as [0.01, 10]")
    is_whole = kind == "integers" or name == "steps"
    read_end = _check.count if is_whole else _check.positive
    low, high = (read_end(name, end) for end in ends)
    if not low < high:
        raise InputError(f"search: {name}: {kind} = {ends!r} must rise from its first end")
    if "count" not in declared and kind != "integers":
        if name in PLANNED:
            raise InputError(
                f"search: {name}: each value takes a plan; say how many, as in "
                f"{{ {kind} = [{low:g}, {high:g}], count = 4 }}"
            )
        return Range(low, high, kind == "log_uniform")
    count = _check.count("count", declared.get("count", high - low + 1), least=2)
    space = np.geomspace if kind == "log_uniform" else np.linspace
    # More values than that are refused as too many plans; until then they must not take memory.
    values = space(low, high, min(count, _MAX_VALUES))
    if not is_whole:
        return tuple(values.tolist())
    read = _value_reader(name)
    # Neighbours may be rounded to one whole number, which is drawn once then.
    whole_values = np.unique(values.round())
    return tuple(read(name, value) for value in whole_values.tolist())


def _read_law(declared: object) -> Runs:
    """Return a law of the number of runs, from its mean or a table of mean and law."""
    if isinstance(declared, Runs):
        return declared
    if not isinstance(declared, Mapping):
        return Runs(_check.positive("runs", declared))
    law = declared.get("law", "geometric")
    if not {"mean"} <= set(declared) <= {"mean", "law"} or law not in _LAWS:
        raise InputError(
            f"runs = {dict(declared)!r}: give their mean, or {{ mean = 40, law = "
            f'"geometric" }}; laws are {", ".join(_LAWS)}'
        )
    return Runs(_check.positive("runs", declared["mean"]), _LAWS[law])


@dataclass(frozen=True, slots=True)
class Search:
    """Settings to choose among, and how many runs are made on average.

    Each run draws one value of each setting. The number of runs is random, and secret; the released
    model is the best by a noisy score on the people trained on, or by a score on public rows.

    Attributes:
        space: Setting → its values, all equally likely, or a range as {"log_uniform": [0.01, 10]},
            "uniform" or "integers", and its "count" of values at even distances; of steps,
            batch_size, clip_norm, learning_rate.
        runs: The law of the number of runs; a number is the mean of the geometric law.
        score_noise: Standard deviation of the noise on the number of people whom a model gets
            right; None for 20 or, where that is more, two in a thousand of them.
        validation: Rows and labels (X, y) that are public and score the models, without noise and
            at no cost: they are not protected. None for the people trained on.

    Raises:
        InputError: For an unknown setting, no values, and values out of bounds.

    References:
        Papernot and Steinke 2022.

    Example:
        >>> from apiece.jobs import Search
        >>> search = Search({"learning_rate": {"log_uniform": [0.1, 2]}, "steps": [50, 200]}, 30)
        >>> search.runs.mean, search.values["steps"]
        (30.0, (50, 200))
    """

    space: Any
    runs: Any = 20.0
    score_noise: float | None = None
    validation: Any = None
    values: Mapping[str, tuple[Any, ...] | Range] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _read_law(self.runs))
        if self.score_noise is not None:
            _check.put(self, score_noise=_check.positive)
            if self.validation is not None:
                raise InputError("score_noise: a score on public rows has none; leave it out")
        if not isinstance(self.space, Mapping) or not self.space:
            raise InputError('search: give settings and their values, as {"steps": [50, 200]}')
        for name in self.space:
            if name not in SETTINGS:
                raise unknown("setting of a search", name, SETTINGS)
        # In the order of `SETTINGS`, whatever that of the space: draws follow it.
        values = {}
        for name in SETTINGS:
            if name in self.space:
                values[name] = _read_values(name, self.space[name])
        object.__setattr__(self, "values", values)
        # Any default will do for counting combinations.
        plans = len(self.kinds(dict.fromkeys(SETTINGS, 1.0)))
        if plans > _MAX_PLANS:
            raise InputError(
                f"search: {plans} combinations of steps, batch_size and clip_norm, at most "
                f"{_MAX_PLANS}; leave some out (learning_rate may have any number)"
            )

    def kinds(self, defaults: Settings) -> list[tuple[Any, ...]]:
        """Return every combination of steps, batch_size and clip_norm.

        Args:
            defaults: A value of each setting, for those that are not searched.
        """
        values: list[Any] = [self.values.get(name, (defaults[name],)) for name in PLANNED]
        # No combination twice, in the order of the values.
        return list(dict.fromkeys(itertools.product(*values)))

    def draw(self, uniform: Callable[[], float], defaults: Settings) -> dict[str, Any]:
        """Return the settings of a run, with those of `defaults` where nothing is searched.

        Args:
            uniform: Returns a number in [0, 1).
            defaults: A value of each setting.
        """
        drawn = dict(defaults)
        for name, values in self.values.items():
            share = uniform()
            if isinstance(values, Range):
                drawn[name] = values.locate(share)
            else:
                # share is below 1, so that the index is below the length.
                drawn[name] = values[int(share * len(values))]
        return drawn

    def admits(self, settings: Settings) -> bool:
        """Return whether a run may have had these settings.

        Args:
            settings: A value of each.
        """
        for name, values in self.values.items():
            value = settings[name]
            if isinstance(values, Range):
                is_admitted = values.low <= value <= values.high
            else:
                is_admitted = value in values
            if not is_admitted:
                return False
        return True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Best(Generic[Model]):
    """The best model so far: its noisy score, which is secret, and its settings."""

    score: float
    model: Model
    settings: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """The verified plans of a search, of one cost: one for each kind of run."""

    search: Search
    # A value of each setting, for those that are not searched.
    defaults: Settings
    # (steps, batch size, clip norm) → a plan.
    plans: Mapping[tuple[Any, ...], BoundPlan]
    # Standard deviation of the noise on a score, in people; None of a score on public rows.
    score_noise: float | None

    @classmethod
    def of(
        cls,
        search: Search,
        budgets: Budgets,
        strategy: Strategy | str,
        defaults: Settings,
        *,
        unit: str,
        notes: tuple[str, ...] = (),
    ) -> Candidates:
        """Return the plans by which each record's (ε, δ) holds for the best of all runs."""
        from apiece.assignment.tuned import assign_tuned

        score_noise = None
        if search.validation is None:
            default_noise = max(_SCORE_NOISE, _SCORE_NOISE_SHARE * len(budgets))
            score_noise = search.score_noise or default_noise
        combinations = search.kinds(defaults)
        settings = []
        for steps, batch_size, clip_norm in combinations:
            settings.append(
                {"steps": steps, "expected_batch_size": batch_size, "clip_norm": clip_norm}
            )
        # All plans have one cost, at which the best of all runs keeps each record's promise.
        assigned = assign_tuned(
            budgets, strategy, settings, runs=search.runs, score_noise=score_noise
        )
        plans = [replace(plan, unit=unit, notes=(*plan.notes, *notes)) for plan in assigned]
        return cls(search, defaults, dict(zip(combinations, plans, strict=True)), score_noise)

    @property
    def first(self) -> BoundPlan:
        """One of the plans: what is charged, since all of them have one cost."""
        return next(iter(self.plans.values()))

    def plan(self, settings: Settings) -> BoundPlan:
        """Return the plan of a run with these settings."""
        return self.plans[tuple(settings[name] for name in PLANNED)]

    def find_best(
        self,
        train: Callable[[BoundPlan, dict[str, Any], int], Model],
        score_records: Callable[[Model], Floats],
        streams: Streams,
        *,
        counted: Callable[[], Mask] | None = None,
        finished_runs: int = 0,
        best: Best[Model] | None = None,
        save: Callable[[int, Best[Model]], object] = lambda *_: None,
    ) -> Best[Model]:
        """Return the best model of a random number of runs, with the settings that it had.

        Args:
            train: Makes a model by a plan, settings and the number of the run.
            score_records: Says how far a model gets each record of the plan, or each public row,
                right, in [0, 1].
            streams: The same ones draw the same runs again.
            counted: Says which of the records may be scored on; None for all.
            finished_runs: How many runs were made already.
            best: The best of them.
            save: Is called after each run with the number of runs made and the best of them.
        """
        # The number of runs comes from stream 0 and run r from stream r + 1: a resumed search draws
        # the same number and the same runs.
        runs = self.search.runs.draw(partial(_draw_uniform, streams.participation(0)))
        for run in range(finished_runs, runs):
            # A run's coins are a stream of its own: they do not move with how often others drew.
            coins = streams.participation(run + 1)
            settings = self.search.draw(partial(_draw_uniform, coins), self.defaults)
            plan = self.plan(settings)
            model = train(plan, settings, run)
            # Each record's part is in [0, 1], whatever a model puts out: the noise covers 1.
            values = np.clip(np.nan_to_num(score_records(model)), 0.0, 1.0)
            score = float(values.sum())
            if self.score_noise is not None:
                # Who takes no part in the training is promised nothing for the score.
                is_scored = plan.stages[0].chances()[plan.group_index] > 0
                is_scored &= True if counted is None else counted()
                noise = self.score_noise * float(coins.normal(1)[0])
                score = float(values[is_scored].sum()) + noise
            # Of equal scores the earlier stays, whatever was interrupted.
            if best is None or score > best.score:
                best = Best(score, model, settings)
            save(run + 1, best)
        # There is at least one run.
        assert best is not None
        return best
