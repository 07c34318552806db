"""Truncated Poisson batches: what they would cost, and what batches of one shape would bring.

    python -m research.benchmarks.truncated

Writes research/results/truncated.json. `sizes`: the least B at which T steps overflow with chance
δ/100, by Chernoff's bound and by the exact law, and ε with smaller B, where truncation is charged.
`steps`: a clipped sum in milliseconds of processor time, the median, contenders in turn,
in an order drawn anew each time.
`enumerated`: by all coins, the exact δ of truncated sums beside plain ones and two bounds; those
dropped are any of those drawn, or all but the one who is looked at.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from functools import reduce
from statistics import median
from unittest import mock

import numpy as np
import torch
from scipy.stats import binom

from apiece import Composed, Gaussian, Repeated, Sampled, privacy_curve
from apiece.training import clip_and_sum
from research import RESULTS
from research.benchmarks.training_contenders import LOSS, MODELS
from research.machine import describe_machine

DELTA = 1e-5
SETTINGS = [
    (60_000, 512, 9_375, 3.18), (50_000, 1_024, 1_465, 3.29), (30_000, 512, 1_000, 2.0),
    (8_000, 256, 100, 2.0), (20_000, 64, 3_000, 2.0),
]  # records, mean batch, steps, noise multiplier  # fmt: skip
PADDED = (32, 64, 128)  # rows of a part
CASE = ("own", "rate", "B", "steps", "epsilon", "plain", "truncated", "bound", "finer")
OUT = RESULTS / "truncated.json"


def sizes(records: int, mean: int, steps: int, z: float) -> dict[str, object]:
    """Return B without a charge but δ/100, and ε (over the plain one) at smaller B."""
    q = mean / records

    def chernoff(most: int) -> float:
        theta = math.log(most * (1 - q) / ((records - most) * q))
        return records * math.log1p(q * math.expm1(theta)) - theta * most

    def least(log_tail: Callable[[int], float]) -> int:
        bound = math.log(DELTA / 100 / steps)
        return next(most for most in range(mean + 1, records) if log_tail(most) <= bound)

    def epsilon(swapped: int, delta: float) -> float:
        parts = [(z, steps - swapped), (z / 2, swapped)]
        runs = [Repeated(Sampled(Gaussian(s), q), n) for s, n in parts if n]
        return privacy_curve(Composed(*runs)).epsilon(delta).upper

    plain, charged = epsilon(0, DELTA), []
    for deviations in (0, 1, 2, 3):
        most = math.ceil(mean + deviations * math.sqrt(mean))
        # of all T steps at most so many overflow, but with chance δ/100
        swapped = int(binom.isf(DELTA / 100, steps, binom.sf(most - 1, records, q)))
        charged.append((most / mean, swapped, epsilon(swapped, 0.99 * DELTA) / plain))
    return {
        "records": records, "mean": mean, "steps": steps, "z": z, "epsilon": plain,
        "B, Chernoff": least(chernoff), "B, exact": least(lambda b: binom.logsf(b - 1, records, q)),
        "epsilon at 0.99 delta": epsilon(0, 0.99 * DELTA) / plain,
        "B over mean, steps charged, epsilon over plain": charged,
    }  # fmt: skip


def summed(name: str, compiled: bool, one_shape: bool) -> Callable[[int], float]:
    """Return what sums so many rows and says how long it took, warmed up."""
    make, shape, classes, batch = MODELS[name]
    torch.manual_seed(0)
    model, most = make(), 4 * batch
    x, y = torch.randn(most, *shape), torch.randint(0, classes, (most,))
    bounds, real = torch.from_numpy(np.linspace(0.1, 2, most)), torch.compile

    def run(rows: int) -> float:
        begun = time.process_time()
        clip_and_sum(model, LOSS, x[:rows], y[:rows], bounds[:rows], compiled=compiled)
        return time.process_time() - begun

    def static(graph: torch.nn.Module, **options: object) -> object:
        return real(graph, **{**options, "dynamic": False})

    with mock.patch.object(torch, "compile", static if one_shape else real):
        run(batch), run(batch)
    return run


def steps(name: str, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a sum, by how a batch is made and filled."""
    batch, generator = MODELS[name][3], np.random.default_rng(0)
    kinds = {"eager": summed(name, False, False)}
    if name == "mlp":  # the engine compiles no convolutions
        kinds["compiled"] = summed(name, True, False)
        kinds["compiled for the mean alone"] = summed(name, True, True)
    took: dict[str, list[float]] = {}
    for drawn in generator.poisson(batch, rounds).tolist():
        given = {"as drawn": drawn, "always the mean": batch, "always 1.3 means": batch * 13 // 10}
        given |= {f"filled up to {part}": -(-drawn // part) * part for part in PADDED}
        turns = [(kind, how) for kind in kinds for how in given]
        for kind, how in generator.permutation(turns).tolist():  # none always after the same one
            if how == "always the mean" or "alone" not in kind:
                took.setdefault(f"{kind}, {how}", []).append(kinds[kind](given[how]))
    return {how: round(1e3 * median(some), 3) for how, some in sorted(took.items())}


Keep = Callable[[list[int], int], list[list[int]]]


def noisy_sum(rates: list[float], values: list[int], most: int, a: float, keep: Keep) -> np.ndarray:
    """Return the law of a sum over those kept plus two-sided geometric noise, clamped to ±10."""
    outputs, law = np.arange(-10, 11), np.zeros(21)
    ends = np.where(abs(outputs) < 10, math.tanh(a / 2), 1 / (1 + math.exp(-a)))
    for coins in itertools.product((False, True), repeat=len(rates)):
        chance = math.prod(q if coin else 1 - q for coin, q in zip(coins, rates, strict=True))
        drawn = [j for j, coin in enumerate(coins) if coin]
        kept = [drawn] if len(drawn) <= most else keep(drawn, most)
        for some in kept:
            total = sum(values[j] for j in some)
            law += chance / len(kept) * ends * np.exp(-a * abs(outputs - total))
    return law


def any_of_them(drawn: list[int], most: int) -> list[list[int]]:
    return [list(some) for some in itertools.combinations(drawn, most)]


def first_alone(drawn: list[int], most: int) -> list[list[int]]:
    return [[0]] if drawn[0] == 0 else any_of_them(drawn, most)


def enumerated(
    own: float, rate: float, most: int, times: int, epsilon: float, keep: Keep
) -> tuple[float, float, float, float]:
    """Return δ of person 0, who adds 1 where four others add −1, over all coins of all steps.

    Without truncation, with it, and both bounds: (1 − τ)δ + τ, and by the number of overflows.
    """
    others = [rate] * 4

    def laws(values: list[int], who: list[float], limit: int) -> tuple[np.ndarray, np.ndarray]:
        made = [noisy_sum(rates, values, limit, 1.0, keep) for rates in (who, [0.0, *who[1:]])]
        return made[0], made[1]

    def delta(steps: list[tuple[np.ndarray, np.ndarray]]) -> float:
        p, q = (reduce(np.multiply.outer, laws) for laws in zip(*steps, strict=True))
        ratio = math.exp(epsilon)
        return max(float(np.maximum(gap, 0).sum()) for gap in (p - ratio * q, q - ratio * p))

    joins, swaps = laws([1], [own], 1), laws([2], [own], 1)
    overflow = binom(times, float(binom.sf(most - 1, len(others), rate)))
    by_number = [delta([swaps] * k + [joins] * (times - k)) for k in range(times + 1)]
    tau, plain = 1 - float(overflow.pmf(0)), by_number[0]
    exact = delta([laws([1] + [-1] * len(others), [own, *others], most)] * times)
    finer = float(overflow.pmf(range(times + 1)) @ by_number)
    return plain, exact, (1 - tau) * plain + tau, finer


def compared(keep: Keep) -> dict[str, object]:
    """Return in how many small cases truncation keeps each bound, and where it costs most."""
    rates = (0.1, 0.3, 0.6, 0.9)
    cases = list(itertools.product(rates, rates, (1, 2, 3), (1, 2, 3), (0.3, 1.0)))
    found = [enumerated(*case, keep) for case in cases]
    worst = max(range(len(cases)), key=lambda n: found[n][1] - found[n][0])
    kept = [sum(f[1] <= f[bound] + 1e-12 for f in found) for bound in (0, 2, 3)]
    return {
        "cases": len(cases), "within plain": kept[0], "within the bound": kept[1],
        "within the finer bound": kept[2],
        "most lost at": dict(zip(CASE, (*cases[worst], *found[worst]), strict=True)),
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    made = {
        "machine": describe_machine(),
        "sizes": [sizes(*one) for one in SETTINGS],
        "steps": {name: steps(name, rounds) for name, rounds in (("mlp", 200), ("mnist-cnn", 40))},
        "enumerated": {keep.__name__: compared(keep) for keep in (any_of_them, first_alone)},
    }
    OUT.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
