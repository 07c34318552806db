"""Findings: JSON types of what was looked at, and nothing of anybody."""

import json

import numpy as np

from apiece.audit import Findings, lower_bound
from apiece.audit.findings import Difference, GroupDifference, GroupScores
from apiece.audit.membership import roc


def test_what_was_not_looked_at_is_left_out() -> None:
    assert Findings(audit="x").to_dict() == {"audit": "x"}
    assert Findings(audit="x", bounds_by_group={}).to_dict()["lower_bounds_by_group"] == {}


def test_findings_as_json() -> None:
    bound = lower_bound(np.zeros(100), np.zeros(100), delta=1e-5)
    found = Findings(
        audit="shadow models",
        attack="LiRA",
        models=8,
        records=2,
        rocs={"all": roc([1.0, 0.0], [True, False])},
        bounds=(bound,),
        bounds_by_group={"weak": (bound,)},
        privacy_score={"weak": GroupScores(0.1, 0.2, 0.3, 4)},
        differences=(
            GroupDifference(("a", "b"), Difference(1.0, 0.5, 0.1)),
            GroupDifference(("a", "c"), None),
        ),
    ).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["differences"] == [
        {"groups": ["a", "b"], "statistic": 1.0, "p_value": 0.5, "effect": 0.1},
        {"groups": ["a", "c"]},
    ]
    assert found["privacy_score"]["weak"] == {
        "mean": 0.1, "median": 0.2, "quantile_95": 0.3, "records": 4,
    }  # fmt: skip
    assert found["lower_bounds"] == found["lower_bounds_by_group"]["weak"] == [bound.to_dict()]
