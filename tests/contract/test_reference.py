"""The reference of the excess: fixed by what was requested, whatever the others ask.

A general optimiser chooses the others' shares, budgets and δ and how the plan is made, and looks
for a plan that `check` or `enforce` accepts though it makes the victim more vulnerable than its
bound allows, by a reference that this file works out for itself. The control is the reference
that moves with the batch size that comes out: there it finds such plans at once.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy.optimize import differential_evolution

from apiece import contract
from apiece.accounting import PrivacyCurve, excess, noise_multipliers, privacy_curve
from apiece.assignment import (
    JorgensenSampling,
    Rounds,
    Sample,
    Scale,
    Sequential,
    Strategy,
    Threshold,
    Uniform,
    assign,
    schedule_noise,
)
from apiece.budgets import Budgets
from apiece.errors import ApieceError, InputError
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled
from apiece.plan import Plan, Schedule, verification
from apiece.plan.parts import Reference
from apiece.plan.verification import compute_excess

SIZE, HONEST, VICTIM, DELTA = 500, 25, 4.0, 1e-6
STEPS, BATCH = 40, 25.0
STRATEGIES: tuple[Strategy, ...] = (
    Sample("strictest"),
    Sample("loosest"),
    Sample("mean"),
    Sample("batch"),
    Threshold(),
    Sequential(),
)


def made(budgets: Budgets, strategy: Strategy) -> Plan:
    return assign(budgets, strategy, steps=STEPS, expected_batch_size=BATCH, clip_norm=1.0)


@cache
def promised(epsilon: float, delta: float) -> PrivacyCurve:
    """The curve of the uniform mechanism that was requested, by bisection on ε alone."""

    def uniform(z: float) -> Mechanism:
        return Repeated(Sampled(Gaussian(z), BATCH / SIZE), STEPS)

    low, high = 0.2, 50.0
    while high / low > 1 + 1e-7:
        z = (low * high) ** 0.5
        spent = privacy_curve(uniform(z), method="pld").epsilon(delta).upper
        low, high = (z, high) if spent > epsilon else (low, z)
    return privacy_curve(uniform(high), method="pld")


def true_harm(plan: Plan) -> float:
    """How much more vulnerable the victim is than by the mechanism that was requested."""
    g = [str(name).split(" ")[0] for name in plan.budget_groups.name].index("victim")
    baseline = promised(float(plan.budget_groups.epsilon[g]), float(plan.budget_groups.delta[g]))
    curve = privacy_curve(plan.mechanism_for(g), method="pld")
    return float(excess(baseline, curve).forward.upper)


def claimed_harm(plan: Plan) -> float:
    """What `check` says of the victim, without looking at the others."""
    names = [str(name).split(" ")[0] for name in plan.budget_groups.name]
    g = names.index("victim")
    curve = privacy_curve(plan.mechanism_for(g), method="pld")
    return float(compute_excess(plan, g, curve).forward.upper)


def moving_baseline(plan: Plan, group: int, _: object = None) -> Mechanism:
    """The planted break: a reference with the batch size, the records and steps that came out."""
    batches = sum(stage.steps * stage.expected_batch_size for stage in plan.stages)
    q = min(1.0, batches / plan.steps / plan.records)
    z = noise_multipliers(
        epsilon=plan.budget_groups.epsilon[group],
        delta=plan.budget_groups.delta[group],
        sampling_probability=q,
        steps=plan.steps,
    )
    return Reference(q, plan.steps).mechanism(float(z))


def population(attack: np.ndarray, bound: float | None = None) -> Budgets:
    """The honest, and two groups of colluders: their log ε, log δ and the first one's share."""
    first = int(np.clip(attack[4] * (SIZE - HONEST), 1, SIZE - HONEST - 1))
    counts = [HONEST, first, SIZE - HONEST - first]
    epsilon = np.repeat([VICTIM, *np.exp(attack[:2])], counts)
    delta = np.repeat([DELTA, *np.exp(attack[2:4])], counts)
    labels = np.repeat(["victim", "others", "others"], counts)
    return Budgets(epsilon, delta, excess=bound, labels=labels)


RANGES = [(np.log(0.15), np.log(20.0))] * 2 + [(np.log(1e-7), np.log(1e-5))] * 2 + [(0.0, 1.0)]


def worst(objective: Callable[[np.ndarray], float], *, rounds: int, starts: int) -> float:
    """Return the largest value found by differential evolution over attacks and the strategy."""
    generator = np.random.default_rng(3)
    bounds = [*RANGES, (0.0, len(STRATEGIES) - 1e-9)]
    first = generator.uniform(*zip(*bounds, strict=True), size=(starts, len(bounds)))
    first[:, -1] = np.arange(starts) % len(STRATEGIES)  # each way to make a plan
    found = differential_evolution(
        lambda x: -objective(x),
        bounds,
        maxiter=rounds,
        init=first,
        rng=generator,
        polish=False,
        tol=0,
    )
    return -float(found.fun)


def accepted_though_harmful(bound: float) -> Callable[[np.ndarray], float]:
    """Positive where the claim is within the bound and the truth beyond it; larger, the clearer."""

    def objective(x: np.ndarray) -> float:
        try:
            plan = made(population(x), STRATEGIES[int(x[-1])])
        except ApieceError:
            return -1.0
        return min(true_harm(plan) - bound, bound - claimed_harm(plan))

    return objective


@pytest.mark.parametrize("other", [2.0, 8.0])
def test_a_strict_minority_is_not_accepted(other: float, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = accepted_though_harmful(0.02)
    attack = np.array([np.log(0.2), np.log(other), np.log(DELTA), np.log(DELTA), 0.3, 0.0])
    assert objective(attack) <= 1e-4
    monkeypatch.setattr(verification, "find_baseline", moving_baseline)
    assert objective(attack) > 0.005  # the control


@pytest.mark.slow
def test_a_search_finds_no_plan_that_is_accepted_and_harms(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = accepted_though_harmful(0.02)
    assert worst(objective, rounds=2, starts=18) <= 1e-4
    monkeypatch.setattr(verification, "find_baseline", moving_baseline)
    assert worst(objective, rounds=0, starts=18) > 0.002  # the control


@pytest.mark.slow
@pytest.mark.parametrize("public", [0, 200])
def test_a_search_against_enforce_finds_nothing(public: int) -> None:
    bound = 0.004

    def objective(x: np.ndarray) -> float:
        plan = contract.enforce(
            population(x, bound),
            public=public,
            steps=STEPS,
            expected_batch_size=BATCH,
            clip_norm=1.0,
        )
        return true_harm(plan)

    assert worst(objective, rounds=1, starts=6) <= bound


@pytest.mark.parametrize(
    "noise",
    ["strictest", *(pytest.param(n, marks=pytest.mark.slow) for n in ("loosest", "mean", "batch"))],
)
def test_one_record_that_asks_for_little_is_seen(noise: str) -> None:
    strict = np.r_[0.2, np.full(SIZE - 1, VICTIM)]
    labels = np.r_[["strict"], np.full(SIZE - 1, "victim")]
    plan = made(Budgets(strict, DELTA, labels=labels), Sample(noise))
    assert plan.reference == Reference(BATCH / SIZE, STEPS)
    assert claimed_harm(plan) == pytest.approx(true_harm(plan), abs=1e-4)
    if noise == "strictest":
        assert claimed_harm(plan) > 0.03
        assert plan.measures.forward is not None
        assert plan.measures.forward.max() == pytest.approx(claimed_harm(plan), abs=1e-9)


@pytest.mark.slow
def test_every_strategy_keeps_the_requested_reference() -> None:
    budgets = Budgets(np.r_[np.full(100, 0.5), np.full(400, VICTIM)], 1e-4)
    wanted = Reference(BATCH / SIZE, STEPS)
    more: tuple[Strategy, ...] = (Scale(), Uniform("loosest"), JorgensenSampling(), Rounds(2))
    for strategy in (*STRATEGIES, *more):
        assert made(budgets, strategy).reference == wanted
    falling = schedule_noise(made(budgets, Scale()), Schedule(((0, 2.0), (20, 1.0)), "hold"))
    assert falling.reference == wanted


@pytest.mark.slow
def test_the_worst_coalition_knows_the_choice_of_noise() -> None:
    budgets = Budgets(np.full(SIZE, VICTIM), DELTA)
    found = contract.collusion(
        budgets,
        0,
        shares=[0.2],
        epsilons=[0.2, 100.0],
        steps=STEPS,
        expected_batch_size=BATCH,
        strategy=Sample("strictest"),
    )
    assert contract.worst(found) is found[1]
    assert found[1].forward.upper > 0.03 > found[0].forward.upper


def test_attacks_measure_against_the_same_reference() -> None:
    budgets = Budgets(np.full(SIZE, VICTIM), DELTA)
    settings = {"steps": STEPS, "expected_batch_size": BATCH, "clip_norm": 1.0}
    found = contract.budget_manipulation(
        budgets,
        0,
        decoys=[1.0],
        strategy=Sample("strictest"),
        **settings,  # type: ignore[arg-type]
    )
    for exposure in found:
        assert exposure.plan.reference == Reference(BATCH / SIZE, STEPS)
    clause = max(contract.check(found[1].plan), key=lambda c: c.epsilon)
    assert found[1].forward.upper == pytest.approx(clause.forward, abs=1e-9)


@pytest.mark.slow
def test_public_records_do_not_move_the_reference() -> None:
    """Whether padding is taken depends on what the others ask; the promise must not."""
    epsilon = np.array([4.0] * 60 + [1.0] * 240)
    bound = np.where(epsilon == 4, 0.02, 1.0)
    budgets = Budgets(epsilon, 1e-6, excess=bound)
    settings = {"steps": 20, "expected_batch_size": 25, "clip_norm": 1.0}
    for public in (0, 200):
        plan = contract.enforce(budgets, public=public, **settings)  # type: ignore[arg-type]
        assert plan.reference == Reference(25 / 300, 20)


def test_a_reference_of_ones_own() -> None:
    plan = made(population(np.array([0.0, 0.0, -12.0, -12.0, 0.5])), Scale())
    by_hand = Plan("own", 1.0, plan.budget_groups, plan.stages)
    assert by_hand.reference is not None
    assert by_hand.reference.sampling_probability == pytest.approx(BATCH / SIZE)
    for q, steps in ((0.0, 1), (1.5, 1), (float("nan"), 1), (0.5, 0), (0.5, 1.5)):
        with pytest.raises(InputError):
            Reference(q, steps)  # type: ignore[arg-type]
