"""A schema template to fill in, written from a table's header alone."""

from __future__ import annotations

from collections.abc import Collection

import tomli_w

_INTRO = """\
# Public schema of {name}: fill in every line marked '?', then pass it with --schema.
# Written from the names in the file's header{types}; no row was read.
# Give only what you know without looking at the people in this table: a questionnaire's codes, an
# official code list, a plausible range. Ranges and categories taken from the rows themselves would
# leak them, and no epsilon would account for that.
#   kind = "numeric"      lower, upper; scale = "log" for long tails
#   kind = "categorical"  values = [...]
#   kind = "date"         lower = 1900-01-01, upper; format = "%d.%m.%Y" of texts
#   kind = "skip"         not used
# missing = [""] is proposed for cells that may be empty: they get a feature of their own. Add
# other markers ("?", "NA"). A row whose number or date cannot be read is left out of training.
"""


def template(name: str, header: dict[str, str | None], *, label: str, but: Collection[str]) -> str:
    """Return a TOML schema with one entry for each column of `header`, blanks marked '?'.

    Args:
        name: Of the schema.
        header: Column names, with a storage type or None.
        label: Declared categorical.
        but: Columns that are no features (budgets, ids, split), which are left out.

    Example:
        >>> text = template("t", {"age": "int64", "y": None}, label="y", but=[])
        >>> print(text.splitlines()[0][:21])
        # Public schema of t:
    """
    typed = any(header.values())
    parts = [_INTRO.format(name=name, types=" and its storage types" if typed else "")]
    for column, kind in header.items():
        if column not in but:
            parts.append(_entry(column, "label" if column == label else kind))
    return "\n".join(parts)


def _entry(column: str, kind: str | None) -> str:
    head = tomli_w.dumps({"columns": {column: {}}}).rstrip()
    if kind == "label":
        note = "  # the label: two classes or more, or numeric with a range"
        return f'{head}{note}\nkind = "categorical"\nvalues = ["?", "?"]\n'
    stored = "" if kind is None else f"  # stored as {kind}"
    return f'{head}{stored}\n{_lines(kind)}missing = [""]\n'


def _lines(kind: str | None) -> str:
    """Return the declaration for a column that is stored so."""
    if kind is None:
        return 'kind = "?"\n'
    if kind.startswith(("int", "uint", "float", "double", "half", "decimal")):
        return 'kind = "numeric"\nlower = "?"\nupper = "?"\n'
    if kind.startswith(("date", "timestamp")):
        return 'kind = "date"\nlower = "?"\nupper = "?"\n'
    if kind.startswith("bool"):
        return 'kind = "categorical"\nvalues = ["True", "False"]\n'
    return 'kind = "categorical"\nvalues = ["?"]\n'
