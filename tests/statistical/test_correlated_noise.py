"""Trainings with correlated noise, audited: each canary meets the Gaussian that was claimed.

A canary has a gradient along a coordinate of its own, far over its bound, in each of its steps. Of
what a training releases, y = x + C⁻¹z, the best test of a canary is the product of C y with C u,
where u marks its steps: standard normal where it was left out, and shifted by at most the claimed μ
where it took part. Broken twins are caught: noise without the inverse, noise that is drawn anew,
noise that comes twice, and steps of one canary that are too near.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz
from torch import nn

from apiece import Budgets, Trainer, assign
from apiece.assignment import Correlated
from apiece.audit import lower_bound
from apiece.mechanisms import Gaussian
from apiece.plan import BoundPlan
from apiece.training.batches import PlannedSampler
from apiece.training.correlated import CorrelatedNoise, NoiseRecurrence
from apiece.training.fixed import FixedSampler
from apiece.training.randomness import Streams, draw_normals
from tests.statistical.test_noise import fits

CANARIES, STEPS, RUNS, DELTA = 360, 24, 8, 1e-5
BUDGETS = Budgets([1.0] * (CANARIES // 2) + [3.0] * (CANARIES // 2), DELTA)
KINDS = {
    "banded": Correlated(),
    "more bands than the separation": Correlated(bands=12),
    "buffers": Correlated(buffers=3),
}


@dataclass
class Audited:
    """The scores of canaries in units of the noise, and the noise itself, made independent."""

    left_out: np.ndarray
    took_part: np.ndarray
    group: np.ndarray
    shift: np.ndarray
    noise: np.ndarray

    def violates(self, plan: BoundPlan) -> bool:
        """Whether a group's canaries show more than its ε: an error of 5 % a group by chance."""
        bounds = [
            lower_bound(
                self.took_part[self.group == group],
                self.left_out,
                delta=DELTA,
                confidence=0.999,
                method="gdp",
            ).epsilon
            for group in range(2)
        ]
        return bool((np.array(bounds) > plan.budget_groups.epsilon).any())

    def fits(self, plan: BoundPlan) -> bool:
        """Whether the releases follow the Gaussian that was claimed."""
        claimed = np.array([1 / of_group(plan, group).noise_multiplier for group in range(2)])
        return bool(
            (self.shift <= claimed[self.group] * (1 + 1e-9)).all()
            and fits(self.left_out)
            and fits(self.took_part - self.shift)
            and fits(self.noise)
        )


def of_group(plan: BoundPlan, group: int) -> Gaussian:
    mechanism = plan.mechanism_for(group)
    assert isinstance(mechanism, Gaussian)
    return mechanism


def make_plan(noise: Correlated) -> BoundPlan:
    # Four passes of six steps.
    settings = {"steps": STEPS, "expected_batch_size": CANARIES / 6, "clip_norm": 1.0}
    return assign(BUDGETS, "scale", noise=noise, **settings)


def run_training(plan: BoundPlan, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the noisy sums (T, canaries), who took part in which step, and who may."""
    included = np.random.default_rng(seed).random(CANARIES) < 0.5
    model = nn.Linear(CANARIES, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = 50 * torch.eye(CANARIES), torch.zeros(CANARIES)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda outputs, targets: outputs[:, 0] + 0 * targets,
        plan,
        data,
        seed=seed,
        included=included,
    )
    sums = np.empty((STEPS, CANARIES))
    previous = np.zeros(CANARIES)
    for step in range(STEPS):
        trainer.step()
        current = model.weight.detach()[0].double().numpy()
        sums[step] = (previous - current) * plan.expected_batch_size
        previous = current.copy()
    # Who is left out empties a slot; with coins it is the others' coins that are drawn.
    mask = included if plan.has_turns else np.ones(CANARIES, dtype=bool)
    sampler = PlannedSampler(plan, mask)
    joined = np.zeros((STEPS, CANARIES))
    for step in range(STEPS):
        joined[step, sampler.draw(step, Streams.from_seed(seed)).records] = 1
    return sums, joined, included


def audit_plan(plan: BoundPlan) -> Audited:
    stage = plan.stages[0]
    assert stage.correlated is not None
    matrix = np.tril(toeplitz(stage.correlated.strategy.first_column(STEPS)))
    clip_norms = stage.clip_norm[plan.group_index]
    parts: list[tuple[np.ndarray, ...]] = []
    for seed in range(RUNS):
        sums, joined, included = run_training(plan, seed)
        moved = matrix @ (joined * clip_norms)
        sizes = np.linalg.norm(moved, axis=0)
        released = matrix @ sums
        scores = (moved * released).sum(axis=0) / sizes / stage.noise_stddev
        noise = (released - moved * included) / stage.noise_stddev
        parts.append(
            (
                scores[~included],
                scores[included],
                plan.group_index[included],
                sizes[included] / stage.noise_stddev,
                noise.T.reshape(-1),
            )
        )
    return Audited(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_each_canary_meets_the_gaussian_that_was_claimed(kind: str) -> None:
    plan = make_plan(KINDS[kind])
    audited = audit_plan(plan)
    assert audited.fits(plan)
    assert not audited.violates(plan)
    # The claim is met, not only kept: some canary has the worst schedule, and shows it.
    claimed = 1 / of_group(plan, 1).noise_multiplier
    assert audited.shift.max() == pytest.approx(claimed, rel=1e-6)


def test_with_coins_the_noise_is_that_of_the_strategy_and_scores_are_a_sampled_gaussian() -> None:
    """Parts that take turns: each turn of a canary is the sampled Gaussian, by itself."""
    parts = 3
    noise = Correlated(sampled=True, separation=parts)
    plan = assign(
        BUDGETS, "sample", steps=STEPS, expected_batch_size=40, clip_norm=1.0, noise=noise
    )
    stage = plan.stages[0]
    assert stage.correlated is not None
    matrix = np.tril(toeplitz(stage.correlated.strategy.first_column(STEPS)))
    residual = []
    left_out = []
    joined = []
    for seed in range(RUNS):
        sums, drawn, included = run_training(plan, seed)
        released = matrix @ sums / stage.noise_stddev
        moved = matrix @ (drawn * stage.clip_norm[plan.group_index]) / stage.noise_stddev
        residual.append((released - moved).T.reshape(-1))
        left_out.append(released[:, ~included].T.reshape(-1))
        joined.append(drawn[:, included])
    assert fits(np.concatenate(residual))
    assert fits(np.concatenate(left_out))
    # Nobody joins a step of another part, so that a turn's columns never meet.
    taken = np.concatenate(joined, axis=1)
    turns = np.add.reduceat(taken, np.arange(0, STEPS, parts), axis=0)
    assert turns.max() == 1


def forget_the_inverse(self: NoiseRecurrence, fresh: torch.Tensor) -> torch.Tensor:
    return fresh


def draw_anew(
    self: CorrelatedNoise,
    strategy: object,
    earlier: range,
    streams: Streams,
    size: int,
    device: torch.device,
) -> torch.Tensor:
    """Noise whose memory is not what was released before."""
    recurrence = NoiseRecurrence(strategy)  # type: ignore[arg-type]
    for past in earlier:
        recurrence.advance(draw_normals(streams.noise(10**6 + past), size, device))
    return recurrence.advance(draw_normals(streams.noise(earlier.stop), size, device))


real_noise = Streams.noise


def repeat_noise(self: Streams, step: int) -> object:
    return real_noise(self, step // 2)


def ignore_the_separation(self: FixedSampler, within: int) -> np.ndarray:
    """As many steps for everybody, but one after the other."""
    first = np.arange(CANARIES) % (STEPS // 4) * 4
    return np.flatnonzero((first <= within) & (within < first + 4))


# twin → (where it is, what is broken, whether the canaries show more than was promised)
TWINS: dict[str, tuple[type, str, Callable[..., object], bool]] = {
    "missing inverse": (NoiseRecurrence, "advance", forget_the_inverse, False),
    "noise re-drawn": (CorrelatedNoise, "draw", draw_anew, False),
    "noise repeated": (Streams, "noise", repeat_noise, False),
    "separation not enforced": (FixedSampler, "draw", ignore_the_separation, True),
}


@pytest.mark.parametrize("twin", TWINS)
def test_broken_twins_are_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, harms = TWINS[twin]
    monkeypatch.setattr(owner, name, broken)
    plan = make_plan(KINDS["banded"])
    audited = audit_plan(plan)
    assert not audited.fits(plan)
    if harms:
        assert audited.violates(plan)
