"""IDX files: what is written is read back, what is broken is refused."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece.errors import DataError, OptionError
from refusals import refused
from research.experiments import pictures

from .image_files import LABELS, PIXELS, shared


def idx_bytes(array: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def test_idx_types_and_byte_order(tmp_path: Path) -> None:
    values = np.array([[1, -2, 300000]], dtype=">i4")
    (tmp_path / "a").write_bytes(idx_bytes(values, 12))
    found = pictures.read_idx(tmp_path / "a")
    assert found.tolist() == [[1, -2, 300000]]
    assert found.dtype.isnative


@pytest.mark.parametrize("packed", [True, False])
def test_idx_folder(packed: bool, tmp_path: Path) -> None:
    for name, array in (("images-idx3", PIXELS[:, 0]), ("labels-idx1", LABELS.astype(np.uint8))):
        data = idx_bytes(array)
        path = tmp_path / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    found = pictures.idx_folder(tmp_path, "train")
    assert (found.pixels == PIXELS[:, :1]).all()
    assert found.labels.tolist() == LABELS.tolist()
    with refused(DataError, "t10k"):
        pictures.idx_folder(tmp_path, "test")
    with pytest.raises(OptionError, match="did you mean 'train'"):
        pictures.idx_folder(tmp_path, "trian")


@pytest.mark.parametrize("cut", [0, 3, 6, 100, 5 * 1024 + 15])
def test_idx_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx_bytes(PIXELS[:, 0])[:cut])
    with pytest.raises(DataError, match="a:"):
        pictures.read_idx(tmp_path / "a")


def test_gzip_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(idx_bytes(PIXELS[:, 0]))[:-40])
    with pytest.raises(DataError, match="cannot be read"):
        pictures.read_idx(tmp_path / "a")


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_real_idx_folders(name: str, mean: float) -> None:
    """The training pixels' means are those commonly used to normalise these data sets."""
    found = pictures.idx_folder(shared(name), "train")
    assert found.pixels.shape == (60000, 1, 28, 28)
    assert found.pixels.mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert len(pictures.idx_folder(shared(name), "test")) == 10000


@pytest.mark.parametrize(
    "data", [b"\x01" + idx_bytes(LABELS)[1:], b"\0\0\x07\x01" + bytes(5), b"\0\0\x08\0", b"P5\n"]
)
def test_what_is_no_idx_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DataError, match="not an IDX file"):
        pictures.read_idx(tmp_path / "a")


def test_a_file_that_is_too_long_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx_bytes(LABELS.astype("u1")) + b"\0")
    with pytest.raises(DataError, match="6 bytes of values where shape"):
        pictures.read_idx(tmp_path / "a")
    with pytest.raises(DataError, match="cannot be read"):
        pictures.read_idx(tmp_path / "b")


def test_images_are_bytes_in_the_folder_or_in_raw(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "t10k-labels.idx1-ubyte").write_bytes(idx_bytes(LABELS.astype("u1")))
    (raw / "t10k-images.idx3-ubyte").write_bytes(idx_bytes(PIXELS[:, 0]))
    assert (pictures.idx_folder(tmp_path, "test").pixels == PIXELS[:, :1]).all()
    (raw / "t10k-images.idx3-ubyte").write_bytes(idx_bytes(PIXELS[:, 0].astype(">f4"), 13))
    with pytest.raises(DataError, match="images are float32"):
        pictures.idx_folder(tmp_path, "test")
