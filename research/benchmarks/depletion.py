"""What an honest asker keeps beside adversarial ones, with and without quotas.

python -m research.benchmarks.depletion --out research/results/depletion.json

Twelve rounds: in each the adversaries ask first, as much as they can get, and then the honest
asker asks for a twenty-fourth of every account. A figure is the share of its charges that were
paid: 1 where it got all of what it came for, half of every account.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apiece.filters import Costs
from apiece.ledger import Ledger, codec

ROUNDS, PART = 12, 1 / 24
IDS = np.arange(40)
POLICIES = {
    "no policy": None,
    "quotas alone": 'version = 1\n[querier.honest]\nquota = 0.5\n[querier."*"]\nquota = 0.4\n',
    "each asker a quota": "version = 1\n[querier.honest]\nquota = 0.5\n"
    + "".join(f"[querier.a{k}]\nquota = 0.2\n" for k in range(5))
    + '[querier."*"]\nquota = 0.2\n',
    "a sure share": 'version = 1\n[querier.honest]\nsure = 0.5\n[querier."*"]\nquota = 1.0\n'
    + "".join(f"[querier.a{k}]\nquota = 1.0\n" for k in range(5)),
}


class Market:
    """A ledger and who asks it; a charge takes a share of each account from whoever can pay."""

    def __init__(self, policy: str | None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        rng = np.random.default_rng(0)
        epsilon = rng.choice([0.5, 1.0, 3.0], IDS.size)
        self.ledger = Ledger.make(f"{self.folder.name}/p.db", IDS, epsilon, 1e-6)
        if policy is not None:
            self.ledger.set_policy(policy)
        self.limits, self.asked = self.ledger.balances(IDS)[0][:, 0], 0

    def ask(self, who: str, share: float) -> int:
        """Return how many could pay, which the adversary would not be told."""
        self.asked += 1
        costs = Costs.fixed(self.limits * share * codec.UNIT * (1 - 1e-8))
        name = f"{who} {self.asked}"
        return self.ledger.reserve_costs(name, IDS, costs, scope={"querier": who}).size

    def drain(self, who: str) -> None:
        """Take as much as there is, in ever smaller parts."""
        for share in (0.5, 0.2, 0.1, 0.05, 0.02):
            while self.ask(who, share):
                pass


def hungry(market: Market, step: int) -> None:
    """One asker takes all that it can in each round."""
    market.drain("a0")


def adaptive(market: Market, step: int) -> None:
    """One asker asks for what the honest one took last, so that it looks like it, and then more."""
    for _ in range(step + 1):
        market.ask("a0", PART)
    if step > ROUNDS // 2:
        market.drain("a0")


def colluding(market: Market, step: int) -> None:
    """Five askers that have quotas of their own take turns."""
    market.drain(f"a{step % 5}")


def sybil(market: Market, step: int) -> None:
    """An asker takes three new names a round."""
    for k in range(3):
        market.drain(f"new {step} {k}")


ADVERSARIES: tuple[Callable[[Market, int], None], ...] = (hungry, adaptive, colluding, sybil)


def kept(policy: str | None, adversary: Callable[[Market, int], None]) -> float:
    """Return the share of the honest asker's charges that were paid."""
    market, paid = Market(policy), 0
    for step in range(ROUNDS):
        adversary(market, step)
        paid += market.ask("honest", PART)
    if not market.ledger.verify().ok:
        raise SystemExit("somebody is over a quota or a budget")
    market.folder.cleanup()
    return paid / (ROUNDS * IDS.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found: dict[str, Any] = {
        name: {each.__name__: round(kept(policy, each), 3) for each in ADVERSARIES}
        for name, policy in POLICIES.items()
    }
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="") if out is None else out.write_text(text)


if __name__ == "__main__":
    main()
