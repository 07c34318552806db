"""Record a run on one table, replay it on its neighbour with every noisy value frozen.

The method is that of Cebere et al. 2026 (arXiv 2602.17454), written anew for individual budgets.
The first run writes down what each mechanism was given and what it let out. The second run is on
the neighbour, and each mechanism lets out the same as before. Then all that is not a mechanism's
input must be the same in both runs, and the inputs may differ by what that one person is charged
for, in units of the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from apiece.pate import teaching
from apiece.queries import estimates, quantiles
from apiece.training import randomness

RELATIVE = 1e-6  # single precision sums, added up in another order


class Leak(AssertionError):  # noqa: N818 - an outcome
    """Something that is not a mechanism's input differs between two neighbours."""


@dataclass
class Call:
    """One use of a mechanism: its name, its public arguments, its private input, its output."""

    name: str
    public: tuple[Any, ...]
    exact: np.ndarray
    out: Any
    stddev: float
    each: np.ndarray  # what each unit brought to the input, before it was bounded
    moved: float = 0.0  # of the input, between the two runs, in standard deviations of the noise


@dataclass
class Tape:
    """The calls of a run, in order; `at` counts those that the replay has passed."""

    calls: list[Call] = field(default_factory=list)
    at: int | None = None

    def take(
        self, name: str, public: tuple[Any, ...], exact: np.ndarray, stddev: float,
        draw: Callable[[], Any], each: np.ndarray | None = None,
    ) -> Any:  # fmt: skip
        """Return what the mechanism lets out: drawn when recording, the same when replayed."""
        each = np.zeros(0) if each is None else each
        if self.at is None:
            out = draw()
            self.calls.append(Call(name, public, exact, out, stddev, each))
            return out
        if self.at == len(self.calls):
            raise Leak(f"{name}: one call more than on the other table")
        call = self.calls[self.at]
        self.at += 1
        if (call.name, call.public) != (name, public):
            raise Leak(f"{name} {public}: was {call.name} {call.public} on the other table")
        if call.exact.shape != exact.shape:
            raise Leak(f"{name}: input of shape {exact.shape}, was {call.exact.shape}")
        if (others := _unmatched(call.each, each)) > 1:
            raise Leak(f"{name}: what {others} units bring has changed, and one has other values")
        distance = float(np.linalg.norm(exact - call.exact))
        if not distance < np.inf:
            raise Leak(f"{name}: its input is not finite")
        if distance > RELATIVE * (1 + float(np.linalg.norm(call.exact))):
            call.moved = distance / stddev if stddev > 0 else np.inf
        return call.out

    def rewind(self) -> None:
        """Go from recording to replaying."""
        self.at = 0

    def moves(self) -> list[float]:
        """Return how far each call's input moved, once all calls have been replayed."""
        if self.at != len(self.calls):
            raise Leak(f"{self.at} calls of mechanisms, {len(self.calls)} on the other table")
        return [call.moved for call in self.calls]


def _unmatched(first: np.ndarray, second: np.ndarray) -> int:
    """Return how many of the numbers of one run have no partner in the other."""
    rest = list(second)
    missed = 0
    for value in first:
        near = [k for k, other in enumerate(rest) if np.isclose(value, other, 1e-4, equal_nan=True)]
        if near:
            rest.pop(near[0])
        else:
            missed += 1
    return max(missed, len(rest))


def _noisy_mean(tape: Tape, real: Any) -> Any:
    def noisy_mean(clipped: Any, noise_stddev: float, divisor: float, *, generator: Any) -> Any:
        sums = clipped.gradients
        exact = torch.cat([value.double().flatten() for value in sums.values()]).numpy()
        public = (noise_stddev, divisor, tuple((name, tuple(v.shape)) for name, v in sums.items()))

        def draw() -> dict[str, torch.Tensor]:
            return real(clipped, noise_stddev, divisor, generator=generator)

        norms = clipped.norms.detach().numpy()
        out = tape.take("gaussian sum", public, exact, float(noise_stddev), draw, norms)
        return {name: value.clone() for name, value in out.items()}

    return noisy_mean


def _answered(tape: Tape, real: Any) -> Any:
    def answered(counts: Any, noise: Any, total: float, most: int, stream: Any) -> Any:
        public = (noise, float(total), int(most))
        least = min(noise.answer, noise.check or np.inf)
        out = tape.take(
            "votes", public, np.array(counts), least,
            lambda: real(counts, noise, total, most, stream),
        )  # fmt: skip
        return out.copy()

    return answered


def _estimate(tape: Tape, real: Any) -> Any:
    """The noise on a query's sums is drawn from equal coins: what is left is the sums' move."""

    def estimate(question: Any, sums: Any, scale: float, *more: Any) -> Any:
        public = (question.query.text, scale, *more)
        return tape.take(
            "query", public, np.array(sums), scale, lambda: real(question, sums, scale, *more)
        )

    return estimate


def _quantiles(tape: Tape, real: Any) -> Any:
    """Of an exponential mechanism: how many rows there are, in units of what a person may bring."""

    def told(grid: Any, part: Any, query: Any, eta: float, rows: int, bits: Any) -> Any:
        return tape.take(
            "quantiles", (query.text, eta, rows), np.array([float(part.rows)]), rows / eta,
            lambda: real(grid, part, query, eta, rows, bits),
        )  # fmt: skip

    return told


MECHANISMS = [
    (randomness.noisy_mean, _noisy_mean), (teaching.answer_questions, _answered),
    (estimates.estimate, _estimate), (quantiles.describe_group, _quantiles),
]  # fmt: skip


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tape]:
    """Put a tape between the package and its mechanisms, wherever they are used."""
    tape = Tape()
    with monkeypatch.context() as patch:
        for real, wrap in MECHANISMS:
            wrapped = wrap(tape, real)
            for module in [m for name, m in sys.modules.items() if name.startswith("apiece.")]:
                for key, value in list(vars(module).items()):
                    if value is real:
                        patch.setattr(module, key, wrapped)
        yield tape


def replayed(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], Any], here: Any, there: Any
) -> tuple[dict[str, Any], list[float]]:
    """Run on `here`, then on its neighbour `there`; raise `Leak` unless what comes out is equal.

    Returns what came out, and how far each mechanism's input moved, in standard deviations.
    """
    with recording(monkeypatch) as tape:
        first = run(here)
        tape.rewind()
        second = run(there)
        moves = tape.moves()
    differ = [name for name in first.keys() | second.keys() if not _same(first, second, name)]
    if differ:
        raise Leak(f"{sorted(differ)} differ between neighbours")
    return first, moves


def _same(first: dict[str, Any], second: dict[str, Any], name: str) -> bool:
    one, other = first.get(name), second.get(name)
    if isinstance(one, torch.Tensor | np.ndarray):
        one, other = np.asarray(one), np.asarray(other)
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)
