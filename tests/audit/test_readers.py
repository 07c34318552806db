"""Masks, members and groups have one reader in every audit: what it takes, and what it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.audit import ShadowScores, one_run, one_run_by_group, privacy_scores, roc_by_group
from apiece.audit.findings import ModelScores, audit_scores
from apiece.audit.membership import roc
from apiece.errors import DataError
from refusals import refused

TRUTH = np.array([1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1] * 2, dtype=bool)
SCORES = np.arange(TRUTH.size) + 5.0 * TRUTH
GROUPS = np.array(["a", "b"] * (TRUTH.size // 2))

SPELLINGS: dict[str, Callable[[np.ndarray], Any]] = {
    "Booleans": lambda truth: truth,
    "list": lambda truth: truth.tolist(),
    "whole numbers": lambda truth: truth.astype(np.int64),
    "small whole numbers": lambda truth: truth.astype(np.uint8),
    "floats": lambda truth: truth.astype(np.float32),
    "Series": lambda truth: pd.Series(truth),
    "Series that allows gaps": lambda truth: pd.Series(truth, dtype="boolean"),
    "whole numbers that allow gaps": lambda truth: pd.Series(truth, dtype="Int64"),
    "objects": lambda truth: truth.astype(object),
}

BROKEN: dict[str, Any] = {
    "None": [None, *TRUTH[1:].tolist()],
    "NaN": np.array([np.nan, *TRUTH[1:]]),
    "NA": pd.Series([pd.NA, *TRUTH[1:]], dtype="boolean"),
    "text": ["yes", *["no"] * (TRUTH.size - 1)],
    "two": np.array([2, *TRUTH[1:].astype(int)]),
    "minus one": np.array([-1, *TRUTH[1:].astype(int)]),
    "a half": np.array([0.5, *TRUTH[1:].astype(float)]),
    "short": TRUTH[1:],
}


def shadows(truth: Any) -> ShadowScores:
    """Eight models of four records, whose φ is higher where a model was trained on the record."""
    included = np.asarray(truth).reshape(8, 4)
    noise = np.random.default_rng(0).normal(size=(8, 4))
    confidences = noise + 3 * TRUTH.reshape(8, 4)
    return ShadowScores(np.arange(4), np.array(["a", "a", "b", "b"]), included, confidences)


READERS: dict[str, Callable[[Any], Any]] = {
    "one_run": lambda truth: one_run(SCORES, truth, delta=0.0),
    "one_run_by_group": lambda truth: one_run_by_group(SCORES, truth, GROUPS, delta=0.0),
    "roc": lambda truth: roc(SCORES, truth).summary(),
    "roc_by_group": lambda truth: {
        name: curve.summary() for name, curve in roc_by_group(SCORES, truth, GROUPS).items()
    },
    "shadow scores": lambda truth: privacy_scores(shadows(truth)).score.tolist(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("reader", READERS)
def test_every_spelling_of_a_mask_gives_one_answer(reader: str, spelling: str) -> None:
    assert READERS[reader](SPELLINGS[spelling](TRUTH)) == READERS[reader](TRUTH)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_mask_is_refused(reader: str, broken: str) -> None:
    if (reader, broken) == ("shadow scores", "short"):
        pytest.skip("reshaped by the test itself")
    with pytest.raises(DataError, match=r"truth value|shape|entries for"):
        READERS[reader](BROKEN[broken])


@pytest.mark.parametrize(
    "groups",
    [
        [None, *GROUPS[1:]],
        [np.nan, *np.zeros(GROUPS.size - 1)],
        [1, *GROUPS[1:].tolist()],
        GROUPS[1:],
        pd.Series(GROUPS).where(pd.Series(GROUPS) == "a"),
    ],
    ids=["None", "NaN", "mixed", "short", "pandas gaps"],
)
def test_a_group_that_is_missing_is_refused(groups: Any) -> None:
    for reader in (
        lambda: one_run_by_group(SCORES, TRUTH, groups, delta=0.0),
        lambda: roc_by_group(SCORES, TRUTH, groups),
        lambda: ModelScores.of(SCORES, groups=groups),
    ):
        with refused(DataError, "groups"):
            reader()


def test_a_group_called_all_does_not_hide_the_whole() -> None:
    names = np.where(GROUPS == "a", "all", "b")
    curves = roc_by_group(SCORES, TRUTH, names)
    assert set(curves) == {"all", 'group "all"', "b"}
    assert curves["all"].members == TRUTH.sum()
    assert curves['group "all"'].members == TRUTH[GROUPS == "a"].sum()
    sides = ModelScores.of(SCORES, groups=names), ModelScores.of(SCORES + 0.5)
    found = audit_scores(*sides, delta=0.0, generator=np.random.default_rng(0))
    assert found.rocs["all"].members == SCORES.size
    assert found.rocs['group "all"'].members == (names == "all").sum()


def test_a_group_without_others_is_named_and_the_rest_measured() -> None:
    members = ModelScores.of(SCORES[:8], groups=np.array(["a"] * 6 + ["rare"] * 2))
    others = ModelScores.of(SCORES[8:16], groups=np.array(["a"] * 8))
    found = audit_scores(members, others, delta=0.0, generator=np.random.default_rng(0))
    assert set(found.rocs) == {"all", "a"}
    assert found.without_roc == {"rare": "2 members and no others"}
    assert found.to_dict()["without_roc"] == {"rare": "2 members and no others"}
