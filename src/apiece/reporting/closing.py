"""The closing table: what each strategy reached, and what it cost each group."""

from __future__ import annotations

from typing import Any

from apiece._text import plain

_SHOWN = 20


def closing_table(metrics: dict[str, Any]) -> str:
    """Return the table that `apiece train` ends with, from a run's metrics.

    One column a strategy; test accuracy with its standard deviation over seeds, then for each
    group the ε asked and the ε spent. Of more than 20 groups the first are shown.
    """
    strategies = metrics["strategies"]
    rows = [["", "records", "ε asked", *(s["strategy"] for s in strategies)]]
    rows.append(["test accuracy", "", "", *map(accuracy_text, strategies)])
    rows.append(["ε spent by group", "", "", *("" for _ in strategies)])
    groups = strategies[0]["plan"]["groups"]
    for g, group in enumerate(groups[:_SHOWN]):
        spent = [spent_text(s["plan"]["groups"][g]) for s in strategies]
        rows.append([f"  {group['name']}", str(group["records"]), f"{group['epsilon']:g}", *spent])
    lines = _aligned(rows)
    if len(groups) > _SHOWN:
        lines.append(f"  … and {len(groups) - _SHOWN} more groups, in plan.json")
    return "\n".join([*lines, "", *_remarks(metrics)])


def accuracy_text(strategy: dict[str, Any]) -> str:
    """Return mean and spread of a strategy's test accuracy in per cent.

    >>> accuracy_text({"test_accuracy_mean": 0.84, "test_accuracy_stddev": 0.001})
    '84.00 ± 0.10 %'
    """
    mean, stddev = strategy["test_accuracy_mean"], strategy["test_accuracy_stddev"]
    if mean is None:
        return "not tested"
    return f"{100 * mean:.2f} %" if stddev is None else f"{100 * mean:.2f} ± {100 * stddev:.2f} %"


def spent_text(group: dict[str, Any]) -> str:
    """Return a group's ε spent, rounded up to four digits, and whether more could not be spent.

    >>> spent_text({"epsilon_spent": 0.099981, "saturated": False})
    '0.09999'
    """
    from decimal import ROUND_CEILING, Context, Decimal

    spent = Decimal(group["epsilon_spent"])
    rounded = Context(prec=4, rounding=ROUND_CEILING).plus(spent)
    return f"{rounded:f}" + (" (saturated)" if group["saturated"] else "")


def beats(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, for each strategy but uniform, its gain over uniform in accuracy and the spread.

    The spread is the root of the sum of the two variances over seeds; `exceeds_spread` says
    whether the gain is larger. Empty where there is no uniform, or fewer than two seeds.
    """
    by_name = {s["strategy"]: s for s in metrics["strategies"]}
    base = by_name.pop("uniform", None)
    if base is None or base["test_accuracy_stddev"] is None:
        return []
    found = []
    for name, other in by_name.items():
        gain = other["test_accuracy_mean"] - base["test_accuracy_mean"]
        spread = float(
            (other["test_accuracy_stddev"] ** 2 + base["test_accuracy_stddev"] ** 2) ** 0.5
        )
        row = {"strategy": name, "gain": gain, "spread": spread, "exceeds_spread": gain > spread}
        found.append(row)
    return found


def release_title(release: dict[str, Any]) -> str:
    """Return in words whether a run is fit for release.

    >>> release_title({"fit": "yes"})
    'Fit for release'
    """
    return {
        "yes": "Fit for release",
        "decide": "Fit for release once you have decided what is marked so",
        "no": "Not for release",
    }[str(release["fit"])]


def _remarks(metrics: dict[str, Any]) -> list[str]:
    lines = []
    for row in beats(metrics):
        points = f"{100 * row['gain']:+.2f} points (spread {100 * row['spread']:.2f})"
        verdict = "" if row["exceeds_spread"] else ": no clear difference"
        lines.append(f"{row['strategy']} against uniform: {points}{verdict}")
    release = metrics["release"]
    lines.append(f"{release_title(release)}:")
    lines += [f"  [{c['verdict']}] {c['name']}: {c['says']}" for c in release["checks"]]
    return lines


def _aligned(rows: list[list[str]]) -> list[str]:
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
