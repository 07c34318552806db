"""Intervals for values of a group that nobody has seen, found from groups that were seen.

Groups (data sets) are taken as exchangeable; values within one may depend on each other in any way.
A rule that is fitted to all groups but one errs on that one by some scores. Each of K groups weighs
1/(K+1), shared by its scores, and the group to come weighs as much, at infinity: `reach` is the
quantile of these weights. The interval reaches from the lowest to the highest value that the rules
without one of the groups predict, and beyond by `reach`. A value of a further group, drawn at
random among its values, is in it with the chance `level` or more, whatever the rule is: theorem 3
of Barber et al. 2021 (jackknife-minmax) with groups in place of points, and the weights of Lee,
Barber and Willett 2023 for values within a group.

Why: let both groups j and k be left out, and let s(j) be the least score of a value of j over all
such k. The s of K+1 exchangeable groups are exchangeable, and a value outside has an s above the
quantile of the others' s, since each of their scores here is one of those that s is the least of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# Takes what is known of values, one a column; returns a prediction of each.
Rule = Callable[[Numbers], Numbers]
# Takes the positions of the groups that are left out; returns the rule that the others make.
Fit = Callable[[frozenset[int]], Rule]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of values that were measured.

    Attributes:
        known: What a rule may use, one column a value.
        values: What was measured.
    """

    known: Numbers
    values: Numbers


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval for values of a group to come.

    Attributes:
        rules: Each made without one of the groups.
        reach: How far the interval goes beyond what they predict; infinite where the groups are too
            few for the level.
    """

    rules: tuple[Rule, ...]
    reach: float

    def ends(self, known: Numbers) -> tuple[Numbers, Numbers]:
        """Return the lower and upper ends for values of which this is known."""
        predictions = np.array([rule(known) for rule in self.rules])
        return predictions.min(axis=0) - self.reach, predictions.max(axis=0) + self.reach

    def share_inside(self, group: Group) -> float:
        """Return the share of a group's values that are inside."""
        low, high = self.ends(group.known)
        return float(np.mean((low <= group.values) & (group.values <= high)))


def bound_scores(scores: Sequence[Numbers], level: float) -> float:
    """Return the bound that a score of a further group keeps with the chance `level`.

    >>> bound_scores([np.array([1.0]), np.array([2.0]), np.array([3.0])], 0.5)
    2.0
    >>> bound_scores([np.array([1.0])], 0.8)
    inf
    """
    values = np.concatenate(scores)
    weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in scores])
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / (len(scores) + 1)
    # Sums of thirds and the like fall short of their value by a rounding.
    position = int(np.searchsorted(below, level - 1e-12))
    return float(values[order][position]) if position < len(values) else math.inf


def make_interval(
    groups: Sequence[Group], fit: Fit, level: float, *, without: frozenset[int] = frozenset()
) -> Interval:
    """Return the interval that groups make.

    Args:
        groups: What was measured.
        fit: Makes a rule of all groups but some; the same for groups in any order.
        level: The chance, below K/(K+1) for K groups.
        without: Positions of groups that are not used at all, as to try the interval on them.
    """
    scores = []
    rules = []
    for position, group in enumerate(groups):
        if position in without:
            continue
        rule = fit(without | {position})
        scores.append(np.abs(group.values - rule(group.known)))
        rules.append(rule)
    return Interval(tuple(rules), bound_scores(scores, level))


def try_held_back(groups: Sequence[Group], fit: Fit, level: float) -> list[float]:
    """Return, for each group, the share of its values inside the interval that the others make."""
    return [
        make_interval(groups, fit, level, without=frozenset({position})).share_inside(group)
        for position, group in enumerate(groups)
    ]
