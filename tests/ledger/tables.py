"""What the tests of a ledger's tables share."""

import numpy as np
import numpy.typing as npt

from apiece.ledger import anchor, codec
from apiece.ledger.chain import Tip

SALT = b"\x01" * 32
START = Tip(-1, b"", 0)  # before the first entry


def terms(*limits: int, slack: int = 0) -> codec.Terms:
    """The terms of people who may spend these many units, and so many of slack."""
    return np.array([(1.0, 1e-6, limit, slack) for limit in limits], codec.TERMS)


def pairs(*losses: int, slack: int = 0) -> npt.NDArray[np.int64]:
    """These many units of μ², each with so many of slack: (people, 2)."""
    return np.array([(loss, slack) for loss in losses], np.int64).reshape(-1, 2)


def another_process() -> None:
    """From here on ledgers are opened as by a process that has seen none; older ones stay open."""
    anchor._MEMORIES.clear()
