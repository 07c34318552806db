"""Published deployments, as OpenDP's deployments registry has them, in the accountant and a ledger.

Source of each figure: the file of that name in `deployments/` of
https://github.com/opendp/deployments-registry-data, at commit 3e9c812 (MIT licence).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from apiece import Composed, Gaussian, Laplace, Ledger, Repeated, privacy_curve
from apiece.accounting import concentrated_rho
from apiece.accounting.slack import gaussian_with_slack
from apiece.filters import costs_of
from apiece.ledger import receipt, reserve_alike
from apiece.mechanisms import Concentrated, Mechanism, Stated, from_json
from apiece.mechanisms.algebra import to_dict
from apiece.numerics.gaussian import gaussian_delta


class Entry(NamedTuple):
    """What an entry states, at the δ that it states or one that is small beside it."""

    statement: Mechanism
    delta: float
    # ε that the entry states; None where it states ρ alone.
    epsilon: float | None
    # ρ that follows; infinite of a statement with δ.
    rho: float


ENTRIES = {
    # Person tables, and housing unit tables.
    "census_redistricting_data, persons": Entry(Concentrated(2.56), 1e-10, None, 2.56),
    "census_redistricting_data, units": Entry(Concentrated(0.07), 1e-10, 2.47, 0.07),
    "census_demographic_and_housing, persons": Entry(Concentrated(4.96), 1e-10, 26.34, 4.96),
    "census_demographic_and_housing, units": Entry(Concentrated(7.70), 1e-10, 34.331, 7.70),
    "census_demographic_and_housing": Entry(Concentrated(15.29), 1e-10, None, 15.29),
    "census_detailed_demographic_and_housing_a": Entry(Concentrated(19.776), 1e-10, None, 19.776),
    "census_detailed_demographic_and_housing_b": Entry(Concentrated(17.79), 1e-10, None, 17.79),
    "census_supplemental_demographic_and_housing": Entry(Concentrated(2.515), 1e-10, None, 2.515),
    # "Much stronger" than (1, 1e-7), as it says.
    "wikimedia_current_usage_data": Entry(Concentrated(0.015), 1e-7, 1.0, 0.015),
    "wikimedia_historical_usage_data": Entry(Stated(1.0), 1e-9, 1.0, 0.5),
    # ε = 1.844 before Gaussian privacy was used.
    "user_url_privacy": Entry(Concentrated(0.0728), 1e-5, 1.844, 0.0728),
    "audience_engagement": Entry(Stated(34.9, 7e-9), 7e-9, 34.9, math.inf),
    "linkedin_hiring_reports": Entry(Stated(4.8, 4e-10), 4e-10, 4.8, math.inf),
    "google_mobility": Entry(Stated(2.64), 1e-9, 2.64, 2.64),
    "movement_ranges_maps": Entry(Stated(2.0), 1e-9, 2.0, 2.0),
    "apple_popular_emojis": Entry(Stated(4.0), 1e-9, 4.0, 4.0),
    "autoplay_intent": Entry(Stated(8.0), 1e-9, 8.0, 8.0),
    "assistive_ai": Entry(Stated(4.0, 1e-7), 1e-7, 4.0, math.inf),
    "birth_dataset": Entry(Stated(9.98), 1e-9, 9.98, 9.98),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_what_follows_from_an_entry(name: str) -> None:
    entry = ENTRIES[name]
    found = float(privacy_curve(entry.statement).epsilon(entry.delta).upper)
    if entry.epsilon is not None:
        assert found <= entry.epsilon * (1 + 1e-9)
    if isinstance(entry.statement, Stated):
        assert found >= entry.statement.epsilon * (1 - 1e-3)
    assert concentrated_rho(entry.statement) == pytest.approx(entry.rho)
    assert from_json(json.dumps(to_dict(entry.statement))) == entry.statement


@pytest.mark.parametrize("name", ENTRIES)
def test_a_ledger_charges_no_less_than_an_entry(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    curve = privacy_curve(entry.statement)
    slack = max(2 * entry.delta, 1e-6)
    # The Gaussian with a slack that stands for it is above its profile.
    mu = float(gaussian_with_slack(curve, slack).upper)
    epsilons = np.linspace(0, 1.2 * float(curve.epsilon(slack).upper), 40)
    stands = slack + (1 - slack) * np.asarray(gaussian_delta(mu, epsilons).upper)
    assert (curve.delta(epsilons).lower <= stands * (1 + 1e-9)).all()
    # Whoever was promised an entry's ρ pays for it once, and not for more.
    if entry.rho == math.inf:
        ledger = Ledger.make(f"{tmp_path}/people.db", ["ann"], rho=1e3, delta=entry.delta)
    else:
        promised = concentrated_rho(entry.statement) * (1 + 1e-9)
        ledger = Ledger.make(f"{tmp_path}/people.db", ["ann"], rho=promised, delta=entry.delta)
    costs = costs_of([entry.statement], entry.delta)
    pays = reserve_alike(ledger, "the entry", costs).tolist() == ["ann"]
    assert pays == (entry.rho < math.inf)
    assert reserve_alike(ledger, "again", costs).tolist() == []
    if pays:
        told = receipt(ledger, "ann").told
        # ρ of ε says more at large ε than ε itself: what a receipt says is about ρ.
        assert told >= float(curve.epsilon(entry.delta).upper) * (1 - 2e-3)


def test_the_census_states_less_than_follows_from_its_rho() -> None:
    """ε = 17.14 for ρ = 2.56 at δ = 1e-10 is what Gaussians have; 17.16 follows from ρ alone."""
    rho = ENTRIES["census_redistricting_data, persons"].statement
    assert isinstance(rho, Concentrated)
    follows = float(privacy_curve(rho).epsilon(1e-10).upper)
    gaussian = float(privacy_curve(Gaussian(1 / math.sqrt(2 * rho.rho))).epsilon(1e-10).upper)
    assert gaussian < 17.14 < follows < 17.17
    # Persons and units together: ρ adds up, and is less than the sum of both ε.
    both = Composed(Concentrated(2.56), Concentrated(0.07))
    assert concentrated_rho(both) == pytest.approx(2.63)
    assert float(privacy_curve(both).epsilon(1e-10).upper) < 17.14 + 2.47


def test_the_simple_conversion_is_what_the_census_quotes_for_housing() -> None:
    # ρ + 2·√(ρ·log(1/δ)), Bun and Steinke 2016, Prop. 1.3; what follows from ρ is less by one.
    for rho, stated in ((4.96, 26.34), (7.70, 34.33)):
        simple = rho + 2 * math.sqrt(rho * math.log(1e10))
        assert simple == pytest.approx(stated, abs=0.01)
        follows = float(privacy_curve(Concentrated(rho)).epsilon(1e-10).upper)
        assert 0.8 < simple - follows < 1.2


def test_the_mobility_reports_add_up() -> None:
    """Four places at three levels a day, and one residence and one workplace at each level."""
    country, county = Laplace(1 / 0.11), Laplace(1 / 0.22)
    places = Composed(Repeated(country, 8), Repeated(county, 4))
    one = Composed(Repeated(country, 2), county)
    day = Composed(places, one, one)
    for mechanism, epsilon in ((places, 1.76), (one, 0.44), (day, 2.64)):
        assert float(privacy_curve(mechanism).epsilon(1e-12).upper) == pytest.approx(epsilon)
    # With any δ that is not so small it is less, since the noise is Laplace's.
    assert float(privacy_curve(day).epsilon(1e-5).upper) < 2.32


def test_the_hiring_reports_add_up() -> None:
    """Four of (1.2, 1e-10), which the entry adds up to (4.8, 4e-10)."""
    reports = privacy_curve(Repeated(Stated(1.2, 1e-10), 4))
    assert float(reports.epsilon(4e-10).upper) <= 4.8 * (1 + 1e-9)
    assert float(reports.delta(4.8).upper) <= 4e-10 * (1 + 2e-3)


def test_the_urls_under_gaussian_privacy() -> None:
    """μ = .376 is (1.453, 1e-5); of ρ = .0728, which is no less, ε = 1.61 follows."""
    gaussian = float(privacy_curve(Gaussian(1 / 0.376)).epsilon(1e-5).upper)
    assert gaussian == pytest.approx(1.453, abs=0.002)
    assert 0.376**2 / 2 < 0.0728
    follows = float(privacy_curve(Concentrated(0.0728)).epsilon(1e-5).upper)
    assert gaussian < follows < 1.844
    # Fourteen columns of ρ = .0052 each.
    assert concentrated_rho(Repeated(Concentrated(0.0052), 14)) == pytest.approx(0.0728)
