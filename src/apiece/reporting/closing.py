"""The closing words of a training and of an audit: tables and sentences for a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from apiece._text import align_columns, per_cent, plain, rounded_up
from apiece.plan.parts import UNSPENT

if TYPE_CHECKING:
    from apiece.audit import Findings, LowerBound
    from apiece.jobs import Run
    from apiece.jobs.trained import Interval, Promise, Release

# Groups that the closing table shows.
MOST_GROUPS = 20
# From so many models on, the AUC of scores without signal is within 0.005 of 1/2.
FEW_MODELS = 32


@dataclass(frozen=True, slots=True)
class Gain:
    """A strategy's gain over uniform in test accuracy, and the spread of both over seeds."""

    strategy: str
    gain: float
    spread: float

    @property
    def exceeds_spread(self) -> bool:
        """Whether the gain is larger than the spread."""
        return self.gain > self.spread


def closing_table(run: Run) -> str:
    """Return the table that `apiece train` ends with."""
    # One column a strategy; test accuracy with its standard deviation over seeds, then for each
    # group the ε asked and the ε spent. Of more than 20 groups the first are shown. Where the unit
    # is the person, accuracy is given by row and by person, every person counting alike.
    strategies = run.strategies
    names = [strategy.strategy for strategy in strategies]
    rows = [["", f"{run.data.unit}s", "ε asked", *names]]
    for figure, texts in list_held_out(run):
        rows.append([figure, "", "", *texts])
    rows.append(["ε spent by group", "", "", *[""] * len(strategies)])
    groups = strategies[0].promises
    # The groups are those of the budgets, and so the same in every strategy.
    for position, group in enumerate(groups[:MOST_GROUPS]):
        spent = [spent_text(strategy.promises[position]) for strategy in strategies]
        rows.append([f"  {group.name}", str(group.records), f"{group.epsilon:g}", *spent])
    lines = align_columns(rows)
    if len(groups) > MOST_GROUPS:
        lines.append(f"  … and {len(groups) - MOST_GROUPS} more groups, in plan.json")
    lines.append("")
    for row in gains(run):
        points = f"{100 * row.gain:+.2f} points (spread {100 * row.spread:.2f})"
        verdict = "" if row.exceeds_spread else ": no clear difference"
        lines.append(f"{row.strategy} against uniform: {points}{verdict}")
    lines.append(f"{release_title(run.release)}:")
    lines += [f"  [{check.verdict}] {check.name}: {check.says}" for check in run.release.checks]
    return "\n".join(lines)


def list_held_out(run: Run) -> list[tuple[str, list[str]]]:
    """Return each figure of held-out people by name, with its text for each strategy."""
    strategies = run.strategies
    if run.data.target_range is not None:
        absolute = []
        r2 = []
        for strategy in strategies:
            errors = strategy.test_errors
            absolute.append(interval_text([error.mean_absolute for error in errors]))
            r2.append(interval_text([error.r2 for error in errors]))
        return [("mean absolute error", absolute), ("R²", r2)]
    by_row = [accuracy_text(strategy.test_accuracy) for strategy in strategies]
    if run.data.unit == "record":
        return [("test accuracy", by_row)]
    by_person = [accuracy_text(strategy.test_accuracy_by_person) for strategy in strategies]
    return [("test accuracy by row", by_row), ("test accuracy by person", by_person)]


def interval_text(intervals: Sequence[Interval]) -> str:
    """Return the mean over seeds of an estimate and of the ends of its interval.

    >>> from apiece.jobs.trained import Interval
    >>> interval_text([Interval(2.0, 1.5, 2.5), Interval(4.0, 3.5, 4.5)])
    '3 [2.5, 3.5]'
    """
    if not intervals:
        return "not tested"
    value = statistics.fmean(interval.value for interval in intervals)
    lower = statistics.fmean(interval.lower for interval in intervals)
    upper = statistics.fmean(interval.upper for interval in intervals)
    return f"{value:.4g} [{lower:.4g}, {upper:.4g}]"


def accuracy_text(values: Sequence[float]) -> str:
    """Return mean and spread of test accuracies in per cent.

    >>> accuracy_text([0.8, 0.9]), accuracy_text([0.8]), accuracy_text([])
    ('85.00 ± 7.07 %', '80.00 %', 'not tested')
    """
    if not values:
        return "not tested"
    mean = f"{100 * statistics.fmean(values):.2f}"
    if len(values) == 1:
        return f"{mean} %"
    return f"{mean} ± {100 * statistics.stdev(values):.2f} %"


def spent_text(group: Promise) -> str:
    """Return a group's ε spent, rounded up to four digits; its share of the ε asked if unspent."""
    share = group.spent_share
    spent = rounded_up(group.epsilon_spent)
    return f"{spent} ({per_cent(share)})" if share < UNSPENT else spent


def gains(run: Run) -> list[Gain]:
    """Return, for each strategy but uniform, its gain over uniform in accuracy and the spread."""
    # The spread is the root of the sum of the two variances over seeds. Empty where there is no
    # uniform, or fewer than two seeds.
    by_name = {strategy.strategy: strategy for strategy in run.strategies}
    uniform = by_name.pop("uniform", None)
    if uniform is None:
        return []
    uniform_mean = uniform.test_accuracy_mean
    uniform_stddev = uniform.test_accuracy_stddev
    if uniform_mean is None or uniform_stddev is None:
        return []
    rows = []
    for name, strategy in by_name.items():
        mean = strategy.test_accuracy_mean
        stddev = strategy.test_accuracy_stddev
        if mean is not None and stddev is not None:
            spread = (stddev**2 + uniform_stddev**2) ** 0.5
            rows.append(Gain(name, mean - uniform_mean, spread))
    return rows


def release_title(release: Release) -> str:
    """Return in words whether a run is fit for release."""
    return {
        "yes": "Fit for release",
        "decide": "Fit for release once you have decided what is marked so",
        "no": "Not for release",
    }[release.fit]


def findings_text(findings: Findings) -> str:
    """Return the findings for people to read."""
    title = findings.audit
    if findings.attack:
        title += f": {findings.attack}"
    if findings.unit:
        title += f", by {findings.unit}"
    lines = [title]
    for watched in findings.watched:
        verdict = "is broken" if watched.rejected else "is not refuted"
        lines.append(
            f"  {watched.group}: {watched.claim} {verdict}: evidence {watched.evidence:.4g} "
            f"after {watched.samples:,} of at most {watched.most:,} pairs"
        )
    if findings.watched:
        lines.append("  Evidence of x or more comes once in x audits at most, if the claim holds.")
    lines += [
        f"  {name}: epsilon >= {bound.epsilon:.4g} at delta = {bound.delta:g} with "
        f"{bound.confidence:.4g} confidence ({bound.basis})"
        for name, bound in findings.all_bounds()
    ]
    lines += [
        f"  {name}: no ROC, there are {reason}" for name, reason in findings.without_roc.items()
    ]
    lines += _list_tie_hints(findings)
    lines += [
        f"  {name}: AUC {curve.auc:.4f}, balanced accuracy {curve.balanced_accuracy:.4f}, "
        f"TPR {curve.tpr_at(0.001):.4f} at FPR 0.001"
        for name, curve in findings.rocs.items()
    ]
    lines += [
        f"  {name}: privacy score {score.mean:.4f} on average"
        for name, score in findings.privacy_score.items()
    ]
    lines += [
        f"  {pair.groups[0]} against {pair.groups[1]}: t = {pair.test.statistic:.3f}, "
        f"p = {pair.test.p_value:.2g}"
        for pair in findings.differences
        if pair.test is not None
    ]
    if findings.models is not None and findings.models < FEW_MODELS:
        lines.append(
            f"  Only {findings.models} models: LiRA puts even what does not leak below AUC 1/2; "
            "train 64 or more."
        )
    return "\n".join(map(plain, [*lines, "", *_write_verdict(findings)]))


def _write_verdict(findings: Findings) -> list[str]:
    """Return in plain words what the findings show, and what they do not."""
    if findings.watched:
        broken = [watched for watched in findings.watched if watched.rejected]
        if broken:
            groups = ", ".join(watched.group for watched in broken)
            return [
                f"Verdict: what is claimed of {groups} is broken, with "
                f"{broken[0].confidence:.4g} confidence."
            ]
        return ["Verdict: no claim is refuted. That is no proof of it: other canaries may do so."]
    if bounds := findings.all_bounds():
        return _write_verdict_on_bounds(bounds)
    if not findings.rocs:
        return ["Verdict: nothing was measured."]
    # Without a bound the verdict is a rate, of the group that the attack tells best.
    name, roc = max(findings.rocs.items(), key=lambda pair: pair[1].balanced_accuracy)
    # Rounded up, as every count of what an attacker gets right.
    right = math.ceil(1000 * roc.balanced_accuracy)
    return [
        f"Verdict: this attack tells those of {name} best. Of 1,000, 500 of them members, it is",
        f"right about {right}; blind guessing, about 500. A stronger attack may do better.",
    ]


def _write_verdict_on_bounds(bounds: list[tuple[str, LowerBound]]) -> list[str]:
    """Return what the bounds without an assumption show, and then what the others would add."""
    unconditional = [(name, bound) for name, bound in bounds if bound.assumption is None]
    conditional = [(name, bound) for name, bound in bounds if bound.assumption is not None]
    lines = []
    largest = largest_bound(unconditional)
    if largest is not None and largest.epsilon > 0:
        lines += [
            f"Verdict: a leak is shown. The ε of {largest.group} is at least "
            f"{largest.epsilon:.4g} with {largest.confidence:.4g} confidence;",
            "a promise below that is broken, one above it is not contradicted.",
        ]
    else:
        lines += [
            "Verdict: no leak is shown. That is no proof that there is none: a stronger attack",
            "may find one. What is promised rests on the plan's accounting, not on an audit.",
        ]
    # A bound under an assumption is named only where it says more than those without.
    shown = 0.0 if largest is None else largest.epsilon
    assumed = largest_bound(conditional)
    if assumed is not None and assumed.epsilon > shown:
        text = (
            f"If {assumed.assumption}, the ε of {assumed.group} is at least {assumed.epsilon:.4g} "
            f"with {assumed.confidence:.4g} confidence. Nobody has checked that it is: this bound "
            "breaks no promise of (ε, δ) alone."
        )
        lines += wrap(text, 79)
    return lines


@dataclass(frozen=True, slots=True)
class LargestBound:
    """The largest of several lower bounds, with the confidence with which all of them hold."""

    group: str
    epsilon: float
    confidence: float
    assumption: str | None


def largest_bound(bounds: list[tuple[str, LowerBound]]) -> LargestBound | None:
    """Return the largest bound; None where there are none.

    Whoever picks the largest of several is wrong where any of them is: their errors add up.
    """
    if not bounds:
        return None
    name, largest = max(bounds, key=lambda pair: pair[1].epsilon)
    # A union bound over all that could have been picked.
    error = math.fsum(1 - bound.confidence for _, bound in bounds)
    return LargestBound(name, largest.epsilon, max(1 - error, 0.0), largest.assumption)


def _list_tie_hints(findings: Findings) -> list[str]:
    """Return a line on the first bound with so many equal scores that a leak may be hidden."""
    for name, bound in findings.all_bounds():
        scores = bound.in_count + bound.out_count
        # Half of all scores or fewer are distinct.
        if bound.distinct is not None and 2 * bound.distinct <= scores:
            return [
                f"  {name}: {bound.distinct:,} of {scores:,} scores are distinct. Equal scores "
                "cannot be told apart, which hides a leak: give scores with more digits."
            ]
    return []
