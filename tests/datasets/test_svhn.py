"""SVHN: what is written is read back, what is broken is refused."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import DataError
from refusals import refused
from research.experiments import pictures

from .image_files import PIXELS


def test_svhn(tmp_path: Path) -> None:
    from scipy.io import savemat

    labels = np.array([[10], [1], [2], [3], [10]], dtype=np.uint8)
    savemat(tmp_path / "t.mat", {"X": PIXELS.transpose(2, 3, 1, 0), "y": labels})
    found = pictures.svhn_mat(tmp_path / "t.mat")
    assert (found.pixels == PIXELS).all()
    assert found.labels.tolist() == [0, 1, 2, 3, 0]
    (tmp_path / "bad.mat").write_bytes(b"MATLAB 5.0, or so it says" * 9)
    with refused(DataError, "SVHN"):
        pictures.svhn_mat(tmp_path / "bad.mat")


@pytest.mark.parametrize(
    "content",
    [
        {"X": PIXELS.transpose(2, 3, 1, 0).astype(float), "y": [[1]] * 5},
        {"X": PIXELS.transpose(2, 3, 0, 1), "y": [[1]] * 5},
        {"X": PIXELS[0], "y": [[1]] * 5},
        {"y": [[1]] * 5},
    ],
)
def test_what_holds_something_else_is_refused(content: dict[str, object], tmp_path: Path) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "t.mat", content)
    with pytest.raises(DataError, match=r"t\.mat: (X is|not an SVHN file)"):
        pictures.svhn_mat(tmp_path / "t.mat")
    with pytest.raises(DataError, match="not an SVHN file"):
        pictures.svhn_mat(tmp_path / "none.mat")
