"""K models as one computation equal K models one by one, to the last digits that floats allow."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError
from apiece.training.stacked import SUMS, StackedMlp, StackedModel, StackedModule
from tests.training.stacks import MLP, load, loop_sum, mlp_module

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


OWNER = torch.tensor([[0, 1, 1, 1, 2, 2, 3], [2, 0, 1, 1, 0, 1, 3]])  # 3 is padding


def of_persons(alike: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(2, 7, 7, generator=generator), torch.randint(0, 3, (2, 7))
    if alike:
        x, y = x[:, :1].expand_as(x).contiguous(), y[:, :1].expand_as(y).contiguous()
    return x, y, torch.tensor([[0.1, 0.3, 5.0, 0.0], [0.2, 0.05, 0.1, 0.0]])


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("model", [MLP, StackedModule(mlp_module(), 1)], ids=["mlp", "module"])
def test_persons_are_clipped_as_one(model: StackedModel, alike: bool) -> None:
    """The sum is that of a loop over persons, each one's gradients added up first."""
    flat = model.initial(2, torch.Generator().manual_seed(1))
    x, y, clip = of_persons(alike)
    clipped = model.clipped_sum(flat, x, y, clip, OWNER)
    for k in range(2):
        own, total = load(mlp_module(), flat[k]).double(), torch.zeros_like(flat[k]).double()
        for person in range(3):
            mine = OWNER[k] == person
            outputs = own(x[k, mine].double())
            loss = nn.functional.cross_entropy(outputs, y[k, mine], reduction="sum")
            found = torch.autograd.grad(loss, list(own.parameters()))
            g = torch.cat([t.flatten() for t in found])
            torch.testing.assert_close(
                clipped.norms[k, person].double(), g.norm(), rtol=1e-5, atol=0
            )
            total += g * min(1.0, float(clip[k, person] / g.norm()))
        torch.testing.assert_close(clipped.gradients[SUMS][k].double(), total, rtol=1e-4, atol=1e-6)
    assert clipped.losses.shape == OWNER.shape


@pytest.mark.parametrize("model", [MLP, StackedModule(mlp_module(), 1)], ids=["mlp", "module"])
def test_without_a_person_the_sum_moves_by_at_most_their_bound(model: StackedModel) -> None:
    """And by more where, as a control, the same rows are records."""
    flat = model.initial(2, torch.Generator().manual_seed(1))
    x, y, clip = of_persons(alike=True)
    whole = model.clipped_sum(flat, x, y, clip, OWNER).gradients[SUMS]
    as_rows = model.clipped_sum(flat, x, y, clip.gather(1, OWNER)).gradients[SUMS]
    for person in range(3):
        without, bound = clip.clone(), clip[:, person]
        without[:, person] = 0.0
        less = model.clipped_sum(flat, x, y, without, OWNER).gradients[SUMS]
        assert ((whole - less).norm(dim=1) <= bound * (1 + 1e-5)).all()
        less = model.clipped_sum(flat, x, y, without.gather(1, OWNER)).gradients[SUMS]
        moved = (as_rows - less).norm(dim=1) / bound
        rows = torch.bincount(OWNER[0], minlength=4)[person]
        assert moved[0] > 1.5 or rows == 1 or clip[0, person] > 1


@pytest.mark.parametrize("model", [MLP, StackedModule(mlp_module())], ids=["mlp", "module"])
def test_a_row_that_is_not_finite_takes_its_person_out(model: StackedModel) -> None:
    flat = model.initial(2, torch.Generator().manual_seed(1))
    x, y, clip = of_persons(alike=False)
    less = clip.clone()
    less[0, 1] = 0.0
    without = model.clipped_sum(flat, x, y, less, OWNER).gradients[SUMS]
    x[0, 2] = torch.inf
    broken = model.clipped_sum(flat, x, y, clip, OWNER)
    torch.testing.assert_close(broken.gradients[SUMS], without)
    assert broken.rejected == 1


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
