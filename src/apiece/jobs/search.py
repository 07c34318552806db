"""Search: settings chosen by training a random number of times, under one promise for all runs.

What is private of a run is its noise, its coins and its score; of the search also how many runs
there were. Settings are drawn by public chances. A run's score is the number of records (of
persons, each with the share of their rows) that its model gets right, with Gaussian noise that the
plan accounts for. The best model is returned, and nothing else leaves this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.assignment import Strategy, assign_tuned
from apiece.budgets import Budgets
from apiece.errors import InputError, unknown
from apiece.jobs.config import Training
from apiece.mechanisms import Runs
from apiece.plan import BoundPlan
from apiece.training.randomness import Streams

SETTINGS = ("steps", "batch_size", "clip_norm", "learning_rate")
MOST = 64  # values of steps, batch size and clip norm together: each takes a plan
Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Search:
    """Settings to choose among, and how many runs are made on average.

    Each run draws one value of each setting, all equally likely. The number of runs is random, and
    secret; the released model is the best by a noisy score on the people trained on.

    Attributes:
        space: Setting → its values: steps, batch_size, clip_norm, learning_rate.
        runs: The law of the number of runs; a number is the mean of the geometric law.
        score_noise: Standard deviation of the noise on the number of people whom a model gets
            right; None for 20 or, where that is more, two in a thousand of them.

    Raises:
        InputError: For an unknown setting, no values, and values out of bounds.

    References:
        Papernot and Steinke 2022.

    Example:
        >>> search = Search({"learning_rate": [0.1, 0.5, 2.0], "steps": [50, 200]}, runs=20)
        >>> search.runs.mean, len(search.settings({"steps": 100, "learning_rate": 1.0}))
        (20.0, 6)
    """

    space: Any
    runs: Any = 20.0
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.runs, Runs):
            object.__setattr__(self, "runs", Runs(self.runs))
        if self.score_noise is not None:
            _check.put(self, score_noise=_check.positive)
        if not isinstance(self.space, Mapping) or not self.space:
            raise InputError('search: give settings and their values, as {"steps": [50, 200]}')
        plans = 1
        for name, values in self.space.items():
            if name not in SETTINGS:
                raise unknown("setting of a search", name, SETTINGS)
            if not isinstance(values, list | tuple) or not values:
                raise InputError(f"search: {name} = {values!r} must be a list of values")
            for value in values:
                Training(**{name: value})
            plans *= 1 if name == "learning_rate" else len(values)
        if plans > MOST:
            raise InputError(
                f"search: {plans} combinations of steps, batch_size and clip_norm, at most {MOST}; "
                "leave some out (learning_rate may have any number)"
            )

    def settings(self, own: Mapping[str, float]) -> list[dict[str, float]]:
        """Return every combination of values, with those of `own` where nothing is searched.

        Args:
            own: A value of each setting.
        """
        values = [[(name, value) for value in self.space[name]] for name in self.space]
        return [{**own, **dict(each)} for each in itertools.product(*values)]


def best_model(
    search: Search,
    budgets: Budgets,
    strategy: Strategy | str,
    own: Mapping[str, float],
    train: Callable[[BoundPlan, Mapping[str, float], int | None], Model],
    right: Callable[[Model], Floats],
    *,
    unit: str,
    seed: int | None,
    note: Callable[[BoundPlan], object],
) -> tuple[Model, BoundPlan, dict[str, float]]:
    """Return the best model of a random number of runs, its plan and its settings.

    own: settings that are not searched. train: makes a model by a plan, settings and a seed. right:
    says of a model how far it gets each record of the plan right, in [0, 1]. seed: of experiments.
    note: is told a plan before anything is trained; all of them have one cost.

    Guarantee: each record's (ε, δ) of the budgets holds for what is returned, as its plan states.
    """
    settings = search.settings(own)
    names = ("steps", "batch_size", "clip_norm")
    kinds = list(dict.fromkeys(tuple(each[name] for name in names) for each in settings))
    noise = search.score_noise or max(20.0, 0.002 * len(budgets))
    plans = assign_tuned(
        budgets,
        strategy,
        [
            {"steps": steps, "expected_batch_size": batch, "clip_norm": clip}
            for steps, batch, clip in kinds
        ],
        runs=search.runs,
        score_noise=noise,
    )
    plan_of = {kind: replace(plan, unit=unit) for kind, plan in zip(kinds, plans, strict=True)}
    note(next(iter(plan_of.values())))
    streams = Streams.from_seed(seed)
    coins = streams.participation(0)
    found: tuple[float, Model, BoundPlan, dict[str, float]] | None = None
    for run in range(search.runs.draw(lambda: float(coins.uniform(1)[0]))):
        chosen = settings[int(float(coins.uniform(1)[0]) * len(settings))]
        plan = plan_of[tuple(chosen[name] for name in names)]
        model = train(plan, chosen, None if seed is None else seed * 100_003 + run)
        # Who takes no part in the training is promised nothing for the score: left out of it.
        takes_part = plan.stages[0].sampling_probability[plan.group_index] > 0
        values = np.clip(np.nan_to_num(right(model)), 0.0, 1.0)
        score = float(values[takes_part].sum()) + noise * float(coins.normal(1)[0])
        if found is None or score > found[0]:
            found = score, model, plan, chosen
    assert found is not None  # there is at least one run
    return found[1:]
