"""Members told from others by one model's loss, of records and of persons."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece.audit.findings import ModelScores, audit_scores
from apiece.audit.stacked_training import model_confidences
from apiece.errors import DataError


def test_a_model_that_learned_by_heart_is_found() -> None:
    """Random labels, no privacy: what it knows of its members is what it was shown."""
    torch.manual_seed(0)
    x, y = torch.randn(400, 20), torch.randint(0, 2, (400,))
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:200]), y[:200]).backward()
        optimizer.step()
    phi = model_confidences(model, x, y)
    generator = np.random.default_rng(0)
    groups = np.arange(200) % 2
    found = audit_scores(
        ModelScores.of(phi[:200], groups=groups),
        ModelScores.of(phi[200:], groups=groups),
        delta=1e-5,
        generator=generator,
    )
    assert found.rocs["all"].auc > 0.7
    assert set(found.rocs) == {"all", "0", "1"}
    assert max(bound.epsilon for bound in found.bounds) > 1
    assert found.to_dict()["canaries"] == 200


def test_of_persons_there_is_one_score_each() -> None:
    """Rows that hardly differ add up: persons are told apart where their rows are not."""
    generator = np.random.default_rng(0)
    whose = generator.permutation(np.repeat(np.arange(100), 30))
    phi = [generator.normal(shift, 1, 3000) for shift in (0.5, 0.0)]
    groups = np.where(whose % 2, "odd", "even")
    sides = [
        ModelScores.of(phi[0], groups=groups, people=whose),
        ModelScores.of(phi[1], groups=groups, people=whose + 100),
    ]
    found = audit_scores(*sides, delta=1e-5, generator=generator)
    assert (found.unit, found.canaries) == ("person", 100)
    assert set(found.rocs) == {"all", "odd", "even"}
    rows = audit_scores(
        ModelScores.of(phi[0]), ModelScores.of(phi[1]), delta=1e-5, generator=generator
    )
    assert found.rocs["all"].auc > 0.9 > 0.7 > rows.rocs["all"].auc
    assert rows.unit is None


def test_persons_are_on_one_side_and_in_one_group() -> None:
    generator = np.random.default_rng(0)
    one, other = (
        ModelScores.of([1.0, 2, 3], people=[1, 1, 2]),
        ModelScores.of([1.0, 2], people=[2, 3]),
    )
    with pytest.raises(DataError, match="1 persons are among members and others"):
        audit_scores(one, other, delta=1e-5, generator=generator)
    with pytest.raises(DataError, match="of members or of others only"):
        audit_scores(one, ModelScores.of([1.0, 2]), delta=1e-5, generator=generator)
    with pytest.raises(DataError, match="groups: rows of one person differ"):
        ModelScores.of([1.0, 2, 3], people=[1, 1, 2], groups=["a", "b", "a"])


def test_groups_of_members_alone_are_told_from_all_others() -> None:
    phi = np.array([9.0, 8, 1, 0])
    members = ModelScores.of(phi, groups=np.array(["a", "a", "b", "b"]))
    others = ModelScores.of([2.0, 3, 4])
    generator = np.random.default_rng(0)
    found = audit_scores(members, others, delta=1e-5, generator=generator)
    areas = {name: curve.auc for name, curve in found.rocs.items()}
    assert areas == {"all": 0.5, "a": 1.0, "b": 0.0}
