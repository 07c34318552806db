"""One run's noise is on one sum: nothing that draws is copied, and no run goes on as another."""

import copy
import functools
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from apiece import Budgets, Scale, Trainer, assign
from apiece.adapters.stepping import PrivateStep
from apiece.errors import StateError
from apiece.filters import GaussianFilter
from apiece.training import FilteredTrainer
from apiece.training.randomness import ChaCha20Stream, Streams

SIZE = 24
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(2))
DATA = (X, (X[:, 0] > 0).long())
PLAN = assign(Budgets([5.0] * SIZE, 1e-3), Scale(), steps=4, expected_batch_size=8, clip_norm=1.0)
LOSS = nn.CrossEntropyLoss(reduction="none")


def network(dropout: float = 0.0, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.Dropout(dropout), nn.Linear(4, 2))


def sgd(model: nn.Module, lr: Any = 0.1, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def trainer(seed: int | None = None) -> Trainer:
    model = network()
    return Trainer(model, sgd(model), LOSS, PLAN, DATA, seed=seed)


def filtered() -> FilteredTrainer:
    model, accounts = network(), GaussianFilter([1.0] * SIZE, 1e-5)
    options: dict[str, Any] = {"clip_norm": 1.0, "noise_stddev": 9.0}
    return FilteredTrainer(model, sgd(model), LOSS, accounts, DATA, **options)


DRAWS: dict[str, Callable[[], object]] = {
    "stream": ChaCha20Stream,
    "streams": lambda: Streams.from_seed(None),
    "streams of a seed": lambda: Streams.from_seed(1),
    "noise of a step": lambda: Streams.from_seed(None).noise(3),
    "trainer": trainer,
    "trainer of a seed": lambda: trainer(0),
    "step loop": lambda: trainer()._loop,
    "keeper": lambda: trainer()._keeper,
    "filtered trainer": filtered,
    "private step": lambda: PrivateStep(trainer()),
    "in a list": lambda: [trainer()],
    "in a closure's default": lambda: {"run": functools.partial(print, trainer())},
}
COPIES: dict[str, Callable[[Any], object]] = {
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "pickle 0": lambda it: pickle.dumps(it, protocol=0),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_noise_is_not_copied(name: str, way: str) -> None:
    with pytest.raises(StateError, match="cannot be copied or pickled; both would draw the same"):
        COPIES[way](DRAWS[name]())


@pytest.mark.parametrize("name", [n for n in DRAWS if not n.startswith(("in a", "keeper", "priv"))])
def test_nor_by_a_shallow_copy_which_counts_steps_for_itself(name: str) -> None:
    with pytest.raises(StateError, match="cannot be copied"):
        copy.copy(DRAWS[name]())


def test_a_refused_copy_takes_nothing_from_the_run() -> None:
    one, other = trainer(0), trainer(0)
    with pytest.raises(StateError):
        copy.deepcopy(one)
    one.fit(2)
    other.fit(2)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


# What a run may be resumed with: `made` gives it anew each time, equal by all that counts.
SCALE = 1.0


def scaled(by: float) -> Callable[..., torch.Tensor]:
    return lambda out, y: by * functional.cross_entropy(out, y, reduction="none")


def of_default(by: float) -> Callable[..., torch.Tensor]:
    def loss(out: torch.Tensor, y: torch.Tensor, by: float = by) -> torch.Tensor:
        return by * LOSS(out, y)

    return loss


def of_global(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return SCALE * LOSS(out, y)


def of_another(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return of_global(out, y)


class Weighted:
    """A loss that is an object."""

    def __init__(self, by: float) -> None:
        self.by = torch.tensor(by)

    def __call__(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.by * LOSS(out, y)

    def method(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self(out, y)


class Focal(nn.Module):
    """A loss that is a module, with one inside."""

    def __init__(self, power: float, smoothing: float = 0.0) -> None:
        super().__init__()
        self.power = power
        self.inner = nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing)

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(out, y) ** self.power
        return found


def buffered(value: float) -> nn.Module:
    model = network()
    model[1].register_buffer("extra", torch.tensor(value), persistent=False)
    return model


def hooked(by: float) -> nn.Module:
    model = network()
    model[1].register_forward_hook(lambda module, args, out: by * out)
    return model


def frozen(*names: str) -> nn.Module:
    model = network()
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


def weighted(*weights: float) -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.tensor(weights), reduction="none")


def entropy(**settings: Any) -> Any:
    return functools.partial(functional.cross_entropy, reduction="none", **settings)


def grouped(model: nn.Module, first: int, lr: float = 0.5) -> torch.optim.Optimizer:
    held = list(model.parameters())
    return torch.optim.SGD([{"params": held[:first], "lr": lr}, {"params": held[first:]}], lr=0.1)


def by_step(optimizer: torch.optim.Optimizer, size: int) -> Any:
    return lr_scheduler.StepLR(optimizer, size)


def by_lambda(optimizer: torch.optim.Optimizer, by: float) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: by**step)


Parts = dict[str, Any]  # "model", "loss", "optimizer" of a model, "scheduler" of that, options
PAIRS: dict[str, tuple[Callable[[], Parts], Callable[[], Parts]]] = {
    "loss": (dict, lambda: {"loss": scaled(1.0)}),
    "loss, closure": (lambda: {"loss": scaled(1.0)}, lambda: {"loss": scaled(2.0)}),
    "loss, default": (lambda: {"loss": of_default(1.0)}, lambda: {"loss": of_default(2.0)}),
    "loss, code": (
        lambda: {"loss": lambda out, y: LOSS(out, y) + out[:, 0]},
        lambda: {"loss": lambda out, y: LOSS(out, y) - out[:, 0]},
    ),
    "loss, constant": (
        lambda: {"loss": lambda out, y: 2 * LOSS(out, y)},
        lambda: {"loss": lambda out, y: 3 * LOSS(out, y)},
    ),
    "loss, what it calls": (
        lambda: {"loss": lambda out, y: scaled(1.0)(out, y)},
        lambda: {"loss": lambda out, y: of_default(1.0)(out, y)},
    ),
    "loss, partial": (lambda: {"loss": entropy()}, lambda: {"loss": entropy(label_smoothing=0.1)}),
    "loss, object": (lambda: {"loss": Weighted(1.0)}, lambda: {"loss": Weighted(2.0)}),
    "loss, method": (
        lambda: {"loss": Weighted(1.0).method},
        lambda: {"loss": Weighted(2.0).method},
    ),
    "loss, module": (lambda: {"loss": Focal(1.0)}, lambda: {"loss": Focal(2.0)}),
    "loss, module inside": (lambda: {"loss": Focal(1.0)}, lambda: {"loss": Focal(1.0, 0.1)}),
    "loss, weights": (lambda: {"loss": weighted(1, 1)}, lambda: {"loss": weighted(1, 2)}),
    "optimizer": (dict, lambda: {"optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.1)}),
    "optimizer, rate": (dict, lambda: {"optimizer": lambda m: sgd(m, 0.2)}),
    "optimizer, momentum": (dict, lambda: {"optimizer": lambda m: sgd(m, momentum=0.9)}),
    "optimizer, decay": (dict, lambda: {"optimizer": lambda m: sgd(m, weight_decay=0.01)}),
    "optimizer, tensor": (
        lambda: {"optimizer": lambda m: sgd(m, torch.tensor(0.1))},
        lambda: {"optimizer": lambda m: sgd(m, torch.tensor(0.2))},
    ),
    "optimizer, groups": (
        lambda: {"optimizer": lambda m: grouped(m, 1)},
        lambda: {"optimizer": lambda m: grouped(m, 2)},
    ),
    "optimizer, a group's rate": (
        lambda: {"optimizer": lambda m: grouped(m, 1)},
        lambda: {"optimizer": lambda m: grouped(m, 1, 0.6)},
    ),
    "scheduler": (
        lambda: {"scheduler": lambda o: by_step(o, 2)},
        lambda: {"scheduler": lambda o: by_step(o, 3)},
    ),
    "scheduler, lambda": (
        lambda: {"scheduler": lambda o: by_lambda(o, 0.9)},
        lambda: {"scheduler": lambda o: by_lambda(o, 0.8)},
    ),
    "scheduler, or none": (dict, lambda: {"scheduler": lambda o: by_step(o, 3)}),
    "model, dropout": (dict, lambda: {"model": network(0.5)}),
    "model, activation": (dict, lambda: {"model": network(0.0, nn.ReLU)}),
    "model, mode": (dict, lambda: {"model": network().eval()}),
    "model, hook": (lambda: {"model": hooked(1.0)}, lambda: {"model": hooked(2.0)}),
    "model, buffer": (lambda: {"model": buffered(1.0)}, lambda: {"model": buffered(2.0)}),
    "model, frozen": (
        lambda: {"model": frozen("0.weight", "0.bias")},
        lambda: {"model": frozen("0.weight", "3.bias")},
    ),
    "method": (dict, lambda: {"method": "alone"}),
    "physical batch size": (dict, lambda: {"physical_batch_size": 7}),
    "schedule of unfreezing": (
        lambda: {"unfreeze": {0: ["3"], 2: [""]}},
        lambda: {"unfreeze": {0: ["3"], 3: [""]}},
    ),
    "data": (dict, lambda: {"included": np.arange(SIZE) > 0}),
    "data, rows": (dict, lambda: {"data": (X.flip(0), DATA[1].flip(0))}),
}


def given(parts: Parts) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a trainer or a resume."""
    parts = dict(parts)
    model = parts.pop("model", None) or network()
    optimizer = parts.pop("optimizer", sgd)(model)
    if "scheduler" in parts:
        parts["scheduler"] = parts["scheduler"](optimizer)
    loss, data = parts.pop("loss", LOSS), parts.pop("data", DATA)
    return [model, optimizer, loss, PLAN, data], parts


@pytest.mark.parametrize("name", PAIRS)
def test_a_run_goes_on_with_all_that_makes_its_updates_and_with_nothing_else(
    name: str, tmp_path: Path
) -> None:
    one, other = PAIRS[name]
    arguments, options = given(one())
    Trainer(*arguments, seed=None, **options).save(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    arguments, options = given(other())
    what = name.partition(",")[0]
    with pytest.raises(StateError, match=f"its {what} is not the one given here"):
        Trainer.resume(tmp_path / "copy", *arguments, **options)
    arguments, options = given(one())  # the control: what is made anew is the same
    assert Trainer.resume(tmp_path / "copy", *arguments, **options).step_number == 0


def test_a_loss_is_known_by_the_globals_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, options = given({"loss": of_another})
    Trainer(*arguments, seed=None, **options).save(tmp_path)
    Trainer.resume(tmp_path, *given({"loss": of_another})[0])
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(StateError, match="its loss is not the one"):
        Trainer.resume(tmp_path, *given({"loss": of_another})[0])


def test_a_loss_may_hold_the_model_whose_parameters_move(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out

        def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return LOSS(out, y)

    one, again = Whole(), Whole()  # of different first parameters
    run = Trainer(one, sgd(one), one.loss, PLAN, DATA, seed=0, checkpoint=tmp_path)
    run.fit(2)
    Trainer.resume(tmp_path, again, sgd(again), again.loss, PLAN, DATA).fit(1)


def test_a_copy_of_a_folder_repeats_the_run_to_the_bit(tmp_path: Path) -> None:
    """Two that go on from one checkpoint release the same sums, and no more than one does."""
    arguments, options = given({"model": network(0.3)})
    Trainer(*arguments, seed=None, checkpoint=tmp_path / "run", **options).fit(1)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    ends = []
    for folder in ("run", "copy"):
        arguments, options = given({"model": network(0.3)})
        Trainer.resume(tmp_path / folder, *arguments, **options).fit()
        ends.append(arguments[0].state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_copy_does_not_go_on_with_another_number_of_processes(tmp_path: Path) -> None:
    """It would draw other records, and the first go on with the same noise on its own."""
    arguments, options = given({})
    Trainer(*arguments, seed=None, checkpoint=tmp_path / "run", **options).fit(1)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for folder in ("run", "copy"):
        path = tmp_path / folder / "state.pt"
        state = torch.load(path, weights_only=True)
        torch.save(state | {"world": 2}, path)
    (tmp_path / "run").rename(tmp_path / "moved")
    arguments, options = given({})
    with pytest.raises(StateError, match="is a copy"):
        Trainer.resume(tmp_path / "copy", *arguments, **options)
    arguments, options = given({})
    Trainer.resume(tmp_path / "moved", *arguments, **options)
