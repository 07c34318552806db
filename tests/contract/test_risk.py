"""A victim's risk as the others' share and budget vary."""

import pytest

from apiece import contract
from apiece.errors import InputError


@pytest.mark.slow
def test_risk_table_moves_the_right_way() -> None:
    table = contract.risk_table(
        records=1000, victim_epsilon=4.0, delta=1e-8, shares=[0.2, 0.8], epsilons=[1.0, 12.0],
        steps=100, expected_batch_size=50,
    )  # fmt: skip
    assert table.advantage[1, 0] > table.advantage[0, 0] > table.baseline
    assert table.advantage[1, 1] < table.advantage[0, 1] < table.baseline
    assert (table.forward[:, 0] > table.forward[:, 1]).all()
    with pytest.raises(InputError, match="share"):
        contract.risk_table(
            records=10, victim_epsilon=1, delta=1e-8, shares=[1.0], epsilons=[1],
            steps=1, expected_batch_size=1,
        )  # fmt: skip
