"""K models as one computation equal K models one by one, to the last digits that floats allow."""

import pytest
import torch
from torch import nn

from apiece.audit.stacked import SUMS, StackedMlp, StackedModel
from apiece.audit.stacked_module import StackedModule
from apiece.errors import InputError

from .worlds import MLP, load, loop_sum, mlp_module

MODELS: list[tuple[str, StackedModel, nn.Module, tuple[int, ...]]] = [
    ("mlp", MLP, mlp_module(), (7,)),
    ("module", StackedModule(mlp_module(), block=2), mlp_module(), (7,)),
]


@pytest.mark.parametrize(("name", "model", "module", "shape"), MODELS, ids=[m[0] for m in MODELS])
def test_clipped_sum_is_the_loop(
    name: str, model: StackedModel, module: nn.Module, shape: tuple[int, ...]
) -> None:
    k, p = 3, 4
    torch.manual_seed(0)
    flat = model.initial(k, torch.Generator().manual_seed(1))
    x = torch.randn(k, p, *shape)
    y = torch.randint(0, 3, (k, p))
    clip = torch.tensor([[0.1, 5.0, 0.0, 0.7], [100.0, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]])
    clipped = model.clipped_sum(flat, x, y, clip)
    ours = clipped.gradients[SUMS]
    loop = torch.stack([loop_sum(module, flat[j], x[j], y[j], clip[j]) for j in range(k)])
    torch.testing.assert_close(ours, loop, rtol=2e-4, atol=2e-5)
    assert (ours[2] == 0).all()
    logits = torch.stack([load(module, flat[j])(x[j]) for j in range(k)])
    torch.testing.assert_close(model.logits(flat, x), logits, rtol=1e-4, atol=1e-5)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(clipped.losses, losses.view(k, p), rtol=1e-4, atol=1e-5)


def test_gradient_norms_are_those_of_autograd() -> None:
    flat = MLP.initial(2, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 3, 7, generator=generator), torch.tensor([[0, 1, 2], [2, 2, 0]])
    found = MLP.gradient_norms(flat, x, y)
    for k in range(2):
        for i in range(3):
            part = (x[k, i : i + 1], y[k, i : i + 1], torch.tensor([torch.inf]))
            expected = loop_sum(mlp_module(), flat[k], *part).norm()
            torch.testing.assert_close(found[k, i], expected)


@pytest.mark.parametrize("model", [MLP, StackedModule(mlp_module())], ids=["mlp", "module"])
def test_a_broken_record_contributes_nothing(model: StackedModel) -> None:
    flat = model.initial(2, torch.Generator().manual_seed(1))
    x, y, clip = torch.randn(2, 3, 7), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3)
    kept = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    without = model.clipped_sum(flat, x, y, kept).gradients[SUMS]
    x[0, 1] = torch.inf
    broken = model.clipped_sum(flat, x, y, clip)
    torch.testing.assert_close(broken.gradients[SUMS], without)
    assert broken.rejected == 1


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("model", [MLP, StackedModule(mlp_module())], ids=["mlp", "module"])
def test_round_off_lifts_nobody_over_their_bound(model: StackedModel, scale: float) -> None:
    """With one record a model the sum is that record's share."""
    count = 4096 if model is MLP else 512
    generator = torch.Generator().manual_seed(3)
    flat = model.initial(count, generator) * 2
    x = torch.randn(count, 1, 7, generator=generator) * scale
    y = torch.randint(0, 3, (count, 1), generator=generator)
    free = model.clipped_sum(flat, x, y, torch.full((count, 1), 1e30))
    own = free.gradients[SUMS].double().norm(dim=1)
    bounds = own * torch.rand(count, generator=generator, dtype=torch.float64).clamp(0.01)
    bounds.clamp_(min=1e-12)
    shares = model.clipped_sum(flat, x, y, bounds.float()[:, None]).gradients[SUMS].double()
    ratios = shares.norm(dim=1) / bounds.float().double()
    assert float(ratios.max()) <= 1
    assert float(ratios[own > 1e-6].min()) > 1 - 2.0**-15


@pytest.mark.parametrize("sizes", [(3,), (3, 0, 2)])
def test_sizes_that_make_no_model_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="sizes"):
        StackedMlp(sizes)
