"""Models trained together are distributed as models trained one at a time.

Kolmogorov–Smirnov at 1e-3 on the confidence in three records; the negative control trains with
noise of another size, and must be told apart.
"""

import numpy as np
from scipy import stats

from apiece.audit.stacked_training import UpdateRule, confidences, train
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training.stacked import StackedMlp

MODELS, SIZE = 250, 12
GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(SIZE, 4)).astype(np.float32)
TARGETS = GENERATOR.integers(0, 2, SIZE)


def trained(noise_stddev: float, *, first: int, together: bool) -> np.ndarray:
    import torch

    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], SIZE, 1e-5)
    stage = Stage(6, 4.8, noise_stddev, np.array([0.2, 0.6]), np.array([0.5, 2.0]))
    plan = Plan("test", 1.0, budgets.groups, (stage,))
    model, inputs, targets = (
        StackedMlp((4, 3, 2)),
        torch.from_numpy(INPUTS),
        torch.from_numpy(TARGETS),
    )
    recipe = UpdateRule(learning_rate=0.5, optimizer="sgd", schedule="constant")

    def block(seed: int, count: int) -> np.ndarray:
        flat = train(
            model,
            (inputs, targets),
            plan,
            groups=np.arange(SIZE) % 2,
            included=np.ones((count, SIZE), dtype=bool),
            recipe=recipe,
            seed=7,
            block=seed,
        )
        return confidences(model, flat, inputs, targets)[:, :3]

    if together:
        return block(first, MODELS)
    return np.concatenate([block(first + k, 1) for k in range(MODELS)])


def smallest_p(one: np.ndarray, other: np.ndarray) -> float:
    return min(stats.ks_2samp(a, b).pvalue for a, b in zip(one.T, other.T, strict=True))


def test_together_as_one_by_one() -> None:
    single = trained(2.0, first=1000, together=False)
    assert smallest_p(trained(2.0, first=0, together=True), single) > 1e-3
    assert smallest_p(trained(4.0, first=0, together=True), single) < 1e-3
