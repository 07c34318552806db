"""The engine, audited: canaries in each budget group stay below their ε; broken engines do not.

One step on one canary per group, seen in the released update along the canary's own direction,
many times with and without the canary. Both groups' canaries have a gradient far over the bound,
so that the update holds clip_norm when sampled. The plan's ε is exact for one step, and the lower
bound of a right engine is close under it, so that a fault of a factor of two shows.
"""

import numpy as np
import pytest
import torch

from apiece.accounting import privacy_curve
from apiece.audit import lower_bound
from apiece.mechanisms import Gaussian, Sampled
from apiece.plan import Stage
from apiece.training import add_noise, clip_and_sum
from apiece.training.batches import PoissonSampler
from apiece.training.randomness import ChaCha20Stream

RUNS, DELTA, NOISE = 6000, 1e-3, 1.0
RATES, CLIPS = np.array([0.5, 0.9]), np.array([0.6, 1.2])


def releases(group, present, *, rate=1.0, clip=None, noise=1.0, seed=0):
    """Return (RUNS,) released values along the canary's direction, from the engine's own parts."""
    stage = Stage(1, 1.0, NOISE, np.minimum(RATES * rate, 1), CLIPS)
    sampler = PoissonSampler(stage, np.array([group]))
    stream = ChaCha20Stream(bytes([seed, group, present]) + bytes(29))
    model = torch.nn.Linear(1, 1, bias=False)
    bound = CLIPS[group] if clip is None else clip
    seen = np.empty(RUNS)

    def loss(outputs, _targets):
        return outputs[:, 0] * 50

    empty = clip_and_sum(model, loss, torch.ones(0, 1), torch.ones(0), torch.ones(0))
    full = clip_and_sum(model, loss, torch.ones(1, 1), torch.ones(1), bound)
    for k in range(RUNS):
        joins = present and sampler.draw(stream).size
        update = add_noise(full if joins else empty, NOISE * noise, generator=stream)
        seen[k] = float(update["weight"])
    return seen


def bound_and_promise(group, delta=DELTA, **fault):
    seen = [releases(group, present, **fault) for present in (True, False)]
    found = lower_bound(*seen, delta=delta, confidence=0.99)
    mechanism = Sampled(Gaussian(NOISE / CLIPS[group]), RATES[group])
    return found.epsilon, privacy_curve(mechanism).epsilon(delta).upper


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("delta", [DELTA, 0.1])
def test_the_bound_stays_below_the_promise(group, delta):
    found, promised = bound_and_promise(group, delta)
    assert 0 <= found <= promised
    assert found > 0 or delta > DELTA


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"noise": 0.5}, id="half the noise"),
        pytest.param({"clip": 50.0}, id="a forgotten clip"),
        pytest.param({"clip": CLIPS[1]}, id="another group's clip norm"),
        pytest.param({"rate": 2.0, "delta": 0.1}, id="a doubled rate"),
    ],
)
def test_a_broken_engine_is_caught(fault):
    group = 0
    found, promised = bound_and_promise(group, **fault)
    assert found > promised
