"""A forked process does not draw its parent's noise: of two such sums the difference is bare."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from apiece import Budgets, Scale, Trainer, assign
from apiece.errors import InputError, StateError
from apiece.training.randomness import ChaCha20Stream, Streams, draw_uniforms


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


def drawn(streams: Streams) -> list[object]:
    """What each purpose draws in two steps."""
    purposes = (streams.sampling, streams.noise)
    found: list[object] = []
    for step in (0, 1):
        for purpose in purposes:
            stream = purpose(step)
            chacha = isinstance(stream, ChaCha20Stream)
            found.append(float(stream.normal(1) if chacha else torch.randn(1, generator=stream)))
        found.append(streams.model(step))
    return found


def test_every_seed_purpose_and_step_draws_its_own() -> None:
    make = Streams.from_seed
    draws = [value for seed in (0, 1, 2, None, None) for value in drawn(make(seed))]
    assert len(set(draws)) == len(draws) == 30
    assert drawn(make(0)) == drawn(make(0)) == draws[:6]


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_a_seed_is_a_whole_number_from_0(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        Streams.from_seed(seed)


def test_streams_of_shards_and_stages_are_apart() -> None:
    streams = Streams.from_seed(None)
    of = {
        name: float(getattr(streams, purpose)(number, shard).uniform(1)[0])
        for name, purpose, number, shard in (
            ("sampling", "sampling", 0, 0),
            ("step", "sampling", 1, 0),
            ("shard", "sampling", 0, 1),
            ("participation", "participation", 0, 0),
            ("its shard", "participation", 0, 1),
        )
    }
    assert len(set(of.values())) == len(of)
    assert streams.model(0, 0) != streams.model(0, 1)
    assert isinstance(streams.noise(0), ChaCha20Stream)


@pytest.mark.parametrize(
    "make", [ChaCha20Stream, lambda: torch.Generator().manual_seed(1), np.random.default_rng]
)
def test_uniforms_are_doubles_whatever_draws_them(make) -> None:
    draws = draw_uniforms(make(), 4000)
    assert draws.dtype == np.float64
    assert draws.shape == (4000,)
    assert 0 <= draws.min() < 0.01 < 0.99 < draws.max() < 1
    assert len(set((draws * 2.0**40).astype(int).tolist())) == 4000  # not of single precision
    with pytest.raises(InputError, match="not a source of randomness"):
        draw_uniforms(7, 3)  # type: ignore[arg-type]
