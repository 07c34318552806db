"""A Flower strategy that adds up sums, puts the noise on them once, and never repeats a round."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import Strategy

from apiece.adapters.federation import Federation
from apiece.errors import StateError
from apiece.training import ChaCha20Stream, ClippedSum, add_noise, normalise, write_atomically


class FederatedStrategy(Strategy):
    """Runs a federation's rounds: a coin a client, one sum, one noise, a fixed divisor.

    A client that does not answer adds nothing; noise and divisor stay as they are. Where clients
    add the noise, a round with fewer answers than `least` has too little of it and changes nothing.

    Args:
        parameters: The model's first, as arrays.
        federation: What is run.
        learning_rate: Of the step along each round's noisy mean.
        least: Of the clients' `least`; None where the noise is added here.
        journal: A file that says which rounds were begun; a server that is started again goes on
            after them. None keeps nothing.

    Guarantee:
        No more than federation.rounds rounds are begun, each once, whatever dies in between. With
        the noise here the server and the channel to it are trusted with each client's sum, and
        everybody else sees noisy sums. With `least` and secure aggregation nobody is trusted with
        a sum, but `least` clients in every round with their share of the noise.
    """

    def __init__(
        self,
        parameters: list[Any],
        federation: Federation,
        *,
        learning_rate: float = 0.1,
        least: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.current = [np.array(p, dtype=np.float64) for p in parameters]
        self.dtypes = [np.asarray(p).dtype for p in parameters]
        self.federation, self.learning_rate, self.least = federation, learning_rate, least
        self.journal = None if journal is None else Path(journal)
        self.begun = self.released = 0
        if self.journal is not None and self.journal.exists():
            self._take_up(self.journal)

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Return the first parameters, or those of the last finished round."""
        return self._shown()

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        """Toss each client's coin; note that the round is begun before anyone is told.

        Raises:
            StateError: After the last round that the federation allows.
        """
        if not self.begun < self.federation.rounds:
            raise StateError(
                f"federation: its {self.federation.rounds} rounds are begun; to go on, plan more"
            )
        self.begun += 1
        self._note()
        told = FitIns(self._shown(), {})
        resolution = 2**53
        chance = int(self.federation.client_probability * resolution)  # rounded down
        return [
            (client, told)
            for client in client_manager.all().values()
            if secrets.randbelow(resolution) < chance
        ]

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the parameters after the noisy sum of whoever answered."""
        if self.least is not None and len(results) < self.least:
            return self._shown(), {}
        total = [np.zeros_like(p) for p in self.current]
        for _, answer in results:
            arrays = parameters_to_ndarrays(answer.parameters)
            fits = [a.shape for a in arrays] == [p.shape for p in self.current]
            if fits and all(np.isfinite(a).all() for a in arrays):
                for whole, array in zip(total, arrays, strict=True):
                    whole += array
        for own, step in zip(self.current, self._noisy(total), strict=True):
            own -= self.learning_rate * step
        self.released += 1
        self._note()
        return self._shown(), {}

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Return nobody: what clients measure on records is not covered by the promise."""
        return []

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return nothing."""
        return None, {}

    def evaluate(self, server_round: int, parameters: Any) -> None:
        """Return nothing."""

    def _noisy(self, total: list[Any]) -> list[Any]:
        names = [str(k) for k in range(len(total))]
        sums = {n: torch.from_numpy(t) for n, t in zip(names, total, strict=True)}
        bound = torch.tensor([self.federation.clip_norm])
        stddev = 0.0 if self.least is not None else self.federation.noise_stddev
        noisy = add_noise(ClippedSum(sums, bound, bound, bound), stddev, generator=ChaCha20Stream())
        normalise(noisy, self.federation.expected_batch_size)
        return [noisy[name].numpy() for name in names]

    def _shown(self) -> Any:
        arrays = [p.astype(d) for p, d in zip(self.current, self.dtypes, strict=True)]
        return ndarrays_to_parameters(arrays)

    def _note(self) -> None:
        if self.journal is not None:
            state = {"begun": self.begun, "released": self.released}
            text = json.dumps({**state, "parameters": [p.tolist() for p in self.current]})
            write_atomically(self.journal, text.encode())

    def _take_up(self, journal: Path) -> None:
        try:
            state = json.loads(journal.read_text())
            begun, released = int(state["begun"]), int(state["released"])
            arrays = [np.array(p, dtype=np.float64) for p in state["parameters"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{journal}: cannot be read ({type(error).__name__}); how many rounds were "
                "begun is not known, so the federation cannot go on"
            ) from None
        shapes = [p.shape for p in self.current]
        if [a.shape for a in arrays] != shapes or not 0 <= released <= begun:
            raise StateError(f"{journal}: of another model or damaged; give the federation's own")
        self.current, self.begun, self.released = arrays, begun, released
