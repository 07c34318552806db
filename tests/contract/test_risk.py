"""A victim's risk as the others' share and budget vary."""

import pytest

from apiece.assignment import Sample, assign
from apiece.budgets import Budgets
from apiece.contract.exposure import exposure, risk_table
from apiece.errors import InputError
from refusals import refused


def test_each_cell_is_the_exposure_of_its_plan_and_is_counted() -> None:
    told: list[tuple[int, int]] = []
    shared = {"steps": 1, "expected_batch_size": 10.0}
    table = risk_table(
        records=100, victim_epsilon=4.0, delta=1e-6, shares=[0.25, 0.8], epsilons=[1.0],
        progress=lambda done, of: told.append((done, of)), **shared,  # type: ignore[arg-type]
    )  # fmt: skip
    assert told == [(1, 2), (2, 2)]
    asked = Budgets([1.0] * 80 + [4.0] * 20, 1e-6)
    plan = assign(asked, Sample(), clip_norm=1.0, **shared)  # type: ignore[arg-type]
    found = exposure(plan, int(plan.group_index[-1]))
    assert table.advantage[1, 0] == found.advantage.upper
    assert table.forward[1, 0] == found.forward.upper
    assert table.backward[1, 0] == found.backward.upper
    alone = assign(Budgets([4.0] * 100, 1e-6), Sample(), clip_norm=1.0, **shared)  # type: ignore[arg-type]
    assert table.baseline == exposure(alone, 0).advantage.upper < table.advantage.min()


@pytest.mark.slow
def test_risk_table_moves_the_right_way() -> None:
    table = risk_table(
        records=1000, victim_epsilon=4.0, delta=1e-8, shares=[0.2, 0.8], epsilons=[1.0, 12.0],
        steps=100, expected_batch_size=50,
    )  # fmt: skip
    assert table.advantage[1, 0] > table.advantage[0, 0] > table.baseline
    assert table.advantage[1, 1] < table.advantage[0, 1] < table.baseline
    assert (table.forward[:, 0] > table.forward[:, 1]).all()
    with refused(InputError, "share"):
        risk_table(
            records=10, victim_epsilon=1, delta=1e-8, shares=[1.0], epsilons=[1],
            steps=1, expected_batch_size=1,
        )  # fmt: skip
