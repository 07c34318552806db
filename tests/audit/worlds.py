"""Small plans, pools and scores that the audit tests share."""

import numpy as np
import torch

from apiece.audit import Pool
from apiece.audit.records import ShadowScores
from apiece.audit.splits import biregular
from apiece.budgets import Budgets
from apiece.plan import Plan
from apiece.plan.parts import Stage


def plan(*, steps: int = 6, noise_stddev: float = 0.5, size: int = 20, batch: float = 5.0) -> Plan:
    """Two groups, with rates and clip norms of their own; its guarantee plays no part here."""
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], size, 1e-5)
    stage = Stage(steps, batch, noise_stddev, np.array([0.15, 0.35]), np.array([0.5, 1.5]))
    return Plan("test", 1.0, budgets.groups, (stage,))


def pool(size: int = 40, features: int = 7, classes: int = 3, seed: int = 0) -> Pool:
    generator = np.random.default_rng(seed)
    return Pool(
        ids=np.array([f"r{i:03d}" for i in generator.permutation(size)]),
        inputs=torch.from_numpy(generator.normal(size=(size, features)).astype(np.float32)),
        targets=torch.from_numpy(generator.integers(0, classes, size)),
        groups=generator.permutation(np.arange(size) % 2),
    )


def scores(
    models: int = 64, size: int = 30, *, shift: float | np.ndarray = 1.0, seed: int = 0
) -> ShadowScores:
    """Normal confidences, raised by `shift` where the record was included."""
    generator = np.random.default_rng(seed)
    included = biregular(models, np.arange(size) % 2, generator=generator)
    confidences = generator.normal(size=(models, size)) + shift * included
    groups = np.where(np.arange(size) % 2, "weak", "strict")
    return ShadowScores(np.arange(size) + 100, groups, included, confidences)
