"""Audits that may stop: e-values by enumeration, false alarms at every look, broken engines."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.audit import Claim, anytime, anytime_bound, sequential
from apiece.audit.anytime import EProcess, _set_stakes, engine_rounds, project_rates, step_claims
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.mechanisms import Gaussian, Sampled
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import batches, loop, sums
from refusals import refused

LEVEL, NEEDED = 0.05, np.log(20)
RATES, CLIPS = np.array([0.45, 0.6]), np.array([0.8, 2.0])
GROUPS = Budgets.from_groups([("low", 1.0, 1), ("high", 2.0, 1)], 2, 1e-5)
PLAN = Plan("audit", 1.0, GROUPS.groups, (Stage(9, float(RATES.sum()), 1.0, RATES, CLIPS),))
noisy_mean, clip_and_sum, sampler = loop.noisy_mean, sums.clip_and_sum, batches.PoissonSampler


def means(claim: Claim, *sides: np.ndarray) -> list[Fraction]:
    """The exact mean of a pair's e-value at rates on each line, by all four outcomes."""
    p, q, stake_in, stake_out, slope, offset = ([Fraction(float(x)) for x in s] for s in sides)
    found = []
    for i in range(len(p)):
        for rate in (Fraction(k, 8) for k in range(9)):
            power = min(slope[i] * rate + offset[i], Fraction(1))
            total = Fraction(0)
            for a in (0, 1):
                for b in (0, 1):
                    value = (1 + stake_in[i] * (a - p[i])) * (1 - stake_out[i] * (b - q[i]))
                    assert value >= 0
                    total += value * (power if a else 1 - power) * (rate if b else 1 - rate)
            found.append(total)
    return found


CLAIMS = [
    Claim.budget(0.0, 0.0), Claim.budget(1.0, 1e-5), Claim.budget(6.0, 0.1),
    Claim.curve(privacy_curve(Gaussian(1.0))),
    Claim.curve(privacy_curve(Sampled(Gaussian(0.7), 0.3))),
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_an_e_value_has_mean_at_most_one_to_the_last_digit(claim: Claim) -> None:
    generator = np.random.default_rng(0)
    for seen_p, seen_q in [(0.9, 0.1), (0.999, 0.9), (0.2, 1e-4), *generator.random((4, 2))]:
        p, q, stake, _ = (
            side[0] for side in project_rates(np.array([[seen_p]]), np.array([[seen_q]]),
                                          claim.slope, claim.offset)
        )  # fmt: skip
        some = slice(None, None, 8)
        sides = p, q, stake, stake * claim.slope, claim.slope, claim.offset
        assert max(means(claim, *(side[some] for side in sides))) <= 1


def test_stakes_on_many_thresholds_together_are_an_e_value() -> None:
    """All laws of scores on a grid that keep the claim exactly: no mean is above 1."""
    generator = np.random.default_rng(1)
    ins, outs = np.sort(generator.integers(2, 6, 64)), np.sort(generator.integers(0, 4, 64))
    epsilon, checked = 0.5, 0
    found = _set_stakes(Claim.budget(epsilon, 0.0), ins.astype(float), outs.astype(float))
    assert found is not None
    trial, p, stake_in, q, stake_out = found
    above = np.arange(6)[:, None] > trial
    gain, loss = 1 + (above - p) @ stake_in, 1 - (above - q) @ stake_out
    assert min(gain.min(), loss.min()) >= 0
    for law in generator.dirichlet(np.ones(6), 300):
        for cut in range(1, 6):  # the likelihood ratio is e^ε above the cut, as much lower below it
            tilted = np.where(np.arange(6) >= cut, law * np.exp(epsilon), law)
            tilted /= tilted.sum()
            assert (tilted @ gain) * (law @ loss) <= 1 + 1e-12
            checked += 1
    assert checked == 1500


def gaussian(generator: np.random.Generator, n: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    return generator.normal(shift, size=n), generator.normal(size=n)


def share_refused(claim: Claim, shift: float, runs: int, n: int) -> float:
    found = [
        EProcess(claim).update(*gaussian(np.random.default_rng(s), n, shift)).max()
        for s in range(runs)
    ]
    return float(np.mean(np.array(found) >= NEEDED))


@pytest.mark.slow
def test_a_true_claim_is_seldom_refused_at_any_look_and_a_false_one_is() -> None:
    claim, runs = CLAIMS[3], 80
    assert share_refused(claim, 1.0, runs, 40) <= LEVEL + 3 * (LEVEL * (1 - LEVEL) / runs) ** 0.5
    assert share_refused(claim, 3.0, 10, 60) > 0.8


def test_peeking_at_a_test_of_a_fixed_number_fails() -> None:
    """The negative control: without the wealth, looks at every pair refuse a true claim."""
    generator, runs, false = np.random.default_rng(3), 400, 0
    for _ in range(runs):
        ins, outs = gaussian(generator, 500, 0.0)
        moved = np.cumsum(ins - outs) / np.sqrt(2 * np.arange(1, 501))
        false += bool((moved[20:] > 1.645).any())  # each look alone refuses one in twenty
    assert false / runs > 0.15


def test_wealth_does_not_depend_on_how_pairs_arrive() -> None:
    ins, outs = gaussian(np.random.default_rng(4), 90, 2.0)
    whole, parts = EProcess(CLAIMS[1]), EProcess(CLAIMS[1])
    once = whole.update(ins, outs)
    several = [
        parts.update(ins[a:b], outs[a:b]) for a, b in pairwise([0, 1, 7, 30, 31, 90])
    ]  # fmt: skip
    # but for round-off: numpy's logarithms of arrays of other lengths differ in the last bit
    np.testing.assert_allclose(once, np.concatenate(several), rtol=1e-12, atol=1e-12)
    assert len(parts) == 90
    assert parts.log_most == pytest.approx(whole.log_most, rel=1e-12)


@pytest.mark.slow
def test_the_bound_grows_with_pairs_and_stays_below_the_truth() -> None:
    ins, outs = gaussian(np.random.default_rng(5), 240, 1.0)
    found = [anytime_bound(ins[:n], outs[:n], delta=1e-5).epsilon for n in (60, 240)]
    truth = privacy_curve(Gaussian(1.0)).epsilon(1e-5).upper
    assert found == sorted(found)
    assert 0.1 < found[-1] < truth


def test_groups_are_watched_together_and_the_broken_one_is_named() -> None:
    generator = np.random.default_rng(6)

    def rounds():
        while True:
            yield {"a": gaussian(generator, 5, 1.0), "b": gaussian(generator, 5, 6.0)}

    found = sequential(rounds(), dict.fromkeys("ab", CLAIMS[3]), max_samples=500, delta=1e-5)
    assert found.rejected
    (sound, broken) = found.watched
    assert broken.evidence > 20
    assert not sound.rejected
    assert broken.samples < 200
    assert found.bounds["b"].confidence == pytest.approx(0.975)
    with pytest.raises(DataError, match="no claim for 'c'"):
        sequential([{"c": ([1.0], [0.0])}], {"a": CLAIMS[0]})
    with pytest.raises(DataError, match="give pairs"):
        sequential([{"a": ([1.0, 2.0], [0.0])}], {"a": CLAIMS[0]})
    with refused(InputError, "none"):
        sequential([], {})
    with refused(InputError, "epsilon"):
        Claim.budget(-1.0, 0.0)


def half_the_noise(clipped, noise_stddev, divisor, *, generator):
    return noisy_mean(clipped, noise_stddev / 2, divisor, generator=generator)


def a_forgotten_clip(model, loss_fn, inputs, targets, bounds, **options):
    return clip_and_sum(model, loss_fn, inputs, targets, bounds * 1e6, **options)


class DoubledRate(sampler):
    def __init__(self, stage, group_index, **options):
        rates = np.minimum(2 * stage.sampling_probability, 1)
        super().__init__(replace(stage, sampling_probability=rates), group_index, **options)


FAULTS = {
    "a forgotten clip": (sums, "clip_and_sum", a_forgotten_clip),
    "half the noise": (loop, "noisy_mean", half_the_noise),
    "a doubled rate": (batches, "PoissonSampler", DoubledRate),
}


@pytest.mark.parametrize(
    "fault",
    [f if k == 0 else pytest.param(f, marks=pytest.mark.slow) for k, f in enumerate(FAULTS)],
)
def test_a_broken_engine_is_stopped_early(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    found = sequential(engine_rounds(PLAN, seed=0), step_claims(PLAN), max_samples=640)
    assert found.rejected
    assert found.watched[0].samples < 640


def test_the_engine_keeps_its_claims() -> None:
    found = sequential(engine_rounds(PLAN, seed=1), step_claims(PLAN), max_samples=128)
    assert not found.rejected
    assert [each.group for each in found.watched] == ["low", "high"]


def test_a_round_has_a_seed_for_each_of_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def release(_plan: Plan, _canary: int | None, seed: int) -> np.ndarray:
        seeds.append(seed)
        return np.zeros(1)

    monkeypatch.setattr(anytime, "_release_steps", release)
    size = 600
    groups = Budgets(np.linspace(1, 2, size), 1e-5).groups
    stage = Stage(9, size * 0.1, 1.0, np.full(size, 0.1), np.ones(size))
    rounds = engine_rounds(Plan("audit", 1.0, groups, (stage, replace(stage))), seed=0)
    for _ in range(2):
        assert len(next(rounds)) == 2 * size
    assert len(set(seeds)) == len(seeds) == 2 * 2 * (size + 1)
