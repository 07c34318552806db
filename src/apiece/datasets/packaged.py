"""Real tables that come with apiece, each with its public schema."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final

from apiece._lazy import require
from apiece.datasets.schema import Schema
from apiece.errors import unknown

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import pandas as pd


@dataclass(frozen=True, slots=True)
class Packaged:
    """A packaged table: the label column, and the column that tells train from test, if any."""

    title: str
    label: str
    split: str | None


# Name → packaged table.
PACKAGED: Final = {
    "adult": Packaged("Adult (census income), original split", "income", "split"),
    "german": Packaged("Statlog German Credit", "risk", None),
    "credit_default": Packaged("Default of Credit Card Clients", "default", None),
}


def load(name: str) -> pd.DataFrame:
    """Return a packaged table: "adult" (48842 rows), "german" (1000), "credit_default" (30000).

    Sources and licences are in NOTICE.

    Args:
        name: Of the table.

    Raises:
        OptionError: For another name.

    Example:
        >>> from apiece.datasets import load
        >>> load("german").shape
        (1000, 21)
    """
    require("tables")
    import pandas as pd

    with resources.as_file(_locate_file(name, "parquet")) as path:
        return pd.read_parquet(path)


def _locate_file(name: str, suffix: str) -> Traversable:
    """Return a file of a packaged table; raise `OptionError` for another name."""
    if name not in PACKAGED:
        raise unknown("packaged data", name, PACKAGED)
    return resources.files(__package__) / "data" / f"{name}.{suffix}"


def packaged_schema(name: str) -> Schema:
    """Return the public schema of a packaged table, from its published documentation.

    Args:
        name: Of the table.

    Raises:
        OptionError: For another name.

    Example:
        >>> from apiece.datasets import packaged_schema
        >>> packaged_schema("german").classes("risk")
        ('good', 'bad')
    """
    return Schema.from_dict(tomllib.loads(read_schema_text(name)), name)


def read_schema_text(name: str) -> str:
    """Return the TOML text of a packaged schema, comments included."""
    return _locate_file(name, "toml").read_text(encoding="utf-8")


def match_packaged(columns: list[str], label: str) -> tuple[Schema, dict[str, str]] | None:
    """Return the packaged schema whose columns are all in `columns`, and how to rename them.

    Names agree up to case and punctuation ("Hours-per-week" is hours_per_week). The label must be
    the packaged one. None where no schema fits.
    """
    # Simplified name → the column's own name.
    names = {_simplify_name(column): column for column in columns}
    for packaged_name, packaged in PACKAGED.items():
        schema = packaged_schema(packaged_name)
        features = {_simplify_name(feature): feature for feature in schema.features(but=set())}
        is_label = _simplify_name(label) == _simplify_name(packaged.label)
        # Every feature of the packaged schema must be there; further columns do no harm.
        if is_label and set(features) <= set(names):
            return schema, {names[key]: feature for key, feature in features.items()}
    return None


def _simplify_name(name: str) -> str:
    """Return a name in lower case, with underscores in place of all but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
