"""A run that several tests audit."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece.cli import run as main


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on a small table in which the label is easy to learn by heart."""
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": generator.normal(size=160).round(4),
            "y": generator.normal(size=160).round(4),
            "label": generator.integers(0, 2, 160).astype(str),
            "budget": np.where(np.arange(160) % 2, 8, 2),
        }
    )
    frame.to_csv(folder / "people.csv", index=False)
    (folder / "people.toml").write_text(
        '[columns.x]\nkind = "numeric"\nlower = -4\nupper = 4\n'
        '[columns.y]\nkind = "numeric"\nlower = -4\nupper = 4\n'
        '[columns.label]\nkind = "categorical"\nvalues = ["0", "1"]\n'
    )
    status = main(
        [
            "train",
            "--data",
            str(folder / "people.csv"),
            "--schema",
            str(folder / "people.toml"),
            "--label",
            "label",
            "--epsilon",
            "budget",
            "--delta",
            "1e-5",
            "--strategy",
            "scale",
            "--batch-size",
            "32",
            "--steps",
            "8",
            "--seed",
            "0",
            "--test-share",
            "0.4",
            "--out",
            str(folder / "run"),
        ]
    )
    assert status == 0
    return folder / "run"
