"""A thousand clients on real data: each record at its own budget, beside Flower's DP strategies.

The packaged Adult table, its people dealt to clients; logistic regression; three levels of ε. Both
sides run through Flower's own server loop and strategies, with clients in this process (no Ray).
Flower's strategies promise clients, not records: the comparison is at the client's promise
(client_clip and the server's fixed clipping have one noise multiplier), and the record's promises
are what apiece has besides.

python -m research.benchmarks.scale_flower src/apiece/datasets/data/adult.parquet --rounds 30 \\
    --learning-rate 10 --out FILE
"""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from torch import nn

from apiece import Gaussian, Repeated, Sampled, privacy_curve
from apiece.adapters.federation import Federation
from apiece.adapters.flower import FederatedClient, FederatedStrategy, plan_federation

DELTA, ASKED, SHARE = 1e-5, (1.0, 2.0, 4.0), (0.34, 0.43, 0.23)


class Here(ClientProxy):  # type: ignore[misc]
    """A client in this process; it dies in some rounds, as devices do."""

    def __init__(self, name: str, client: Any, dies: float) -> None:
        super().__init__(name)
        self.client, self.dies = client, dies

    def fit(self, ins: Any, timeout: Any = None, group_id: Any = None) -> FitRes:
        if secrets.SystemRandom().random() < self.dies:
            raise OSError("the device is gone")
        arrays, examples, metrics = self.client.fit(parameters_to_ndarrays(ins.parameters), {})
        status = Status(Code.OK, "")
        return FitRes(status, ndarrays_to_parameters(arrays), examples, metrics)

    def evaluate(self, *_: Any) -> Any:
        raise NotImplementedError  # the run below trains only

    get_parameters = get_properties = reconnect = evaluate


class Everyone:
    def __init__(self, clients: list[Here]) -> None:
        self.clients = {c.cid: c for c in clients}

    def all(self) -> dict[str, Here]:
        return self.clients

    def num_available(self) -> int:
        return len(self.clients)

    def wait_for(self, *_: Any) -> bool:
        return True

    def sample(self, num_clients: int, *_: Any, **__: Any) -> list[Here]:
        return secrets.SystemRandom().sample(list(self.clients.values()), num_clients)


class Local(NumPyClient):  # type: ignore[misc]
    """What Flower's strategies expect: one epoch of gradient descent, and the new parameters."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, rate: float) -> None:
        self.x, self.y, self.rate = x, y, rate

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, Any]:
        model = linear(self.x.shape[1], parameters)
        loss = nn.functional.binary_cross_entropy_with_logits(model(self.x)[:, 0], self.y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        new = [p.detach() - self.rate * g for p, g in zip(model.parameters(), grads, strict=True)]
        return [p.numpy() for p in new], 1, {}


def linear(width: int, parameters: list[Any] | None = None) -> nn.Linear:
    model = nn.Linear(width, 1)
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(torch.zeros_like(p) if parameters is None else torch.tensor(parameters[k]))
    return model


def losses(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(out[:, 0], y, reduction="none")


def run(strategy: Any, everyone: Everyone, rounds: int) -> list[Any]:
    """Flower's rounds: configure, fit, aggregate."""
    parameters = strategy.initialize_parameters(everyone)
    for number in range(1, rounds + 1):
        results, failures = [], []
        for client, ins in strategy.configure_fit(number, parameters, everyone):
            try:
                results.append((client, client.fit(ins)))
            except OSError as error:
                failures.append(error)
        found, _ = strategy.aggregate_fit(number, results, failures)
        parameters = found or parameters
    return parameters_to_ndarrays(parameters)


def accuracy(arrays: list[Any], x: torch.Tensor, y: torch.Tensor) -> float:
    out = linear(x.shape[1], arrays)(x)[:, 0]
    return round(float(((out > 0).float() == y).float().mean()), 4)


def adult(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    import pandas as pd

    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    label = next(c for c in frame.columns if c.lower() in ("income", "label", "class", "target"))
    y = frame[label].astype(str).str.strip().str.strip(".")
    y = (y == sorted(y.unique())[-1]).to_numpy().astype(np.float32)
    x = (
        pd.get_dummies(frame.drop(columns=[label, *({"split"} & set(frame.columns))]))
        .to_numpy()
        .astype(np.float32)
    )
    x = np.clip((x - x.mean(0)) / (x.std(0) + 1e-6), -3, 3) / np.sqrt(x.shape[1])
    return torch.tensor(x.astype(np.float32)), torch.tensor(y)


@dataclass(frozen=True)
class Data:
    """The people to train on and those to test with."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor

    @classmethod
    def of(cls, path: Path, rng: np.random.Generator) -> Data:
        x, y = adult(path)
        order, cut = torch.from_numpy(rng.permutation(len(x))), int(0.8 * len(x))
        return cls(x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]])

    @property
    def width(self) -> int:
        return int(self.x.shape[1])

    def zeros(self) -> list[Any]:
        return [p.detach().numpy() for p in linear(self.width).parameters()]

    def dealt(self, clients: int) -> list[Any]:
        return np.array_split(np.arange(len(self.x)), clients)

    def part(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[rows], self.y[rows]


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--probability", type=float, default=0.2)
    parser.add_argument("--noise", type=float, default=2.0, help="Multiplier, over clip_norm.")
    parser.add_argument("--learning-rate", type=float, default=8.0)
    parser.add_argument("--dies", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def ours(given: argparse.Namespace, data: Data, levels: Any, federation: Federation) -> list[Any]:
    """Train with record and client budgets; some answers are lost."""
    clients = [
        FederatedClient(linear(data.width), losses, data.part(i), levels[i], federation)
        for i in data.dealt(given.clients)
    ]
    everyone = Everyone([Here(str(k), each, given.dies) for k, each in enumerate(clients)])
    strategy = FederatedStrategy(data.zeros(), federation, learning_rate=given.learning_rate)
    return run(strategy, everyone, given.rounds)


def theirs(given: argparse.Namespace, data: Data, multiplier: float) -> list[Any]:
    """Train with Flower's server-side fixed clipping."""
    clients = [Local(*data.part(i), given.learning_rate) for i in data.dealt(given.clients)]
    everyone = Everyone([Here(str(k), each, 0.0) for k, each in enumerate(clients)])
    fedavg = FedAvg(
        fraction_fit=given.probability,
        fraction_evaluate=0.0,
        min_available_clients=1,
        initial_parameters=ndarrays_to_parameters(data.zeros()),
    )
    sampled = round(given.probability * given.clients)
    beside = DifferentialPrivacyServerSideFixedClipping(fedavg, multiplier, 0.5, sampled)
    return run(beside, everyone, given.rounds)


def compared(given: argparse.Namespace) -> dict[str, Any]:
    """Plan, train both, and say what each reached and promised."""
    rng = np.random.default_rng(0)
    data = Data.of(given.data, rng)
    levels = rng.choice(3, len(data.x), p=SHARE)
    begun = time.process_time()
    federation = plan_federation(
        ASKED,
        DELTA,
        np.bincount(levels).tolist(),
        rounds=given.rounds,
        client_probability=given.probability,
        noise_multiplier=given.noise,
        client_clip=2 * given.noise,
    )
    planned, begun = time.process_time() - begun, time.process_time()
    found = ours(given, data, levels, federation)
    took = time.process_time() - begun
    multiplier = federation.noise_stddev / float(federation.client_clip or 1)
    flower = theirs(given, data, multiplier)
    one = Repeated(Sampled(Gaussian(multiplier), given.probability), given.rounds)
    share = float(data.y_test.mean())
    return {
        "clients": given.clients,
        "records": len(data.x),
        "rounds": given.rounds,
        "client_probability": given.probability,
        "dropped_out": given.dies,
        "learning_rate": given.learning_rate,
        "rates": federation.rates,
        "planning_seconds": round(planned, 1),
        "rounds_seconds": round(took, 1),
        "majority": round(max(share, 1 - share), 4),
        "apiece": {
            "accuracy": accuracy(found, data.x_test, data.y_test),
            "record_epsilon": [round(federation.record_epsilon(k, DELTA), 3) for k in range(3)],
            "client_epsilon": round(federation.client_epsilon(DELTA), 3),
        },
        "flower, server-side fixed clipping": {
            "accuracy": accuracy(flower, data.x_test, data.y_test),
            "record_epsilon": None,
            "client_epsilon, were its clients drawn by coins": round(
                float(privacy_curve(one).epsilon(DELTA).upper), 3
            ),
            "note": "no answer is dropped here: a round with one failure is thrown away by it",
        },
    }


def main() -> None:
    given = asked()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    text = json.dumps(compared(given), indent=1) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
