"""What is left, as counts: each account once in each, by its budget and by its slack."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import InputError
from apiece.filters import Costs
from apiece.ledger import Ledger, standing
from apiece.ledger.reports import SHARES, count_bins, cumulate_bins
from apiece.queries.session import release_standing
from refusals import refused


def test_every_account_is_counted_by_what_it_has_left(tmp_path: Path) -> None:
    ledger, ids = Ledger.open(f"{tmp_path}/p.db"), np.arange(200)
    ledger.enroll(ids, 2.0, 1e-5)
    rng = np.random.default_rng(0)
    budget, slack = float(ledger.remaining([0])[0]), float(ledger.remaining_slack([0])[0])
    part, told = rng.random(200), rng.random(200)
    part[:20], told[:40] = 0, 0
    ledger.reserve_costs("t", ids, Costs.fixed(part * budget * 0.999, told * slack * 0.999))
    found = standing(ledger)
    for share, queries, trainings in zip(SHARES, found["queries"], found["trainings"], strict=True):
        assert queries == (1 - part * 0.999 >= share).sum()
        assert trainings == (np.minimum(1 - part * 0.999, 1 - told * 0.999) >= share).sum()


def test_a_person_is_in_one_place_of_each_histogram() -> None:
    """So a release has sensitivity √2, whatever is left."""
    rng = np.random.default_rng(1)
    limits = rng.integers(0, 5, (50, 2)) * 100
    spent = (limits * rng.random((50, 2))).astype(np.int64)
    for one in range(50):
        each = count_bins(limits[one : one + 1], spent[one : one + 1])
        assert each.sum(axis=1).tolist() == [1, 1]
    together = count_bins(limits, spent)
    assert together.sum(axis=1).tolist() == [50, 50]
    assert all(np.all(np.diff(counts) >= 0) for counts in cumulate_bins(together).values())


@pytest.mark.parametrize("noise", [1.7e308, 1e308, 1e155, 1e8, 9e-4, 1e-308])
def test_noise_past_its_grid_is_refused_before_anybody_pays(tmp_path: Path, noise: float) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", list(range(20)), 2.0, 1e-5)
    with refused(InputError, "noise_stddev", 0.001):
        release_standing(ledger, "May", noise_stddev=noise)
    assert ledger.status("May") == "unknown"
    assert release_standing(ledger, "May", noise_stddev=2.0**24)["noise_stddev"] == 2.0**24
