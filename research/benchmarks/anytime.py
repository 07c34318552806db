"""Audits that may stop: false alarms of true claims at every look, and pairs until a break is seen.

`python -m research.benchmarks.anytime null` runs true claims that are reached exactly, a look at
every pair, and a Clopper–Pearson bound that is peeked at in the same way; `power` runs broken
mechanisms, and beside it the number of pairs (or canaries of one run) at which audits of a number
fixed in advance find half of them; `one-run` sets the product law of one-run audits beside our
bound. All write into research/results/anytime.json.
"""

import argparse
import json
import time

import numpy as np
from scipy import special, stats

from apiece.accounting import privacy_curve
from apiece.audit import Claim, lower_bound, one_run
from apiece.audit.anytime import EProcess
from apiece.audit.bounds import MOST, ROUNDS, dp_p_value
from apiece.mechanisms import Gaussian, Sampled
from apiece.numerics.roots import last_true
from research import RESULTS
from research.machine import describe_machine

RESULT = RESULTS / "anytime.json"
ALPHA, DELTAS = 0.05, (1e-5, 1e-3, 0.03, 0.1, 0.2)
NEEDED = -np.log(ALPHA) + 1e-9


def gaussian(shift, rate=1.0):
    """Pairs of a sampled Gaussian of noise 1: with the record, and without it."""
    return lambda g, n: (g.normal(size=n) + shift * (g.random(n) < rate), g.normal(size=n))


def response(epsilon):
    """Pairs of a randomised response, which sits at both lines of its (ε, 0)."""
    right = special.expit(epsilon)
    return lambda g, n: ((g.random(n) < right) * 1.0, (g.random(n) >= right) * 1.0)


def curve(shift, rate=1.0):
    """The curve of one step with this clip norm over noise, and this rate."""
    step = Gaussian(1 / shift)
    return privacy_curve(step if rate == 1 else Sampled(step, rate))


def first_look(claim, pairs, n, seed):
    """The number of pairs after which the claim is refused; infinite if it never is."""
    wealth = EProcess(claim).update(*pairs(np.random.default_rng(seed), n))
    hit = np.flatnonzero(wealth >= NEEDED)
    return float(hit[0] + 1) if hit.size else np.inf


def forgetful(wealth):
    """Whether a bet that begins anew at each loss, and so forgets it, ever gets as far."""
    low = np.minimum.accumulate(np.append(0.0, wealth))[:-1]
    return bool((wealth - low >= NEEDED).any())


def peeking(pairs, epsilon, threshold, n, runs):
    """The share of runs in which Clopper–Pearson, looked at after each pair, refuses a true ε."""
    false = 0
    for seed in range(runs):
        ins, outs = pairs(np.random.default_rng(seed), n)
        tp, fp, k = np.cumsum(ins > threshold), np.cumsum(outs > threshold), np.arange(1, n + 1)
        low = np.where(tp > 0, special.betaincinv(np.maximum(tp, 1), k - tp + 1, ALPHA / 2), 0.0)
        high = np.where(fp < k, special.betainccinv(fp + 1, np.maximum(k - fp, 1), ALPHA / 2), 1.0)
        false += bool((low > np.exp(epsilon) * high).any())
    return false / runs


def null(runs, pairs, only):
    """False alarms at mechanisms that sit at what they claim."""
    cases = {
        "randomised response at its ε = 1": (Claim.budget(1.0, 0.0), response(1.0)),
        "Gaussian at its curve, μ = 1": (Claim.curve(curve(1.0)), gaussian(1.0)),
        "Gaussian sampled at 0.5, at its curve": (Claim.curve(curve(1.0, 0.5)), gaussian(1.0, 0.5)),
    }
    found = {}
    for name, (claim, make) in cases.items():
        if only not in name:
            continue
        begun = time.perf_counter()
        bets = [EProcess(claim).update(*make(np.random.default_rng(s), pairs)) for s in range(runs)]
        found[name] = {
            "refused": float(np.mean([(wealth >= NEEDED).any() for wealth in bets])),
            "refused by a bet that forgets losses": float(np.mean(list(map(forgetful, bets)))),
            "seconds": time.perf_counter() - begun,
        }
        print(name, found[name], flush=True)
    control = {}
    for size, times in ((500, 1000), (10_000, 400)):
        share = peeking(response(1.0), 1.0, 0.5, size, times)
        control[f"{size} pairs, {times} runs"] = share
    peeked = {"Clopper–Pearson at a randomised response at its ε = 1": control}
    error = float(np.sqrt(ALPHA * (1 - ALPHA) / runs))
    return {
        "runs": runs,
        "pairs": pairs,
        "alpha": ALPHA,
        "standard_error": error,
        "cases": found,
        "peeked": peeked,
    }


def together(share, delta, canaries, runs, error=ALPHA):
    """How often one-run p-values refuse a true (0, δ) whose failures come together.

    With chance δ/share it tells the coins of this share of the canaries, else nothing of any: each
    coin is told with chance δ. The product law lets each canary fail by itself, as one public
    implementation of Xiang et al. 2025 has it.
    """
    generator, refused = np.random.default_rng(0), {"product law": 0, "one-run dp": 0}
    for _ in range(runs):
        told = round(share * canaries) if generator.random() < delta / share else 0
        correct = told + generator.binomial(canaries - told, 0.5)
        alone = canaries - round(canaries * delta)
        refused["product law"] += stats.binom.cdf(canaries - correct, alone, 0.5) <= error
        told_p = dp_p_value(0.0, canaries=canaries, guesses=canaries, correct=correct, delta=delta)
        refused["one-run dp"] += told_p <= error
    return {name: float(count / runs) for name, count in refused.items()}


def one_run_laws(runs):
    """The product law beside our one-run bound: error where failures come together, and gain."""
    made = {
        f"δ = {delta:g}, {canaries} canaries, {share:g} of them at once": together(
            share, delta, canaries, runs
        )
        for delta, canaries, share in ((0.01, 1000, 0.1), (1e-3, 10_000, 0.02))
    }
    gain = {}
    for delta in (1e-5, 1e-3, 1e-2):
        for right in (0.7, 0.9):
            correct, alone = int(1000 * right), 1000 - round(1000 * delta)
            ours = last_true(
                lambda e, c=correct, d=delta: (
                    dp_p_value(e, canaries=1000, guesses=1000, correct=c, delta=d) <= ALPHA
                ),
                most=MOST,
                rounds=ROUNDS,
            )
            product = last_true(
                lambda e, c=correct, a=alone: (
                    stats.binom.cdf(1000 - c, a, special.expit(-e)) <= ALPHA
                ),
                most=MOST,
                rounds=ROUNDS,
            )
            gain[f"δ = {delta:g}, {right:.0%} right"] = {"one-run dp": ours, "product law": product}
    print(made, gain)
    return {"runs": runs, "alpha": ALPHA, "cases": made, "epsilon of 1,000 canaries": gain}


def fixed_size(reject, runs):
    """The least number of pairs of a grid at which half of the runs are refused; None: above it."""
    for n in (2 ** (np.arange(10, 25) / 2)).astype(int):
        if np.mean([reject(np.random.default_rng(s), n) for s in range(runs)]) >= 0.5:
            return int(n)
    return None


def power(runs, most, only):
    """Pairs until a broken step is seen: of noise 1, with the claim of a sound one."""
    broken = {  # claim's shift and rate; true shift and rate
        "noise halved": ((0.8, 0.45), (1.6, 0.45)),
        "clip left out": ((0.8, 0.45), (8e5, 0.45)),
        "doubled rate": ((0.8, 0.45), (0.8, 0.9)),
        "noise halved, not sampled": ((1.0, 1.0), (2.0, 1.0)),
        "noise 0.75, not sampled": ((1.0, 1.0), (4 / 3, 1.0)),
    }
    found = {}
    for name, (said, true) in broken.items():
        if only not in name:
            continue
        sound, make = curve(*said), gaussian(*true)
        looks = [first_look(Claim.curve(sound), make, most, s) for s in range(runs)]
        row = {"the whole curve": _quantiles(looks)}
        best = {}
        for delta in DELTAS:
            epsilon = float(sound.epsilon(delta).upper)
            looks = [
                first_look(Claim.budget(epsilon, delta), make, most, s) for s in range(runs // 2)
            ]
            best[delta] = _quantiles(looks)
        row["one (ε, δ), the best δ"] = min(best.values(), key=lambda q: q[1] or np.inf)
        for method in ("clopper-pearson", "gdp", "one-run dp", "one-run gdp"):
            row[method + ", number fixed"] = _rival(method, sound, make, runs // 8)
        found[name] = row
        print(name, row, flush=True)
    return {"runs": runs, "most": most, "alpha": ALPHA, "deltas": DELTAS, "cases": found}


def _rival(method, sound, make, runs):
    """The least fixed number over all δ; the δ is chosen in the rival's favour."""

    def reject(delta, epsilon):
        def of(generator, n):
            ins, outs = make(generator, n)
            if method.startswith("one-run"):
                coins = generator.random(n) < 0.5
                scores = np.where(coins, ins, outs)
                how = method.removeprefix("one-run ")
                return one_run(scores, coins, delta=delta, method=how).epsilon > epsilon
            return lower_bound(ins, outs, delta=delta, method=method).epsilon > epsilon

        return of

    sizes = [
        fixed_size(reject(delta, float(sound.epsilon(delta).upper)), runs) for delta in DELTAS[1:4]
    ]
    return min((n for n in sizes if n is not None), default=None)


def _quantiles(looks):
    """The 10 %, 50 % and 90 % quantiles; None where that many runs did not end."""
    ends = np.quantile(looks, [0.1, 0.5, 0.9], method="inverted_cdf")
    return [float(end) if np.isfinite(end) else None for end in ends]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["null", "power", "one-run"])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--only", default="", help="Cases whose name holds this.")
    asked = parser.parse_args()
    if asked.part == "null":
        made = null(asked.runs or 1000, asked.pairs or 500, asked.only)
    elif asked.part == "one-run":
        made = one_run_laws(asked.runs or 4000)
    else:
        made = power(asked.runs or 80, asked.pairs or 2000, asked.only)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    made["cases"] = stored.get(asked.part, {}).get("cases", {}) | made["cases"]
    stored |= {asked.part: made, "machine": describe_machine()}
    RESULT.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
