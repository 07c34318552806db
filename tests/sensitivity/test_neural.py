"""Neural partial sensitivities: autograd record by record and finite differences agree."""

import numpy as np
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from apiece.errors import (
    DataError,
    InputError,
    NotDifferentiableError,
    RangeError,
    UnsupportedError,
)
from apiece.sensitivity import ModelLoss, loss_shares, partial_sensitivity
from apiece.sensitivity.neural import by_torch_func
from apiece.sensitivity.smooth import smooth_squares
from refusals import refused


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def build(*layers, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(*(layer() for layer in layers)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


NETWORKS = {
    "linear": ((5,), [lambda: nn.Linear(5, 3)]),
    "no bias": ((5,), [lambda: nn.Linear(5, 3, bias=False)]),
    "mlp": ((4,), [lambda: nn.Linear(4, 6), nn.Tanh, lambda: nn.Linear(6, 3)]),
    "in place": (
        (4,),
        [lambda: nn.Linear(4, 6), lambda: nn.ELU(inplace=True), lambda: nn.Linear(6, 3)],
    ),
    "sequence": (
        (7, 4),
        [lambda: nn.Linear(4, 5), nn.Tanh, lambda: nn.LayerNorm(5), lambda: nn.Linear(5, 2),
         nn.Flatten, lambda: nn.Linear(14, 3)],
    ),
    "long sequence": ((3, 20), [lambda: nn.Linear(20, 20), nn.Tanh, nn.Flatten,
                                lambda: nn.Linear(60, 3)]),
    "image": (
        (2, 6, 5),
        [lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), lambda: nn.GroupNorm(2, 4), nn.Tanh,
         nn.Flatten, lambda: nn.Linear(36, 3)],
    ),
    "grouped, dilated": (
        (4, 7, 7),
        [lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), nn.Softplus, nn.Flatten,
         lambda: nn.Linear(54, 3)],
    ),
    "signal": (
        (2, 11),
        [lambda: nn.Conv1d(2, 3, 4, stride=2, padding=2), nn.SiLU, nn.Flatten,
         lambda: nn.Linear(18, 3)],
    ),
}  # fmt: skip


GENERAL = {
    "in place",
    "sequence",
    "long sequence",
    "image",
    "signal",
}  # autograd leaves part of them


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_s_norms_equal_torch_func(name):
    shape, layers = NETWORKS[name]
    model = build(*layers)
    x, y = torch.randn(6, *shape, dtype=torch.float64), torch.randint(0, 3, (6,))
    assert (smooth_squares(model, cross_entropy, x, y) is not None) == (name not in GENERAL)
    found = partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    norms, growth = by_torch_func(model, cross_entropy, x, y)
    np.testing.assert_allclose(found.norms, norms.numpy(), rtol=1e-10)
    np.testing.assert_allclose(found.raw, growth.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_at_a_time_loop_and_finite_differences(name):
    shape, layers = NETWORKS[name]
    model = build(*layers, seed=1)
    x, y = torch.randn(3, *shape, dtype=torch.float64), torch.randint(0, 3, (3,))

    def norm(one, target):
        loss = cross_entropy(model(one[None]), target[None]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([g.flatten() for g in gradients]).norm().item()

    found = partial_sensitivity(ModelLoss(model, cross_entropy, records_at_a_time=2), x, y)
    assert found.raw.shape == x.shape
    np.testing.assert_allclose(
        found.norms, [norm(a, b) for a, b in zip(x, y, strict=True)], rtol=1e-10
    )
    generator = np.random.default_rng(0)
    for _ in range(6):
        i, *entry = (int(generator.integers(k)) for k in x.shape)
        up, down = x[i].clone(), x[i].clone()
        up[tuple(entry)] += 1e-5
        down[tuple(entry)] -= 1e-5
        slope = (norm(up, y[i]) - norm(down, y[i])) / 2e-5
        assert found.raw[(i, *entry)] == pytest.approx(slope, abs=1e-6, rel=1e-6)


def test_symbolic_and_neural_agree_on_a_network_written_out():
    """A net of one hidden unit, as an expression over its parameters and inputs."""
    model = build(lambda: nn.Linear(2, 1), nn.Tanh, lambda: nn.Linear(1, 1))
    names = ["x0", "x1", "w0", "w1", "b", "v", "c"]
    symbols = dict(zip(names, sympy.symbols(names), strict=True))
    x0, x1, w0, w1, b, v, c = symbols.values()
    loss = (v * sympy.tanh(w0 * x0 + w1 * x1 + b) + c) ** 2
    norm = sympy.sqrt(sum(sympy.diff(loss, p) ** 2 for p in (w0, w1, b, v, c)))
    growth = sympy.lambdify(list(symbols.values()), [sympy.diff(norm, x) for x in (x0, x1)])
    values = [p.item() for parameter in model.parameters() for p in parameter.flatten()]
    x = torch.tensor([[0.3, -1.2], [2.0, 0.1]], dtype=torch.float64)
    loss_of = ModelLoss(model, lambda out, _: out[:, 0] ** 2)
    found = partial_sensitivity(loss_of, x, torch.zeros(2))
    expected = [growth(*row, *values) for row in x.tolist()]
    np.testing.assert_allclose(found.raw, expected, rtol=1e-9)


class Tied(nn.Module):
    """The same weight in a layer and, transposed, by hand."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.encode(x)) @ self.encode.weight


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(3))
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x * torch.softmax(x * self.query, 1))


@pytest.mark.parametrize("kind", [Tied, Twice, Attention])
def test_parameters_used_twice_or_beside_the_layers(kind):
    torch.manual_seed(0)
    model = kind().double()
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 3, (4,))
    found = partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    loss = cross_entropy(model(x[:1]), y[:1]).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert found.norms[0] == pytest.approx(torch.cat([g.flatten() for g in gradients]).norm())


def test_batch_norm_in_evaluation_mode_and_frozen_layers():
    model = build(lambda: nn.Conv2d(1, 2, 3), lambda: nn.BatchNorm2d(2), nn.Tanh, nn.Flatten,
                  lambda: nn.Linear(18, 3))  # fmt: skip
    x, y = torch.randn(4, 1, 5, 5, dtype=torch.float64), torch.randint(0, 3, (4,))
    with pytest.raises(UnsupportedError, match=r"BatchNorm2d.*model.eval\(\)"):
        partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    model.eval()
    everything = partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    alone = partial_sensitivity(ModelLoss(model, cross_entropy), x[:1], y[:1])
    np.testing.assert_allclose(alone.raw, everything.raw[:1])
    for parameter in [*model[0].parameters(), *model[1].parameters()]:
        parameter.requires_grad_(False)
    partly = partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    assert (partly.norms < everything.norms).all()
    last = list(model[4].parameters())
    one = torch.autograd.grad(cross_entropy(model(x[:1]), y[:1]).sum(), last)
    assert partly.norms[0] == pytest.approx(torch.cat([g.flatten() for g in one]).norm().item())


def test_dropout_in_training_mode_is_refused():
    model = build(lambda: nn.Linear(3, 3), lambda: nn.Dropout(0.5))
    with refused(UnsupportedError, "Dropout"):
        partial_sensitivity(ModelLoss(model, cross_entropy), torch.randn(2, 3), torch.zeros(2))


def hinge(outputs, targets):
    return functional.relu(1 - outputs[:, 0] * targets)


def test_zero_gradient_is_defined_and_flagged():
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    x, y = torch.tensor([[5.0, 5.0], [0.1, 0.2]]), torch.ones(2)
    found = partial_sensitivity(ModelLoss(model, hinge), x, y)
    assert found.norms[0] == 0
    assert found.raw[0].tolist() == [0, 0]
    assert found.zero.tolist() == [True, False]
    assert found.relation == "add_remove"


def test_tiny_gradients_do_not_underflow_to_zero():
    model = nn.Linear(2, 2)
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])

    def faint(outputs, targets):
        return 1e-30 * cross_entropy(outputs, targets)

    normal = partial_sensitivity(ModelLoss(model, cross_entropy), x, y)
    found = partial_sensitivity(ModelLoss(model, faint), x, y)
    np.testing.assert_allclose(found.norms, normal.norms * 1e-30, rtol=1e-4)
    np.testing.assert_allclose(found.raw, normal.raw * 1e-30, rtol=1e-3)


def test_the_model_is_left_as_it_was():
    model = build(lambda: nn.Linear(3, 2), nn.ReLU)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        partial_sensitivity(ModelLoss(model, cross_entropy), x, torch.tensor([0, 1]))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert not x.requires_grad


MODEL = build(lambda: nn.Linear(3, 2))
GOOD = torch.ones(2, 3, dtype=torch.float64)
CLASSES = torch.tensor([0, 1])


def test_bad_input_is_refused():
    whole = ModelLoss(MODEL, cross_entropy)
    with refused(NotDifferentiableError, "int64"):
        partial_sensitivity(whole, torch.ones(2, 3, dtype=torch.int64), CLASSES)
    with refused(DataError, 1, "NaN"):
        partial_sensitivity(whole, torch.stack([GOOD[0], GOOD[0] * torch.nan]), CLASSES)
    with pytest.raises(DataError, match="one target each"):
        partial_sensitivity(whole, GOOD, CLASSES[:1])
    with pytest.raises(DataError, match="at least one record"):
        partial_sensitivity(whole, GOOD[:0], CLASSES[:0])
    with pytest.raises(InputError, match="reduction='none'"):
        partial_sensitivity(ModelLoss(MODEL, functional.cross_entropy), GOOD, CLASSES)
    with pytest.raises(RangeError, match="not finite"):
        partial_sensitivity(
            ModelLoss(MODEL, lambda o, y: cross_entropy(o, y) * torch.inf), GOOD, CLASSES
        )
    frozen = build(lambda: nn.Linear(3, 2)).requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameter"):
        partial_sensitivity(ModelLoss(frozen, cross_entropy), GOOD, CLASSES)


def test_inputs_take_the_models_precision():
    model = nn.Linear(3, 2)
    found = partial_sensitivity(ModelLoss(model, cross_entropy), np.ones((2, 3)), [0, 1])
    assert found.raw.shape == (2, 3)


def test_arrays_work_and_shares_point_at_the_input_that_matters():
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight[:, 2] = 0
    inputs = np.random.default_rng(0).normal(size=(50, 3)) * [1, 1, 1e-3]
    found = partial_sensitivity(
        ModelLoss(model, cross_entropy), inputs, np.zeros(50, dtype=np.int64)
    )
    assert loss_shares(found).ranking("all")[-1][0] == 2
