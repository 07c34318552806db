"""Search: settings chosen by training a random number of times, under one promise for all runs.

What is private of a run is its noise, its coins and its score; of the search also how many runs
there were. Settings are drawn by public chances. A run's score is the number of records (of
persons, each with the share of their rows) that its model gets right, with Gaussian noise that the
plan accounts for; or, without noise, the same on rows that are public. The best model is returned,
and nothing else leaves this module but what `keep` is told, for a search to be gone on with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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

PLANNED = ("steps", "batch_size", "clip_norm")  # settings that a plan is made of
SETTINGS = (*PLANNED, "learning_rate")
RANGES = ("log_uniform", "uniform", "integers")
LAWS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
MOST = 64  # values of steps, batch size and clip norm together: each takes a plan
Settings = Mapping[str, Any]
Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers between two ends: even, or with `log` their logarithms."""

    low: float
    high: float
    log: bool

    def at(self, u: float) -> float:
        """Return the number that a share `u` of the range lies below."""
        if self.log:
            return self.low * math.exp(u * math.log(self.high / self.low))
        return self.low + u * (self.high - self.low)


def _uniform(coins: ChaCha20Stream) -> float:
    return float(coins.uniform(1)[0])


def seed_of_run(seed: int, run: int) -> int:
    """Return the seed of a run of a search, in an experiment."""
    return seed * 100_003 + run


def _values(name: str, given: object) -> tuple[Any, ...] | Range:
    """Return what a setting is drawn from: values, all equally likely, or a range."""
    read = _check.count if name == "steps" else _check.positive
    if isinstance(given, list | tuple) and given:
        return tuple(read(name, value) for value in given)
    kind = next((kind for kind in RANGES if isinstance(given, Mapping) and kind in given), None)
    if kind is None or not isinstance(given, Mapping) or set(given) - {kind, "count"}:
        raise InputError(
            f"search: {name} = {given!r} must be a list of values, or a range as "
            "{ log_uniform = [0.01, 10] }, uniform or integers, and may say its count of values"
        )
    ends = given[kind]
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise InputError(f"search: {name}: {kind} = {ends!r} must be two ends, as [0.01, 10]")
    whole = kind == "integers" or name == "steps"
    low, high = ((_check.count if whole else _check.positive)(name, end) for end in ends)
    if not low < high:
        raise InputError(f"search: {name}: {kind} = {ends!r} must rise from its first end")
    if "count" not in given and kind != "integers":
        if name in PLANNED:
            raise InputError(
                f"search: {name}: each value takes a plan; say how many, as in "
                f"{{ {kind} = [{low:g}, {high:g}], count = 4 }}"
            )
        return Range(low, high, kind == "log_uniform")
    many = _check.count("count", given.get("count", high - low + 1), least=2)
    even = (np.geomspace if kind == "log_uniform" else np.linspace)(low, high, min(many, 10**4))
    if whole:
        return tuple(read(name, value) for value in np.unique(even.round()).tolist())
    return tuple(even.tolist())


def _law(given: object) -> Runs:
    """Return a law of the number of runs, from its mean or a table of mean and law."""
    if isinstance(given, Runs):
        return given
    if not isinstance(given, Mapping):
        return Runs(_check.positive("runs", given))
    law = given.get("law", "geometric")
    if not {"mean"} <= set(given) <= {"mean", "law"} or law not in LAWS:
        raise InputError(
            f"runs = {dict(given)!r}: give their mean, or {{ mean = 40, law = "
            f'"geometric" }}; laws are {", ".join(LAWS)}'
        )
    return Runs(_check.positive("runs", given["mean"]), LAWS[law])


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
        object.__setattr__(self, "runs", _law(self.runs))
        if self.score_noise is not None:
            _check.put(self, score_noise=_check.positive)
            if self.validation is not None:
                raise InputError("score_noise: a score on public rows has none; leave it out")
        if not isinstance(self.space, Mapping) or not self.space:
            raise InputError('search: give settings and their values, as {"steps": [50, 200]}')
        for name in self.space:
            if name not in SETTINGS:
                raise unknown("setting of a search", name, SETTINGS)
        values = {name: _values(name, self.space[name]) for name in SETTINGS if name in self.space}
        object.__setattr__(self, "values", values)
        plans = len(self.kinds(dict.fromkeys(SETTINGS, 1.0)))
        if plans > MOST:
            raise InputError(
                f"search: {plans} combinations of steps, batch_size and clip_norm, at most {MOST}; "
                "leave some out (learning_rate may have any number)"
            )

    def kinds(self, own: Settings) -> list[tuple[Any, ...]]:
        """Return every combination of steps, batch_size and clip_norm.

        Args:
            own: A value of each setting, for those that are not searched.
        """
        each = (self.values.get(name, (own[name],)) for name in PLANNED)
        return list(dict.fromkeys(itertools.product(*each)))  # type: ignore[arg-type]

    def draw(self, uniform: Callable[[], float], own: Settings) -> dict[str, Any]:
        """Return the settings of a run, with those of `own` where nothing is searched.

        Args:
            uniform: Returns a number in [0, 1).
            own: A value of each setting.
        """
        drawn = dict(own)
        for name, among in self.values.items():
            u = uniform()
            drawn[name] = among.at(u) if isinstance(among, Range) else among[int(u * len(among))]
        return drawn

    def admits(self, settings: Settings) -> bool:
        """Return whether a run may have had these settings.

        Args:
            settings: A value of each.
        """
        return all(
            among.low <= settings[name] <= among.high
            if isinstance(among, Range)
            else settings[name] in among
            for name, among in self.values.items()
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Best(Generic[Model]):
    """The best model so far: its noisy score, which is secret, and its settings."""

    score: float
    model: Model
    settings: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """The verified plans of a search, of one cost: one for each kind of run.

    own: settings that are not searched. plans: (steps, batch size, clip norm) → a plan.
    """

    search: Search
    own: Settings
    plans: Mapping[tuple[Any, ...], BoundPlan]
    score_noise: float | None

    @classmethod
    def of(
        cls,
        search: Search,
        budgets: Budgets,
        strategy: Strategy | str,
        own: Settings,
        *,
        unit: str,
        notes: tuple[str, ...] = (),
    ) -> Candidates:
        """Return the plans by which each record's (ε, δ) holds for the best of all runs."""
        from apiece.assignment import assign_tuned

        noise = search.score_noise or max(20.0, 0.002 * len(budgets))
        scored = None if search.validation is not None else noise
        kinds = search.kinds(own)
        settings = [
            {"steps": steps, "expected_batch_size": batch, "clip_norm": clip}
            for steps, batch, clip in kinds
        ]
        made = assign_tuned(budgets, strategy, settings, runs=search.runs, score_noise=scored)
        plans = [replace(plan, unit=unit, notes=(*plan.notes, *notes)) for plan in made]
        return cls(search, own, dict(zip(kinds, plans, strict=True)), scored)

    @property
    def first(self) -> BoundPlan:
        """One of the plans: what is charged, since all of them have one cost."""
        return next(iter(self.plans.values()))

    def plan(self, settings: Settings) -> BoundPlan:
        """Return the plan of a run with these settings."""
        return self.plans[tuple(settings[name] for name in PLANNED)]

    def best(
        self,
        train: Callable[[BoundPlan, dict[str, Any], int], Model],
        right: Callable[[Model], Floats],
        streams: Streams,
        *,
        counted: Callable[[], Mask] | None = None,
        begun: tuple[int, Best[Model] | None] = (0, None),
        keep: Callable[[int, Best[Model]], object] = lambda *_: None,
    ) -> Best[Model]:
        """Return the best model of a random number of runs, with the settings that it had.

        train: makes a model by a plan, settings and the number of the run. right: says how far a
        model gets each record of the plan, or each public row, right, in [0, 1]. streams: the same
        ones draw the same runs again. counted: who of the records may be scored on. begun: how many
        runs were made, and the best of them. keep: is told the same after each run.
        """
        done, best = begun
        runs = self.search.runs.draw(partial(_uniform, streams.participation(0)))
        for run in range(done, runs):
            coins = streams.participation(run + 1)
            settings = self.search.draw(partial(_uniform, coins), self.own)
            plan = self.plan(settings)
            model = train(plan, settings, run)
            values = np.clip(np.nan_to_num(right(model)), 0.0, 1.0)
            score = float(values.sum())
            if self.score_noise is not None:
                # Who takes no part in the training is promised nothing for the score.
                joins = plan.stages[0].chances()[plan.group_index] > 0
                joins &= True if counted is None else counted()
                score = float(values[joins].sum()) + self.score_noise * float(coins.normal(1)[0])
            if best is None or score > best.score:
                best = Best(score, model, settings)
            keep(run + 1, best)
        assert best is not None  # there is at least one run
        return best
