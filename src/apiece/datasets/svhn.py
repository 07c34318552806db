"""SVHN's cropped digits, in the MATLAB files that its authors give and torchvision leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from apiece.datasets.images import Images, images
from apiece.errors import DataError


def svhn_mat(path: str | Path) -> Images:
    """Return the images of a file such as `train_32x32.mat`; the file's label 10 is the digit 0.

    Args:
        path: Of the file.

    Raises:
        DataError: For a file that is not there or holds something else.

    Example:
        >>> import tempfile
        >>> from scipy.io import savemat
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     savemat(f"{folder}/x.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": [[10]]})
        ...     svhn_mat(f"{folder}/x.mat").labels.tolist()
        [0]
    """
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
