"""What the tests of apiece audit share."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from click.testing import CliRunner


def call(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def write(path: Path, values: np.ndarray) -> str:
    path.write_text("\n".join(f"{v:.17g}" for v in values) + "\n")
    return str(path)


def canaries(path: Path, size: int = 400) -> str:
    generator = np.random.default_rng(1)
    included = generator.random(size) < 0.5
    group = np.where(np.arange(size) % 2, "weak", "strict")
    score = generator.normal(size=size) + included * np.where(group == "weak", 6.0, 0.0)
    pd.DataFrame({"score": score, "included": included, "who": group}).to_csv(path, index=False)
    return str(path)
