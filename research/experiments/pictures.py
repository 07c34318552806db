"""Readers of image files as experiments need them: IDX (MNIST), SVHN's MATLAB files, Parquet."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.errors import DataError, unknown


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Images:
    """Images, (n, channels, height, width) bytes, and their n labels; data about people."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.labels.size)

    def scaled(self) -> npt.NDArray[np.float32]:
        """Return the pixels as floats in [0, 1]: the public range of a byte, not the data's own."""
        return self.pixels.astype(np.float32) / np.float32(255)


def images(pixels: npt.NDArray[np.uint8], labels: npt.ArrayLike, where: object) -> Images:
    """Return `Images` if there is one label an image, and at least one; else raise `DataError`."""
    marks = np.asarray(labels, dtype=np.int64).ravel()
    if pixels.ndim != 4 or len(pixels) != marks.size or marks.size == 0:
        raise DataError(
            f"{where}: images of shape {pixels.shape} and {marks.size} labels do not fit; "
            "give one label an image"
        )
    return Images(np.ascontiguousarray(pixels), marks)


# The third byte of the magic number; all values are big-endian.
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_PREFIX = {"train": "train", "test": "t10k"}


def read_idx(path: str | Path) -> npt.NDArray[Any]:
    """Return the array in an IDX file, gzipped or not."""
    path = Path(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); give an IDX file") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES or raw[3] == 0:
        raise DataError(f"{path}: not an IDX file (it starts with {raw[:4].hex() or 'nothing'})")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path}: cut off inside its header; fetch it again")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    kind = np.dtype(_TYPES[raw[2]])
    wanted = math.prod(shape) * kind.itemsize
    if len(raw) - start != wanted:
        raise DataError(
            f"{path}: {len(raw) - start} bytes of values where shape {shape} needs {wanted}; "
            "fetch it again"
        )
    values = np.frombuffer(raw, dtype=kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="))


def idx_folder(folder: str | Path, split: str) -> Images:
    """Return the images of a folder with the four files of MNIST's kind.

    The files are found by their usual names, with `-` or `.` before `idx`, with or without `.gz`,
    in the folder or in the `raw` folder inside it that torchvision makes.
    """
    if split not in _PREFIX:
        raise unknown("split", split, _PREFIX)
    pixels = read_idx(_find(Path(folder), f"{_PREFIX[split]}-images?idx3-ubyte"))
    labels = read_idx(_find(Path(folder), f"{_PREFIX[split]}-labels?idx1-ubyte"))
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise DataError(f"{folder}: images are {pixels.dtype} of shape {pixels.shape}, not bytes")
    return images(pixels[:, None], labels, folder)


def _find(folder: Path, pattern: str) -> Path:
    for place in (folder, folder / "raw"):
        found = sorted(place.glob(pattern)) + sorted(place.glob(f"{pattern}.gz"))
        if found:
            return found[0]
    raise DataError(f"{folder}: no file {pattern.replace('?', '-')}[.gz] in it; give its folder")


def svhn_mat(path: str | Path) -> Images:
    """Return the images of a file such as `train_32x32.mat`; the file's label 10 is the digit 0."""
    from scipy.io import loadmat

    # loadmat reads version 4 to 7 files, as SVHN's are; those hold data only, no code.
    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"]
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise DataError(f"{path}: not an SVHN file ({error!r}); fetch it again") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise DataError(
            f"{path}: X is {pixels.dtype} of shape {pixels.shape}, not bytes (height, width, 3, n)"
        )
    return images(pixels.transpose(3, 2, 0, 1), labels.ravel().astype(np.int64) % 10, path)


def cifar_parquet(path: str | Path) -> Images:
    """Return the images of a Parquet file with columns `image` (JPEG or PNG bytes) and `label`.

    A column of {"bytes", "path"} records, as other tools write it, is read too.
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
