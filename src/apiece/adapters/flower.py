"""Training across clients with Flower: each client and each record at its own budget.

federation = plan_federation([1.0, 4.0], 1e-5, counts, rounds=20, ...)
client = FederatedClient(model, loss, (x, y), levels, federation)   # at each client
strategy = FederatedStrategy(model, federation)  # at the server

What is trained are the model's parameters that require a gradient: freeze the same ones at the
server and at every client. Only these travel; the rest of the model is each side's own.
"""

from __future__ import annotations

import json
import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apiece._lazy import lacking

try:
    import torch
    from flwr.client import NumPyClient
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.strategy import Strategy
    from torch import nn
except ModuleNotFoundError as error:
    raise lacking(error.name, "flower") from None

from apiece._identity import require_rows
from apiece._types import AnyArray, Integers, Mask
from apiece.adapters.federation import Federation, charge, plan_federation
from apiece.errors import InputError, StateError, StewardWarning
from apiece.training import ChaCha20Stream, ClippedSum, add_noise, clip_and_sum
from apiece.training.checkpoints import write_atomically
from apiece.training.randomness import noisy_mean

__all__ = ["FederatedClient", "FederatedStrategy", "Federation", "charge", "plan_federation"]

Array = AnyArray  # a parameter, or a sum of its gradients
Form = list[tuple[str, tuple[int, ...]]]  # the name and the shape of each parameter that is trained
# The key of a round's configuration under which the server says what is trained.
_TRAINED = "trained"


def trained_in(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters that are trained, by name, in the order in which they travel."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _difference(here: Form, there: Form) -> str | None:
    """Return how what is trained differs between two sides; None where it is the same."""
    if here == there:
        return None
    names = {name for name, _ in here} ^ {name for name, _ in there}
    if names:
        first = sorted(names)[0]
        side = "here" if first in dict(here) else "at the server"
        return f"{len(here)} parameters here, {len(there)} at the server; {first!r} only {side}"
    off = next((a, b) for a, b in zip(here, there, strict=True) if a != b)
    return f"{off[0][0]!r} of shape {off[0][1]} here, {off[1][0]!r} of {off[1][1]} at the server"


class FederatedStrategy(Strategy):
    """Runs a federation's rounds: a coin a client, one sum, one noise, a fixed divisor.

    A client that does not answer adds nothing; noise and divisor stay as they are. Where clients
    add the noise, a round with fewer answers than `least` has too little of it and changes nothing.
    Each round says which parameters are trained, by name and shape, and a client that trains others
    refuses it. An answer that does not fit is left out with a warning; where no answer of a round
    fits, or nobody answers and somebody failed, nothing is released.

    Args:
        parameters: The model, of which the parameters that require a gradient are trained, or these
            parameters alone as arrays by name. A sequence of arrays has no names to compare.
        federation: What is run.
        learning_rate: Of the step along each round's noisy mean.
        least: Of the clients' `least`; None where the noise is added here.
        journal: A file that says which rounds were begun; a server that is started again goes on
            after them. None keeps nothing.

    Raises:
        InputError: For no parameter that is trained.

    Guarantee:
        No more than federation.rounds rounds are begun, each once, whatever dies in between. With
        the noise here the server and the channel to it are trusted with each client's sum, and
        everybody else sees noisy sums. With `least` and secure aggregation nobody is trusted with
        a sum, but `least` clients in every round with their share of the noise.

    Example:
        >>> import torch
        >>> from apiece.adapters.flower import FederatedStrategy, plan_federation
        >>> federation = plan_federation(
        ...     [1.0, 4.0], 1e-5, [300, 100], rounds=5, client_probability=1.0,
        ...     noise_multiplier=3.0)
        >>> strategy = FederatedStrategy(torch.nn.Linear(3, 2), federation, learning_rate=0.5)
        >>> strategy.names
        ['weight', 'bias']
    """

    def __init__(
        self,
        parameters: nn.Module | Mapping[str, Array] | Sequence[Array],
        federation: Federation,
        *,
        learning_rate: float = 0.1,
        least: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        super().__init__()
        arrays = _arrays_of(parameters)
        if not arrays:
            raise InputError(
                "parameters: none is trained; give a model with parameters that require a gradient"
            )
        self.names = list(arrays) if isinstance(parameters, nn.Module | Mapping) else None
        self.current = [np.array(p, dtype=np.float64) for p in arrays.values()]
        self.dtypes = [np.asarray(p).dtype for p in arrays.values()]
        self.federation, self.learning_rate, self.least = federation, learning_rate, least
        self.journal = None if journal is None else Path(journal)
        self.begun = self.released = 0
        if self.journal is not None and self.journal.exists():
            self._take_up(self.journal)

    def initialize_parameters(self, client_manager: object) -> Any:
        """Return the first parameters, or those of the last finished round."""
        return self._shown()

    def configure_fit(
        self, server_round: int, parameters: object, client_manager: Any
    ) -> list[Any]:
        """Toss each client's coin; note that the round is begun before anyone is told.

        Raises:
            StateError: After the last round that the federation allows.
        """
        if not self.begun < self.federation.rounds:
            raise StateError(
                f"federation: its {self.federation.rounds} rounds are begun; to go on, give "
                "plan_federation more rounds="
            )
        self.begun += 1
        self._note()
        trained: dict[str, Any] = {}
        if self.names is not None:
            shapes = [list(p.shape) for p in self.current]
            trained[_TRAINED] = json.dumps(list(zip(self.names, shapes, strict=True)))
        told = FitIns(self._shown(), trained)
        resolution = 2**53
        chance = int(self.federation.client_probability * resolution)  # rounded down
        return [
            (client, told)
            for client in client_manager.all().values()
            if secrets.randbelow(resolution) < chance
        ]

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: Sequence[object]
    ) -> tuple[Any, dict[str, object]]:
        """Return the parameters after the noisy sum of whoever answered.

        Args:
            server_round: Its number.
            results: Clients and their answers.
            failures: Why others did not answer; each is a warning.

        Raises:
            StateError: Where clients answered and no answer has the form of the parameters.
        """
        for failure in failures:
            _warn(f"a client did not answer round {server_round}: {failure}")
        formed = [(who, arrays) for who, answer in results if (arrays := self._read(who, answer))]
        if results and not formed:
            raise StateError(
                f"federation: none of the {len(results)} answers of round {server_round} fits the "
                f"{len(self.current)} parameters that are trained here; freeze the same parameters "
                "at the server and at every client, and give FederatedStrategy the model"
            )
        if failures and not results:
            return self._shown(), {}
        fitting = [arrays for who, arrays in formed if _finite(who, arrays)]
        if self.least is not None and len(fitting) < self.least:
            return self._shown(), {}
        total = [np.zeros_like(p) for p in self.current]
        for arrays in fitting:
            for whole, array in zip(total, arrays, strict=True):
                whole += array
        for own, step in zip(self.current, self._noisy(total), strict=True):
            own -= self.learning_rate * step
        self.released += 1
        self._note()
        return self._shown(), {}

    def configure_evaluate(
        self, server_round: int, parameters: object, client_manager: object
    ) -> Any:
        """Return nobody: what clients measure on records is not covered by the promise."""
        return []

    def aggregate_evaluate(self, server_round: int, results: object, failures: object) -> Any:
        """Return nothing."""
        return None, {}

    def evaluate(self, server_round: int, parameters: object) -> None:
        """Return nothing."""

    def _read(self, client: Any, answer: Any) -> list[Array] | None:
        """Return the arrays of an answer; None, with a warning, for one of another form."""
        arrays: list[Array] = parameters_to_ndarrays(answer.parameters)
        shapes = [a.shape for a in arrays]
        if shapes == [p.shape for p in self.current]:
            return arrays
        _warn(
            f"the answer of {_name(client)} is left out: {len(arrays)} arrays of shapes {shapes} "
            f"for {len(self.current)} trained parameters"
        )
        return None

    def _noisy(self, total: list[Array]) -> list[Array]:
        names = [str(k) for k in range(len(total))]
        sums = {n: torch.from_numpy(t) for n, t in zip(names, total, strict=True)}
        bound = torch.tensor([self.federation.clip_norm])
        stddev = 0.0 if self.least is not None else self.federation.noise_stddev
        clipped, size = ClippedSum(sums, bound, bound, bound), self.federation.expected_batch_size
        noisy = noisy_mean(clipped, stddev, size, generator=ChaCha20Stream())
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
                "begun is not known; restore it, or plan a new federation"
            ) from None
        shapes = [p.shape for p in self.current]
        if [a.shape for a in arrays] != shapes or not 0 <= released <= begun:
            raise StateError(f"{journal}: of another model or damaged; give the federation's own")
        self.current, self.begun, self.released = arrays, begun, released


def _finite(client: Any, arrays: list[Array]) -> bool:
    """Return whether an answer is finite, and warn where it is not."""
    if all(np.isfinite(a).all() for a in arrays):
        return True
    _warn(f"the answer of {_name(client)} is left out: it is not finite")
    return False


def _name(client: Any) -> str:
    """Return how the server calls a client."""
    return f"client {getattr(client, 'cid', client)}"


def _warn(what: str) -> None:
    """Tell whoever runs the server."""
    warnings.warn(f"federation: {what}", StewardWarning, stacklevel=4)


def _arrays_of(
    parameters: nn.Module | Mapping[str, Array] | Sequence[Array],
) -> dict[str, Array]:
    """Return the arrays of the parameters that are trained, by name or else by number."""
    if isinstance(parameters, nn.Module):
        held = trained_in(parameters)
        return {name: p.detach().cpu().numpy() for name, p in held.items()}
    if isinstance(parameters, Mapping):
        return dict(parameters)
    return {str(k): array for k, array in enumerate(parameters)}


class FederatedClient(NumPyClient):
    """Holds a client's records, and answers a round with the sum of their clipped gradients.

    What it sends: one array for each parameter that is trained, and 1 as its number of examples,
    since the true one is data about people. Without a drawn record it sends zeros.

    Args:
        model: Takes the round's parameters, for those that require a gradient.
        loss_fn: (outputs, targets) → one loss a record.
        data: Inputs and targets, tensors with a row a record.
        levels: Of each record, its place in `federation.rates`; by position, as data have no index:
            a Series with one other than 0, 1, 2, … is refused.
        federation: What is run.
        included: Which records take part at all, such as those who could pay; None for all.
        least: With this many clients at least in every round, each adds a share of the noise, and
            the server none: for secure aggregation, where the server sees sums alone. None leaves
            the noise to the server.

    Raises:
        DataError: For levels or a mask with an index of their own.
        InputError: For parts that do not fit one another.

    Guarantee:
        Its sum is a function of the records whose coins fell so; without one record it differs by
        at most clip_norm, and with client_clip it is at most that long in all. Coins and shares of
        the noise come from the operating system's randomness.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from apiece.adapters.flower import FederatedClient, plan_federation
        >>> federation = plan_federation(
        ...     [1.0, 4.0], 1e-5, [300, 100], rounds=5, client_probability=1.0,
        ...     noise_multiplier=3.0)
        >>> data, levels = (torch.randn(40, 3), torch.zeros(40, dtype=int)), np.arange(40) % 2
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> client = FederatedClient(model, loss, data, levels, federation)
        >>> sums, examples, _ = client.fit([p.detach().numpy() for p in model.parameters()], {})
        >>> [part.shape for part in sums], examples
        ([(2, 3), (2,)], 1)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        data: tuple[torch.Tensor, torch.Tensor],
        levels: Integers,
        federation: Federation,
        *,
        included: Mask | None = None,
        least: int | None = None,
    ) -> None:
        require_rows("data", None, levels=levels, included=included)
        rates = np.asarray(federation.rates)[np.asarray(levels, dtype=np.int64)]
        if included is not None:
            mask = np.asarray(included)
            if mask.dtype != np.bool_ or mask.shape != rates.shape:
                raise InputError(
                    f"included: {mask.size} for {rates.size} records; give one a record"
                )
            rates = np.where(mask, rates, 0.0)
        if rates.shape != (len(data[0]),) or len(data[0]) != len(data[1]):
            raise InputError(f"levels: {rates.size} for {len(data[0])} records; give one a record")
        if least is not None and not least >= 1:
            raise InputError(f"least = {least}: give at least 1 client")
        self.model, self.loss_fn, self.data = model, loss_fn, data
        self.rates, self.federation, self.least = rates, federation, least

    def fit(
        self, parameters: list[Array], config: Mapping[str, Any]
    ) -> tuple[list[Array], int, dict[str, object]]:
        """Return the round's sum, 1 and nothing more.

        Args:
            parameters: That are trained, in the order of the model.
            config: What the server says of them; nothing where it knows no names.

        Raises:
            StateError: Where the server trains other parameters than this model does.
        """
        own = trained_in(self.model)
        here: Form = [(name, tuple(p.shape)) for name, p in own.items()]
        self._compare(here, parameters, config.get(_TRAINED))
        with torch.no_grad():
            for parameter, array in zip(own.values(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(np.array(array)))
        total = self._sum(ChaCha20Stream())
        if self.least is not None:
            share = self.federation.noise_stddev / math.sqrt(self.least)
            total = replace(total, gradients=add_noise(total, share, generator=ChaCha20Stream()))
        return [total.gradients[name].double().cpu().numpy() for name in own], 1, {}

    def _compare(self, here: Form, parameters: list[Array], said: Any) -> None:
        """Raise `StateError` unless the server trains the same parameters."""
        there: Form = [(name, np.shape(a)) for (name, _), a in zip(here, parameters, strict=False)]
        if said is not None:
            there = [(name, tuple(shape)) for name, shape in json.loads(said)]
        elif len(parameters) != len(here):
            there = [(str(k), np.shape(a)) for k, a in enumerate(parameters)]
        difference = _difference(here, there)
        if difference is not None:
            frozen = sum(not p.requires_grad for p in self.model.parameters())
            raise StateError(
                f"federation: this client trains other parameters than the server ({difference}; "
                f"{frozen} frozen here); freeze the same ones on both sides, and give "
                "FederatedStrategy the model"
            )

    def _sum(self, coins: ChaCha20Stream) -> ClippedSum:
        drawn = np.flatnonzero(coins.uniform(self.rates.size) < self.rates)
        if not drawn.size:
            none = torch.zeros(0)
            zeros = {n: torch.zeros_like(p) for n, p in trained_in(self.model).items()}
            return ClippedSum(zeros, none, none, none)
        rows = torch.from_numpy(drawn)
        inputs, targets = (part[rows] for part in self.data)
        bounds = torch.full((drawn.size,), self.federation.clip_norm)
        total = clip_and_sum(self.model, self.loss_fn, inputs, targets, bounds)
        most = self.federation.client_clip
        if most is None:
            return total
        # The nearest point of a ball: two sums are no further apart than they were.
        length = math.sqrt(sum(float(g.double().square().sum()) for g in total.gradients.values()))
        factor = min(1.0, most / length * (1 - 1e-6)) if length > 0 else 1.0
        return replace(total, gradients={n: g * factor for n, g in total.gradients.items()})
