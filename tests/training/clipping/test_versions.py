"""Which versions of torch the proof was tested with, and what is said of a newer one."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from apiece.errors import UntestedVersionWarning
from apiece.training import clip_and_sum
from apiece.training.clipping import engine, torch_internals

ROOT = Path(__file__).parents[3]


def first_proof():
    model = nn.Linear(2, 1)
    return clip_and_sum(model, lambda o, t: (o[:, 0] - t).square(), torch.ones(3, 2),
                        torch.ones(3), 1.0)  # fmt: skip


@pytest.fixture
def untold():
    engine.warn_of_newer_torch.cache_clear()
    yield
    engine.warn_of_newer_torch.cache_clear()


def test_a_newer_version_is_told_once(untold, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.1a0+git1234")
    with pytest.warns(UntestedVersionWarning, match=r"2\.99.*2\.13"):
        first_proof()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_proof()


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.13.0", "2.9.1", "2.13.1+cpu"])
def test_a_tested_version_is_not(version, untold, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_proof()


def test_all_places_name_the_same_newest_version():
    newest = torch_internals.NEWEST_TESTED
    for file, pattern in (
        ("constraints.txt", r"^torch==(\d+)\.(\d+)"),
        ("Makefile", r"test-torch .*,[\d. ]* (\d+)\.(\d+)\.\d+\)$"),
        (".github/workflows/tests.yml", r'torch: \[.*"(\d+)\.(\d+)\.\d+"\]'),
    ):
        (found,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert tuple(map(int, found)) == newest, file
