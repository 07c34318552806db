"""The people of a ledger as a filter, for trainings that charge it step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Mask
from apiece.ledger import codec
from apiece.ledger.ledger import Ledger


@dataclass
class LedgerFilter:
    """Charges each call of `admit` to a ledger, as analyses `run`/0, `run`/1 and so on.

    Every charge is committed at once, so a run's name can be used once: a training that starts over
    is another run and is charged again. Give it to `FilteredTrainer` as its accounts.

    Args:
        ledger: With accounts of all these persons.
        ids: Each record's person, one record a person.
        run: The run's name in the ledger.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.open(f"sqlite:///{folder}/people.db")
        ...     _ = ledger.enroll(["ann", "bob"], epsilon=[0.1, 1.0], delta=1e-6)
        ...     LedgerFilter(ledger, ["ann", "bob"], "model 1").admit([0.1, 1.0], 10.0).tolist()
        [True, True]
    """

    ledger: Ledger
    ids: Any = field(repr=False)
    run: str
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ids = codec.checked_ids(self.ids)

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Return who can pay for this analysis and takes part; charge them, durably.

        Args:
            norms: Bound on each person's contribution, or one for all.
            noise_stddev: Of the noise on the sum.

        Raises:
            AnalysisError: Where the run's name was used before.
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        step = f"{self.run}/{self.calls}"
        stddev = _check.positive("noise_stddev", noise_stddev)
        terms = {"run": self.run, "step": self.calls, "noise_stddev": stddev}
        admitted = self.ledger.reserve(step, self.ids, norms, stddev, terms=terms)
        self.ledger.commit(step)
        self.calls += 1
        return np.asarray(np.isin(self.ids, admitted))

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm each person can still pay for. Data about people.

        Args:
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For noise that is not positive.
        """
        stddev = _check.positive("noise_stddev", noise_stddev)
        left = np.maximum(self.ledger.remaining(self.ids) - 2.0**-48, 0.0)
        return np.asarray(np.sqrt(left) * (stddev * (1 - 2.0**-44)))
