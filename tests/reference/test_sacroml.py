"""LiRA agrees with sacroml's on the same confidences; runs where sacroml is installed."""

import importlib
from types import ModuleType

import numpy as np
import pytest

from apiece.audit import ShadowScores, lira
from apiece.audit.splits import biregular


@pytest.fixture
def benchmark() -> ModuleType:
    pytest.importorskip("sacroml.attacks.likelihood_attack", reason="sacroml is not installed")
    return importlib.import_module("research.benchmarks.sacroml_lira")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("variant", ["online", "offline"])
def test_lira_agrees(benchmark: ModuleType, variant: str) -> None:
    generator = np.random.default_rng(3)
    groups = np.zeros(30, dtype=np.int64)
    split = biregular(12, groups, generator=generator)
    confidences = generator.normal(1.0, 2.0, size=split.shape) + split
    shadows = ShadowScores(np.arange(30), groups, split, confidences)
    target = generator.normal(1.0, 2.0, size=30)
    theirs = benchmark.theirs(target, shadows, variant)
    ours = lira(target, shadows, variant=variant)
    if variant == "offline":
        ours = -np.expm1(-ours)
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-12)
