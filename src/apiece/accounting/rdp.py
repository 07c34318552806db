"""Provisional: Rényi accounting by dp-accounting."""

from __future__ import annotations

from apiece.accounting.gdp import NothingReleased
from apiece.accounting.pld import OracleProfile, _event
from apiece.mechanisms import Mechanism, flatten


def profile(mechanism: Mechanism) -> OracleProfile | NothingReleased:
    """Return an upper bound on the profile of `mechanism`."""
    from dp_accounting.rdp import RdpAccountant

    steps = flatten(mechanism)
    if not steps:
        return NothingReleased()
    accountant = RdpAccountant()
    for step, times in steps:
        accountant.compose(_event(step), times)
    return OracleProfile(accountant)
