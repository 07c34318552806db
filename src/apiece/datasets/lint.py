"""What looks like a mistake in a schema, told from it and a table's header: no row is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from apiece.datasets.schema import Categorical, Schema, Skip

MANY_VALUES = 1000
_SHOWN = 8
_LIKE_IDS = re.compile(r"(^|[_ ])(ids?|uu?id|guid|ssn|e-?mail)$|^(person|patient|user|name)$", re.I)
_LIKE_BUDGETS = re.compile(r"epsilon|budget|consent|privacy", re.I)
_MARKERS = {"", "?", "na", "n/a", "nan", "null", "missing"}


def lint(
    schema: Schema,
    names: Sequence[str],
    *,
    taken: Mapping[str, str],
    records: int | None = None,
) -> list[str]:
    """Return what looks like a mistake, one line each.

    Args:
        schema: To be looked at.
        names: The table's columns.
        taken: Column → what it is instead of a feature: "label", "epsilon", "ids", …
        records: How many are trained on, where that is known.

    Example:
        >>> schema = Schema("s", {"City": Categorical(("Bonn", "bonn", "NA"))})
        >>> for line in lint(schema, ["city", "y"], taken={"y": "label"}):
        ...     print(line)
        schema s declares 'City', which is not in the table; it has 'city': case matters
        feature 'City': the values 'Bonn' and 'bonn' differ in case alone; list one, or mend the
            cells
        feature 'City': its value 'NA' looks like a marker of missing values; declare it under
            missing
    """
    found = [*_of_names(schema, names, taken), *_of_roles(schema, taken)]
    for name, kind in schema.columns.items():
        if isinstance(kind, Skip) or name in taken:
            continue
        found += _of_feature_name(name)
        if isinstance(kind, Categorical):
            found += _of_values(name, kind, records)
    return found


def _of_names(schema: Schema, names: Sequence[str], taken: Mapping[str, str]) -> Iterator[str]:
    declared = schema.columns
    absent = [n for n, kind in declared.items() if n not in names and not isinstance(kind, Skip)]
    free = {name.casefold(): name for name in names if name not in declared and name not in taken}
    for name in absent:
        near = free.pop(name.casefold(), None)
        hint = "" if near is None else f"; it has {near!r}: case matters"
        yield f"schema {schema.name} declares {name!r}, which is not in the table{hint}"
    unused = [name for name in names if name in free.values()]
    if unused:
        yield (
            f"not in schema {schema.name} and so not used: "
            f"{', '.join(map(repr, unused[:_SHOWN]))}{', …' * (len(unused) > _SHOWN)}; declare "
            'them, kind = "skip" where that is meant'
        )
    for first, second in _alike(list(declared)):
        yield f"schema {schema.name}: the columns {first!r} and {second!r} differ in case alone"


def _of_roles(schema: Schema, taken: Mapping[str, str]) -> Iterator[str]:
    for name, role in taken.items():
        if role != "label" and not isinstance(schema.columns.get(name, Skip()), Skip):
            yield (
                f"schema {schema.name} declares {name!r} as a feature, but it is the {role} column "
                'and is left out; declare it kind = "skip"'
            )


def _of_feature_name(name: str) -> Iterator[str]:
    if _LIKE_IDS.search(name):
        yield (
            f"feature {name!r} looks like an id, and would be learned from; pass --ids {name}, or "
            f'--person {name} where a person has several rows, or declare it kind = "skip"'
        )
    elif _LIKE_BUDGETS.search(name):
        yield (
            f"feature {name!r} looks like a budget, and would be learned from; pass it as "
            '--epsilon or --delta, or declare it kind = "skip"'
        )


def _of_values(name: str, kind: Categorical, records: int | None) -> Iterator[str]:
    for first, second in _alike(kind.values):
        yield (
            f"feature {name!r}: the values {first!r} and {second!r} differ in case alone; list "
            "one, or mend the cells"
        )
    for value in kind.values:
        if value.casefold() in _MARKERS:
            yield (
                f"feature {name!r}: its value {value!r} looks like a marker of missing values; "
                "declare it under missing"
            )
    if records is not None and len(kind.values) > min(MANY_VALUES, records):
        yield (
            f"feature {name!r}: {len(kind.values)} declared values for {records} records; most are "
            'too rare to learn from under noise: merge them, or declare it kind = "skip"'
        )


def _alike(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that differ in case alone, each with the first of its kind."""
    first: dict[str, str] = {}
    for text in texts:
        known = first.setdefault(text.casefold(), text)
        if known != text:
            yield known, text
