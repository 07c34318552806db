"""A forked process does not draw its parent's noise: of two such sums the difference is bare."""

import os
from collections.abc import Callable

import pytest
import torch

from apiece import Budgets, Scale, Trainer, assign
from apiece.errors import StateError
from apiece.training.randomness import ChaCha20Stream, Streams


def in_a_fork(call: Callable[[], object]) -> str:
    """Return how a call ends in a forked child: "refused", "went on" or another error's name."""
    hears, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            word = "went on"
        except StateError:
            word = "refused"
        except BaseException as error:
            word = repr(error)
        os.write(says, word.encode())
        os._exit(0)
    os.close(says)
    with os.fdopen(hears) as answer:
        word = answer.read()
    os.waitpid(child, 0)
    return word


STREAM, STREAMS, SEEDED = ChaCha20Stream(), Streams.from_seed(None), Streams.from_seed(1)
CALLS: dict[str, Callable[[], object]] = {
    "bits": lambda: STREAM.bits(4),
    "uniform": lambda: STREAM.uniform(4),
    "normal": lambda: STREAM.normal(4),
    "nothing": lambda: STREAM.normal(0),
    "sampling": lambda: STREAMS.sampling(0),
    "noise": lambda: STREAMS.noise(0),
    "participation": lambda: STREAMS.participation(0),
    "model": lambda: STREAMS.model(0),
    "initialisation": lambda: STREAMS.initialisation(),
    "seeded": lambda: SEEDED.noise(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_streams_refuse_in_a_fork(name: str) -> None:
    CALLS[name]()
    assert in_a_fork(CALLS[name]) == "refused"
    CALLS[name]()


def test_a_stream_made_in_the_fork_goes_on() -> None:
    assert in_a_fork(lambda: ChaCha20Stream().normal(4)) == "went on"
    assert in_a_fork(lambda: Streams.from_seed(None).noise(0)) == "went on"


def test_a_trainer_refuses_in_a_fork() -> None:
    plan = assign(Budgets([1.0, 3.0], 1e-5), Scale(), steps=3, expected_batch_size=1, clip_norm=1.0)
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda out, y: (out[:, 0] - y).square(),
        plan,
        (torch.ones(2, 2), torch.ones(2)),
    )
    trainer.step()
    assert in_a_fork(trainer.step) == "refused"
    trainer.step()
