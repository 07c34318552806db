"""K models as one computation equal K models one by one, to the last digits that floats allow."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from apiece.audit import poisson, stacked_training
from apiece.audit.stacked import SUMS, StackedMlp, StackedModel
from apiece.audit.stacked_module import StackedModule, cnn, resnet9
from apiece.audit.stacked_training import BlockStreams, Recipe, train
from apiece.errors import InputError, OptionError, UnsupportedError
from apiece.plan import Schedule

from .worlds import plan, pool

MLP = StackedMlp((7, 6, 5, 3))


def mlp_module() -> nn.Module:
    layers = [nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
    return nn.Sequential(*layers)


def load(module: nn.Module, row: torch.Tensor) -> nn.Module:
    module = copy.deepcopy(module)
    nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return module


def loop_sum(
    module: nn.Module, row: torch.Tensor, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """One model, one record at a time, by autograd."""
    total = torch.zeros_like(row)
    own = load(module, row)
    for i in range(len(y)):
        if c[i] == 0:
            continue
        loss = nn.functional.cross_entropy(own(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(own.parameters()))
        g = torch.cat([t.reshape(-1) for t in grads])
        norm = g.norm()
        if torch.isfinite(norm):
            total += g * torch.clamp(c[i] / norm, max=1.0)
    return total


MODELS: list[tuple[str, StackedModel, nn.Module, tuple[int, ...]]] = [
    ("mlp", MLP, mlp_module(), (7,)),
    ("module", StackedModule(mlp_module(), block=2), mlp_module(), (7,)),
    ("cnn", StackedModule(m := cnn(1, 8, 3), block=2), m, (1, 8, 8)),
    ("resnet9", StackedModule(r := resnet9(3, 3, width=4), block=2), r, (3, 16, 16)),
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


def test_training_is_the_loop_with_the_same_coins_and_noise() -> None:
    """The reference trains one model after another, with torch's modules and optimizer."""
    own, data, module = plan(), pool(), mlp_module()
    included = np.random.default_rng(5).random((4, len(data))) < 0.5
    for recipe in (Recipe(), Recipe(optimizer="sgd", schedule="constant", learning_rate=0.1)):
        ours = train(
            MLP,
            (data.inputs, data.targets),
            own,
            groups=data.groups,
            included=included,
            recipe=recipe,
            seed=3,
        )
        streams, stage = BlockStreams.from_seed(3, 0), own.stages[0]
        start = MLP.initial(4, streams.start)
        rates, clips = stacked_training.stage_rates(stage, data.groups, included, streams.sampling)
        batches = list(poisson.batches(rates, stage.steps, streams.sampling))
        noises = [torch.empty(4, MLP.parameters).normal_(generator=streams.noise) for _ in batches]
        for k in range(4):
            row = start[k].clone()
            optimizer = recipe.start(row)
            for t, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
                chosen = batch.records[k][batch.real[k]]
                total = loop_sum(
                    module,
                    row,
                    data.inputs[chosen],
                    data.targets[chosen],
                    torch.from_numpy(clips[k, chosen]).float(),
                )
                row.grad = (total + stage.noise_stddev * noise[k]) / stage.expected_batch_size
                optimizer.param_groups[0]["lr"] = recipe.rate(t, own.steps)
                optimizer.step()
            torch.testing.assert_close(ours[k], row, rtol=2e-3, atol=2e-4)


def test_records_outside_a_world_have_no_influence() -> None:
    own, data = plan(), pool()
    included = np.ones((2, len(data)), dtype=bool)
    included[:, 7] = False
    settings = {"groups": data.groups, "included": included, "recipe": Recipe()}
    first = train(MLP, (data.inputs, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    changed = data.inputs.clone()
    changed[7] = 1e6
    second = train(MLP, (changed, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    included[0, 7] = True
    third = train(MLP, (changed, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    assert not torch.equal(first[0], third[0])


def test_streams_of_blocks_differ_and_repeat() -> None:
    one, again, other = (BlockStreams.from_seed(1, b) for b in (0, 0, 1))
    assert one.sampling.random() == again.sampling.random() != other.sampling.random()
    draws = [torch.randn(3, generator=s.noise) for s in (one, again, other)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], torch.randn(3, generator=one.start))


def test_stages_and_participation() -> None:
    """Two stages run one after the other; a record that does not join one is never sampled."""
    own = plan(steps=2)
    second = replace(
        own.stages[0], steps=3, expected_batch_size=3.5, participation=np.array([0.0, 1.0])
    )
    both = replace(own, stages=(own.stages[0], second))
    data, included = pool(), np.ones((3, 40), dtype=bool)
    rates, _ = stacked_training.stage_rates(second, data.groups, included, np.random.default_rng(0))
    assert (rates[:, data.groups == 0] == 0).all()
    assert (rates[:, data.groups == 1] > 0).all()
    flat = train(
        MLP,
        (data.inputs, data.targets),
        both,
        groups=data.groups,
        included=included,
        recipe=Recipe(),
        seed=1,
    )
    assert torch.isfinite(flat).all()


def test_the_plan_s_own_learning_rates_multiply_the_recipe_s() -> None:
    """SGD after one step at factor ½ has gone half as far; at factor 0 it stays."""
    own, data, included = plan(steps=1), pool(), np.ones((2, 40), dtype=bool)

    def moved(factor: float | None) -> torch.Tensor:
        schedule = None if factor is None else Schedule(((0, factor),))
        after = train(
            MLP,
            (data.inputs, data.targets),
            replace(own, learning_rate=schedule),
            groups=data.groups,
            included=included,
            recipe=Recipe(optimizer="sgd", schedule="constant", weight_decay=0.0),
            seed=1,
        )
        return after - MLP.initial(2, BlockStreams.from_seed(1, 0).start)

    torch.testing.assert_close(moved(0.5), moved(None) / 2, rtol=1e-4, atol=1e-6)
    assert moved(None).norm() > 0 == moved(0.0).norm()


def test_plans_that_average_models_are_refused() -> None:
    own, data = plan(), pool()
    averaged = replace(own, stages=own.stages * 2, combine="average")
    with pytest.raises(UnsupportedError, match="average"):
        train(
            MLP,
            (data.inputs, data.targets),
            averaged,
            groups=data.groups,
            included=np.ones((2, 40), dtype=bool),
            recipe=Recipe(),
            seed=1,
        )


def test_logit_scaled_is_the_log_odds_without_cancellation() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [60.0, 0.0, 0.0]])
    p = torch.softmax(logits[0].double(), 0)[0]
    found = stacked_training.logit_scaled(logits, torch.tensor([0, 0]))
    assert found[0] == pytest.approx(float(torch.log(p / (1 - p))), rel=1e-6)
    assert found[1] == pytest.approx(60 - np.log(2), rel=1e-6)


def test_buffers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="group normalisation"):
        StackedModule(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_parameters_without_reset_are_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    with pytest.raises(UnsupportedError, match="reset_parameters"):
        StackedModule(Scale()).initial(2, torch.Generator())


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: StackedMlp((3,)), InputError),
        (lambda: StackedMlp((3, 0, 2)), InputError),
        (lambda: Recipe(learning_rate=float("nan")), InputError),
        (lambda: Recipe(weight_decay=-1.0), InputError),
        (lambda: Recipe(optimizer="adam"), OptionError),
        (lambda: Recipe(schedule="cosin"), OptionError),
    ],
)
def test_bad_input(build: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        build()  # type: ignore[operator]
