"""The page, the figure and the predictor of `when-it-pays`, from whatever cells are stored.

The predictor is a logistic curve in the logarithm of the noise. Its interval is conformal over data
sets (`research.conformal`), on a scale that is logarithmic beyond one point, at the level `LEVEL`:
with seven data sets one eighth of the weight is at infinity, so that no level above 7/8 has a
finite interval. `when-it-pays-beyond` tries curve and interval where they were not fitted.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import least_squares
from scipy.special import expit

from apiece.reporting import save
from apiece.reporting.plots import COLOURS
from research import RESULTS, ROOT
from research.conformal import Fit, Group, Interval, Numbers, Rule, make_interval, try_held_back
from research.experiment import Outcome, Table
from research.experiments import when_it_pays
from research.experiments.when_it_pays import (
    NOISES,
    both,
    gains,
    noise_of,
    summaries,
)
from research.store import Store

NAME = "when-it-pays"
BEYOND = "when-it-pays-beyond"
# The strategies on whose gains over Uniform the curve is fitted.
STRATEGIES = ("sample", "scale", "threshold")
# Those of the kind of cell with correlated noise, against Poisson sampling at one budget.
CORRELATED = ("scale, correlated", "epochs, correlated")
# Of the interval: the chance that it holds the gain on a further data set.
LEVEL = 0.8
# A row of gains by noise is told from so many cells.
LEAST_CELLS = 5
# Cells stored when the curve's form was chosen, by the same errors.
CELLS_OF_CHOICE = 59
# Cells stored when the interval, its scale and its level were fixed; they come first in the store.
CELLS_OF_INTERVAL = 93
PACKAGED = ROOT / "src" / "apiece" / "prospects" / "gains.json"
PAGE = ROOT / "docs" / "results" / "when-it-pays.md"
FIGURE = ROOT / "docs" / "figures" / "when_it_pays.png"
# Around each part of the page that is made here.
BEGIN = "<!-- {}: made by python -m research.experiments.when_it_pays -->"
END = "<!-- end of {} -->"
# Parameters of a curve: heights for two classes and for more, middle, width; all as logarithms.
Weights = Numbers


def transform(points: Numbers) -> Numbers:
    """Return points on the scale of the interval: linear to about one, then logarithmic."""
    return np.arcsinh(points)


def middle(values: Sequence[float]) -> list[float]:
    """Return the middle four fifths of values."""
    return [round(float(end), 2) for end in np.quantile(values, (0.1, 0.9))]


def by_noise(done: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the gains that were measured, by the noise under Uniform."""
    rows = []
    for low, high in itertools.pairwise(NOISES):
        cells = [both(one) for one in done if low <= noise_of(one, "uniform") < high]
        if len(cells) < LEAST_CELLS:
            continue
        over, beside = zip(*cells, strict=True)
        rows.append(
            {
                "noise": [low, high],
                "trainings": len(cells),
                "over uniform": middle(over),
                "over one budget": middle(beside),
            }
        )
    return rows


def follow(weights: Weights, known: Numbers) -> Numbers:
    """Return the gain in points from one noise to another, by a logistic curve that falls.

    Its height is one for two classes and one for more, since two leave less to gain.
    """
    before, after, classes = known
    height = np.exp(np.where(classes > 2, weights[1], weights[0]))
    places = [(weights[2] - noise) / np.exp(weights[3]) for noise in (after, before)]
    high, low = (expit(place) for place in places)
    return np.asarray(height * (high - low))


def known_of(done: Sequence[Outcome], names: Sequence[str]) -> Numbers:
    """Return the noise under Uniform and under a strategy, and the classes, of each cell."""
    return np.array(
        [
            [
                math.log(noise_of(one, "uniform")),
                math.log(noise_of(one, name)),
                one.result["classes"],
            ]
            for one in done
            for name in names
        ]
    ).T


def measured(done: Sequence[Outcome], names: Sequence[str]) -> Numbers:
    """Return what strategies gained over Uniform in each cell, a mean over seeds."""
    return np.array(
        [gains(one, name, "uniform").mean() for one in done for name in names], dtype=float
    )


def fit_curve(done: Sequence[Outcome]) -> Weights:
    """Return the curve's weights, from Sample, Scale and Threshold against Uniform."""
    known = known_of(done, STRATEGIES)
    truth = measured(done, STRATEGIES)

    def residuals(weights: Weights) -> Numbers:
        return follow(weights, known) - truth

    starts = itertools.product((2.0,), (4.0,), (-1.0, -2.0, -3.0), (-0.3,))
    fits = [least_squares(residuals, start, loss="soft_l1", max_nfev=2000) for start in starts]
    return np.asarray(min(fits, key=lambda fit: float(fit.cost)).x)


def by_data_set(done: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the cells of each data set, in the order of their names."""
    names = sorted({one.unit["data"] for one in done})
    return {name: [one for one in done if one.unit["data"] == name] for name in names}


class Curves:
    """The curves that are fitted without some of the data sets, each fitted once."""

    def __init__(self, done: Sequence[Outcome]) -> None:
        self.cells = by_data_set(done)
        self.names = list(self.cells)

    @functools.cache  # noqa: B019 - as long as the page is written
    def without(self, positions: frozenset[int]) -> Weights:
        """Return the weights without the data sets at these positions."""
        used = [self.cells[n] for k, n in enumerate(self.names) if k not in positions]
        return fit_curve([one for cells in used for one in cells])

    def fit(self, positions: frozenset[int]) -> Rule:
        """Return the rule without these data sets, on the scale of the interval."""
        weights = self.without(positions)
        return lambda known: transform(follow(weights, known))

    def groups(self, strategy: str) -> list[Group]:
        """Return each data set's gains of a strategy, on the scale of the interval."""
        return [
            Group(known_of(cells, [strategy]), transform(measured(cells, [strategy])))
            for cells in self.cells.values()
        ]

    def interval(self, strategy: str) -> Interval:
        """Return the interval of a strategy's gains on a further data set."""
        return make_interval(self.groups(strategy), self.fit, LEVEL)

    def held_back(self, strategy: str) -> dict[str, tuple[Numbers, Numbers]]:
        """Return predicted and measured points of each data set by the curve without it."""
        found = {}
        for position, (name, cells) in enumerate(self.cells.items()):
            weights = self.without(frozenset({position}))
            predicted = follow(weights, known_of(cells, [strategy]))
            found[name] = (predicted, measured(cells, [strategy]))
        return found

    def inside(self, strategy: str) -> dict[str, float]:
        """Return the share of each data set's cells inside the interval that the others make."""
        fit: Fit = self.fit
        shares = try_held_back(self.groups(strategy), fit, LEVEL)
        return dict(zip(self.names, shares, strict=True))


def mean_errors(pairs: Mapping[str, tuple[Numbers, Numbers]]) -> list[tuple[float, float]]:
    """Return the mean absolute errors of the curve and of "no gain", by data set."""
    return [
        (float(np.abs(predicted - truth).mean()), float(np.abs(truth).mean()))
        for predicted, truth in pairs.values()
    ]


def errors_of(curves: Curves, strategy: str) -> dict[str, Any]:
    """Return the errors of a strategy's predictions, each data set held back, and if they hold.

    They hold where the curve errs less than "no gain", on average over data sets and on most of
    them, and the interval holds the share `LEVEL` of a data set's cells, on average.
    """
    errors = mean_errors(curves.held_back(strategy))
    inside = curves.inside(strategy)
    own, none = (float(mean) for mean in np.mean(errors, axis=0))
    counts = [len(cells) for cells in curves.cells.values()]
    better = sum(curve < nothing for curve, nothing in errors)
    share = float(np.mean(list(inside.values())))
    return {
        "trainings": sum(counts),
        "of the curve": round(own, 2),
        "of no gain": round(none, 2),
        "inside": round(sum(s * c for s, c in zip(inside.values(), counts, strict=True))),
        "fitted": True,
        "holds": own < none and better > len(errors) / 2 and share >= LEVEL,
    }


def errors_beyond(
    curves: Curves, cells: Sequence[Outcome], strategy: str, *, reach: str
) -> dict[str, Any]:
    """Return the errors on cells of another kind, by the curve and interval of the stored cells.

    Args:
        curves: Of the stored cells.
        cells: Of one other kind.
        strategy: Whose gains over Uniform are predicted.
        reach: The strategy whose interval is taken.
    """
    known = known_of(cells, [strategy])
    truth = measured(cells, [strategy])
    predicted = follow(curves.without(frozenset()), known)
    own = float(np.abs(predicted - truth).mean())
    none = float(np.abs(truth).mean())
    share = curves.interval(reach).share_inside(Group(known, transform(truth)))
    return {
        "trainings": len(cells),
        "of the curve": round(own, 2),
        "of no gain": round(none, 2),
        "inside": round(share * len(cells)),
        "fitted": False,
        "holds": own < none and share >= LEVEL,
    }


def rounded_curve(weights: Weights) -> dict[str, Any]:
    """Return a curve as `apiece.prospects` reads it."""
    two, more, half, width = weights
    return {
        "heights": [round(float(np.exp(two)), 3), round(float(np.exp(more)), 3)],
        "middle": round(float(np.exp(half)), 4),
        "power": round(float(np.exp(-width)), 3),
    }


def for_plans(done: Sequence[Outcome], beyond: Sequence[Outcome]) -> dict[str, Any]:
    """Return all that `apiece plan --compare` tells; what does not hold has no reach there."""
    curves = Curves(done)
    errors = {strategy: errors_of(curves, strategy) for strategy in STRATEGIES}
    reaches = {strategy: curves.interval(strategy).reach for strategy in STRATEGIES}
    correlated = [one for one in beyond if one.unit["kind"] == "correlated"]
    for strategy in CORRELATED if correlated else ():
        errors[strategy] = errors_beyond(curves, correlated, strategy, reach="scale")
        reaches[strategy] = reaches["scale"]
    singles = [frozenset({position}) for position in range(len(curves.names))]
    return {
        "rows": by_noise(done),
        "curve": rounded_curve(curves.without(frozenset())),
        "curves": [rounded_curve(curves.without(single)) for single in singles],
        "level": LEVEL,
        "reach": {
            strategy: round(reach, 4)
            for strategy, reach in reaches.items()
            if errors[strategy]["holds"] and math.isfinite(reach)
        },
        "errors": errors,
    }


def predicting(curves: Curves) -> Table:
    """Return errors of Sample's prediction, and what its interval holds, by data set held back."""
    pairs = curves.held_back("sample")
    errors = mean_errors(pairs)
    inside = curves.inside("sample")
    rows = []
    for (name, (_, truth)), (own, none) in zip(pairs.items(), errors, strict=True):
        held = round(inside[name] * len(truth))
        rows.append([name, str(len(truth)), f"{none:.2f}", f"{own:.2f}", f"{held} of {len(truth)}"])
    own, none = np.mean(errors, axis=0)
    share = 100 * np.mean(list(inside.values()))
    count = str(sum(len(cells) for cells in curves.cells.values()))
    rows.append(["mean over data sets", count, f"{none:.2f}", f"{own:.2f}", f"{share:.0f} %"])
    head = ["data set held back", "cells", "error of “no gain”", "of the curve",
            f"inside the {100 * LEVEL:.0f} % interval"]  # fmt: skip
    return Table(head, rows)


def predicting_beyond(curves: Curves, beyond: Sequence[Outcome]) -> Table:
    """Return the errors where the curve was not fitted, by kind of cell and strategy."""
    rows = []
    for kind, names in (("correlated", CORRELATED), ("backbone", STRATEGIES)):
        cells = [one for one in beyond if one.unit["kind"] == kind]
        for name in names if cells else ():
            reach = name if name in STRATEGIES else "scale"
            found = errors_beyond(curves, cells, name, reach=reach)
            median = float(np.median(measured(cells, [name])))
            rows.append(
                [
                    kind,
                    name,
                    str(len(cells)),
                    f"{median:+.2f}",
                    f"{found['of no gain']:.2f}",
                    f"{found['of the curve']:.2f}",
                    f"{found['inside']} of {len(cells)}",
                    "yes" if found["holds"] else "no",
                ]
            )
    head = ["kind", "strategy", "cells", "gain over uniform: median", "error of “no gain”",
            "of the curve", f"inside the {100 * LEVEL:.0f} % interval", "holds"]  # fmt: skip
    return Table(head, rows)


def spread(values: Sequence[float]) -> str:
    """Return the median of gains and the middle four fifths, in words."""
    low, high = middle(values)
    return f"{np.median(values):+.2f} in the median, {low:+.2f} to {high:+.2f} in the middle 80 %"


def count_cells(count: int) -> str:
    """Return a number of cells in words."""
    return f"{count} cell{'' if count == 1 else 's'}"


def in_short(done: Sequence[Outcome], curves: Curves) -> str:
    """Return the findings as a list, with the figures of the stored cells."""
    lines = []
    for words, low, high in (
        ("of a tenth of the signal or more", 0.1, math.inf),
        ("of a hundredth to a tenth", 0.01, 0.1),
        ("below a hundredth", 0.0, 0.01),
    ):
        own = [both(one)[0] for one in done if low <= noise_of(one, "uniform") < high]
        if own:
            lines.append(
                f"- **Noise {words}:** over one strict budget for all, Sample gained "
                f"{spread(own)} (points of accuracy, {count_cells(len(own))})."
            )
    for share in sorted({one.unit["share"] for one in done}):
        cells = [one for one in done if one.unit["share"] == share]
        lines.append(
            f"- **Over the best single budget, where {100 * share:.0f} % are strict:** "
            f"{spread([both(one)[1] for one in cells])} ({count_cells(len(cells))})."
        )
    apart = [abs(float(gains(one, "sample", "scale").mean())) for one in done]
    lines.append(
        f"- **Sample and Scale** differ by {np.median(apart):.2f} points in the median, and by "
        f"less than half a point in {sum(each < 0.5 for each in apart)} of "
        f"{count_cells(len(apart))}."
    )
    errors = errors_of(curves, "sample")
    lines.append(
        "- **Predicted from the noise alone**, on data sets held back: off by "
        f"{errors['of the curve']:.1f} points on average, where “no gain” is off by "
        f"{errors['of no gain']:.1f}; the {100 * LEVEL:.0f} % interval held {errors['inside']} of "
        f"{count_cells(errors['trainings'])}."
    )
    return "\n".join(lines)


def what_ran(done: Sequence[Outcome]) -> str:
    """Return how many of the cells are stored, and when they were measured."""
    planned = len(when_it_pays.units(1, 1.0))
    days = sorted({one.date for one in done})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    text = f"{len(done)} of {planned} cells are stored ({when})."
    if len(done) < planned:
        text += (
            " They were run in an order drawn at random beforehand, by data set in turn, so that "
            "those stored are a sample of all."
        )
    text += (
        f" The form of the curve was chosen among seven by these same errors, on the first "
        f"{CELLS_OF_CHOICE}; the interval, its scale and its level were fixed when "
        f"{CELLS_OF_INTERVAL} were stored."
    )
    late = done[CELLS_OF_INTERVAL:]
    if not late:
        return text
    own, none, inside = try_late(done[:CELLS_OF_INTERVAL], late)
    return (
        f"{text} On the {count_cells(len(late))} that came after, the curve made of the earlier "
        f"ones on other data sets was off by {own:.2f} points on average and “no gain” by "
        f"{none:.2f}; its interval held {inside} of {len(late)}."
    )


def try_late(early: Sequence[Outcome], late: Sequence[Outcome]) -> tuple[float, float, int]:
    """Return errors of curve and "no gain" on later cells, and how many the interval holds.

    Both are made of the earlier cells of all other data sets.
    """
    curves = Curves(early)
    groups = curves.groups("sample")
    own = []
    none = []
    inside = 0.0
    for name, cells in by_data_set(late).items():
        without = frozenset({curves.names.index(name)})
        known = known_of(cells, ["sample"])
        truth = measured(cells, ["sample"])
        own += np.abs(follow(curves.without(without), known) - truth).tolist()
        none += np.abs(truth).tolist()
        interval = make_interval(groups, curves.fit, LEVEL, without=without)
        inside += len(cells) * interval.share_inside(Group(known, transform(truth)))
    return float(np.mean(own)), float(np.mean(none)), round(inside)


def make_parts(done: Sequence[Outcome], beyond: Sequence[Outcome]) -> dict[str, str]:
    """Return the parts of the page that are made here, by name."""
    curves = Curves(done)
    by_what = summaries(done)
    titles = ("By noise", "By data set", "By the share of strict people", "By budgets")
    shown = dict(zip(titles, by_what, strict=True))
    shown["The predictor on data sets that it has not seen"] = predicting(curves)
    if beyond:
        shown["The predictor where it was not fitted"] = predicting_beyond(curves, beyond)
    tables = "\n\n".join(f"### {title}\n\n{table.markdown()}" for title, table in shown.items())
    return {"in short": in_short(done, curves), "what ran": what_ran(done), "tables": tables}


def fill_page(text: str, parts: Mapping[str, str]) -> str:
    """Return the page with its parts made anew."""
    for name, part in parts.items():
        before, begin, remainder = text.partition(BEGIN.format(name))
        _, end, after = remainder.partition(END.format(name))
        if not (begin and end):
            raise ValueError(f"{PAGE}: has no part “{name}” between its marks")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text


def draw(done: Sequence[Outcome]) -> Figure:
    """Return gains by noise, and predictions on data sets held back, with their intervals."""
    figure = Figure(figsize=(10, 4), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    curves = Curves(done)
    groups = curves.groups("sample")
    for position, (name, (predicted, truth)) in enumerate(curves.held_back("sample").items()):
        own = curves.cells[name]
        look = {"color": COLOURS[position], "marker": "osD^vP*"[position], "s": 22, "alpha": 0.8}
        noises = [noise_of(one, "uniform") for one in own]
        left.scatter(noises, [both(one)[0] for one in own], label=name, **look)
        left.scatter(noises, [both(one)[1] for one in own], **look | {"color": "0.75", "zorder": 0})
        interval = make_interval(groups, curves.fit, LEVEL, without=frozenset({position}))
        low, high = (np.sinh(end) for end in interval.ends(groups[position].known))
        right.vlines(predicted, low, high, color=COLOURS[position], linewidth=0.6, alpha=0.35)
        right.scatter(predicted, truth, **look)
    ends = (-8.0, 90.0)
    right.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    left.set(
        xscale="log",
        yscale="symlog",
        ylim=(-3, 60),
        xlabel="noise of the training over its signal, Uniform",
        ylabel="points gained by Sample",
        title="over Uniform; grey: over the better one budget",
    )
    right.set(
        xscale="symlog",
        yscale="symlog",
        xlim=(-0.2, 60.0),
        ylim=ends,
        title=f"data sets held back; lines: {100 * LEVEL:.0f} % intervals",
        xlabel="points predicted from the noise",
        ylabel="points measured",
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    left.legend(frameon=False, fontsize="small", loc="upper left")
    return figure


def write_all() -> None:
    """Write the page, the figure and what `apiece plan --compare` reads, from stored cells."""
    store = Store(RESULTS)
    done = store.load(NAME)
    beyond = store.load(BEYOND)
    packaged = json.dumps(for_plans(done, beyond), indent=1)
    PACKAGED.write_text(f"{packaged}\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill_page(text, make_parts(done, beyond)), encoding="utf-8")
    save(draw(done), FIGURE)
