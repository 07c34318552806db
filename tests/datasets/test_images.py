"""What every image reader returns: a label an image, and floats by the public range of a byte."""

import numpy as np
import pytest

from apiece.errors import DataError
from research.experiments import pictures


def test_floats_do_not_depend_on_the_images_beside_them() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)
    scaled = pictures.images(pixels, [3, 1, 4, 1], "f").scaled()
    assert (scaled.min(), scaled.max(), scaled.dtype) == (0, 1, np.float32)
    for i in range(4):
        assert (pictures.images(pixels[i : i + 1], [0], "f").scaled() == scaled[i : i + 1]).all()


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((2, 1, 8, 8), [1]), ((1, 1, 8, 8), [1, 2]), ((0, 1, 8, 8), []), ((2, 8, 8), [1, 2])],
)
def test_one_label_an_image(shape: tuple[int, ...], labels: list[int]) -> None:
    with pytest.raises(DataError, match=r"f: images of shape .* do not fit; give one label an"):
        pictures.images(np.zeros(shape, np.uint8), labels, "f")


def test_any_whole_labels_are_kept_in_one_row() -> None:
    found = pictures.images(np.zeros((2, 1, 1, 1), np.uint8), np.array([[7], [9]], "u1"), "f")
    assert (len(found), found.labels.tolist(), found.labels.dtype) == (2, [7, 9], np.int64)
