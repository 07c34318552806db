"""Spark counts declared values as every other container does; skipped without pyspark or Java."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kinds import COLUMNS, NAMES, SIZE, arrow

from apiece.datasets import Schema
from apiece.queries.spark import register_on_spark

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = sql.SparkSession.builder.master("local[1]").appName("tests")
    made = made.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    made = made.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "OFF")
    session = made.getOrCreate()
    yield session
    session.stop()


def test_declared_groups_are_counted_alike_on_spark(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for part in range(2):
        half = arrow().slice(part * SIZE // 2, SIZE // 2)
        pq.write_table(half, tmp_path / "source" / f"{part}.parquet")
    declared = dict(zip(NAMES, COLUMNS.values(), strict=True))
    columns = {name: column.declare() for name, column in declared.items()}
    schema = Schema(columns, person="id", rows_per_person=1)
    table = register_on_spark(tmp_path / "source", schema, spark=spark, workspace=tmp_path)
    rows = spark.read.parquet(str(table.folder)).toPandas()
    for (name, column), kind in zip(declared.items(), COLUMNS, strict=True):
        found = Counter(rows[table.declarations.stored_group(name)].fillna(-1).astype(int).tolist())
        assert found == Counter(column.place(row) for row in range(SIZE)), kind
