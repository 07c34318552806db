"""The public names: a name that comes or goes is a decision, so it is written down here too."""

import importlib

import pytest

import apiece

TEXT = """
__version__ accounting audit contract
Bounds Budgets Composed Excess Gaussian GaussianFilter Laplace Ledger ModelLoss Odometer Plan
PrivacyCurve Query
RenyiFilter Repeated Sampled Trainer add_noise assign calibrate clip_and_sum excess
partial_sensitivity poisson_batches privacy_curve release_histogram report
AdaPDP Allocate Hybrid JorgensenSampling Rounds Sample Scale Sequential Threshold Uniform
"""
NAMES = TEXT.split()


def test_public_names_are_these() -> None:
    assert sorted(apiece.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(apiece, name) is not None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("audit", "lower_bound"),
        ("audit", "one_run"),
        ("audit", "lira"),
        ("contract", "check"),
        ("contract", "enforce"),
        ("contract", "budget_manipulation"),
        ("contract", "collusion"),
    ],
)
def test_names_of_packages(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(f"apiece.{module}"), name))


def test_what_others_can_do_is_in_one_place() -> None:
    audit = importlib.import_module("apiece.audit")
    assert not {"budget_manipulation", "collusion", "Exposure"} & {*vars(audit)}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trainer'"):
        _ = apiece.trainer  # type: ignore[attr-defined]
