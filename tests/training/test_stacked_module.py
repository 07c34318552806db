"""Any module K times over gives the sums of one at a time; what cannot be stacked is refused."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.stacked import SUMS, StackedModule
from tests.training.stacks import load, loop_sum


class Residual(nn.Module):
    """A convolution with group normalisation, beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.inner = nn.Sequential(convolution, nn.GroupNorm(2, channels), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), Residual(4), nn.MaxPool2d(2), Residual(4),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


MODELS = {
    "cnn": (cnn(), (1, 8, 8)),
    "resnet": (resnet(), (3, 16, 16)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("block", [1, 2, 8])
def test_clipped_sum_is_the_loop_whatever_the_block(name: str, block: int) -> None:
    module, shape = MODELS[name]
    model, generator = StackedModule(module, block=block), torch.Generator().manual_seed(1)
    flat = model.initial(3, generator)
    x = torch.randn(3, 4, *shape, generator=generator)
    y = torch.randint(0, 3, (3, 4), generator=generator)
    clip = torch.tensor([[0.1, 5.0, 0.0, 0.7], [100.0, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]])
    ours = model.clipped_sum(flat, x, y, clip)
    loop = torch.stack([loop_sum(module, flat[j], x[j], y[j], clip[j]) for j in range(3)])
    torch.testing.assert_close(ours.gradients[SUMS], loop, rtol=2e-4, atol=2e-5)
    logits = torch.stack([load(module, flat[j])(x[j]) for j in range(3)])
    torch.testing.assert_close(model.logits(flat, x), logits, rtol=1e-4, atol=1e-5)


def test_models_start_apart_and_leave_torch_s_generator_alone() -> None:
    model, before = StackedModule(cnn()), torch.get_rng_state()
    one, again = (model.initial(2, torch.Generator().manual_seed(4)) for _ in range(2))
    assert one.shape == (2, model.parameters)
    assert torch.equal(one, again)
    assert not torch.equal(one[0], one[1])
    assert torch.equal(before, torch.get_rng_state())


def test_a_block_holds_a_model() -> None:
    with pytest.raises(InputError, match="block = 0"):
        StackedModule(nn.Linear(2, 2), block=0)


def test_buffers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="group normalisation"):
        StackedModule(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_parameters_without_reset_are_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    with pytest.raises(UnsupportedError, match="reset_parameters"):
        StackedModule(Scale()).initial(2, torch.Generator())
