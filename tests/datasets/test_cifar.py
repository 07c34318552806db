"""CIFAR as Parquet."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.errors import DataError
from refusals import refused
from research.experiments import pictures

from .image_files import LABELS, PIXELS, shared


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
    with refused(DataError, "decoded"):
        pictures.cifar_parquet(path)
    pq.write_table(pa.table({"label": [1]}), path)
    with pytest.raises(DataError, match="no column 'image'"):
        pictures.cifar_parquet(path)
    with pytest.raises(DataError, match="cannot be read"):
        pictures.cifar_parquet(tmp_path / "none.parquet")


def test_real_cifar_parquet() -> None:
    found = pictures.cifar_parquet(shared("cifar10-jpeg") / "test.parquet")
    assert found.pixels.shape == (10000, 3, 32, 32)
    assert np.bincount(found.labels).tolist() == [1000] * 10


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    cells = [png(PIXELS[0]), png(PIXELS[1][:, :16])]
    pq.write_table(pa.table({"image": cells, "label": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="2 sizes of images"):
        pictures.cifar_parquet(tmp_path / "c.parquet")
