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
from apiece.adapters.federation import (
    AnyFederation,
    Federation,
    UnsampledFederation,
    charge,
    plan_federation,
    plan_unsampled_federation,
)
from apiece.errors import InputError, StateError, StewardWarning
from apiece.training import ClippedSum, add_noise, clip_and_sum
from apiece.training.checkpoints import write_atomically
from apiece.training.correlated import NoiseRecurrence
from apiece.training.randomness import (
    KEY_BYTES,
    ChaCha20Stream,
    Generator,
    NormalSource,
    Streams,
    noisy_mean,
)

__all__ = [
    "FederatedClient", "FederatedStrategy", "Federation", "UnsampledFederation", "charge",
    "plan_federation", "plan_unsampled_federation",
]  # fmt: skip

# A parameter, or a sum of its gradients.
Array = AnyArray

# The name and the shape of each parameter that is trained.
Form = list[tuple[str, tuple[int, ...]]]

# The key of a round's configuration under which the server lists the parameters that are trained.
_TRAINED = "trained"

# The key under which the server says the number of the round, from 0.
_ROUND = "round"

# Values of the server's coins: a client joins where one is below its probability times this.
_COIN_VALUES = 2**53


def find_trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters that are trained, by name, in the order in which they travel."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _describe_difference(local: Form, remote: Form) -> str | None:
    """Return a client's difference from the server in trained parameters, in words; or None."""
    if local == remote:
        return None
    # Names on one side only; the first of them says where something is frozen.
    unpaired = {name for name, _ in local} ^ {name for name, _ in remote}
    if unpaired:
        name = sorted(unpaired)[0]
        side = "here" if name in dict(local) else "at the server"
        return f"{len(local)} parameters here, {len(remote)} at the server; {name!r} only {side}"
    # The first difference: another shape, or another order.
    for (name, shape), (remote_name, remote_shape) in zip(local, remote, strict=True):
        if (name, shape) != (remote_name, remote_shape):
            break
    return f"{name!r} of shape {shape} here, {remote_name!r} of {remote_shape} at the server"


class FederatedStrategy(Strategy):
    """Runs a federation's rounds: a coin a client, one sum, one noise, a fixed divisor.

    A client that does not answer adds nothing; noise and divisor stay as they are. Where clients
    add the noise, a round with fewer answers than `least` has too little of it and changes nothing.
    Each round lists the parameters that are trained, by name and shape, and a client that trains
    others refuses it. An answer that does not fit is left out with a warning; where no answer of a
    round fits, or nobody answers and somebody failed, nothing is released.

    Args:
        parameters: The model, of which the parameters that require a gradient are trained, or these
            parameters alone as arrays by name. A sequence of arrays has no names to compare.
        federation: The federation that is run. In one without sampling every client that is there
            is asked, unless it has joined as often as it may, or too recently.
        learning_rate: Length of the step along each round's noisy mean, as a factor on it.
        least: The clients' `least`; None where the noise is added here.
        journal: A file with the number of rounds that were begun; a server that is started again
            goes on after them. None writes no file. Without sampling it also holds who joined when,
            and the key of the noise, which is removed after the last round.

    Raises:
        InputError: For no parameter that is trained, and for noise of clients that is correlated.

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
        federation: AnyFederation,
        *,
        learning_rate: float = 0.1,
        least: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        super().__init__()
        arrays = _read_parameters(parameters)
        if not arrays:
            raise InputError(
                "parameters: none is trained; give a model with parameters that require a gradient"
            )
        self.names = list(arrays) if isinstance(parameters, nn.Module | Mapping) else None
        # In double precision here; clients get them in their own types.
        self.current = [np.array(p, dtype=np.float64) for p in arrays.values()]
        self.dtypes = [np.asarray(p).dtype for p in arrays.values()]
        self.federation = federation
        self.learning_rate = learning_rate
        self.least = least
        self.journal = None if journal is None else Path(journal)
        # Rounds that were written to the journal, and rounds whose noisy sum has changed the
        # parameters.
        self.begun = 0
        self.released = 0
        self._turns: _Turns | None = None
        if isinstance(federation, UnsampledFederation):
            if least is not None:
                raise InputError(
                    "least: clients' noise is independent, and this federation's is correlated "
                    "between rounds; leave it out, so that the server adds the noise"
                )
            self._turns = _Turns(federation)
        if self.journal is not None and self.journal.exists():
            self._read_journal(self.journal)

    def initialize_parameters(self, client_manager: object) -> Any:
        """Return the first parameters, or those of the last finished round."""
        return self._pack_parameters()

    def configure_fit(
        self, server_round: int, parameters: object, client_manager: Any
    ) -> list[Any]:
        """Toss each client's coin; the round is written to the journal before anyone joins it.

        Raises:
            StateError: After the last round that the federation allows.
        """
        # Rounds that were begun count, also those that failed: their clients may have sent sums.
        if not self.begun < self.federation.rounds:
            raise StateError(
                f"federation: its {self.federation.rounds} rounds are begun; to go on, give "
                "plan_federation more rounds="
            )
        self.begun += 1
        clients = client_manager.all()
        asked = self._choose_clients(clients)
        # On disk before anybody is asked: after a kill the round is not begun again.
        self._write_journal()
        # A client without sampling counts its own rounds by this number.
        config: dict[str, Any] = {_ROUND: self.begun - 1}
        if self.names is not None:
            shapes = [list(p.shape) for p in self.current]
            config[_TRAINED] = json.dumps(list(zip(self.names, shapes, strict=True)))
        instructions = FitIns(self._pack_parameters(), config)
        return [(clients[name], instructions) for name in asked]

    def _choose_clients(self, clients: Mapping[str, Any]) -> list[str]:
        """Return the names of the clients that are asked to join the round that has begun."""
        if self._turns is not None:
            return self._turns.join(list(clients), self.begun - 1)
        assert isinstance(self.federation, Federation)
        # Rounded down: a client joins with at most the planned probability.
        joining_values = int(self.federation.client_probability * _COIN_VALUES)
        # By the system's randomness: who can predict the coins knows who joined.
        return [name for name in clients if secrets.randbelow(_COIN_VALUES) < joining_values]

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: Sequence[object]
    ) -> tuple[Any, dict[str, object]]:
        """Return the parameters after the noisy sum of whoever answered.

        Args:
            server_round: Its number.
            results: Clients and their answers.
            failures: Reasons of other clients for no answer; each is a warning.

        Raises:
            StateError: Where clients answered and no answer has the form of the parameters.
        """
        for failure in failures:
            _warn(f"a client did not answer round {server_round}: {failure}")
        answers = []
        for client, answer in results:
            arrays = self._read_answer(client, answer)
            if arrays:
                answers.append((client, arrays))
        if results and not answers:
            raise StateError(
                f"federation: none of the {len(results)} answers of round {server_round} fits the "
                f"{len(self.current)} parameters that are trained here; freeze the same parameters "
                "at the server and at every client, and give FederatedStrategy the model"
            )
        # All who were asked have failed: nothing is released, and the round stays begun.
        if failures and not results:
            return self._pack_parameters(), {}
        # One answer that is not finite would spoil the sum, and reveal its client.
        finite = [arrays for client, arrays in answers if _is_finite(client, arrays)]
        # The shares of noise of too few clients are less than what was promised.
        if self.least is not None and len(finite) < self.least:
            return self._pack_parameters(), {}
        # Summed in double precision, in the order of the parameters.
        totals = [np.zeros_like(p) for p in self.current]
        for arrays in finite:
            for total, array in zip(totals, arrays, strict=True):
                total += array
        for parameter, mean in zip(self.current, self._compute_noisy_mean(totals), strict=True):
            # `mean` is over the expected batch size, whoever has answered.
            parameter -= self.learning_rate * mean
        self.released += 1
        self._write_journal()
        return self._pack_parameters(), {}

    def configure_evaluate(
        self, server_round: int, parameters: object, client_manager: object
    ) -> Any:
        """Return nobody: clients' measurements on records are not covered by the promise."""
        return []

    def aggregate_evaluate(self, server_round: int, results: object, failures: object) -> Any:
        """Return nothing."""
        return None, {}

    def evaluate(self, server_round: int, parameters: object) -> None:
        """Return nothing."""

    def _read_answer(self, client: Any, answer: Any) -> list[Array] | None:
        """Return the arrays of an answer; None, with a warning, for one of another form."""
        arrays: list[Array] = parameters_to_ndarrays(answer.parameters)
        shapes = [a.shape for a in arrays]
        if shapes == [p.shape for p in self.current]:
            return arrays
        _warn(
            f"the answer of {_name_client(client)} is left out: {len(arrays)} arrays of shapes "
            f"{shapes} for {len(self.current)} trained parameters"
        )
        return None

    def _compute_noisy_mean(self, totals: list[Array]) -> list[Array]:
        """Return the sums with noise, over the expected batch size; clients may have added it."""
        sums = {str(k): torch.from_numpy(total) for k, total in enumerate(totals)}
        generator: Generator = ChaCha20Stream()
        if self._turns is not None:
            generator = self._turns.noise_of(self.begun - 1)
        # `ClippedSum` asks for bounds: the clients have kept them, and one stands for all.
        # The bounds are the clients'; noise goes on their sum.
        bound = torch.ones(1)
        clipped = ClippedSum(sums, bound, bound, bound)
        noisy = noisy_mean(
            clipped,
            # 0 adds nothing: then the clients' shares are all the noise there is.
            0.0 if self.least is not None else self.federation.noise_stddev,
            self.federation.expected_batch_size,
            generator=generator,
        )
        return [noisy[name].numpy() for name in sums]

    def _pack_parameters(self) -> Any:
        """Return the parameters as Flower sends them, in their own types."""
        arrays = [p.astype(dtype) for p, dtype in zip(self.current, self.dtypes, strict=True)]
        return ndarrays_to_parameters(arrays)

    def _write_journal(self) -> None:
        if self.journal is not None:
            state = {
                "begun": self.begun,
                "released": self.released,
                "parameters": [p.tolist() for p in self.current],
            }
            # After the last round nobody needs the key, and who finds it could take the noise off.
            if self._turns is not None:
                is_over = self.released and self.begun == self.federation.rounds
                state["turns"] = self._turns.to_json(with_key=not is_over)
            write_atomically(self.journal, json.dumps(state).encode())

    def _read_journal(self, journal: Path) -> None:
        """Go on after the rounds in a journal; raise `StateError` for a damaged or wrong one."""
        try:
            state = json.loads(journal.read_text())
            begun = int(state["begun"])
            # Counts and parameters are checked below, before anything is taken over.
            released = int(state["released"])
            arrays = [np.array(p, dtype=np.float64) for p in state["parameters"]]
            if self._turns is not None:
                self._turns.read(state["turns"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{journal}: cannot be read ({type(error).__name__}); how many rounds were "
                "begun is not known; restore it, or plan a new federation"
            ) from None
        # Compared with this server's own parameters: a journal of another model would fit nothing.
        shapes = [p.shape for p in self.current]
        if [a.shape for a in arrays] != shapes or not 0 <= released <= begun:
            raise StateError(f"{journal}: of another model or damaged; give the federation's own")
        self.current = arrays
        self.begun = begun
        self.released = released


class _Turns:
    """Who joined which round of a federation without sampling, and its noise.

    The noise of a round follows from the key and the round's number, so that a server that is
    started again takes the same earlier noise back. No round gets its noise twice.
    """

    def __init__(self, federation: UnsampledFederation) -> None:
        self._federation = federation
        # Of each client that joined: how many rounds, and the last.
        self._joined: dict[str, tuple[int, int]] = {}
        self._streams = Streams.from_seed(None)
        self._recurrence = NoiseRecurrence(federation.noise.strategy)
        # The round whose noise comes next from the recurrence, and the least that may be released.
        self._next = 0
        self._least = 0

    def join(self, clients: Sequence[str], number: int) -> list[str]:
        """Return the clients that may join a round, and remember that they do."""
        found = []
        for client in clients:
            # Who has not joined yet counts as having joined one separation before round 0.
            times, last = self._joined.get(client, (0, -self._federation.noise.separation))
            is_early = number - last < self._federation.noise.separation
            if times < self._federation.participations and not is_early:
                self._joined[client] = (times + 1, number)
                found.append(client)
        return found

    def noise_of(self, number: int) -> NormalSource:
        """Return the noise of a round; raise `StateError` where it was made before."""
        if number < self._least:
            raise StateError(
                f"federation: round {number} has its noise already, and a second sum under it "
                "would tell the difference; run the next round"
            )
        # Noted before the noise is drawn: an error afterwards leaves the round without a second
        # chance.
        self._least = number + 1
        return _RoundNoise(self, number)

    def draw(self, number: int, size: int, device: torch.device) -> torch.Tensor:
        """Return the correlated noise of a round, (size,), after that of all rounds before."""
        # From the recurrence's position on, in order: earlier rounds may have released nothing, but
        # their noise is part of this one's.
        while True:
            fresh = ChaCha20Stream(self._streams.derive("noise", self._next)).normal(size)
            noise = self._recurrence.advance(fresh.to(device))
            self._next += 1
            if self._next > number:
                return noise

    def to_json(self, *, with_key: bool) -> dict[str, Any]:
        """Return what a server that is started again needs."""
        return {
            "joined": {name: list(pair) for name, pair in self._joined.items()},
            "key": self._streams.key.hex() if with_key else None,
            "least": self._least,
        }

    def read(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_json` wrote."""
        # Client by name, with its rounds and the last of them.
        self._joined = {name: (int(a), int(b)) for name, (a, b) in state["joined"].items()}
        self._least = int(state["least"])
        if state["key"] is not None:
            # Another length is a damaged file, and is told like other damage.
            key = bytes.fromhex(state["key"])
            if len(key) != KEY_BYTES:
                raise ValueError("key")
            self._streams = Streams(key, release=True)


class _RoundNoise(NormalSource):
    """The noise of one round."""

    def __init__(self, turns: _Turns, number: int) -> None:
        self._turns = turns
        self._number = number

    def normals(self, size: int, device: torch.device) -> torch.Tensor:
        """Return the noise of all parameters, (size,)."""
        return self._turns.draw(self._number, size, device)


def _is_finite(client: Any, arrays: list[Array]) -> bool:
    """Return whether an answer is finite, and warn where it is not."""
    if all(np.isfinite(array).all() for array in arrays):
        return True
    _warn(f"the answer of {_name_client(client)} is left out: it is not finite")
    return False


def _name_client(client: Any) -> str:
    """Return the server's name of a client."""
    return f"client {getattr(client, 'cid', client)}"


def _warn(text: str) -> None:
    """Warn the steward who runs the server."""
    warnings.warn(f"federation: {text}", StewardWarning, stacklevel=4)


def _read_parameters(
    parameters: nn.Module | Mapping[str, Array] | Sequence[Array],
) -> dict[str, Array]:
    """Return the arrays of the parameters that are trained, by name or else by number."""
    if isinstance(parameters, nn.Module):
        trained = find_trained(parameters)
        return {name: p.detach().cpu().numpy() for name, p in trained.items()}
    if isinstance(parameters, Mapping):
        return dict(parameters)
    return {str(k): array for k, array in enumerate(parameters)}


class FederatedClient(NumPyClient):
    """A client's records, whose answer to a round is the sum of their clipped gradients.

    It sends one array for each parameter that is trained, and 1 as its number of examples, since
    the true one is data about people. Without a drawn record it sends zeros.

    Args:
        model: Takes the round's parameters, for those that require a gradient.
        loss_fn: (outputs, targets) → one loss a record.
        data: Inputs and targets, tensors with a row a record.
        levels: Of each record, its position in `federation.rates` (in `clip_norms` without
            sampling); in the order of the data, which have no index: a Series with one other than
            0, 1, 2, … is refused.
        federation: The federation that is run.
        included: The records that take part at all, such as those who could pay; None for all.
        least: With this many clients at least in every round, each adds a share of the noise, and
            the server none: for secure aggregation, where the server sees sums alone. None leaves
            the noise to the server.
        journal: A file with the rounds that this client joined, for a federation without sampling;
            a client that is started again, under whichever name, goes on after them. None writes no
            file, and then the client must not be started again.

    Raises:
        DataError: For levels or a mask with an index of their own.
        InputError: For parts that do not fit one another.
        StateError: For a journal that cannot be read.

    Guarantee:
        Its sum is a function of the records whose coins fell so; without one record it differs by
        at most clip_norm, and with client_clip it is at most that long in all. Coins and shares of
        the noise come from the operating system's randomness. Without sampling it refuses a round
        that is beyond its own limits, whatever the server asks.

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
        federation: AnyFederation,
        *,
        included: Mask | None = None,
        least: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        require_rows("data", None, levels=levels, included=included)
        # Levels become bounds without sampling, and rates with it.
        level_of_record = np.asarray(levels, dtype=np.int64)
        if isinstance(federation, UnsampledFederation):
            bounds = np.asarray(federation.clip_norms)[level_of_record]
            rates = np.ones(bounds.size)
        else:
            rates = np.asarray(federation.rates)[level_of_record]
            bounds = np.full(rates.size, federation.clip_norm)
        if included is not None:
            mask = np.asarray(included)
            if mask.dtype != np.bool_ or mask.shape != rates.shape:
                raise InputError(
                    f"included: {mask.size} for {rates.size} records; give one a record"
                )
            # A rate of zero leaves a record out of every round.
            rates = np.where(mask, rates, 0.0)
        if rates.shape != (len(data[0]),) or len(data[0]) != len(data[1]):
            raise InputError(f"levels: {rates.size} for {len(data[0])} records; give one a record")
        if least is not None and not least >= 1:
            raise InputError(f"least = {least}: give at least 1 client")
        self.model = model
        self.loss_fn = loss_fn
        self.data = data
        self.rates = rates
        self.bounds = bounds
        self.federation = federation
        self.least = least
        # Without sampling, the rounds joined and the last of them.
        self._times = 0
        self._last: int | None = None
        self.journal = None if journal is None else Path(journal)
        if self.journal is not None:
            if not isinstance(federation, UnsampledFederation):
                raise InputError("journal: is for a federation without sampling; leave it out")
            self._read_turns(self.journal)

    def fit(
        self, parameters: list[Array], config: Mapping[str, Any]
    ) -> tuple[list[Array], int, dict[str, object]]:
        """Return the round's sum, 1 and nothing more.

        Args:
            parameters: Those that are trained, in the order of the model.
            config: The server's list of them; empty where it knows no names.

        Raises:
            StateError: Where the server trains other parameters than this model does, and, without
                sampling, for a round beyond this client's limits.
        """
        # Before anything is computed: a round beyond the limits reads no record.
        if isinstance(self.federation, UnsampledFederation):
            self._check_turn(self.federation, config.get(_ROUND))
        trained = find_trained(self.model)
        local: Form = [(name, tuple(p.shape)) for name, p in trained.items()]
        self._check_form(local, parameters, config.get(_TRAINED))
        with torch.no_grad():
            # In the order of the model; shapes were compared just now.
            for parameter, array in zip(trained.values(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(np.array(array)))
        # Coins of the system's, new in every round.
        total = self._sum_gradients(ChaCha20Stream())
        if self.least is not None:
            # Variances add up: `least` such shares are the whole noise.
            share = self.federation.noise_stddev / math.sqrt(self.least)
            total = replace(total, gradients=add_noise(total, share))
        arrays = [total.gradients[name].double().cpu().numpy() for name in trained]
        return arrays, 1, {}

    def _check_turn(self, federation: UnsampledFederation, number: Any) -> None:
        """Count a round that this client joins; raise `StateError` for one beyond its limits."""
        # Limits are this client's own business: it does not rely on the server's counting.
        if not isinstance(number, int) or not 0 <= number < federation.rounds:
            raise StateError(
                f"federation: round {number!r} of {federation.rounds}; the server must be of the "
                "same federation"
            )
        separation = federation.noise.separation
        is_early = self._last is not None and number - self._last < separation
        if self._times >= federation.participations or is_early:
            raise StateError(
                f"federation: round {number} is beyond this client's limits, "
                f"{federation.participations} rounds that are {separation} apart; leave it out"
            )
        self._times += 1
        self._last = number
        # Written before anything is computed, so that no kill makes a round forgotten.
        if self.journal is not None:
            state = {"times": self._times, "last": self._last}
            write_atomically(self.journal, json.dumps(state).encode())

    def _read_turns(self, journal: Path) -> None:
        """Go on after the rounds in a journal; raise `StateError` for a damaged one."""
        try:
            state = json.loads(journal.read_text())
            self._times = int(state["times"])
            self._last = int(state["last"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{journal}: cannot be read ({type(error).__name__}); which rounds this client "
                "joined is not known, so that it may join none: restore it"
            ) from None

    def _check_form(self, local: Form, parameters: list[Array], listed: Any) -> None:
        """Raise `StateError` unless the server trains the same parameters.

        listed: its names and shapes as JSON; without them only shapes, and numbers, are compared.
        """
        if listed is not None:
            # JSON has lists for tuples.
            remote: Form = [(name, tuple(shape)) for name, shape in json.loads(listed)]
        elif len(parameters) != len(local):
            remote = [(str(k), np.shape(array)) for k, array in enumerate(parameters)]
        else:
            names = [name for name, _ in local]
            remote = list(zip(names, map(np.shape, parameters), strict=True))
        difference = _describe_difference(local, remote)
        if difference is not None:
            frozen = sum(not p.requires_grad for p in self.model.parameters())
            raise StateError(
                f"federation: this client trains other parameters than the server ({difference}; "
                f"{frozen} frozen here); freeze the same ones on both sides, and give "
                "FederatedStrategy the model"
            )

    def _sum_gradients(self, coins: ChaCha20Stream) -> ClippedSum:
        """Return the sum over the records whose coins fell so, as a whole at most client_clip."""
        # A coin below the rate: 0 is never drawn, 1 always.
        drawn = np.flatnonzero(coins.uniform(self.rates.size) < self.rates)
        if not drawn.size:
            # Zeros, as the server must not learn that nobody was drawn.
            empty = torch.zeros(0)
            zeros = {name: torch.zeros_like(p) for name, p in find_trained(self.model).items()}
            return ClippedSum(zeros, empty, empty, empty)
        rows = torch.from_numpy(drawn)
        inputs, targets = self.data
        bounds = torch.from_numpy(self.bounds[drawn])
        total = clip_and_sum(self.model, self.loss_fn, inputs[rows], targets[rows], bounds)
        if isinstance(self.federation, UnsampledFederation) or self.federation.client_clip is None:
            return total
        bound = self.federation.client_clip
        # The nearest point of a ball: two sums are no further apart than they were.
        # Over all parameters together, in double precision.
        squares = [float(g.double().square().sum()) for g in total.gradients.values()]
        norm = math.sqrt(sum(squares))
        # A little below the bound, so that round-off cannot exceed it.
        factor = min(1.0, bound / norm * (1 - 1e-6)) if norm > 0 else 1.0
        gradients = {name: gradient * factor for name, gradient in total.gradients.items()}
        return replace(total, gradients=gradients)
