"""Seconds of questions by OpenDP's frames of Polars, for `scans.py --opendp`; prints JSON.

A time is that of the release, over rows in memory; choosing the noise's scale is its part too.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import opendp.prelude as dp
import polars as pl

HIGH = 200_000.0


def pay() -> Any:
    return pl.col("pay").fill_null(0.0).fill_nan(0.0)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "SELECT count(*) FROM people": lambda query: query.select(dp.len()),
    "SELECT sum(pay) FROM people": lambda query: query.select(pay().dp.sum((0.0, HIGH))),
    "SELECT avg(pay) FROM people WHERE age >= 40": lambda query: query.filter(
        pl.col("age") >= 40
    ).select(pay().dp.sum((0.0, HIGH)), dp.len()),
    "SELECT town, count(*) FROM people GROUP BY town": lambda query: query.group_by("town").agg(
        dp.len()
    ),
    "SELECT median(pay) FROM people": lambda query: query.select(
        pay().dp.median([HIGH * k / 1024 for k in range(1025)])
    ),
}


def main() -> None:
    path, most = sys.argv[1:]
    warnings.simplefilter("ignore")
    dp.enable_features("contrib")
    frame = pl.read_parquet(path)
    found: dict[str, Any] = {}
    for text, ask in QUESTIONS.items():
        try:
            begin = time.perf_counter()
            context = dp.Context.compositor(
                data=frame.lazy(),
                privacy_unit=dp.unit_of(contributions=int(most)),
                privacy_loss=dp.loss_of(epsilon=1.0, delta=1e-6),
                split_evenly_over=1,
                margins=[
                    dp.polars.Margin(by=[], max_length=frame.height),
                    dp.polars.Margin(by=["town"], max_length=frame.height, max_groups=20),
                ],
            )
            ask(context.query()).release().collect()
            found[text] = time.perf_counter() - begin
        except Exception as error:
            found[text] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
