"""Trained from a file, predicted from any container of the same table: one reading of cells."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from apiece.budgets.frames import read_frame
from apiece.datasets import Categorical, Date, Numeric
from apiece.datasets.encode import encode, encode_labels, name_features
from apiece.datasets.tables import Dialect
from apiece.errors import StewardWarning
from apiece.jobs.model import TabularModel, load_model, to_bytes

COLUMNS = {
    "member": Categorical(("TRUE", "FALSE")),
    "share": Categorical(("0.1", "0.25", "1.0")),
    "answer": Categorical(("a", "b"), missing=("NA",)),
    "reading": Numeric(0.0, 1.0, missing=("-99.9",)),
    "code": Categorical(("1", "2", "10")),
    "day": Date("2024-01-01", "2024-12-31"),
}
SIZE = 60
ROWS = {
    "member": ["TRUE", "FALSE", "FALSE"],
    "share": ["0.1", "0.25", "1.0", "0.10"],
    "answer": ["a", "b", "NA", "NA", "b"],
    "reading": ["0.5", "-99.9", "1", ".25"],
    "code": ["01", "02", "10"],
    "day": ["2024-01-31", "2024-06-30"],
}
TABLE = {name: [cells[row % len(cells)] for row in range(SIZE)] for name, cells in ROWS.items()}
LABEL = Categorical(("yes", "no"))


def csv(folder: Path, separator: str = ",") -> Path:
    path = folder / "t.csv"
    lines = [
        separator.join(TABLE),
        *(separator.join(row) for row in zip(*TABLE.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def containers(path: Path) -> dict[str, Any]:
    """The table of a file in every container, as ordinary people read it."""
    frame = pd.read_csv(path)
    typed = frame.assign(day=pd.to_datetime(frame["day"]))
    typed.to_parquet(path.with_suffix(".parquet"))
    return {
        "path": str(path),
        "pandas": frame,
        "pandas of nullable types": frame.convert_dtypes(),
        "pandas of Arrow": pd.read_csv(path, dtype_backend="pyarrow"),
        "pandas of texts": pd.read_csv(path, dtype=str),
        "narrow floats": frame.astype({"share": "float32", "reading": "float32"}),
        "dates": typed,
        "Parquet": path.with_suffix(".parquet"),
        "Arrow": pa.Table.from_pandas(typed),
        "DuckDB": duckdb.connect().from_arrow(pa.Table.from_pandas(typed)),
    }


def model() -> TabularModel:
    """A model that every feature matters to."""
    network = nn.Sequential(nn.Linear(len(name_features(COLUMNS)), 2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        network[0].weight.copy_(torch.randn(network[0].weight.shape, generator=generator))
    return TabularModel(network, dict(COLUMNS), "y", LABEL)


def test_every_container_has_the_features_of_the_file(tmp_path: Path) -> None:
    path = csv(tmp_path)
    features = encode(read_frame(path), COLUMNS).features
    assert np.isfinite(features).all()
    at = {name: place for place, name in enumerate(name_features(COLUMNS))}
    assert features[:, at["share=0.1"]].tolist() == [
        float(c in ("0.1", "0.10")) for c in TABLE["share"]
    ]
    assert features[:, at["reading=(missing)"]].tolist() == [
        float(c == "-99.9") for c in TABLE["reading"]
    ]
    assert features[:, at["code=1"]].tolist() == [float(c == "01") for c in TABLE["code"]]
    for name, table in containers(path).items():
        encoded = encode(read_frame(table), COLUMNS)
        assert encoded.features.tobytes() == features.tobytes(), name
        assert not any(encoded.unread.values()), name
    polars = pytest.importorskip("polars", reason="polars is not installed")
    encoded = encode(read_frame(polars.read_csv(path)), COLUMNS)
    nulls = polars.read_csv(path, null_values=["NA"])
    assert encoded.features.tobytes() == features.tobytes()
    assert encode(read_frame(nulls), COLUMNS).features.tobytes() == features.tobytes()


def test_a_stored_model_predicts_alike_from_every_container(tmp_path: Path) -> None:
    path = csv(tmp_path)
    (tmp_path / "model.pt").write_bytes(to_bytes(model()))
    loaded = load_model(tmp_path / "model.pt")
    labels = loaded.predict(path)
    assert set(labels) == {"yes", "no"}
    for name, table in containers(path).items():
        assert loaded.predict(table) == labels, name
        assert (loaded.probabilities(table) == loaded.probabilities(path)).all(), name
    semicolons = csv(tmp_path, ";")
    assert loaded.predict(semicolons, Dialect(";")) == labels


@pytest.mark.parametrize(
    ("column", "cells", "words"),
    [
        ("answer", ["z"] * SIZE, "60 in 'answer'"),
        ("reading", ["?"] * SIZE, "60 of 60 rows are not predicted.*60 in 'reading'"),
        ("day", ["31.01.2024"] * SIZE, "60 in 'day'"),
        ("member", [None, *TABLE["member"][1:]], "1 in 'member'"),
    ],
)
def test_prediction_tells_what_it_could_not_read(
    column: str, cells: list[Any], words: str, tmp_path: Path
) -> None:
    frame = pd.read_csv(csv(tmp_path)).assign(**{column: cells})
    with pytest.warns(StewardWarning, match=words):
        model().predict(frame)
    with pytest.warns(StewardWarning, match=words):
        model().probabilities(frame)


@pytest.mark.parametrize("stored", ["float64", "float32", "object", "Float32", "double[pyarrow]"])
def test_a_decimal_category_is_found_and_a_decimal_marker_is_missing(stored: str) -> None:
    cells = pd.Series([0.1, -99.9, 0.25], dtype="float32" if stored == "Float32" else "float64")
    frame = pd.DataFrame({"x": cells.astype(stored)})
    found = encode(frame, {"x": Categorical(("0.25", ".1"), missing=("-99.9",))}).features
    assert found.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    numeric = encode(frame, {"x": Numeric(-100, 100, missing=("-99.90",))})
    assert numeric.features[:, 1].tolist() == [0, 1, 0]
    assert numeric.features[1, 0] == 0


def test_two_declared_values_of_one_number_are_not_guessed_at() -> None:
    """Where pandas has read 01 as 1 and both are declared, nobody can tell: it is counted."""
    kind = {"x": Categorical(("1", "01"))}
    texts = encode(pd.DataFrame({"x": ["1", "01"]}), kind)
    assert texts.features.tolist() == [[1, 0], [0, 1]]
    whole = encode(pd.DataFrame({"x": [1, 1]}), kind)
    assert whole.unread == {"x": 2}


@pytest.mark.parametrize("labels", [["TRUE", "false"], [True, False], [1.0, 0.0], ["True", None]])
def test_labels_are_read_as_features_are(labels: list[Any]) -> None:
    frame = pd.DataFrame({"y": pd.Series(labels, dtype=object)})
    if None in labels:
        frame = frame.iloc[:1]
    assert encode_labels(frame, "y", ("True", "False")).tolist() == [0, 1][: len(frame)]


def test_a_job_trained_from_a_file_is_right_about_pandas(tmp_path: Path) -> None:
    """The label follows from `member` and `share`: what is reported is what is predicted."""
    from apiece.jobs import prepare, run
    from apiece.jobs.config import job_from_dict

    path = tmp_path / "people.csv"
    rows = [
        ",".join(
            [("FALSE", "TRUE")[i % 2], ("0.1", "2.50")[i // 2 % 2], f"0{1 + i % 3}", "ny"[i % 2]]
        )
        for i in range(400)
    ]
    path.write_text("member,share,code,y\n" + "\n".join(rows) + "\n")
    (tmp_path / "s.toml").write_text(
        '[columns.member]\nkind="categorical"\nvalues=["True","False"]\n'
        '[columns.share]\nkind="categorical"\nvalues=["0.1","2.5"]\n'
        '[columns.code]\nkind="categorical"\nvalues=["01","02","03"]\n'
        '[columns.y]\nkind="categorical"\nvalues=["n","y"]\n'
    )
    settings = {
        "source": str(path), "label": "y", "schema": str(tmp_path / "s.toml"), "delta": 1e-5,
        "steps": 30, "batch_size": 100, "strategy": "uniform", "seed": 0, "learning_rate": 2.0,
    }  # fmt: skip
    groups = {"budgets": {"groups": [{"name": "all", "share": 1.0, "epsilon": 8.0}]}}
    job = job_from_dict(groups, name="x", changes=settings)
    out = tmp_path / "run"
    run(prepare(job, out=out), out=out)
    (stored,) = (tmp_path / "run").rglob("model.pt")
    frame = pd.read_csv(path)
    loaded = load_model(stored)
    predicted = loaded.predict(frame)
    assert predicted == loaded.predict(path)
    assert predicted == frame["y"].tolist()
