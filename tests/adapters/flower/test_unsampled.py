"""Federations without sampling: who may join, the noise over restarts, accounts and clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

pytest.importorskip("flwr", reason="flwr is not installed")

from apiece.adapters.federation import UnsampledFederation, charge, plan_unsampled_federation
from apiece.adapters.flower import FederatedStrategy
from apiece.errors import InputError, StateError
from apiece.ledger import Ledger
from tests.statistical.test_noise import fits

from .federations import client
from .federations import plan as sampled_plan
from .test_strategy import Clients, answer, shown

ROUNDS = 8


def plan(**more: Any) -> UnsampledFederation:
    numbers = {"rounds": ROUNDS, "participations": 2, "separation": 3}
    return plan_unsampled_federation([1.0, 4.0], 1e-5, [30, 10], **{**numbers, **more})


def test_each_level_spends_its_budget_in_one_gaussian() -> None:
    federation = plan()
    for level, epsilon in enumerate((1.0, 4.0)):
        spent = federation.record_epsilon(level, 1e-5)
        assert spent <= epsilon
        assert spent == pytest.approx(epsilon, rel=1e-3)
    mean = (30 * federation.clip_norms[0] + 10 * federation.clip_norms[1]) / 40
    assert mean == pytest.approx(1.0)
    assert plan(buffers=2).noise.strategy.memory == 2


def test_accounts_of_exactly_the_promise_pay_for_it(tmp_path: Path) -> None:
    ids, levels = ["ann", "bob"], [0, 1]
    ledger = Ledger.make(f"{tmp_path}/p.db", ids, [1.0, 4.0], 1e-5, slack=0.0)
    whole = ledger.remaining(ids)
    federation = plan()
    assert charge(ledger, "run", ids, levels, federation, delta=1e-5).tolist() == ids
    np.testing.assert_allclose(ledger.spent(ids) / whole, 1.0, atol=1e-3)
    # Again, after a kill, nothing more.
    assert charge(ledger, "run", ids, levels, federation, delta=1e-5).size == 2
    assert charge(ledger, "another", ids, levels, federation, delta=1e-5).size == 0


def test_clients_come_when_they_like_within_their_limits() -> None:
    server = FederatedStrategy([np.zeros(1)], plan())
    present = {0: [0, 1], 1: [0, 1, 2], 3: [0], 4: [1], 5: [0, 1], 6: [1], 7: [0, 1, 2]}
    asked = []
    for number in range(ROUNDS):
        those = {str(k): k for k in present.get(number, [])}
        clients = type("Manager", (), {"all": lambda self, those=those: those})()
        asked.append([one for one, _ in server.configure_fit(number, None, clients)])
    assert asked == [[0, 1], [2], [], [0], [1], [], [], [2]]
    with pytest.raises(StateError, match="rounds are begun"):
        server.configure_fit(9, None, Clients(1))


def run_server(journal: Path | None, restarts: tuple[int, ...], lost: int | None) -> np.ndarray:
    """The noise that each round moved the parameters by; one round may get no answer."""
    federation = plan()
    size = 4000

    def start() -> FederatedStrategy:
        return FederatedStrategy([np.zeros(size)], federation, learning_rate=1.0, journal=journal)

    server = start()
    moved = []
    for number in range(ROUNDS):
        if number in restarts:
            server = start()
        before = server.current[0].copy()
        server.configure_fit(number, None, Clients(3))
        if number != lost:
            server.aggregate_fit(number, [answer(np.zeros(size))], [])
        moved.append(before - server.current[0])
    unit = federation.expected_batch_size / federation.noise_stddev
    return np.array(moved) * unit


@pytest.mark.parametrize("restarts", [(), (3, 6)])
def test_the_noise_is_that_of_the_strategy_over_restarts(
    tmp_path: Path, restarts: tuple[int, ...]
) -> None:
    noise = run_server(tmp_path / "journal", restarts, None)
    matrix = np.tril(toeplitz(plan().noise.strategy.first_column(ROUNDS)))
    assert fits((matrix @ noise).reshape(-1))
    # The control: of itself it is not independent.
    assert not fits(noise.reshape(-1))


def test_a_round_that_is_lost_leaves_the_noise_of_the_others(tmp_path: Path) -> None:
    noise = run_server(tmp_path / "journal", (4,), 3)
    assert (noise[3] == 0).all()
    federation = plan()
    matrix = np.tril(toeplitz(federation.noise.strategy.first_column(ROUNDS)))
    covariance = np.linalg.inv(matrix.T @ matrix)
    expected = np.delete(np.delete(np.linalg.inv(matrix) @ np.linalg.inv(matrix).T, 3, 0), 3, 1)
    found = np.cov(np.delete(noise, 3, 0))
    np.testing.assert_allclose(found, expected, atol=5 * covariance.max() / 4000**0.5)


def test_no_round_gets_its_noise_twice(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    server = FederatedStrategy([np.zeros(2)], plan(), journal=journal)
    server.configure_fit(0, None, Clients(1))
    server.aggregate_fit(0, [answer(np.zeros(2))], [])
    with pytest.raises(StateError, match="its noise already"):
        server.aggregate_fit(0, [answer(np.ones(2))], [])
    again = FederatedStrategy([np.zeros(2)], plan(), journal=journal)
    with pytest.raises(StateError, match="its noise already"):
        again.aggregate_fit(0, [answer(np.ones(2))], [])


def test_the_key_is_gone_after_the_last_round(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    run_server(journal, (), None)
    assert json.loads(journal.read_text())["turns"]["key"] is None
    assert journal.stat().st_mode & 0o077 == 0


def test_a_client_clips_each_record_at_its_level_and_keeps_its_own_limits() -> None:
    federation = plan()
    one = client([0, 1, 0], federation)
    zeros = [np.zeros_like(p.detach()) for p in one.model.parameters()]
    (total,), _, _ = one.fit(zeros, {"round": 0})
    low, high = federation.clip_norms
    # A record's gradient has norm 1: bounds below it clip.
    np.testing.assert_allclose(total[0], [min(low, 1), min(high, 1), min(low, 1)], rtol=1e-5)
    for number, words in ((2, "beyond"), (ROUNDS, "same federation"), (None, "same federation")):
        with pytest.raises(StateError, match=words):
            one.fit(zeros, {"round": number})
    one.fit(zeros, {"round": 3})
    with pytest.raises(StateError, match="beyond"):
        one.fit(zeros, {"round": 7})


def test_a_client_that_is_started_again_remembers_its_rounds(tmp_path: Path) -> None:
    """Under another name the server does not know it; it knows itself."""
    federation = plan()
    journal = tmp_path / "client"

    def fit(number: int) -> None:
        one = client([0], federation, journal=journal)
        one.fit([np.zeros_like(p.detach()) for p in one.model.parameters()], {"round": number})

    fit(0)
    with pytest.raises(StateError, match="beyond"):
        fit(2)
    fit(3)
    with pytest.raises(StateError, match="beyond"):
        fit(7)
    journal.write_text("{")
    with pytest.raises(StateError, match="may join none"):
        fit(7)
    with pytest.raises(InputError, match="journal"):
        client([0], sampled_plan(), journal=journal)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="least"):
        FederatedStrategy([np.zeros(1)], plan(), least=3)
    with pytest.raises(InputError, match="apart"):
        plan(participations=5)
    with pytest.raises(InputError, match="counts"):
        plan_unsampled_federation([1.0], 1e-5, [3, 4], rounds=3, participations=1)


def test_a_server_and_clients_learn_together() -> None:
    """Rounds end to end: what is released is the model, moved by clipped sums and the noise."""
    federation = plan()
    clients = [client([0, 1, 1], federation) for _ in range(3)]
    server = FederatedStrategy(clients[0].model, federation, learning_rate=0.1)
    assert torch.is_tensor(next(clients[0].model.parameters()))
    for number in range(ROUNDS):
        asked = server.configure_fit(number, None, Clients(3))
        results = []
        for position, instructions in asked:
            arrays = [p.astype(np.float32) for p in server.current]
            sums, _, _ = clients[position].fit(arrays, instructions.config)
            results.append(answer(*sums))
        found, _ = server.aggregate_fit(number, results, [])
    assert np.isfinite(shown(found)).all()
    assert server.released == ROUNDS
