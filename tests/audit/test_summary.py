"""Findings name groups, and nobody."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.audit.findings import shadow_findings
from apiece.errors import DataError, InputError

from .worlds import scores


def test_findings_name_groups_and_no_record() -> None:
    balanced = scores(models=24, size=40, shift=np.where(np.arange(40) % 2, 3.0, 0))
    found = shadow_findings(balanced)
    assert found.attack is not None
    assert found.attack.startswith("LiRA")
    assert set(found.rocs) == {"all", "strict", "weak"}
    assert found.privacy_score["weak"].mean > found.privacy_score["strict"].mean
    assert found.differences[0].test is not None
    assert found.differences[0].test.p_value < 1e-6
    assert "ids" not in str(found.to_dict())
    with pytest.raises(InputError, match="shadow models"):
        shadow_findings(scores(models=4, size=6))
    lopsided = replace(balanced, included=np.ones_like(balanced.included))
    with pytest.raises(DataError, match="half full"):
        shadow_findings(lopsided)
