"""The public names: a name that comes or goes is a decision, so it is written down here too."""

import importlib

import pytest

import apiece

TEXT = """
__version__ accounting audit contract
Bounds Budgets Composed Excess Gaussian GaussianFilter Laplace Ledger ModelLoss Odometer Plan
PrivacyCurve Expression
RenyiFilter Repeated Sampled Trainer add_noise assign calibrate clip_and_sum excess make_private
partial_sensitivity poisson_batches privacy_curve release_histogram report
Synthetic synthesize
AdaPDP Allocate Hybrid JorgensenSampling Rounds Sample Scale Sequential Threshold Uniform
"""
NAMES = TEXT.split()


def test_public_names_are_these() -> None:
    assert sorted(apiece.__all__) == sorted(NAMES)


def test_every_public_name_is_there() -> None:
    assert [name for name in NAMES if getattr(apiece, name, None) is None] == []


CALLED = {
    "audit": ("lower_bound", "one_run", "lira"),
    "contract": ("check", "enforce", "budget_manipulation", "collusion"),
}


def test_names_of_packages() -> None:
    lost = [
        f"{package}.{name}"
        for package, names in CALLED.items()
        for name in names
        if not callable(getattr(importlib.import_module(f"apiece.{package}"), name, None))
    ]
    assert lost == []


def test_what_others_can_do_is_in_one_place() -> None:
    audit = importlib.import_module("apiece.audit")
    assert not {"budget_manipulation", "collusion", "Exposure"} & {*vars(audit)}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trainer'"):
        _ = apiece.trainer  # type: ignore[attr-defined]
