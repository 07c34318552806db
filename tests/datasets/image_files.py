"""What the tests of image readers share: images made up, and where real ones are."""

import os
from pathlib import Path

import numpy as np
import pytest

SHARED = Path(os.environ.get("APIECE_DATA", Path(__file__).parents[3] / "shared" / "data"))
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5])


def shared(name: str) -> Path:
    """Return the folder of real data, or skip the test."""
    if not (SHARED / name).exists():
        pytest.skip(f"no {name} in $APIECE_DATA or ../shared/data")
    return SHARED / name
