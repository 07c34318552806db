"""Images: of the shape that a transform takes, or refused."""

import pytest
import torch

from apiece.errors import InputError
from apiece.recipes.features import require_shape


def test_the_shape_that_is_wanted_passes() -> None:
    require_shape(torch.zeros(2, 3, 8, 8), 3, 8)
    require_shape(torch.zeros(0, 5, 8, 8), "c", 8)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 1, 8, 8), (2, 3, 8, 7), (2, 3, 9, 9)])
def test_another_shape_is_refused_with_both(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as refused:
        require_shape(torch.zeros(shape), 3, 8)
    assert str(shape) in str(refused.value)
    assert "(n, 3, 8, 8)" in str(refused.value)
