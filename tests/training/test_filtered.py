"""Filtered gradient descent: charges before use, drops the spent, and a canary cannot be seen."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from apiece.audit import lower_bound
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.filters import GaussianFilter, RenyiFilter
from apiece.ledger import Ledger, LedgerFilter
from apiece.training.clipping.records import ClippedSum
from apiece.training.filtered import FilteredTrainer, compute_charges
from apiece.training.processes import Processes
from apiece.training.sums import Sums


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square() / 2


def trainer(accounts: object, inputs: torch.Tensor, targets: torch.Tensor, **more: object):  # type: ignore[no-untyped-def]
    model = nn.Linear(inputs.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    options = {"clip_norm": 1.0, "noise_stddev": 5.0, "seed": 0, **more}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return FilteredTrainer(model, optimizer, loss, accounts, (inputs, targets), **options)  # type: ignore[arg-type]


def test_each_record_pays_for_its_own_norm() -> None:
    inputs, targets = torch.ones(3, 1), torch.tensor([0.1, 0.5, 7.0])
    people = GaussianFilter([1.0] * 3, 1e-5)
    run = trainer(people, inputs, targets)
    run.step()
    assert people.spent == pytest.approx([0.01 / 25, 0.25 / 25, 1 / 25], rel=1e-3)
    assert (people.spent >= np.array([0.01, 0.25, 1.0]) / 25 * (1 - 1e-6)).all()


def test_nothing_but_noisy_sums_reaches_the_parameters() -> None:
    inputs, targets = torch.ones(3, 1), torch.ones(3)
    model = nn.Linear(1, 1)
    loss(model(inputs), targets).sum().backward()  # left there by somebody
    model.bias.requires_grad_(False)
    before = model.bias.detach().clone()
    options = {"clip_norm": 1.0, "noise_stddev": 5.0, "seed": 0}
    people = GaussianFilter([1.0] * 3, 1e-5)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    FilteredTrainer(model, sgd, loss, people, (inputs, targets), **options).fit(2)  # type: ignore[arg-type]
    assert torch.equal(model.bias, before)
    curvature = torch.optim.LBFGS(model.parameters())
    with pytest.raises(UnsupportedError, match="closure"):
        FilteredTrainer(model, curvature, loss, people, (inputs, targets), **options)  # type: ignore[arg-type]


def test_the_sum_holds_exactly_the_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the noise the update is the clipped sum of those who could pay."""
    inputs, targets = torch.ones(3, 1), torch.tensor([0.1, 0.5, 7.0])
    people = GaussianFilter([1.0] * 3, 1e-5)
    limit = float(people.limit[0])
    run = trainer(people, inputs, targets, noise_stddev=0.6 / limit**0.5, expected_batch_size=1.0)
    before = run.model.weight.detach().clone()
    monkeypatch.setattr(
        "apiece.training.loop.noisy_mean", lambda total, *_, **__: dict(total.gradients)
    )
    run.step()
    assert run.active_records().tolist() == [True, True, False]
    assert float((run.model.weight - before).detach()) == pytest.approx(0.1 * 0.6, rel=1e-4)


@pytest.mark.parametrize("make", [GaussianFilter, RenyiFilter])
def test_everyone_stops_within_their_own_budget(make: type) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(40, 3, generator=generator), torch.randn(40, generator=generator)
    epsilon = np.where(np.arange(40) < 20, 0.3, 1.0)
    people = make(epsilon, 1e-5)
    run = trainer(people, inputs, targets, noise_stddev=20.0)
    counts = []
    for _ in range(120):
        run.step()
        counts.append(run.active_records())
    assert (people.remaining >= 0).all()
    stays = np.array(counts)
    assert stays[:, 20:].sum() > stays[:, :20].sum()
    assert stays[0].all()
    assert not stays[-1].all()


def test_sampling_charges_every_active_record() -> None:
    inputs, targets = torch.ones(50, 1), torch.ones(50)
    people = GaussianFilter([1.0] * 50, 1e-5)
    run = trainer(people, inputs, targets, sampling_probability=0.2, clip_norm=0.5)
    run.fit(4)
    assert people.spent == pytest.approx(np.full(50, 4 * 0.25 / 25), rel=1e-9)
    assert run.expected_batch_size == 10


def test_nothing_depends_on_the_active_count() -> None:
    people = GaussianFilter([1e-3] * 4, 1e-5)  # nobody can pay
    run = trainer(people, torch.ones(4, 1), torch.full((4,), 9.0), noise_stddev=2.0)
    run.step()
    assert not run.active_records().any()
    assert run.expected_batch_size == 4
    assert float(run.model.weight.detach().abs()) > 0  # the noise is there all the same


def test_a_record_that_is_not_finite_pays_nothing_and_hurts_nobody() -> None:
    inputs = torch.tensor([[1.0], [float("nan")]])
    people = GaussianFilter([1.0] * 2, 1e-5)
    run = trainer(people, inputs, torch.ones(2))
    run.step()
    assert people.spent[1] == 0
    assert torch.isfinite(run.model.weight).all()


def test_training_charges_a_ledger(tmp_path) -> None:  # type: ignore[no-untyped-def]
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ids = [f"p{i}" for i in range(6)]
    ledger.enroll(ids, [0.05] * 3 + [2.0] * 3, 1e-6)
    inputs, targets = torch.ones(6, 1), torch.full((6,), 3.0)
    run = trainer(LedgerFilter(ledger, ids, "model"), inputs, targets)
    run.fit(3)
    assert run.active_records().tolist() == [False] * 3 + [True] * 3
    spent = ledger.spent(ids)
    again = trainer(LedgerFilter(ledger, ids, "model"), inputs, targets)
    with pytest.raises(StateError, match="already committed"):
        again.fit(1)  # a second model under the same name would go out uncharged
    assert ledger.spent(ids).tolist() == spent.tolist()
    assert ledger.verify().ok


class Chancy(nn.Module):
    """A linear layer behind something that is drawn anew at each pass."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw, self.layer = draw, nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(self.draw(x))
        return found


CHANCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout, half": nn.Dropout(0.5),
    "dropout, nearly all": nn.Dropout(0.9),
    "noise": lambda x: x * torch.randn(x.shape),
    "one in three": lambda x: x * (torch.rand(len(x), 1) < 1 / 3),
}


class Watched(GaussianFilter):
    """Keeps what was charged."""

    charges: np.ndarray
    admitted: np.ndarray

    def admit(self, norms: object, noise_stddev: float) -> np.ndarray:
        self.charges = np.array(norms)
        self.admitted = super().admit(norms, noise_stddev)  # type: ignore[arg-type]
        return self.admitted


@pytest.mark.parametrize("name", CHANCES)
@pytest.mark.parametrize("width", [None, 1])
def test_nobody_gives_more_than_they_were_charged(
    name: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random forward gives a record another gradient at each pass; its charge bounds them all."""
    sums: list[float] = []

    def watch(total: ClippedSum, *_: object, **__: object) -> dict[str, torch.Tensor]:
        flat = torch.cat([g.flatten().double() for g in total.gradients.values()])
        sums.append(float(flat.norm()))
        return {name: torch.zeros_like(g) for name, g in total.gradients.items()}

    monkeypatch.setattr("apiece.training.loop.noisy_mean", watch)
    torch.manual_seed(0)
    model = Chancy(CHANCES[name])
    gave = 0
    for seed in range(30):
        people = Watched([0.1, 0.5], 1e-5)
        scale = 0.6 / float(people.limit[1]) ** 0.5
        run = FilteredTrainer(
            model, torch.optim.SGD(model.parameters(), 0.1), loss, people,
            (torch.ones(2, 6) / 3, torch.full((2,), 0.3)), clip_norm=3.0, noise_stddev=scale,
            seed=seed, physical_batch_size=width,
        )  # fmt: skip
        run.step()
        assert sums[-1] <= people.charges[people.admitted].sum()
        assert not people.admitted[0] or people.charges[0] < 0.6
        gave += sums[-1] > 0
    assert gave


def test_a_seed_repeats_dropout_too() -> None:
    ends = []
    for ambient in (0, 1):
        torch.manual_seed(7)
        model = Chancy(nn.Dropout(0.5))
        torch.manual_seed(ambient)
        before = torch.get_rng_state()
        FilteredTrainer(
            model, torch.optim.SGD(model.parameters(), 0.1), loss,
            GaussianFilter([9.0] * 5, 1e-5), (torch.ones(5, 6), torch.ones(5)), clip_norm=1.0,
            noise_stddev=1.0, seed=0,
        ).fit(3)  # fmt: skip
        assert torch.equal(before, torch.get_rng_state())
        ends.append(model.layer.weight.detach().clone())
    assert torch.equal(*ends)


class Forgetful(GaussianFilter):
    """A broken filter: it checks each charge against the budget, and never writes one down."""

    def admit(self, norms: object, noise_stddev: float) -> np.ndarray:
        return np.asarray(norms) <= self.affordable(noise_stddev)


def scores(make: type[GaussianFilter], runs: int, included: bool) -> np.ndarray:
    """A canary's likelihood scores: at every step it pulls one weight by its whole clip bound."""
    found = []
    others, canary = torch.zeros(4, 2), torch.tensor([[0.0, 1.0]])
    inputs = torch.cat([others, canary]) if included else others
    for seed in range(runs):
        run = trainer(
            make([EPSILON] * len(inputs), 1e-5), inputs, torch.full((len(inputs),), 1e6),
            noise_stddev=2.1, expected_batch_size=1.0, seed=seed + 10**6 * included,
        )  # fmt: skip
        run.fit(12)
        found.append(float(run.model.weight[0, 1].detach()))
    return np.array(found)


EPSILON = 2.0  # one of the twelve steps fits it


@pytest.mark.slow
@pytest.mark.parametrize(("make", "holds"), [(GaussianFilter, True), (Forgetful, False)])
def test_a_canary_is_seen_no_better_than_promised(make: type[GaussianFilter], holds: bool) -> None:
    """Negative control: the same run with a filter that forgets to charge is caught."""
    seen = [scores(make, 60, included) for included in (True, False)]
    bound = lower_bound(*seen, delta=1e-5, confidence=0.99, method="gdp")
    assert (bound.epsilon <= EPSILON) == holds
    assert float(seen[0].mean()) > float(seen[1].mean())


def test_bad_input() -> None:
    people = GaussianFilter([1.0] * 2, 1e-5)
    data = torch.ones(2, 1), torch.ones(2)
    with pytest.raises(InputError, match="clip_norm"):
        trainer(people, *data, clip_norm=[1.0])
    with pytest.raises(InputError, match="noise_stddev"):
        trainer(people, *data, noise_stddev=0.0)
    with pytest.raises(InputError, match="sampling_probability"):
        trainer(people, *data, sampling_probability=0.0)
    with pytest.raises(InputError, match="no step"):
        trainer(people, *data).active_records()


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A map-style data set of ones."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(1), torch.tensor(float(i))


def test_data_sets_callbacks_and_schedules_as_in_the_trainer() -> None:
    def run(dataset: object) -> tuple[torch.Tensor, list[tuple[int, int, float]]]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        sgd, seen = torch.optim.SGD(model.parameters(), 0.4), list[tuple[int, int, float]]()
        FilteredTrainer(
            model, sgd, loss, GaussianFilter([2.0] * 6, 1e-5), dataset, clip_norm=1.0,
            noise_stddev=5.0, seed=0, scheduler=torch.optim.lr_scheduler.StepLR(sgd, 2, 0.5),
            callbacks=[lambda p: seen.append((p.step, p.steps, p.learning_rate))],
        ).fit(3)  # fmt: skip
        return model.weight.detach().clone(), seen

    (one, seen), (other, _) = run((torch.ones(6, 1), torch.arange(6.0))), run(Rows())
    assert torch.equal(one, other)
    assert seen == [(1, 3, 0.4), (2, 3, 0.4), (3, 3, 0.2)]


def test_after_a_torn_update_nothing_more_is_made() -> None:
    run = trainer(GaussianFilter([2.0] * 2, 1e-5), torch.ones(2, 1), torch.ones(2))
    step = run.optimizer.step

    def interrupted() -> None:
        raise KeyboardInterrupt

    run.optimizer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.optimizer.step = step
    with pytest.raises(StateError, match="half-way"):
        run.step()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would charge its own accounts, and release a sum with noise of its own."""
    two = Processes(0, 2)
    monkeypatch.setattr("apiece.training.filtered.Processes.current", lambda _model: two)
    with pytest.raises(UnsupportedError, match="2 processes"):
        trainer(GaussianFilter([2.0] * 2, 1e-5), torch.ones(2, 1), torch.ones(2))


def test_a_person_pays_once_for_the_joined_sum_of_their_rows() -> None:
    """Rows 0.1 and 0.2 of one, 0.5 and -0.5 of another, 7 alone: 0.3, nothing, the bound."""
    targets, whose = torch.tensor([0.1, 0.5, 7.0, 0.2, -0.5]), [0, 1, 2, 0, 1]
    people = GaussianFilter([1.0] * 3, 1e-5)
    run = trainer(people, torch.ones(5, 1), targets, people=whose)
    run.step()
    assert people.spent == pytest.approx([0.09 / 25, 0.0, 1 / 25], rel=1e-3, abs=1e-7)
    assert (people.spent[[0, 2]] >= np.array([0.09, 1.0]) / 25 * (1 - 1e-6)).all()
    assert run.expected_batch_size == 3
    assert run.active_records().shape == (3,)


def test_one_row_a_person_is_a_run_of_records_and_the_order_is_free() -> None:
    inputs = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    ends = []
    for whose in (None, [0, 1, 2, 3, 4, 5], [2, 0, 1, 5, 3, 4]):
        accounts = GaussianFilter([0.2, 0.4, 0.6, 0.8, 1.0, 2.0], 1e-5)
        rows = inputs if whose is None else inputs[whose]
        run = trainer(accounts, rows, torch.ones(6), people=whose)
        run.fit(5)
        ends.append((run.model.weight.detach().clone(), accounts.spent))
    for weight, spent in ends[1:]:
        assert torch.equal(weight, ends[0][0])
        assert spent == pytest.approx(ends[0][1], rel=1e-12)


def by_person(seed: int, missing: int | None, **more: object) -> tuple[Watched, torch.Tensor]:
    """One step of five persons with 1 to 40 rows, some of which nearly cancel; its clipped sum."""
    random = np.random.default_rng(seed)
    whose = np.repeat(np.arange(5), random.permutation([1, 2, 3, 7, 40]))
    inputs = torch.from_numpy(random.normal(size=(whose.size, 6)).astype(np.float32))
    inputs[1::2] = -inputs[: whose.size // 2 * 2 : 2] * (1 + 1e-4 * random.random())
    inputs *= 10.0 ** random.integers(-3, 4)
    if missing is not None:  # rows that are not finite count for nothing, and the coins stay
        inputs[torch.from_numpy(whose == missing)] = torch.nan
    people = Watched(random.choice([0.02, 0.1, 0.5, 2.0], 5), 1e-5)
    model = nn.Linear(6, 1)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(random.normal(size=(1, 6)).astype(np.float32)))
        model.bias.zero_()
    run = FilteredTrainer(
        model, torch.optim.SGD(model.parameters(), 0.0), lambda out, y: out[:, 0] * y, people,
        (inputs, torch.ones(whose.size)), clip_norm=random.choice([0.5, 3.0]), noise_stddev=6.0,
        seed=seed, people=whose, expected_batch_size=1.0, **more,
    )  # fmt: skip
    run.step()
    return people, SUMS.pop()


SUMS: list[torch.Tensor] = []


def keep_sum(total: ClippedSum, *_: object, **__: object) -> dict[str, torch.Tensor]:
    SUMS.append(torch.cat([g.flatten().double() for g in total.gradients.values()]))
    return {name: torch.zeros_like(g) for name, g in total.gradients.items()}


def uncovered(seeds: int, **more: object) -> int:
    """Search for persons without whom the sum moves by more than they were charged."""
    found = 0
    for seed in range(seeds):
        people, whole = by_person(seed, None, **more)
        for person in range(5):
            _, less = by_person(seed, person, **more)
            far = float((whole - less).norm())
            paid = float(people.charges[person]) if people.admitted[person] else 0.0
            found += far > paid * (1 + 1e-6) + 1e-5 * float(whole.norm())  # sums of many in float32
    return found


OPTIONS: list[dict[str, object]] = [
    {}, {"rows_per_person": 2}, {"physical_batch_size": 3}, {"sampling_probability": 0.7},
]  # fmt: skip
# Alone, each row of each step of each training has a process of its own.
ALONE: dict[str, object] = {"method": "alone"}


@pytest.mark.parametrize(
    ("seeds", "more"),
    [
        *((3, more) for more in OPTIONS),
        *(pytest.param(40, more, marks=pytest.mark.slow) for more in (*OPTIONS, ALONE)),
    ],
    ids=str,
)
def test_without_a_person_the_sum_moves_by_at_most_their_charge(
    seeds: int, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apiece.training.loop.noisy_mean", keep_sum)
    assert uncovered(seeds, **more) == 0


def test_a_charge_that_forgets_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: charged for half of what the rows add up to, a sum is not covered."""
    monkeypatch.setattr("apiece.training.loop.noisy_mean", keep_sum)
    monkeypatch.setattr(
        "apiece.training.filtered.compute_charges", lambda total: compute_charges(total) / 2
    )
    assert uncovered(2) > 0


@pytest.mark.parametrize(
    ("whose", "more", "error", "message"),
    [
        ([0, 0], {}, InputError, "2 ids, but the dataset has 3 rows"),
        ([0, 0, 2], {}, DataError, "1 of 3 persons of the plan have no row"),
        ([0, 1, 3], {}, InputError, "without a gap"),
        ([0, -1, 1], {}, InputError, "without a gap"),
        (["a", "b", "b"], {}, InputError, "position of each row's account"),
        ([0.0, 1.0, 1.0], {}, InputError, "position of each row's account"),
        ([], {}, InputError, "position of each row's account"),
        ([0, 1, 1], {"rows_per_person": 0}, InputError, "rows_per_person"),
        (None, {"rows_per_person": 2}, InputError, "give people too"),
        ([0, 1, 1], {"clip_norm": [1.0] * 3}, InputError, "for 2 accounts"),
    ],
)
def test_bad_people(whose: object, more: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        trainer(
            GaussianFilter([1.0] * 2, 1e-5), torch.ones(3, 1), torch.ones(3), people=whose, **more
        )


def test_every_pass_of_a_step_draws_the_model_s_randomness_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what one record's pass draws would follow from who is in another one."""
    seeds, over = list[int](), Sums.over

    def watch(self: Sums, records: np.ndarray, clip_norms: np.ndarray, seed: int) -> ClippedSum:
        seeds.append(seed)
        return over(self, records, clip_norms, seed)

    monkeypatch.setattr(Sums, "over", watch)
    people = GaussianFilter([1.0, 1.0, 0.05], 1e-5)
    targets = torch.tensor([7.0, 0.1, 0.01])
    run = trainer(people, torch.ones(3, 1), targets, noise_stddev=3.0)
    run.fit(2)  # the third person cannot pay for the whole bound: three passes
    assert len(set(seeds)) == len(seeds) == 6
