"""What Opacus takes or gives, trained at individual budgets; Opacus itself where installed."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from apiece import Budgets, Scale, Trainer, assign
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.training import TensorBoard, make_private
from apiece.training.callbacks import PlannedSpending, public_numbers

from .small import network, points, trained_on

N = 40
BUDGETS = Budgets(epsilon=np.where(np.arange(N) < 10, 0.5, 3.0), delta=1e-3)
ASKED = {"budgets": BUDGETS, "epochs": 2, "clip_norm": 0.7, "seed": 0}


@pytest.fixture
def data():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))


@pytest.fixture
def model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loader(data, **options):
    return DataLoader(data, batch_size=8, shuffle=True, **options)


@pytest.fixture
def wanted(model, data):
    """Return the parameters that the same plan gives by hand."""
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    other.load_state_dict(model.state_dict())
    plan = assign(BUDGETS, Scale(), steps=10, expected_batch_size=8, clip_norm=0.7)
    loss = nn.CrossEntropyLoss(reduction="none")
    Trainer(other, sgd(other), loss, plan, data, seed=0).fit()
    return other.state_dict()


def equal(model, wanted):
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_persons_with_several_records(model, data):
    """The plan is the persons', and each step draws persons with all their records."""
    people = np.arange(N) % 20
    budgets = Budgets(np.where(np.arange(20) < 5, 0.5, 3.0), 1e-3, ids=np.arange(20))
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    other.load_state_dict(model.state_dict())
    asked = ASKED | {"budgets": budgets, "rows_per_person": 2, "people": people}
    trainer = make_private(model, sgd(model), nn.CrossEntropyLoss(), loader(data), **asked)
    trainer.fit()
    assert trainer.plan.unit == "person"
    plan = assign(budgets, Scale(), steps=10, expected_batch_size=4, clip_norm=0.7)
    plan = dataclasses.replace(plan, unit="person")
    own = {"people": people, "rows_per_person": 2, "seed": 0}
    Trainer(other, sgd(other), nn.CrossEntropyLoss(reduction="none"), plan, data, **own).fit()
    equal(model, other.state_dict())
    asked["people"] = people + 1
    with pytest.raises(InputError, match="people"):
        make_private(model, sgd(model), nn.CrossEntropyLoss(), loader(data), **asked)


def test_a_plain_triple(model, data, wanted):
    criterion = nn.CrossEntropyLoss()
    trainer = make_private(model, sgd(model), criterion, loader(data), **ASKED)
    trainer.fit()
    assert trainer.steps == 10
    assert criterion.reduction == "mean", "the user's loss stays"
    equal(model, wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_what_make_private_gives(model, data, wanted, mode):
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    given = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=loader(data),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        module, optimizer, criterion, drawn = given
    else:
        (module, optimizer, drawn), criterion = given, nn.CrossEntropyLoss()
    trainer = make_private(module, optimizer, criterion, drawn, **ASKED)
    trainer.fit()
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    equal(model, wanted)


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(5)),
        WeightedRandomSampler([1.0] * N, N),
        torch.utils.data.RandomSampler(range(N), replacement=True),
        torch.utils.data.RandomSampler(range(N), num_samples=5),
    ],
)
def test_uneven_loaders_are_refused(model, data, sampler):
    uneven = DataLoader(data, batch_size=8, sampler=sampler)
    with pytest.raises(DataError, match="the plan says how often"):
        make_private(model, sgd(model), nn.CrossEntropyLoss(), uneven, **ASKED)


def test_a_loader_of_batches_without_a_sampler_is_refused(model, data):
    with pytest.raises(DataError, match="loader draws by a list"):
        make_private(
            model,
            sgd(model),
            nn.CrossEntropyLoss(),
            DataLoader(data, batch_sampler=[[0, 1], [2]]),
            **ASKED,
        )


def test_a_collate_function_is_kept(model, data, wanted):
    def doubled(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return 2 * inputs, targets

    own = loader(TensorDataset(data.tensors[0] / 2, data.tensors[1]), collate_fn=doubled)
    make_private(model, sgd(model), nn.CrossEntropyLoss(), own, **ASKED).fit()
    equal(model, wanted)


def test_an_optimizer_that_made_steps_is_refused(model, data):
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    with pytest.raises(StateError, match="does not cover"):
        make_private(model, adam, nn.CrossEntropyLoss(), loader(data), **ASKED)


def test_left_over_hooks_are_refused(model, data):
    next(iter(model.parameters())).grad_sample = None
    with pytest.raises(UnsupportedError, match="cleanup"):
        make_private(model, sgd(model), nn.CrossEntropyLoss(), loader(data), **ASKED)


def test_budgets_of_others_are_refused(model, data):
    asked = ASKED | {"budgets": Budgets(epsilon=[1.0], delta=1e-3)}
    with pytest.raises(InputError, match="1 of them for a dataset of 40"):
        make_private(model, sgd(model), nn.CrossEntropyLoss(), loader(data), **asked)


class Noted:
    """A callback that needs the plan, as those of TensorBoard and MLflow do."""

    def __init__(self, plan):
        self.plan, self.spending, self.lines = plan, PlannedSpending(plan), []

    def __call__(self, progress):
        self.lines.append(public_numbers(progress, self.spending))


def test_callbacks_may_be_made_from_the_plan(model, data, wanted, tmp_path):
    made = []

    def callbacks(plan):
        made.append(Noted(plan))
        pytest.importorskip("tensorboard")
        return [made[0], TensorBoard(tmp_path / "events", plan, every=5)]

    trainer = make_private(
        model, sgd(model), nn.CrossEntropyLoss(), loader(data), callbacks=callbacks, **ASKED
    )
    trainer.fit()
    equal(model, wanted)
    assert made[0].plan is trainer.plan
    assert len(made[0].lines) == 10
    assert list((tmp_path / "events").iterdir())


def test_callbacks_that_need_no_plan_are_a_list(model, data, wanted):
    seen = []
    make_private(
        model, sgd(model), nn.CrossEntropyLoss(), loader(data), callbacks=[seen.append], **ASKED
    ).fit()
    equal(model, wanted)
    assert [progress.step for progress in seen] == list(range(1, 11))


QUIET = {"budgets": Budgets(np.full(N, 1e4), 1e-3), "epochs": 6, "clip_norm": 6.0, "seed": 0}


def descended(model, steps=6):
    """Return a model after plain full-batch descent."""
    held = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(held, lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points()[0]), points()[1]).backward()
        optimizer.step()
    return model


def quiet(model, **options):
    held = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(held, lr=0.3)
    whole = DataLoader(TensorDataset(*points()), batch_size=N)
    return make_private(model, optimizer, nn.CrossEntropyLoss(), whole, **QUIET | options)


@pytest.mark.parametrize("freeze", [(), ("0",), ("2",)])
@pytest.mark.parametrize("begin", [lambda model: model, trained_on])
def test_without_noise_it_is_plain_training(freeze, begin):
    """As the guide uses it, from the first parameters and fine-tuned, whole and frozen."""

    def made():
        model = begin(network())
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(freeze or "none"))
        return model

    model, wanted = made(), descended(made())
    trainer = quiet(model)
    trainer.fit()
    # Noise that is left: of each entry, over all steps, eight standard deviations.
    stage = trainer.plan.stages[0]
    left = 8 * 0.3 * stage.noise_stddev * 6**0.5 / stage.expected_batch_size
    assert left < 0.1
    for (name, mine), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=left), name


@pytest.mark.parametrize("freeze", [(), ("0",)])
def test_a_run_that_was_stopped_goes_on(freeze, tmp_path):
    whole, model = network(freeze), network(freeze)
    quiet(whole).fit()
    stopped = quiet(network(freeze), checkpoint=tmp_path / "run", save_every=1)
    stopped.fit(2)
    again = quiet(model)  # makes the same plan, loss and optimizer
    gone_on = Trainer.resume(
        tmp_path / "run", model, again.optimizer, again.loss_fn, again.plan,
        DataLoader(TensorDataset(*points()), batch_size=N),
    )  # fmt: skip
    gone_on.fit()
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, other)
