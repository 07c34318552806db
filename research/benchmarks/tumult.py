"""Sums and means by Tumult Analytics, for `queries.py --tumult`; prints estimates as JSON.

It needs Java and an interpreter of its own, since it asks for older versions than apiece does:

    python3.11 -m venv tumult && tumult/bin/pip install tmlt.analytics
    python -m research.benchmarks.queries --tumult tumult/bin/python

A Spark job takes seconds, so the repeats are one grouped query over copies of the table: each copy
is a group with noise of its own, at the same budget and sensitivity as the table alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings

import pandas as pd
from pyspark.sql import SparkSession
from tmlt.analytics import AddOneRow, ApproxDPBudget, KeySet, QueryBuilder, Session


def main() -> None:
    path, epsilon, delta, high, repeats = sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    people, copies = pd.read_parquet(path)[["income"]], range(int(repeats))
    frame = spark.createDataFrame(pd.concat([people.assign(copy=k) for k in copies]))
    keys, budget = (
        KeySet.from_dict({"copy": list(copies)}),
        ApproxDPBudget(float(epsilon), float(delta)),
    )
    found = {}
    for what in ("sum", "mean"):
        start = time.perf_counter()
        session = Session.from_dataframe(
            privacy_budget=budget, source_id="p", dataframe=frame, protected_change=AddOneRow()
        )
        groups = QueryBuilder("p").groupby(keys)
        ask = groups.sum if what == "sum" else groups.average
        answer = session.evaluate(ask("income", 0.0, float(high), name="estimate"), budget)
        values = [float(row["estimate"]) for row in answer.collect()]
        found[what] = {"estimates": values, "seconds": time.perf_counter() - start}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
