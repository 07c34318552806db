"""What lies behind shared tensors: taken back once for each record, through layers too."""

import pytest
import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping.paths import shared
from apiece.training.clipping.rules.rule import NotBookable


class Behind(nn.Module):
    """Scales each record by what a layer makes of a parameter."""

    def __init__(self, last):
        super().__init__()
        self.query, self.layer = nn.Parameter(torch.randn(1, 4)), nn.Linear(4, 4)
        self.head, self.last = nn.Linear(4, 2), last

    def forward(self, x):
        return self.head(x * self.last(self.layer(torch.sin(self.query))).squeeze(0))


LOSS = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize("last", [nn.Identity(), nn.Tanh(), nn.LayerNorm(4)])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_layers_and_functions_behind_what_is_shared(last, size):
    torch.manual_seed(3)
    model = Behind(last).double()
    x, y = torch.randn(size, 4).double(), torch.randint(0, 2, (size,))
    found = clip_and_sum(model, LOSS, x, y, 0.3, method="book-keeping")
    wanted = clip_and_sum(model, LOSS, x, y, 0.3, method="loop")
    assert torch.allclose(found.norms, wanted.norms)
    for name, gradient in wanted.gradients.items():
        assert torch.allclose(found.gradients[name], gradient), name


def test_gradients_are_taken_back_record_by_record():
    root = torch.randn(3, requires_grad=True)
    made, back = root.square(), torch.randn(5, 3)
    (found,) = shared._taken_back([(made, back)], [root])
    assert torch.allclose(found, 2 * root * back)
    with pytest.raises(NotBookable, match="cannot be taken back"):
        shared._taken_back([(torch.ones(3), back)], [root])
