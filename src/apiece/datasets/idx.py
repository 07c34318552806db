"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.datasets.images import Images, images
from apiece.errors import DataError, unknown

# The third byte of the magic number; all values are big-endian.
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_PREFIX = {"train": "train", "test": "t10k"}


def read_idx(path: str | Path) -> npt.NDArray[Any]:
    r"""Return the array in an IDX file, gzipped or not.

    Args:
        path: Of the file.

    Raises:
        DataError: For one that is unreadable, cut or too long.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "labels")
        ...     _ = path.write_bytes(b"\0\0\x08\x01" + b"\0\0\0\x02" + b"\x07\x09")
        ...     read_idx(path).tolist()
        [7, 9]
    """
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
    r"""Return the images of a folder with the four files of MNIST's kind.

    The files are found by their usual names, with `-` or `.` before `idx`, with or without `.gz`,
    in the folder or in the `raw` folder inside it that torchvision makes.

    Args:
        folder: Its path.
        split: "train" or "test".

    Raises:
        DataError: For a file that is not there or unreadable.
        OptionError: For another split.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pixels = b"\0\0\x08\x03" + 3 * b"\0\0\0\x01" + b"\xff"
        ...     labels = b"\0\0\x08\x01" + b"\0\0\0\x01" + b"\x07"
        ...     _ = Path(folder, "train-images-idx3-ubyte").write_bytes(pixels)
        ...     _ = Path(folder, "train-labels-idx1-ubyte").write_bytes(labels)
        ...     idx_folder(folder, "train").labels.tolist()
        [7]
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
