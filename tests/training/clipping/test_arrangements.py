"""Parameters stored with their axes in one order and used in another; records in any memory."""

import pytest
import torch
from torch import nn

from apiece.errors import SlowPathWarning, UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import contributions, reconcile, rewrite
from apiece.training.clipping.cache import proof_of
from apiece.training.clipping.contributions import Lookups, Outer, Products, Rows
from apiece.training.clipping.convolution import Convolution, Kernel
from planted import plant

from .test_front import assert_same


class Used(nn.Module):
    """One parameter of a shape, and what is made of it and the records."""

    def __init__(self, use, *shape):
        super().__init__()
        self.weight, self.use = nn.Parameter(torch.randn(*shape)), use

    def forward(self, x):
        return self.use(x, self.weight)


class Windowed(nn.Module):
    """Attention within windows, with relative positions that are learned (Swin)."""

    def __init__(self, heads, width=2, features=4):
        super().__init__()
        places = torch.stack(torch.meshgrid(*[torch.arange(width)] * 2, indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None]).permute(1, 2, 0) + width - 1
        self.register_buffer("index", (apart[..., 0] * (2 * width - 1) + apart[..., 1]).flatten())
        self.bias = nn.Parameter(torch.randn((2 * width - 1) ** 2, heads))
        self.qkv, self.heads, self.size = nn.Linear(features, 3 * features), heads, width**2

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(len(x), self.size, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.index].view(self.size, self.size, -1).permute(2, 0, 1)
        return (q @ k.mT + bias.unsqueeze(0)).softmax(-1) @ v


def squares(outputs, targets):
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().sum(1)


ARRANGED = {
    "transposed": (lambda: Used(lambda x, w: x * w.transpose(0, 1), 4, 1, 4), (4, 4)),
    "transposed, other sizes": (lambda: Used(lambda x, w: x * w.transpose(0, 1), 3, 1, 5), (3, 5)),
    "permuted": (lambda: Used(lambda x, w: x + w.permute(2, 0, 1), 4, 3, 2), (2, 4, 3)),
    "permuted, with a one": (lambda: Used(lambda x, w: x * w.permute(2, 0, 1), 3, 2, 1), (3, 2)),
    "positions": (lambda: Used(lambda x, w: x + w.permute(0, 3, 1, 2), 1, 5, 4, 3), (3, 5, 4)),
    "positions, a cube": (
        lambda: Used(lambda x, w: x * w.permute(0, 3, 2, 1), 1, 3, 3, 3), (3, 3, 3)
    ),
    "windows, one head": (lambda: Windowed(1), (4, 4)),
    "windows, two heads": (lambda: Windowed(2), (4, 4)),
    "twice, in two shapes": (
        lambda: Used(lambda x, w: x * w.transpose(0, 1) + w.view(1, 3, 3), 3, 1, 3), (3, 3)
    ),
    "one matrix from both sides": (
        lambda: Used(lambda x, w: (x @ w.view(4, 6)) @ w.view(6, 4), 24), (4,)
    ),
    "squeezed": (lambda: Used(lambda x, w: x * w.squeeze(1).mT, 3, 1, 3), (3, 3)),
    "summed with keepdim": (
        lambda: Used(lambda x, w: x * w.sum(1, keepdim=True).transpose(0, 1), 3, 2, 3), (3, 3)
    ),
    "one number": (lambda: Used(lambda x, w: x * w.view(1, 1), 1), (3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRANGED)
def test_a_gradient_has_the_axes_of_its_parameter(name):
    torch.manual_seed(0)
    make, shape = ARRANGED[name]
    model, inputs, targets = make(), torch.randn(5, *shape), torch.randn(5)
    bounds = torch.tensor([0.1, 1e6, 1.0, 1e6, 0.5])
    clipped = clip_and_sum(model, squares, inputs, targets, bounds, method="proved")
    assert_same(clipped, model, squares, inputs, targets, tolerance=2e-4)


def memory_layouts():
    torch.manual_seed(1)
    plain = torch.randn(5, 3, 4, 2)
    return {
        "channels last": plain.contiguous(memory_format=torch.channels_last),
        "permuted": plain.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
        "records last": plain.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "every other": torch.stack([plain, -plain], -1)[..., 0],
        "one for all": plain[:1].expand(5, -1, -1, -1),
        "backwards": plain.flip(0),
        "needs gradients": plain.clone().requires_grad_(),
    }


class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(1), nn.Linear(24, 2))


@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize("name", memory_layouts())
def test_records_in_any_arrangement_of_memory(name, method):
    inputs, targets, model = memory_layouts()[name], torch.ones(5), Flat()
    first = clip_and_sum(model, squares, inputs.detach().contiguous(), targets, 0.3, method=method)
    clipped = clip_and_sum(model, squares, inputs, targets, 0.3, method=method)
    for parameter, value in clipped.gradients.items():
        torch.testing.assert_close(value, first.gradients[parameter], rtol=1e-5, atol=1e-7)


def test_a_parameter_in_another_arrangement_of_memory_is_captured_again():
    torch.manual_seed(0)
    model, inputs = Used(lambda x, w: x @ w.view(-1, 2), 3, 4), torch.randn(5, 6)
    model.weight.data = torch.randn(3, 4)
    clip_and_sum(model, squares, inputs, torch.ones(5), 1.0, method="proved")
    model.weight.data = torch.randn(4, 3).t()
    with pytest.raises(UnsupportedError, match="Cannot view a tensor"):
        clip_and_sum(model, squares, inputs, torch.ones(5), 1.0, method="proved")


# ---------------------------------------------------------------- a rule that is wrong is found

BREAKS = {
    "an axis of keepdim is lost": (
        rewrite._sum, "operands[0].reshape(size, *shape)", "operands[0]", "transposed"
    ),
    "a sum over a broadcast axis is left out": (
        rewrite._sum, "rows.sum([1, *summed])", "rows.sum(1)", "one number"
    ),
    "a gradient is transposed": (
        rewrite._mm, "products(left_rows, right_rows)", "products(right_rows, left_rows)",
        "windows, two heads",
    ),
    "a square gradient is transposed": (
        rewrite._mm, "products(left_rows, right_rows)", "products(right_rows, left_rows)", "square"
    ),
    "a factor is lost": (
        rewrite._sum, "Rows(total.reshape", "Rows(2 * total.reshape", "one number"
    ),
    "a step is left out": (
        rewrite.Program.finish_gradient, "total = step.apply(total)", "pass", "squeezed"
    ),
}  # fmt: skip
SQUARE = (lambda: Used(lambda x, w: x @ w, 4, 4), (3, 4))


@pytest.mark.parametrize("name", BREAKS)
def test_a_rule_that_is_wrong_is_found_before_the_first_batch(name, monkeypatch):
    target, old, new, case = BREAKS[name]
    plant(monkeypatch, target, old, new)
    monkeypatch.setitem(rewrite.LEAVES, "mm", rewrite._mm)
    monkeypatch.setitem(rewrite.LEAVES, "sum", rewrite._sum)
    make, shape = {**ARRANGED, "square": SQUARE}[case]
    model, inputs = make(), torch.randn(5, *shape)
    with pytest.raises(UnsupportedError, match=r"(sum|mm|weight): .*(add up|shape|its own grad)"):
        clip_and_sum(model, squares, inputs, torch.ones(5), 1.0, method="proved")
    assert not proof_of(model).proved
    with pytest.warns(SlowPathWarning):  # and what is refused is right by the other way
        clipped = clip_and_sum(model, squares, inputs, torch.ones(5), 1e6)
    assert_same(clipped, model, squares, inputs, torch.ones(5), tolerance=2e-4)


def test_without_the_trial_a_shape_that_is_wrong_is_refused(monkeypatch):
    """A model too large to be tried is held to shapes all the same."""
    monkeypatch.setattr(rewrite, "LARGEST_MODEL", 0)
    plant(monkeypatch, rewrite._sum, "operands[0].reshape(size, *shape)", "operands[0]")
    monkeypatch.setitem(rewrite.LEAVES, "sum", rewrite._sum)
    make, shape = ARRANGED["transposed"]
    with pytest.raises(UnsupportedError, match=r"loss_fn: sum: each record's gradient has shape"):
        clip_and_sum(make(), squares, torch.randn(5, *shape), torch.ones(5), 1.0, method="proved")


def test_the_trial_reads_no_row_and_draws_of_no_stream():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    before = torch.get_rng_state()
    stated = [p.clone() for p in model.parameters()]
    inputs = torch.full((5, 4), torch.nan)
    clipped = clip_and_sum(model.eval(), squares, inputs, torch.ones(5), 1.0, method="proved")
    assert clipped.rejected == 5  # and the rows had no say in whether it is proved
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, stated, model.parameters()))


def test_the_trial_takes_what_needs_positive_numbers():
    model = Used(lambda x, w: torch.log(x) * w, 3)
    tried = []
    plain = reconcile._compare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "_compare", lambda *given: (tried.append(1), plain(*given)))
        clip_and_sum(model, squares, torch.rand(5, 3), torch.ones(5), 1.0, method="proved")
    assert tried


FORMS = {
    "rows": Rows(torch.ones(5, 2, 3)),
    "outer": Outer(torch.ones(5, 2), torch.ones(5, 3)),
    "products": Products(torch.ones(5, 4, 2), torch.ones(5, 4, 3)),
    "lookups": Lookups(torch.zeros(5, 4, dtype=torch.long), torch.ones(5, 4, 3), 2),
    "convolution": Convolution(
        Kernel((2, 3, 2), (1,), (0,), (1,), 1), torch.ones(5, 3, 4), torch.ones(5, 2, 3)
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_contribution_knows_its_shape(name):
    part = FORMS[name]
    assert part.shape == tuple(part.per_record().shape)
    contributions.check_shape(part, part.shape, "x")
    for wrong in ((5, 3, 2), (4, *part.shape[1:]), (5, 1, *part.shape[1:])):
        with pytest.raises(UnsupportedError, match="each record's gradient has shape"):
            contributions.check_shape(part, wrong, "x")


def test_parts_of_several_shapes_are_not_added():
    with pytest.raises(UnsupportedError, match="used several times"):
        contributions.join([Rows(torch.ones(5, 4, 4)), Rows(torch.ones(5, 1, 4))])
