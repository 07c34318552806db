"""CIFAR-10 and CIFAR-100: as Parquet of encoded images, and as the pickled batches of its authors.

A pickle can run any code when loaded, so the batches are read by an unpickler that knows only what
a batch is made of: dictionaries, lists, bytes and NumPy arrays.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.datasets.images import Images, images
from apiece.errors import DataError, unknown

# What NumPy arrays of any version are rebuilt from, and bytes in protocols below 3.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
_SIDE = 32


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return super().find_class(module, name)


def cifar_folder(folder: str | Path, split: str, *, labels: str = "fine_labels") -> Images:
    """Return the images of the folder that torchvision (or the authors) leave.

    Args:
        folder: `cifar-10-batches-py`, `cifar-100-python`, or the folder that holds one of them.
        split: "train" or "test".
        labels: For CIFAR-100, "fine_labels" or "coarse_labels".

    Raises:
        DataError: For a file that is not there or holds something else; nothing in it is executed.
        OptionError: For another split.

    Example:
        >>> import pickle, tempfile
        >>> batch = {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [7]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     inside = Path(folder, "cifar-100-python")
        ...     inside.mkdir()
        ...     _ = (inside / "train").write_bytes(pickle.dumps(batch))
        ...     cifar_folder(folder, "train").labels.tolist()
        [7]
    """
    if split not in ("train", "test"):
        raise unknown("split", split, ("train", "test"))
    if labels not in ("fine_labels", "coarse_labels"):
        raise unknown("labels", labels, ("fine_labels", "coarse_labels"))
    top = Path(folder)
    for place in (top, top / "cifar-10-batches-py", top / "cifar-100-python"):
        if (place / "data_batch_1").is_file():
            names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
            return _join([place / name for name in names], "labels")
        if (place / split).is_file():
            return _join([place / split], labels)
    raise DataError(f"{folder}: no CIFAR batches in it; give the folder torchvision downloads to")


def cifar_parquet(path: str | Path) -> Images:
    """Return the images of a Parquet file with columns `image` (JPEG or PNG bytes) and `label`.

    A column of {"bytes", "path"} records, as other tools write it, is read too.

    Args:
        path: Of the file.

    Raises:
        DataError: For a file that is not there or holds something else.

    Example:
        >>> import io, tempfile
        >>> import pandas as pd
        >>> from PIL import Image
        >>> png = io.BytesIO()
        >>> Image.new("RGB", (32, 32)).save(png, "png")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pd.DataFrame({"image": [png.getvalue()], "label": [7]})
        ...     table.to_parquet(f"{folder}/x.parquet")
        ...     cifar_parquet(f"{folder}/x.parquet").pixels.shape
        (1, 3, 32, 32)
    """
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a Parquet file") from None
    for name in ("image", "label"):
        if name not in table.column_names:
            raise DataError(f"{path}: no column {name!r} (it has {table.column_names})")
    cells = table.column("image").to_pylist()
    decoded = [_decode(cell["bytes"] if isinstance(cell, dict) else cell, path) for cell in cells]
    return images(_stack(decoded, path), table.column("label").to_numpy(), path)


def _decode(encoded: Any, path: str | Path) -> npt.NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (OSError, TypeError) as error:
        raise DataError(f"{path}: an image cannot be decoded ({error})") from None


def _stack(decoded: Sequence[npt.NDArray[np.uint8]], path: str | Path) -> npt.NDArray[np.uint8]:
    sizes = {image.shape for image in decoded}
    if len(sizes) != 1:
        raise DataError(f"{path}: {len(sizes)} sizes of images; give images of one size")
    return np.stack(decoded).transpose(0, 3, 1, 2)


def _join(paths: Sequence[Path], key: str) -> Images:
    batches = [_batch(path, key) for path in paths]
    pixels = np.concatenate([pixels for pixels, _ in batches])
    return images(pixels, np.concatenate([marks for _, marks in batches]), paths[0].parent)


def _batch(path: Path, key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    try:
        with path.open("rb") as file:
            content = _BatchUnpickler(file, encoding="latin1").load()
        data, marks = np.asarray(content["data"]), np.asarray(content[key], dtype=np.int64)
    # A broken pickle raises almost anything; whatever it is, the file is not a batch.
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ) as error:
        raise DataError(f"{path}: not a CIFAR batch ({error!r}); fetch it again") from None
    except (pickle.UnpicklingError, ImportError) as error:
        raise DataError(f"{path}: refused as a CIFAR batch: {error}") from None
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * _SIDE * _SIDE:
        raise DataError(f"{path}: data is {data.dtype} of shape {data.shape}, not (n, 3072) bytes")
    return data.reshape(-1, 3, _SIDE, _SIDE), marks
