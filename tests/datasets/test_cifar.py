"""CIFAR, as pickled batches and as Parquet: read without running anything in it."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.errors import DataError, OptionError

from .image_files import LABELS, PIXELS, pictures, shared


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_10_batches(protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i in range(1, 6):
        rows = PIXELS[i - 1 : i].reshape(1, -1)
        batch = {"data": rows, "labels": [int(LABELS[i - 1])], "batch_label": "b"}
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(batch, protocol=protocol))
    for place in (tmp_path, folder):
        found = pictures.cifar_folder(place, "train")
        assert (found.pixels == PIXELS).all()
        assert found.labels.tolist() == LABELS.tolist()


def test_cifar_100_fine_and_coarse(tmp_path: Path) -> None:
    batch = {"data": PIXELS.reshape(5, -1), "fine_labels": [9] * 5, "coarse_labels": [2] * 5}
    (tmp_path / "test").write_bytes(pickle.dumps(batch, protocol=2))
    assert pictures.cifar_folder(tmp_path, "test").labels.tolist() == [9] * 5
    assert (
        pictures.cifar_folder(tmp_path, "test", labels="coarse_labels").labels.tolist() == [2] * 5
    )


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_a_pickle_that_runs_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": Malicious(), "fine_labels": []}))
    with pytest.raises(DataError, match="system"):
        pictures.cifar_folder(tmp_path, "train")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", pickle.dumps({"labels": [1]}), pickle.dumps([1]), pickle.dumps({})[:-1]],
)
def test_a_broken_batch_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(content)
    with pytest.raises(DataError, match="CIFAR batch"):
        pictures.cifar_folder(tmp_path, "train")


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
    found = pictures.cifar_parquet(path)
    assert (found.pixels == PIXELS).all()
    assert found.scaled().max() <= 1


def test_cifar_parquet_without_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"image": [b"no image"], "label": [1]}), path)
    with pytest.raises(DataError, match="decoded"):
        pictures.cifar_parquet(path)
    pq.write_table(pa.table({"label": [1]}), path)
    with pytest.raises(DataError, match="no column 'image'"):
        pictures.cifar_parquet(path)


def test_real_cifar_parquet() -> None:
    found = pictures.cifar_parquet(shared("cifar10-jpeg") / "test.parquet")
    assert found.pixels.shape == (10000, 3, 32, 32)
    assert np.bincount(found.labels).tolist() == [1000] * 10


def test_what_is_asked_for_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'train'"):
        pictures.cifar_folder(tmp_path, "trian")
    with pytest.raises(OptionError, match="coarse_labels"):
        pictures.cifar_folder(tmp_path, "train", labels="coarse")
    with pytest.raises(DataError, match="no CIFAR batches"):
        pictures.cifar_folder(tmp_path, "train")
    with pytest.raises(DataError, match="cannot be read"):
        pictures.cifar_parquet(tmp_path / "none.parquet")


@pytest.mark.parametrize("rows", [PIXELS.reshape(5, -1)[:, 1:], PIXELS.reshape(5, -1) / 2.0])
def test_a_batch_of_another_shape_is_refused(rows: Any, tmp_path: Path) -> None:
    batch = {"data": rows, "fine_labels": [1] * 5}
    (tmp_path / "train").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=r"not \(n, 3072\) bytes"):
        pictures.cifar_folder(tmp_path, "train")


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    cells = [png(PIXELS[0]), png(PIXELS[1][:, :16])]
    pq.write_table(pa.table({"image": cells, "label": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="2 sizes of images"):
        pictures.cifar_parquet(tmp_path / "c.parquet")
