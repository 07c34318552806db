"""Real tables that come with apiece, each with its public schema."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from apiece.datasets.schema import Schema
from apiece.errors import unknown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Packaged:
    """A packaged table: the label column, and the column that tells train from test, if any."""

    title: str
    label: str
    split: str | None


PACKAGED = {
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
    import pandas as pd

    describe(name)
    with resources.as_file(resources.files(__package__) / "data" / f"{name}.parquet") as path:
        return pd.read_parquet(path)


def describe(name: str) -> Packaged:
    """Return the packaged table's label and split, or raise `OptionError`."""
    if name not in PACKAGED:
        raise unknown("packaged data", name, PACKAGED)
    return PACKAGED[name]


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
    describe(name)
    return (resources.files(__package__) / "data" / f"{name}.toml").read_text(encoding="utf-8")


def match_packaged(columns: list[str], label: str) -> tuple[Schema, dict[str, str]] | None:
    """Return the packaged schema whose columns are all in `columns`, and how to rename them."""
    # Names agree up to case and punctuation ("Hours-per-week" is hours_per_week). The label must be
    # the packaged one. None where no schema fits.
    given = {_plain(name): name for name in columns}
    for name, packaged in PACKAGED.items():
        schema = packaged_schema(name)
        wanted = {_plain(c): c for c in schema.features(but=set())}
        if _plain(label) == _plain(packaged.label) and set(wanted) <= set(given):
            return schema, {given[key]: own for key, own in wanted.items()}
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
