"""Tables, schemas and encoding: nothing is learned from rows, nothing is silently mended."""

from pathlib import Path

import numpy as np
import pytest

from apiece.datasets import Categorical, load, packaged_schema
from apiece.datasets.encode import encode
from apiece.datasets.tables import Dialect, read_header, read_table
from apiece.errors import DataError


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "csv.gz"])
def test_all_formats_encode_alike(suffix: str, tmp_path: Path) -> None:
    frame = load("german").head(50)
    path = tmp_path / f"g.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    columns = packaged_schema("german").features(but={"risk"})
    expected = encode(frame, columns).features
    np.testing.assert_array_equal(encode(read_table(path), columns).features, expected)
    assert list(read_header(path)) == list(frame.columns)


@pytest.mark.parametrize("given", [{"separator": ","}, {"encoding": "latin-1"}])
def test_what_only_csv_files_have_is_refused_of_parquet(
    given: dict[str, str], tmp_path: Path
) -> None:
    load("german").head(3).to_parquet(tmp_path / "g.pq")
    for read in (read_table, read_header):
        with pytest.raises(DataError, match=f"g.pq: {next(iter(given))} = .*leave it out"):
            read(tmp_path / "g.pq", Dialect(**given))
        assert len(read(tmp_path / "g.pq", Dialect(decimal=","))) > 0  # texts may hold numbers


def test_a_category_called_na_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y\nNA\na\n")
    frame = read_table(tmp_path / "t.csv")
    encoded = encode(frame, {"y": Categorical(("NA", "a"))})
    assert encoded.features.tolist() == [[1, 0], [0, 1]]
