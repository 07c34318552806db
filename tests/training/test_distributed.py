"""Two processes train one model: the same mechanism as one, with one noise in total.

Each setting is trained for half its steps, saved, and resumed for the rest.
"""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from apiece.plan.parts import Stage
from apiece.training.batches import PoissonSampler
from apiece.training.randomness import Streams

STEPS, SIZE, RATES = 40, 600, (0.2, 0.7)
CHILD = """
import sys
import numpy as np, torch, torch.distributed as dist
from torch import nn
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer

def setting(what):
    options = {}
    budgets = Budgets.from_groups([("a", 1.0, .5), ("b", 2.0, .5)], SIZE, 1e-5)
    rates, noise, steps, outputs = np.array(RATES), 1e-9, STEPS, 1
    x = torch.eye(SIZE)
    loss = lambda out, t: out[:, 0]
    if what == "sum":  # everyone in every step, bounds that clip
        budgets = Budgets(np.ones(41), 1e-5)
        rates, steps, outputs = np.ones(1), 4, 400
        x = torch.randn(41, 5, generator=torch.Generator().manual_seed(9))
        loss = lambda out, t: out.square().sum(1) / 400
    if what == "noise":  # nobody in any step, and one process without any record
        budgets = Budgets(np.ones(1), 1e-5)
        rates, noise, steps, outputs, x = np.array([1e-12]), 3.0, 4, 400, torch.ones(1, 5)
    if what in ("people", "rows"):  # persons with 1 to 7 rows in any order, a coordinate a row
        people = np.repeat(np.arange(21), np.arange(21) % 7 + 1)
        people = np.random.default_rng(1).permutation(people)
        options = {"people": people, "rows_per_person": 2 if what == "rows" else None}
        budgets = Budgets(np.ones(21), 1e-5, ids=np.arange(21))
        rates, steps, x = np.ones(1), 6, torch.eye(people.size)
    expected = float(rates @ budgets.groups.records)
    clips = np.full(rates.size, {"sum": .5, "rows": 9.}.get(what, 1.))
    stage = Stage(steps, expected, noise, rates, clips)
    plan = Plan("t", 1., budgets.groups, (stage,)).bind(budgets)
    lr = .5 if what == "sum" else expected
    def parts():
        model = nn.Linear(x.shape[1], outputs, bias=False)
        return model, torch.optim.SGD(model.parameters(), lr=lr)
    return parts, loss, plan, x, options

def weights(folder, what):
    parts, loss, plan, x, options = setting(what)
    torch.manual_seed(dist.get_rank())  # different first parameters: process 0's must win
    model, optimizer = parts()
    wrapped = nn.parallel.DistributedDataParallel(model)
    half = Trainer(wrapped, optimizer, loss, plan, (x, x), seed=0, checkpoint=folder,
                   physical_batch_size=5 if options else 1024, **options)
    found = [model.weight.detach().clone()]
    half.fit(plan.steps // 2)
    found.append(model.weight.detach().clone())
    model, optimizer = parts()
    rest = Trainer.resume(folder, model, optimizer, loss, plan, (x, x),
                          physical_batch_size=5 if options else 1024, **options)
    rest.fit()
    return [*found, model.weight.detach()]

folder, SIZE, STEPS, RATES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
names = ("sum", "noise", "rates", "people", "rows")
found = {name: weights(f"{folder}/{name}", name) for name in names}
torch.save(found, f"{folder}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return what each of two processes found: setting → weights at first, half-way, at last."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    words = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), str(SIZE), str(STEPS)]
    children = [
        subprocess.Popen(
            [*words, repr(RATES)],
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=240)
        assert child.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("what", ["sum", "noise", "rates", "people", "rows"])
def test_all_processes_have_the_same_parameters(trained, what):
    assert all(torch.equal(one[what][2], trained[0][what][2]) for one in trained)


def test_two_processes_add_up_to_one(trained):
    """With every record in every step and next to no noise the result is that of one process."""
    first, _, last = trained[0]["sum"]
    weight = first.clone().double().requires_grad_()
    x = torch.randn(41, 5, generator=torch.Generator().manual_seed(9)).double()
    for _ in range(4):
        total = torch.zeros_like(weight)
        for row in x:
            (g,) = torch.autograd.grad((weight @ row).square().sum() / 400, weight)
            total += g * min(1, 0.5 / g.norm())
        weight = (weight - 0.5 * total / 41).detach().requires_grad_()
    torch.testing.assert_close(last.double(), weight.detach(), rtol=1e-4, atol=1e-5)


def test_the_noise_is_drawn_once_and_fresh_after_a_resume(trained):
    """Without records each step moves 2000 parameters by N(0, 3²): four steps, N(0, 4·3²)."""
    first, half, last = (w.double() for w in trained[0]["noise"])
    assert abs(float((last - first).std()) / 6.0 - 1) < 5 / (2 * 2000) ** 0.5
    both = torch.stack([(half - first).flatten(), (last - half).flatten()])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / 2000**0.5


def counts(trained):
    """Return how often each record was drawn in the first half and in the second half."""
    first, half, last = (w.double().flatten().numpy() for w in trained[0]["rates"])
    return np.rint(first - half), np.rint(half - last)


def test_everyone_is_drawn_at_their_own_rate(trained):
    """Counts in T steps are binomial, as they are with one process (χ² at 1e-4, each group)."""
    drawn = sum(counts(trained))
    for group, (rate, other) in enumerate([RATES, RATES[::-1]]):
        own = drawn[np.arange(SIZE) // (SIZE // 2) == group]
        assert goodness(own, rate) > 1e-4
        assert goodness(own, (rate + other) / 2) < 1e-4  # the control: not just any rate fits


def goodness(drawn, rate):
    law = stats.binom(STEPS, rate)
    edges = np.unique(law.ppf([0.1, 0.25, 0.4, 0.6, 0.75, 0.9]))
    seen = np.bincount(np.searchsorted(edges, drawn), minlength=edges.size + 1)
    chances = np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    return stats.chisquare(seen, chances * drawn.size).pvalue


def test_processes_and_halves_draw_independently(trained):
    """Neighbours 2k, 2k + 1 are on different processes: one stream for both would pair them."""
    early, late = counts(trained)
    level = np.repeat([r * STEPS / 2 for r in RATES], SIZE // 2)
    limit = 4.5 / SIZE**0.5
    assert abs(correlation((early - level)[::2], (early - level)[1::2])) < limit * 2**0.5
    assert abs(correlation(early - level, late - level)) < limit
    stage, index = Stage(1, 60.0, 1.0, np.array([0.2]), np.array([1.0])), np.zeros(300, np.int64)
    paired = np.zeros(300)
    for step in range(STEPS // 2):  # the control: the second process takes the first one's stream
        for rank in range(2):
            stream = Streams.from_seed(0).sampling(step, 0)
            paired[PoissonSampler(stage, index, shard=(rank, 2)).draw(stream)] += 1
    assert correlation(paired[::2], paired[1::2]) > 0.99


def brought(trained, what):
    """Return each row's share in the first half of the steps and in the second, by person."""
    whose = np.random.default_rng(1).permutation(np.repeat(np.arange(21), np.arange(21) % 7 + 1))
    first, half, last = (w.double().flatten().numpy() for w in trained[0][what])
    return [[(a - b)[whose == p] for p in range(21)] for a, b in ((first, half), (half, last))]


def test_a_person_is_clipped_as_one_whichever_process_has_them(trained):
    """k rows of norm 1 along an axis each have 1/√k of a bound of 1, in each of three steps.

    Persons cut in two, over processes or physical batches, would have more: 1/√j each of j rows.
    """
    for half in brought(trained, "people"):
        for shares in half:
            np.testing.assert_allclose(shares, 3 / shares.size**0.5, rtol=1e-4)


def test_a_person_brings_so_many_rows_and_others_after_a_resume(trained):
    early, late = brought(trained, "rows")
    for half in (early, late):
        for shares in half:
            assert np.rint(shares).sum() == 3 * min(2, shares.size)
            np.testing.assert_allclose(shares, np.rint(shares), atol=1e-4)
            assert shares.max() < 3.5  # at most once a step
    several = [p for p in range(21) if early[p].size > 2]
    assert any(not np.allclose(early[p], late[p], atol=0.1) for p in several)


def correlation(one, other):
    return float(np.corrcoef(one, other)[0, 1])
