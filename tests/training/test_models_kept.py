"""Whatever takes a model leaves it as it was: tensors, types, modes and hooks, by identity."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

from apiece import Budgets, Scale, Trainer, assign
from apiece.audit.stacked_training import model_confidences
from apiece.errors import UnsupportedError
from apiece.filters import GaussianFilter
from apiece.sensitivity import ModelLoss, partial_sensitivity
from apiece.training import Evaluation, FilteredTrainer, clip_and_sum, make_private
from apiece.training.modes import evaluating
from apiece.training.stacked import StackedModule

LOSS = nn.CrossEntropyLoss(reduction="none")
X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 4


class TiedWeights(nn.Module):
    """Two layers of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.two(torch.tanh(self.one(x)))
        return out


class TwoNames(nn.Module):
    """One module under two names, and a parameter of its own under two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.again = nn.Linear(4, 4)
        self.scale = self.other = nn.Parameter(torch.ones(4))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.scale, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.again(torch.tanh(self.layer(x) * self.scale)) * self.other
        return out


class Special(nn.Parameter):
    """A parameter of a type of its own."""


class OwnType(nn.Linear):
    """A layer whose weight is a `Special`."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = Special(self.weight.detach().clone())


class Shift(nn.Module):
    """A layer used twice, and a buffer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)] * 2)
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("moved", self.shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x + self.shift)) - self.moved
        return x


class Counts(nn.Linear):
    """A layer that counts how often it is run."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return super().forward(x)


class Replaces(nn.Linear):
    """A layer that puts another tensor in its buffer's place."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last + 1
        return super().forward(x)


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def modes() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)))
    model[1].eval()
    return model


def parametrized() -> nn.Module:
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    return nn.Sequential(parametrizations.weight_norm(one), nn.Tanh(), two, nn.Tanh(), one)


def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 4))


def hooked() -> nn.Module:
    model = twice()
    model[0].register_forward_hook(lambda module, args, out: out * 1.0)
    return model


ZOO: dict[str, Callable[[], nn.Module]] = {
    "a module twice": twice,
    "tied weights": TiedWeights,
    "two names": TwoNames,
    "a type of its own": OwnType,
    "a buffer twice": Shift,
    "frozen parts": frozen,
    "several modes": modes,
    "weight norm, twice": parametrized,
    "orthogonal": orthogonal,
    "a user's hook": hooked,
}


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Return what there is of a model, by place: identities, types, modes, hooks."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found[path] = (id(module), type(module), module.training, sorted(module.__dict__))
        found[f"{path} hooks"] = [
            list(getattr(module, name)) for name in sorted(module.__dict__) if "_hooks" in name
        ]
        for kind, held in (("p", module._parameters), ("b", module._buffers)):
            for name, t in held.items():
                found[f"{path}.{name} {kind}"] = (
                    (id(t), type(t), t.requires_grad, t.grad is None, t.is_leaf)
                    if t is not None
                    else None
                )
    return found


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a model's tensors, by place."""
    held = [*model.named_parameters(remove_duplicate=False)]
    return {n: t.detach().clone() for n, t in [*held, *model.named_buffers(remove_duplicate=False)]}


def stacked(model: nn.Module) -> object:
    many, generator = StackedModule(model), torch.Generator().manual_seed(0)
    flat, x, y = many.initial(2, generator), X.expand(2, 8, 4), Y.expand(2, 8)
    many.logits(flat, x)
    return many.clipped_sum(flat, x, y, torch.ones(2, 8))


def clipped(method: str) -> Callable[[nn.Module], object]:
    return lambda model: clip_and_sum(model, LOSS, X, Y, 1.0, method=method)


def evaluated(model: nn.Module) -> object:
    with evaluating(model), torch.no_grad():
        return model(X)


LOOKS: dict[str, Callable[[nn.Module], object]] = {
    "partial_sensitivity": lambda model: partial_sensitivity(ModelLoss(model, LOSS), X, Y),
    "StackedModule": stacked,
    "clip_and_sum auto": clipped("auto"),
    "clip_and_sum alone": clipped("alone"),
    "model_confidences": lambda model: model_confidences(model, X, Y),
    "evaluating": evaluated,
}
REFUSED = {
    ("a buffer twice", "StackedModule"),
    ("orthogonal", "StackedModule"),  # has buffers too
    ("weight norm, twice", "StackedModule"),  # has parameters that nothing resets
}
PLAN = assign(Budgets([5.0] * 8, 1e-3), Scale(), steps=1, expected_batch_size=4, clip_norm=1.0)


def trained(**options: Any) -> Callable[[nn.Module], object]:
    def train(model: nn.Module) -> None:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = Evaluation(model, lambda it: float(it(X).sum()), every=1)
        Trainer(model, sgd, LOSS, PLAN, (X, Y), seed=0, callbacks=[watch], **options).fit()

    return train


def filtered(model: nn.Module) -> None:
    sgd, accounts = torch.optim.SGD(model.parameters(), lr=0.1), GaussianFilter([1.0] * 8, 1e-5)
    FilteredTrainer(
        model, sgd, LOSS, accounts, (X, Y), clip_norm=1.0, noise_stddev=9.0, seed=0
    ).fit(1)


def from_opacus(model: nn.Module) -> None:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    budgets = Budgets([5.0] * 8, 1e-3)
    make_private(model, sgd, LOSS, loader, budgets, epochs=1, clip_norm=1.0, seed=0).fit()


TRAINS: dict[str, Callable[[nn.Module], object]] = {
    "Trainer": trained(),
    "Trainer alone": trained(method="alone"),
    "FilteredTrainer": filtered,
}


# Models that differ in kind: who trains or looks meets these, and one of them meets all models. The
# other pairs run nightly.
KINDS = ("a module twice", "tied weights", "orthogonal", "a user's hook")


@pytest.mark.filterwarnings("ignore")  # of slower paths
@pytest.mark.parametrize(
    ("name", "look"),
    [
        pytest.param(n, k, marks=[] if n in KINDS or k == "evaluating" else [pytest.mark.slow])
        for n in ZOO
        for k in LOOKS
    ],
)
def test_who_looks_at_a_model_leaves_it_as_it_was(name: str, look: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name]()
    before, tensors = snapshot(model), values(model)
    try:
        LOOKS[look](model)
    except UnsupportedError:  # it may say no: of buffers, or of chance
        assert (name, look) in REFUSED
    assert snapshot(model) == before
    assert all(torch.equal(t, tensors[place]) for place, t in values(model).items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param(n, t, marks=[] if n in KINDS or t == "FilteredTrainer" else [pytest.mark.slow])
        for n in ZOO
        for t in TRAINS
    ],
)
def test_who_trains_a_model_changes_what_is_trained_and_nothing_else(name: str, train: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name]()
    before, tensors = snapshot(model), values(model)
    trains = {n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    TRAINS[train](model)
    assert snapshot(model) == before
    moved = {n for n, t in values(model).items() if not torch.equal(t, tensors[n])}
    assert moved == trains


@pytest.mark.parametrize("name", ["a module twice", "two names"])
def test_a_model_is_trained_whole_after_a_look_at_its_sensitivity(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name]()
    before = values(model)
    partial_sensitivity(ModelLoss(model, LOSS), X, Y)
    trained()(model)
    assert all(not torch.equal(t, before[place]) for place, t in values(model).items())


@pytest.mark.parametrize("kind", [Counts, Replaces, lambda: nn.Sequential(twice(), Counts())])
@pytest.mark.parametrize("look", ["partial_sensitivity", "model_confidences", "evaluating"])
def test_what_a_forward_pass_writes_is_put_back(kind: Callable[[], nn.Module], look: str) -> None:
    model = kind()
    before, tensors = snapshot(model), values(model)
    if look == "partial_sensitivity":
        with pytest.raises(UnsupportedError, match="its forward pass writes to"):
            LOOKS[look](model)
    else:
        LOOKS[look](model)
    assert snapshot(model) == before
    assert all(torch.equal(t, tensors[place]) for place, t in values(model).items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_a_look_that_fails_half_way_leaves_the_model_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name]()
    before, tensors = snapshot(model), values(model)

    def fails(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    for method in ("auto", "alone"):
        with pytest.raises(ZeroDivisionError):
            clip_and_sum(model, fails, X, Y, 1.0, method=method)
    with pytest.raises(ZeroDivisionError):
        partial_sensitivity(ModelLoss(model, fails), X, Y)
    assert snapshot(model) == before
    assert all(torch.equal(t, tensors[place]) for place, t in values(model).items())


def test_opacus_parts_are_trained_whole() -> None:
    model = twice()
    before, tensors = snapshot(model), values(model)
    from_opacus(model)
    assert snapshot(model) == before
    assert all(not torch.equal(t, tensors[place]) for place, t in values(model).items())
