"""The server's rounds: coins, noise, drop-outs and kills."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

from apiece.adapters.flower import FederatedClient, FederatedStrategy
from apiece.errors import StateError, StewardWarning

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
    with pytest.warns(StewardWarning) as told:
        found, _ = server.aggregate_fit(1, [ones, ones, *odd], [OSError("gone")])
    said = "; ".join(str(one.message) for one in told)
    for words in ("did not answer round 1: gone", "not finite", "1 arrays of shapes [(2,)]"):
        assert words in said
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


CLIENT = """
import os, signal, sys
import numpy as np
from federations import client, plan

arrays, *_ = client([0, 0], plan(rounds=2)).fit([np.zeros((1, 2), np.float32)], {})
sent = arrays[0].astype("<f8").tobytes()
os.write(1, sent[:8] if sys.argv[1] == "dies" else sent)
os.kill(os.getpid(), signal.SIGKILL)
"""


def heard_from(fate: str) -> bytes:
    """Return what a client says that trains in a process of its own, and is killed."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    words = [sys.executable, "-W", "ignore", "-c", CLIENT, fate]
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(words, env=env, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


@pytest.mark.slow
def test_clients_killed_in_mid_answer_change_neither_noise_nor_divisor() -> None:
    """Half an answer is none; who comes back in the next round is heard again."""
    server = FederatedStrategy([np.zeros((1, 2))], plan(rounds=2), learning_rate=1.0)
    for number, fates in ((1, ("dies", "answers")), (2, ("answers", "answers"))):
        assert len(server.configure_fit(number, None, Clients(2))) == 2
        heard = [heard_from(fate) for fate in fates]
        whole = [answer(np.frombuffer(each).reshape(1, 2)) for each in heard if len(each) == 16]
        failures = [OSError("gone") for each in heard if len(each) != 16]
        with pytest.warns(StewardWarning) if failures else contextlib.nullcontext():
            found, _ = server.aggregate_fit(number, whole, failures)
        assert len(failures) == fates.count("dies")
    # three answers in all, each (1, 1), over the fixed divisor 4
    np.testing.assert_allclose(shown(found), np.full((1, 2), -0.75), atol=1e-4)
    assert (server.begun, server.released) == (2, 2)
