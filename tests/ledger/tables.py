"""What the tests of a ledger's tables share."""

import numpy as np

from apiece.ledger import anchor, codec
from apiece.ledger.chain import Last

SALT = b"\x01" * 32
START = Last(-1, b"", 0)  # before the first entry


def terms(*limits: int) -> codec.Terms:
    """The terms of people who may spend these many units."""
    return np.array([(1.0, 1e-6, limit) for limit in limits], codec.TERMS)


def another_process() -> None:
    """From here on ledgers are opened as by a process that has seen none; older ones stay open."""
    anchor._MEMORIES.clear()
