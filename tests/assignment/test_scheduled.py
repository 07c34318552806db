"""Noise schedules: stages with their own noise, every group spending what it spent before."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from apiece import Budgets, Plan, Sample, Scale, Sequential, Uniform, assign
from apiece.accounting import privacy_curve
from apiece.assignment import schedule_noise
from apiece.errors import InfeasibleError, InputError, UnsupportedError, VerificationError
from apiece.plan import Schedule
from apiece.plan.parts import Stage
from refusals import refused

BUDGETS = Budgets.from_groups([("a", 1.0, 100), ("b", 2.0, 200), ("c", 4.0, 100)], 400, 1e-5)
FALLING = Schedule(((0, 3.0), (20, 1.5), (60, 1.0)), "hold")


def plan(strategy=None, **options) -> Plan:
    settings = {"steps": 100, "expected_batch_size": 40, "clip_norm": 0.5, "method": "rdp"}
    return assign(BUDGETS, strategy or Scale(), **settings | options)


@pytest.mark.parametrize("strategy", [Uniform(), Scale(), Sample()], ids=lambda s: s.name)
def test_every_group_spends_what_it_spent(strategy) -> None:
    before = plan(strategy)
    after = schedule_noise(before, FALLING)
    assert [stage.steps for stage in after.stages] == [20, 40, 40]
    level = np.array([stage.noise_stddev for stage in after.stages])
    assert level / level[-1] == pytest.approx([3.0, 1.5, 1.0])
    assert (after.epsilon_spent <= before.epsilon_spent).all()
    assert after.epsilon_spent == pytest.approx(before.epsilon_spent, rel=1e-5)
    share = BUDGETS.groups.records / 400
    for stage in after.stages:
        assert share @ stage.clip_norm == pytest.approx(0.5)
        assert stage.expected_batch_size == 40
        assert (stage.sampling_probability == before.stages[0].sampling_probability).all()
    assert Plan.from_json(after.to_json()).verify().ok


def test_full_batches_by_hand() -> None:
    """With every record in every step it is one Gaussian, μ² = Σ T_k (C/σ_k)² (Dong et al.)."""
    after = schedule_noise(plan(expected_batch_size=400, method="pld"), FALLING)
    for g, epsilon in enumerate([1.0, 2.0, 4.0]):
        terms = [s.steps * (s.clip_norm[g] / s.noise_stddev) ** 2 for s in after.stages]
        mu, phi = float(np.sqrt(sum(terms))), NormalDist().cdf
        delta = phi(-epsilon / mu + mu / 2) - np.exp(epsilon) * phi(-epsilon / mu - mu / 2)
        assert 0.99e-5 < delta <= 1e-5


def test_without_solving_again_the_promise_is_broken() -> None:
    """The negative control: the same noises around the old level do not have the old ε."""
    before = plan()
    stage = before.stages[0]
    naive = [
        replace(stage, steps=50, noise_stddev=stage.noise_stddev * f)
        for f in (1.5, 0.5)  # the same on average
    ]
    with pytest.raises(VerificationError):
        replace(before, stages=tuple(naive)).verify().require()
    falling = schedule_noise(before, Schedule(((0, 3.0), (50, 1.0)), "hold"))
    assert falling.stages[1].noise_stddev > naive[1].noise_stddev


def test_the_plan_s_mechanism_is_the_stages_composed() -> None:
    after = schedule_noise(plan(), FALLING)
    parts = [stage.mechanism(1) for stage in after.stages]
    assert after.mechanism_for("b").mechanisms == tuple(parts)
    whole = privacy_curve(after.mechanism_for("b"), method="rdp").epsilon(1e-5).upper
    assert whole == after.epsilon_spent[1]


def test_smooth_schedules_are_cut_into_stages() -> None:
    after = schedule_noise(plan(), Schedule(((0, 2.0), (100, 1.0))), stages=3)
    assert [stage.steps for stage in after.stages] == [33, 33, 34]
    level = np.array([stage.noise_stddev for stage in after.stages])
    assert level / level[0] == pytest.approx(np.array([2 - 0.16, 2 - 0.49, 2 - 0.83]) / 1.84)


def test_a_flat_schedule_changes_nothing_that_counts() -> None:
    before = plan()
    (stage,) = schedule_noise(before, Schedule(((0, 7.0),))).stages
    assert stage.noise_stddev == pytest.approx(before.noise_stddev, rel=1e-4)
    assert stage.clip_norm == pytest.approx(before.stages[0].clip_norm, rel=1e-4)


def test_refuses() -> None:
    with pytest.raises(InputError, match="stages: not given"):
        schedule_noise(plan(), Schedule(((0, 2.0), (100, 1.0))))
    with pytest.raises(InputError, match="factor of the noise"):
        schedule_noise(plan(), Schedule(((0, 2.0), (50, 0.0)), "hold"))
    with pytest.raises(InputError, match="the plan has 100 steps"):
        schedule_noise(plan(), Schedule(((0, 2.0), (100, 1.0)), "hold"))
    with refused(InputError, "stages", 101):
        schedule_noise(plan(), FALLING, stages=101)
    with pytest.raises(UnsupportedError, match="3 stages"):
        schedule_noise(plan(Sequential()), FALLING)
    with pytest.raises(UnsupportedError, match="no promise"):
        schedule_noise(replace(plan(), objections=("it breaks one",)), FALLING)
    bounded = Budgets(np.ones(40), 1e-5, excess=0.2)
    with refused(UnsupportedError, "excess"):
        schedule_noise(
            assign(bounded, "uniform", steps=9, expected_batch_size=4, clip_norm=1.0), FALLING
        )


def test_an_epsilon_that_no_noise_keeps_is_refused() -> None:
    budgets = Budgets.from_groups([("a", 1e-6, 100), ("b", 2.0, 200)], 300, 1e-5)
    stage = Stage(100, 30.0, 1.0, [0.1, 0.1], [1.0, 1.0])
    # Rényi accounting states no ε as low as this at any noise.
    with refused(InfeasibleError, "schedule_noise", 1e-6, 1e-5):
        schedule_noise(Plan("own", 1.0, budgets.groups, (stage,), method="rdp"), FALLING)
