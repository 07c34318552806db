"""Federations as the guide uses them, against full-batch descent without noise."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

from apiece.adapters.flower import FederatedClient, FederatedStrategy
from apiece.errors import InputError, StateError, StewardWarning

from .federations import plan

LOSS = nn.CrossEntropyLoss(reduction="none")
RATE = 0.5
FEDERATION = plan(rounds=6, clip_norm=100.0, rates=(1.0,), expected_batch_size=60.0)
ROUNDS = FEDERATION.rounds


def network(freeze: tuple[str, ...] = ()) -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(freeze or "none"))
    return model


def records(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(part)
    x = torch.randn(20, 3, generator=made)
    return x, (x.sum(1) > 0).long()


def client(part: int, model: nn.Module, **more: Any) -> FederatedClient:
    levels = np.zeros(20, dtype=np.int64)
    return FederatedClient(copy.deepcopy(model), LOSS, records(part), levels, FEDERATION, **more)


class Silos:
    """What Flower's server asks: three clients, by number."""

    def all(self) -> dict[str, int]:
        return {str(k): k for k in range(3)}


def round_of(server: FederatedStrategy, clients: list[FederatedClient], number: int) -> Any:
    asked = server.configure_fit(number, None, Silos())
    results: list[Any] = []
    failures: list[BaseException] = []
    for who, told in asked:
        try:
            arrays, examples, metrics = clients[who].fit(
                parameters_to_ndarrays(told.parameters), told.config
            )
        except StateError as error:
            failures.append(error)
            continue
        sent = ndarrays_to_parameters(arrays)
        results.append((who, FitRes(Status(Code.OK, ""), sent, examples, metrics)))
    return server.aggregate_fit(number, results, failures)[0]


def descend(model: nn.Module, steps: int) -> list[np.ndarray]:
    """Train on all silos' records at once; return the parameters that are trained."""
    parts = [records(k) for k in range(3)]
    x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    held = [p for p in model.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(held, lr=RATE)
    for _ in range(steps):
        sgd.zero_grad()
        LOSS(model(x), y).mean().backward()
        sgd.step()
    return [p.detach().numpy() for p in held]


@pytest.mark.parametrize("freeze", [(), ("0",), ("2",), ("0.bias", "2.weight")])
def test_a_federation_without_noise_is_full_batch_descent(freeze: tuple[str, ...]) -> None:
    """With everything trained, a frozen body, a frozen head, and frozen parts of both."""
    server = FederatedStrategy(network(freeze), FEDERATION, learning_rate=RATE)
    clients = [client(k, network(freeze)) for k in range(3)]
    for number in range(ROUNDS):
        found = round_of(server, clients, number + 1)
    wanted = descend(network(freeze), ROUNDS)
    for mine, other in zip(parameters_to_ndarrays(found), wanted, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    first = [p.detach().numpy() for p in network(freeze).parameters() if p.requires_grad]
    moves = [np.abs(new - old).max() for new, old in zip(wanted, first, strict=True)]
    assert max(moves) > 0.01


def test_a_server_started_again_goes_on_with_a_frozen_layer(tmp_path: Path) -> None:
    clients = [client(k, network(("0",))) for k in range(3)]
    for number in range(ROUNDS):
        server = FederatedStrategy(
            network(("0",)), FEDERATION, learning_rate=RATE, journal=tmp_path / "rounds"
        )
        found = round_of(server, clients, number + 1)
    for mine, other in zip(
        parameters_to_ndarrays(found), descend(network(("0",)), ROUNDS), strict=True
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_fine_tuning_begins_with_the_parameters_given() -> None:
    """A model that was trained on, say, public rows, whose head alone is trained further."""
    public = network()
    descend(public, 4)
    for parameter in public[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    server = FederatedStrategy(public, FEDERATION, learning_rate=RATE)
    clients = [client(k, public) for k in range(3)]
    for number in range(ROUNDS):
        found = round_of(server, clients, number + 1)
    for mine, other in zip(
        parameters_to_ndarrays(found), descend(copy.deepcopy(public), ROUNDS), strict=True
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def renamed() -> nn.Module:
    model = network()
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Sequential(model[2]))  # type: ignore[index]


@pytest.mark.parametrize(
    ("at_server", "at_client", "said"),
    [
        (network(), network(("0",)), "2 parameters here, 4 at the server; '0.bias' only at"),
        (network(("0",)), network(), "4 parameters here, 2 at the server; '0.bias' only here"),
        (network(("0",)), network(("2",)), "2 parameters here, 2 at the server; '0.bias' only"),
        (network(), renamed(), "'2.0.bias' only here"),
        (
            [p.detach().numpy() for p in network().parameters()],
            network(("0",)),
            "2 parameters here, 4 at the server",
        ),
        (
            [np.zeros((9, 9)), *[np.zeros(1)] * 3],
            network(),
            r"shape \(5, 3\) here, '0.weight' of \(9, 9\) at the server",
        ),
    ],
)
def test_sides_that_train_other_parameters_are_told(
    at_server: Any, at_client: nn.Module, said: str
) -> None:
    server = FederatedStrategy(at_server, FEDERATION)
    (_, told), *_ = server.configure_fit(1, None, Silos())
    with pytest.raises(StateError, match=said):
        client(0, at_client).fit(parameters_to_ndarrays(told.parameters), told.config)


def test_a_round_in_which_nobody_fits_moves_nothing() -> None:
    """Whether the clients notice, or answer in another form."""
    first = FederatedStrategy(network(), FEDERATION)
    with pytest.warns(StewardWarning, match="this client trains other parameters"):
        found = round_of(first, [client(k, network(("0",))) for k in range(3)], 1)
    for mine, other in zip(parameters_to_ndarrays(found), network().parameters(), strict=True):
        assert np.array_equal(mine, other.detach().numpy())
    sent = ndarrays_to_parameters([np.zeros(2)])
    odd = [("7", FitRes(Status(Code.OK, ""), sent, 1, {}))]
    with (
        pytest.warns(StewardWarning, match="client 7 is left out: 1 arrays"),
        pytest.raises(StateError, match="none of the 1 answers of round 2 fits"),
    ):
        first.aggregate_fit(2, odd, [])


def test_an_answer_that_is_left_out_brings_no_share_of_the_noise() -> None:
    server = FederatedStrategy([np.zeros(2)], plan(), least=2, learning_rate=1.0)
    good, odd = (
        ("a", FitRes(Status(Code.OK, ""), ndarrays_to_parameters([array]), 1, {}))
        for array in (np.ones(2), np.ones(3))
    )
    with pytest.warns(StewardWarning, match="left out"):
        found, _ = server.aggregate_fit(1, [good, odd], [])
    assert parameters_to_ndarrays(found)[0].tolist() == [0.0, 0.0]


def test_a_model_of_which_nothing_is_trained_is_refused() -> None:
    with pytest.raises(InputError, match="none is trained"):
        FederatedStrategy(network(("0", "2")), FEDERATION)
