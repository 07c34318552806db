"""Readers of image files: what is written is read back, what is broken or dangerous is refused."""

import gzip
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.datasets import cifar_folder, cifar_parquet, idx_folder, read_idx, svhn_mat
from apiece.errors import DataError, OptionError

SHARED = Path(os.environ.get("APIECE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"no {name} in $APIECE_DATA or ../shared/data")
    return SHARED / name


def idx_bytes(array: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5])


def test_idx_types_and_byte_order(tmp_path: Path) -> None:
    values = np.array([[1, -2, 300000]], dtype=">i4")
    (tmp_path / "a").write_bytes(idx_bytes(values, 12))
    found = read_idx(tmp_path / "a")
    assert found.tolist() == [[1, -2, 300000]]
    assert found.dtype.isnative


@pytest.mark.parametrize("packed", [True, False])
def test_idx_folder(packed: bool, tmp_path: Path) -> None:
    for name, array in (("images-idx3", PIXELS[:, 0]), ("labels-idx1", LABELS.astype(np.uint8))):
        data = idx_bytes(array)
        path = tmp_path / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    found = idx_folder(tmp_path, "train")
    assert (found.pixels == PIXELS[:, :1]).all()
    assert found.labels.tolist() == LABELS.tolist()
    with pytest.raises(DataError, match="t10k"):
        idx_folder(tmp_path, "test")
    with pytest.raises(OptionError, match="did you mean 'train'"):
        idx_folder(tmp_path, "trian")


@pytest.mark.parametrize("cut", [0, 3, 6, 100, 5 * 1024 + 15])
def test_idx_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx_bytes(PIXELS[:, 0])[:cut])
    with pytest.raises(DataError, match="a:"):
        read_idx(tmp_path / "a")


def test_gzip_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(idx_bytes(PIXELS[:, 0]))[:-40])
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "a")


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_10_batches(protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i in range(1, 6):
        rows = PIXELS[i - 1 : i].reshape(1, -1)
        batch = {"data": rows, "labels": [int(LABELS[i - 1])], "batch_label": "b"}
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(batch, protocol=protocol))
    for place in (tmp_path, folder):
        found = cifar_folder(place, "train")
        assert (found.pixels == PIXELS).all()
        assert found.labels.tolist() == LABELS.tolist()


def test_cifar_100_fine_and_coarse(tmp_path: Path) -> None:
    batch = {"data": PIXELS.reshape(5, -1), "fine_labels": [9] * 5, "coarse_labels": [2] * 5}
    (tmp_path / "test").write_bytes(pickle.dumps(batch, protocol=2))
    assert cifar_folder(tmp_path, "test").labels.tolist() == [9] * 5
    assert cifar_folder(tmp_path, "test", labels="coarse_labels").labels.tolist() == [2] * 5


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_a_pickle_that_runs_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": Malicious(), "fine_labels": []}))
    with pytest.raises(DataError, match="system"):
        cifar_folder(tmp_path, "train")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", pickle.dumps({"labels": [1]}), pickle.dumps([1]), pickle.dumps({})[:-1]],
)
def test_a_broken_batch_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(content)
    with pytest.raises(DataError, match="CIFAR batch"):
        cifar_folder(tmp_path, "train")


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, format="png")
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [True, False])
def test_cifar_parquet(nested: bool, tmp_path: Path) -> None:
    cells: list[Any] = [png(p) for p in PIXELS]
    if nested:
        cells = [{"bytes": c, "path": None} for c in cells]
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"image": cells, "label": LABELS.astype(np.uint8)}), path)
    found = cifar_parquet(path)
    assert (found.pixels == PIXELS).all()
    assert found.scaled().max() <= 1


def test_cifar_parquet_without_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"image": [b"no image"], "label": [1]}), path)
    with pytest.raises(DataError, match="decoded"):
        cifar_parquet(path)
    pq.write_table(pa.table({"label": [1]}), path)
    with pytest.raises(DataError, match="no column 'image'"):
        cifar_parquet(path)


def test_svhn(tmp_path: Path) -> None:
    from scipy.io import savemat

    labels = np.array([[10], [1], [2], [3], [10]], dtype=np.uint8)
    savemat(tmp_path / "t.mat", {"X": PIXELS.transpose(2, 3, 1, 0), "y": labels})
    found = svhn_mat(tmp_path / "t.mat")
    assert (found.pixels == PIXELS).all()
    assert found.labels.tolist() == [0, 1, 2, 3, 0]
    (tmp_path / "bad.mat").write_bytes(b"MATLAB 5.0, or so it says" * 9)
    with pytest.raises(DataError, match="SVHN"):
        svhn_mat(tmp_path / "bad.mat")


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_real_idx_folders(name: str, mean: float) -> None:
    """The training pixels' means are those commonly used to normalise these data sets."""
    found = idx_folder(shared(name), "train")
    assert found.pixels.shape == (60000, 1, 28, 28)
    assert found.pixels.mean() / 255 == pytest.approx(mean, abs=1e-4)
    assert len(idx_folder(shared(name), "test")) == 10000


def test_real_cifar_parquet() -> None:
    found = cifar_parquet(shared("cifar10-jpeg") / "test.parquet")
    assert found.pixels.shape == (10000, 3, 32, 32)
    assert np.bincount(found.labels).tolist() == [1000] * 10
