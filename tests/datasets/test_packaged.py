"""The packaged tables are the published ones, and their schemas hold every row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apiece.datasets import Categorical, Numeric, load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.packaged import PACKAGED, match_packaged
from apiece.errors import OptionError

DATA = Path(__file__).parents[2] / "src" / "apiece" / "datasets" / "data"


# Sizes and label shares as the data sets' publishers state them.
@pytest.mark.parametrize(
    ("name", "rows", "rare", "share"),
    [
        ("adult", 48842, ">50K", 0.2393),
        ("german", 1000, "bad", 0.3),
        ("credit_default", 30000, 1, 0.2212),
    ],
)
def test_packaged_tables_are_the_published_ones(
    name: str, rows: int, rare: object, share: float
) -> None:
    frame = load(name)
    assert len(frame) == rows
    assert float((frame[PACKAGED[name].label] == rare).mean()) == pytest.approx(share, abs=5e-5)


def test_adult_keeps_its_original_split() -> None:
    assert load("adult")["split"].value_counts().to_dict() == {"train": 32561, "test": 16281}


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_schemas_hold_every_row(name: str) -> None:
    """Declared ranges and categories come from documentation; here they meet the rows."""
    frame, schema, label = load(name), packaged_schema(name), PACKAGED[name].label
    assert set(schema.columns) == set(frame.columns) - {"split"}
    columns = schema.features(but={label})
    encoded = encode(frame, columns)
    assert not encoded.faulty.any()
    assert np.abs(encoded.features).max() <= 1
    start = 0
    for column, kind in columns.items():
        width = 1 if isinstance(kind, Numeric) else len(kind.values)
        width += bool(kind.missing)
        if isinstance(kind, Categorical):
            block = encoded.features[:, start : start + width]
            assert (block.sum(axis=1) == 1).all(), f"{column} has an undeclared value"
        else:
            assert frame[column].between(kind.lower, kind.upper).all(), column
        start += width
    encode_labels(frame, label, schema.classes(label))


def test_packaged_data_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 2_000_000


def test_unknown_packaged_name() -> None:
    with pytest.raises(OptionError, match="did you mean 'adult'"):
        load("adlt")


@pytest.mark.parametrize(
    "change", [str.upper, lambda c: c.replace("_", "-"), lambda c: c.replace("_", ".")]
)
def test_a_packaged_schema_fits_other_spellings(change: Callable[[str], str]) -> None:
    names = [change(c) for c in load("adult").columns]
    found = match_packaged([*names, "consent_epsilon"], change("income"))
    assert found is not None
    assert found[0].name == "adult"
    assert found[1][change("hours_per_week")] == "hours_per_week"


def test_no_packaged_schema_fits_by_chance() -> None:
    assert match_packaged(["age", "income"], "income") is None
    assert match_packaged(list(load("adult").columns), "education") is None
