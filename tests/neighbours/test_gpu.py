"""What holds on a processor holds on a GPU: verdicts, bounds, sums, noise, checkpoints, charges.

Kernels differ there (attention, dropout, convolution, TF32), and so do the operators that a graph
has. Collected only where there is a GPU: one line says so elsewhere.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from apiece import Budgets, Sample, assign
from apiece.filters import GaussianFilter
from apiece.training import FilteredTrainer, Trainer, clip_and_sum
from apiece.training.clipping import recurrence
from apiece.training.clipping.contributions import Products
from apiece.training.randomness import ChaCha20Stream, noisy_mean
from apiece.training.stacked import SUMS
from tests.training.stacks import MLP, loop_sum, mlp_module

from .harness import PRECISIONS, SIZE, Refused, flat, movement, typed
from .test_neighbours import NOT_BY_AUTOCAST, NOT_PROVED, ROOM
from .zoo import HONEST, MIXING, RANDOM, squares

LOSS = nn.CrossEntropyLoss(reduction="none")
DEVICE = os.environ.get("APIECE_TEST_DEVICE", "cuda")  # "cpu" tries the tests themselves
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


def there(make):
    """Return `make` with its model and batch on the device."""

    def made(*size):
        model, loss, x, y = make(*size)
        if isinstance(loss, nn.Module):
            loss = loss.to(DEVICE)
        return model.to(DEVICE), loss, x.to(DEVICE), y.to(DEVICE)

    return made


def sums(make, precision, method="auto", clip=0.01):
    """Return the clipped sum of the whole batch in double precision, from seeds of its own."""
    torch.manual_seed(0)
    model, loss, x, y = make()
    model, x, y = (typed(what, precision) for what in (model, x, y))
    return flat(clip_and_sum(model, loss, x, y, clip, method=method).gradients).cpu()


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_are_proved_within_their_bounds_and_their_sums_those_of_a_processor(name):
    make = there(HONEST[name])
    method = "auto" if name.startswith(NOT_PROVED) else "proved"
    here = sums(HONEST[name], "float64", "alone")
    torch.testing.assert_close(sums(make, "float64", method), here, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(sums(make, "float32", method), here, rtol=2e-3, atol=2e-5)
    assert movement(make, method=method) <= 1 + ROOM["float32"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", list(HONEST)[::4])
def test_bounds_hold_in_every_precision(name, precision):
    if precision == "autocast":
        if name.startswith(NOT_BY_AUTOCAST):
            pytest.skip("torch does not run it under autocast")
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            moved = movement(there(HONEST[name]))
    else:
        moved = movement(there(HONEST[name]), precision)
    assert moved <= 1 + ROOM[precision]


@pytest.mark.parametrize("name", MIXING)
def test_nothing_that_mixes_is_proved(name):
    with pytest.raises(Refused):
        movement(there(MIXING[name]), method="proved")


@pytest.mark.parametrize("name", list(MIXING)[::5])
def test_nothing_that_mixes_is_harmful_alone(name):
    with contextlib.suppress(Refused):
        assert movement(there(MIXING[name])) <= 1 + ROOM["float32"]


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_forward_stays_within_the_bounds(name):
    torch.manual_seed(0)
    model, loss, x, y = there(RANDOM[name])()
    clipped = clip_and_sum(model, loss, x, y, 0.01, method="proved")
    assert float(flat(clipped.gradients).norm()) <= 0.01 * SIZE * 1.001


class Attends(nn.Module):
    """Words attend to words, by whichever of torch's kernels."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(50, 64), nn.Linear(64, 3)
        self.keys = nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.keys(self.words(x)).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("kernel", ["MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION"])
def test_every_kernel_of_attention_is_proved(kernel):
    torch.manual_seed(0)
    model, words = Attends(), torch.randint(0, 50, (SIZE, 8))
    y = torch.randint(0, 3, (SIZE,))
    alone = flat(clip_and_sum(model.double(), LOSS, words, y, 0.01, method="alone").gradients)
    model, words, y = model.float().to(DEVICE), words.to(DEVICE), y.to(DEVICE)
    fast = kernel == "FLASH_ATTENTION"  # takes half precision only on a GPU
    autocast = torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=fast)
    with sdpa_kernel(getattr(SDPBackend, kernel)), autocast:
        clipped = clip_and_sum(model, LOSS, words, y, 0.01, method="proved")
    near = {"rtol": 0.1, "atol": 2e-3} if fast else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(flat(clipped.gradients).cpu(), alone, **near)
    assert all(g.dtype == torch.float32 for g in clipped.gradients.values())


class Plays(nn.Module):
    """A layer whose output the loss multiplies: the targets are the gradients that it is given."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).flatten(1)


def inner(out, y):
    return (out * y).sum(1)


LAYERS = {
    "linear": (nn.Linear(40, 30, bias=False), (50, 40)),
    "linear, few places": (nn.Linear(400, 300, bias=False), (5, 400)),
    "convolution": (nn.Conv2d(8, 16, 3, bias=False), (8, 12, 12)),
    "convolution, few places": (nn.Conv2d(64, 64, 3, bias=False), (64, 4, 4)),
}


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("name", LAYERS)
def test_norms_and_sums_are_made_in_single_precision_whatever_products_the_device_prefers(
    name, precision
):
    """TF32 keeps 10 bits and would be off by 1e-4; what a layer is given is exact here."""
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    model, x = Plays(layer), torch.randn(SIZE, *shape)
    y = torch.randn(model(x).shape)
    exact = clip_and_sum(model.double(), inner, x.double(), y.double(), 1e6, method="alone")
    exact_sum, exact_norms = flat(exact.gradients), exact.norms
    torch.set_float32_matmul_precision(precision)
    try:
        found = clip_and_sum(model.float().to(DEVICE), inner, x.to(DEVICE), y.to(DEVICE), 1e6)
    finally:
        torch.set_float32_matmul_precision("highest")
    model.cpu()
    torch.testing.assert_close(found.norms.cpu().double(), exact_norms, rtol=3e-6, atol=0)
    room = {"rtol": 0, "atol": 3e-6 * float(exact_sum.norm())}
    torch.testing.assert_close(flat(found.gradients).cpu(), exact_sum, **room)


@pytest.mark.parametrize("places", [1, 30, 400])
@pytest.mark.parametrize("cancel", [0.0, 0.999, 0.9999999])
def test_round_off_lifts_nobody_over_their_bound(places, cancel):
    """One record is the sum; gradients that cancel over places leave its round-off alone."""
    generator = torch.Generator().manual_seed(places)
    layer, worst = nn.Linear(300, 200, bias=False).to(DEVICE), 0.0
    for scale in (1e-3, 1.0, 1e3):
        x = torch.randn(1, places, 300, generator=generator) * scale
        y = torch.randn(1, places, 200, generator=generator)
        half = places // 2
        x[:, :half] = x[:, half : 2 * half]
        y[:, :half] = -cancel * y[:, half : 2 * half]
        x, y = x.to(DEVICE), y.flatten(1).to(DEVICE)
        found = clip_and_sum(Plays(layer), inner, x, y, 0.01, method="proved")
        worst = max(worst, float(flat(found.gradients).norm()))
    assert worst <= 0.01


def test_a_compiled_graph_gives_the_sums_of_the_eager_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)).to(DEVICE)
    x, y = torch.randn(64, 20, device=DEVICE), torch.randint(0, 3, (64,), device=DEVICE)
    eager = clip_and_sum(model, LOSS, x, y, 0.1)
    fast = clip_and_sum(model, LOSS, x, y, 0.1, compiled=True)
    torch.testing.assert_close(flat(fast.gradients), flat(eager.gradients), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(fast.norms, eager.norms, rtol=1e-4, atol=1e-6)


def test_a_record_that_is_not_finite_is_left_out():
    torch.manual_seed(0)
    model = nn.Linear(4, 1).to(DEVICE)
    x, y = torch.randn(SIZE, 4, device=DEVICE), torch.randn(SIZE, device=DEVICE)
    clean = clip_and_sum(model, squares, x[1:], y[1:], 0.1).gradients
    for bad in (torch.nan, torch.inf, 3e38):
        x[0] = bad
        found = clip_and_sum(model, squares, x, y, 0.1).gradients
        torch.testing.assert_close(dict(found), dict(clean))


def test_persons_are_clipped_as_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 1).to(DEVICE)
    x, y = torch.randn(SIZE, 4, device=DEVICE), torch.randn(SIZE, device=DEVICE)
    people = np.arange(SIZE) // 3
    there_ = clip_and_sum(model, squares, x, y, 0.1, people=people)
    here = clip_and_sum(model.cpu(), squares, x.cpu(), y.cpu(), 0.1, people=people)
    torch.testing.assert_close(there_.norms.cpu(), here.norms)
    torch.testing.assert_close(flat(there_.gradients).cpu(), flat(here.gradients))


# ---------------------------------------------------------------- training


N = 300


def parts(device):
    """Return model, optimizer, loss, plan and data; the data stay with the processor."""
    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(5))
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 4.0, 0.5)], N, 1e-4)
    plan = assign(budgets, Sample(), steps=12, expected_batch_size=40, clip_norm=1.0)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, optimizer, LOSS, plan, (x, (x[:, 0] > 0).long())


def trainer(device, **options):
    return Trainer(*parts(device), seed=0, **options)


def weights(model):
    return torch.cat([p.detach().double().cpu().flatten() for p in model.parameters()])


def test_a_seed_gives_the_batches_and_the_noise_of_a_processor():
    here, there_ = trainer("cpu"), trainer(DEVICE)
    here.fit()
    there_.fit()
    torch.testing.assert_close(weights(there_.model), weights(here.model), rtol=1e-3, atol=1e-4)
    assert there_.proof.proved


def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    whole = trainer(DEVICE)
    whole.fit()
    trainer(DEVICE, checkpoint=tmp_path, save_every=5).fit(5)
    resumed = Trainer.resume(tmp_path, *parts(DEVICE))
    assert resumed.step_number == 5
    resumed.fit()
    assert torch.equal(weights(resumed.model), weights(whole.model))


def test_a_release_draws_noise_of_the_right_size():
    size, stddev = 200_000, 3.0
    model = nn.Linear(1, size, bias=False).to(DEVICE)
    x, y = torch.zeros(4, 1, device=DEVICE), torch.zeros(4, device=DEVICE)
    clipped = clip_and_sum(model, lambda out, y: out.sum(1) * 0 + y, x, y, 1.0)
    noised = flat(noisy_mean(clipped, stddev, 1.0, generator=ChaCha20Stream(bytes(32)))).cpu()
    error = stddev / (2 * size) ** 0.5
    assert abs(float(noised.std()) - stddev) < 5 * error
    assert abs(float(noised.mean())) < 5 * stddev / size**0.5


def test_a_filter_charges_there_what_it_charges_here():
    spent = {}
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        x, y = torch.randn(SIZE, 4), torch.randn(SIZE)
        model = nn.Linear(4, 1).to(device)
        people = GaussianFilter([4.0] * SIZE, 1e-5)
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        FilteredTrainer(
            model, sgd, squares, people, (x, y), clip_norm=1.0, noise_stddev=5.0, seed=0
        ).fit(4)
        spent[device] = people.spent
    np.testing.assert_allclose(spent[DEVICE], spent["cpu"], rtol=1e-4)


def test_a_stack_of_shadow_models_clips_as_one_by_one():
    flats = MLP.initial(3, torch.Generator().manual_seed(1))
    x, y = torch.randn(3, 4, 7), torch.randint(0, 3, (3, 4))
    clip = torch.tensor([[0.1, 5.0, 0.0, 0.7], [100.0, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]])
    clipped = MLP.clipped_sum(*(t.to(DEVICE) for t in (flats, x, y, clip)))
    loop = [loop_sum(mlp_module(), flats[k], x[k], y[k], clip[k]) for k in range(3)]
    ours = clipped.gradients[SUMS].cpu()
    torch.testing.assert_close(ours, torch.stack(loop), rtol=2e-4, atol=2e-5)


# ---------------------------------------------------------------- what these tests must see


def test_they_see_clipping_that_ignores_the_bounds():
    def careless(model, loss, x, y, clip, **options):
        return clip_and_sum(model, loss, x, y, 3 * clip, **options)

    assert movement(there(HONEST["nothing at 0"]), of=careless) > 2


def test_they_see_norms_of_fast_products(monkeypatch):
    """As a device might make them: of factors with ten bits, or seven."""

    def narrow(self, of_rows=None):
        return Products(self.left.bfloat16().float(), self.right.bfloat16().float()).norms(of_rows)

    monkeypatch.setattr(Products, "norms", Products.squares, raising=False)
    monkeypatch.setattr(Products, "squares", narrow)
    name = "linear, few places"
    with pytest.raises(AssertionError, match="not close"):
        test_norms_and_sums_are_made_in_single_precision_whatever_products_the_device_prefers(
            name, "highest"
        )


def test_they_see_a_recurrent_layer_that_is_differentiated_wrongly(monkeypatch):
    def weak(activations, previous):
        return right(0.9 * activations, previous)

    right = recurrence._slopes_of_gru
    monkeypatch.setattr(recurrence, "_slopes_of_gru", weak)
    make = HONEST["gru at 0"]
    proved, alone = sums(there(make), "float64", "proved"), sums(make, "float64", "alone")
    assert (proved - alone).abs().max() > 1e-5
