"""The server's rounds: coins, noise, drop-outs and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

from apiece.adapters.flower import FederatedClient, FederatedStrategy
from apiece.errors import StateError

from .federations import plan


class Clients:
    def __init__(self, number: int) -> None:
        self.number = number

    def all(self) -> dict[str, int]:
        return {str(k): k for k in range(self.number)}


def answer(*arrays: Any) -> tuple[None, FitRes]:
    return None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(arrays)), 1, {})


def shown(found: Any) -> np.ndarray:
    return np.asarray(parameters_to_ndarrays(found)[0])


def test_a_round_is_the_noisy_sum_over_a_fixed_divisor() -> None:
    """Whoever drops out, answers nonsense or is not finite adds nothing and changes no divisor."""
    server = FederatedStrategy([np.zeros(3)], plan(), learning_rate=1.0)
    assert len(server.configure_fit(1, None, Clients(7))) == 7
    ones = answer(np.ones(3))
    odd = [answer(np.full(3, np.nan)), answer(np.ones(2)), answer(np.ones(3), np.ones(3))]
    found, _ = server.aggregate_fit(1, [ones, ones, *odd], [OSError("gone")])
    np.testing.assert_allclose(shown(found), -0.5, atol=1e-6)


def test_clients_join_by_the_servers_coin() -> None:
    of = plan(client_probability=0.25, rounds=40)
    server = FederatedStrategy([np.zeros(1)], of)
    joined = sum(len(server.configure_fit(k, None, Clients(100))) for k in range(40))
    assert 800 < joined < 1200  # 4000 coins: seven standard deviations


@pytest.mark.parametrize("least", [None, 4])
def test_the_noise_is_the_federations_whoever_adds_it(least: int | None) -> None:
    of = plan(noise_stddev=2.0, expected_batch_size=1.0, rates=(0.0,))
    server = FederatedStrategy([np.zeros((1, 3000))], of, learning_rate=1.0, least=least)
    x = torch.zeros(1, 3000)
    model = nn.Linear(3000, 1, bias=False)
    own = FederatedClient(model, lambda out, _: out[:, 0], (x, x), np.array([0]), of, least=least)
    results = [answer(*own.fit([np.zeros((1, 3000), np.float32)], {})[0]) for _ in range(4)]
    found, _ = server.aggregate_fit(1, results, [])
    assert np.std(shown(found)) == pytest.approx(2.0, rel=0.08)  # six standard errors


def test_a_round_with_too_little_noise_changes_nothing() -> None:
    server = FederatedStrategy([np.zeros(2)], plan(), least=3)
    found, _ = server.aggregate_fit(1, [answer(np.ones(2))] * 2, [])
    assert shown(found).tolist() == [0.0, 0.0]


def test_no_round_is_begun_twice_whatever_dies(tmp_path: Path) -> None:
    """A server killed in mid-round goes on with the next one, with the last parameters."""
    parts = ([np.zeros(2)], plan())
    server = FederatedStrategy(*parts, journal=tmp_path / "rounds", learning_rate=1.0)
    server.configure_fit(1, None, Clients(2))
    server.aggregate_fit(1, [answer(np.ones(2))], [])
    server.configure_fit(2, None, Clients(2))  # and dies
    again = FederatedStrategy(*parts, journal=tmp_path / "rounds", learning_rate=1.0)
    assert (again.begun, again.released) == (2, 1)
    np.testing.assert_allclose(shown(again.initialize_parameters(None)), -0.25, atol=1e-6)
    again.configure_fit(1, None, Clients(2))
    with pytest.raises(StateError, match="rounds are begun"):
        again.configure_fit(2, None, Clients(2))
    for damage in ("{}", '{"begun": 1, "released": 2, "parameters": [[0, 0]]}', "nothing"):
        (tmp_path / "rounds").write_text(damage)
        with pytest.raises(StateError):
            FederatedStrategy(*parts, journal=tmp_path / "rounds")
