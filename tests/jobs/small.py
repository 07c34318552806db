"""A small table of people, and the job of training on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apiece.jobs import Job
from apiece.jobs.config import job_from_dict
from sample_tables import AGE_AND_ANSWER as SCHEMA

SIZE = 60


def table() -> pd.DataFrame:
    """60 people, every fourth for testing, with two budgets."""
    at = np.arange(SIZE)
    age = np.random.default_rng(0).integers(1, 99, SIZE)
    return pd.DataFrame({
        "age": age, "answer": np.where(age > 50, "yes", "no"), "budget": np.where(at % 2, 2.0, 8.0),
        "who": [f"p{i:02d}" for i in at], "part": np.where(at % 4, "train", "test"),
    })  # fmt: skip


def job(
    folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame] = lambda t: t, **more: Any
) -> Job:
    """Write the table and its schema to a folder; return the job."""
    change(table()).to_csv(folder / "people.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    settings = {
        "source": str(folder / "people.csv"), "schema": str(folder / "schema.toml"),
        "label": "answer", "epsilon": "budget", "delta": 1e-3, "split": "part",
        "steps": 3, "batch_size": 10, "strategy": "scale", "seed": 0,
    }  # fmt: skip
    if "person" in more:
        settings["rows_per_person"] = "all"
    return job_from_dict({}, name="small", changes={**settings, **more})
