"""A person's receipt: every charge of theirs and nobody else's, adding up to the balance."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import DataError
from apiece.ledger import Ledger, receipt


def test_charges_add_up_for_everybody(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/people.db")
    generator = np.random.default_rng(0)
    people = [f"p{i}" for i in range(40)]
    ledger.enroll(people, epsilon=generator.uniform(0.2, 3.0, 40), delta=1e-6)
    paid: dict[str, list[tuple[str, float]]] = {p: [] for p in people}
    for k in range(6):
        if k == 3:  # who comes later lies in the same block
            ledger.enroll(["late"], epsilon=1.0, delta=1e-6)
            people, paid = [*people, "late"], paid | {"late": []}
        chosen = sorted(generator.choice(people, 15, replace=False).tolist())
        norms = generator.uniform(0.0, 1.0, 15)
        admitted = ledger.reserve(f"q{k}", chosen, norms=norms, noise_stddev=6.0).tolist()
        for person, norm in zip(chosen, norms, strict=True):
            if person in admitted:
                paid[person].append((f"q{k}", float(norm**2 / 36)))
        if k % 2:
            ledger.commit(f"q{k}")
    assert any(len(each) < 2 for each in paid.values())
    for person, expected in paid.items():
        found = receipt(ledger, person)
        limit = float(ledger.spent([person])[0] + ledger.remaining([person])[0])
        assert [c.analysis for c in found.charges] == [name for name, _ in expected]
        assert [c.share * limit for c in found.charges] == pytest.approx(
            [loss for _, loss in expected], rel=1e-6, abs=1e-9
        )
        assert found.spent == pytest.approx(float(ledger.spent([person])[0]) / limit)
        assert all(c.committed == (int(c.analysis[1:]) % 2 == 1) for c in found.charges)
        assert found.head == ledger.head()


def test_whoever_has_no_account_has_no_receipt(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/people.db")
    ledger.enroll([1, 2], epsilon=1.0, delta=1e-6)
    assert receipt(ledger, 2).charges == ()
    with pytest.raises(DataError, match="no account"):
        receipt(ledger, 3)
