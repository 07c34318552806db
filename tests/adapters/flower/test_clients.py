"""A client adds at most its bound, and each record joins at its own rate."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from apiece.errors import InputError

from .federations import client, plan, sum_of


def test_each_record_joins_at_its_own_rate() -> None:
    one = client([0, 1, 2], plan())
    found = np.array([sum_of(one) for _ in range(200)])
    np.testing.assert_allclose(found[:, 0], 1.0, rtol=1e-4)
    assert found[:, 1].tolist() == [0.0] * 200
    assert 0.3 < found[:, 2].mean() < 0.7  # 200 fair coins: six standard deviations


def test_records_that_did_not_pay_and_no_records_add_nothing() -> None:
    one = client([0, 0], plan(), included=np.array([True, False]))
    np.testing.assert_allclose(sum_of(one), [1.0, 0.0], rtol=1e-4)
    assert sum_of(client([1, 1], plan())).tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match="one a record"):
        client([0, 0], plan(), included=np.array([True, False, True]))


def test_a_client_adds_at_most_its_bound_and_one_record_no_more_for_it() -> None:
    of = plan(client_clip=1.2)
    sums = [sum_of(client([0] * n + [1] * (6 - n), of)) for n in range(7)]
    lengths = [float(np.linalg.norm(s)) for s in sums]
    assert max(lengths) <= 1.2
    assert lengths[6] > 1.19
    for fewer, more in pairwise(sums):
        assert np.linalg.norm(more - fewer) <= 1 + 1e-6
