"""A plan as a table in a notebook: groups too small to be public are counted, and not shown."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from apiece._text import per_cent, plain, rounded_up
from apiece.budgets import SMALL_GROUP
from apiece.plan.group import Group
from apiece.plan.numbers import UNSPENT, Numbers, steps_of

_SHOWN = 20
_COLUMNS = ("group", "records", "ε asked", "δ", "ε spent", "sampling", "clip norm", "noise")


def html(plan: Numbers, groups: tuple[Group, ...], spent: Iterable[float]) -> str:
    """Return the table of a plan's groups, of those with enough records, at most 20.

    Args:
        plan: To be shown.
        groups: Its groups.
        spent: What each spends, as upper bounds; shown rounded up.
    """
    large = [(g, e) for g, e in zip(groups, spent, strict=True) if g.records >= SMALL_GROUP]
    rows = [_row(group, epsilon) for group, epsilon in large[:_SHOWN]]
    records = sum(group.records for group in groups)
    notes = [
        f"{records:,} records, {steps_of(plan):,} steps; ε spent is an upper bound, add/remove."
    ]
    small = len(groups) - len(large)
    if small:
        notes.append(f"{small} groups of fewer than {SMALL_GROUP} records are not shown.")
    if len(large) > _SHOWN:
        notes.append(f"{len(large) - _SHOWN} more groups are not shown.")
    notes += [f"Not for release: {objection}" for objection in plan.objections]
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return (
        f"<table><caption>{_safe(plan.strategy)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{''.join(f'<p>{_safe(n)}</p>' for n in notes)}"
    )


def _row(group: Group, spent: float) -> str:
    cells = [group.name, f"{group.records:,}", f"{group.epsilon:g}", f"{group.delta:g}"]
    share = spent / group.epsilon
    cells.append(rounded_up(spent) + (f" ({per_cent(share)})" if share < UNSPENT else ""))
    if len(group.stages) == 1:
        (stage,) = group.stages
        numbers = (stage.sampling_probability, stage.clip_norm, stage.noise_multiplier)
        cells += [f"{number:.4g}" for number in numbers]
    else:
        cells += ["by stage"] * 3
    return "<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in cells) + "</tr>"


def _safe(text: str) -> str:
    return escape(plain(text))
